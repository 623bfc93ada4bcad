"""Rights that end: guests, courses, what is archived."""

import pytest

from reservations.booking.service import preview
from reservations.booking.slot_search import find_slots
from reservations.fairshare.service import standing
from reservations.models import Account, Membership
from reservations.rules.booking_rights import RightEnds
from reservations.rules.errors import MembershipNeeded
from tests.reservations.conftest import NOW, at

pytestmark = pytest.mark.django_db


def test_nobody_books_past_the_end_of_their_right(lab, alice, bob) -> None:
    Membership.objects.filter(user=alice).update(
        expires_at=at(18), sponsor=bob, version=2
    )
    assert lab.book(alice, lab.gpus[:1], at(16), 2).end == at(18)
    with pytest.raises(RightEnds, match="with Vision until"):
        lab.book(alice, lab.gpus[:1], at(20), 1)
    seen = preview(
        user=alice,
        membership=None,
        gpu_ids=[lab.gpus[1].pk],
        start=at(17),
        end=at(19),
        now=NOW,
    )
    assert seen.refusal is not None and seen.refusal.code == "right-ends"
    slots = find_slots(
        user=alice,
        membership=None,
        count=1,
        min_memory_bytes=0,
        duration_seconds=3 * 3600,
        now=NOW,
        limit=9,
    )
    assert slots and max(slot.end for slot in slots) <= at(18)
    # A course's end applies to everybody who books in it or below it.
    Account.objects.filter(name="vision").update(ends_at=at(12))
    with pytest.raises(RightEnds):
        lab.book(bob, lab.gpus[1:2], at(11), 2)
    Account.objects.filter(name="vision").update(ends_at=None)
    lab.root.ends_at = at(12)
    lab.root.save()
    with pytest.raises(RightEnds):
        lab.book(bob, lab.gpus[1:2], at(11), 2)


def test_what_is_archived_books_nothing_and_has_no_part_in_its_level(
    lab, alice, carol
) -> None:
    Account.objects.filter(name="nlp").update(archived_at=NOW)
    with pytest.raises(MembershipNeeded):
        lab.book(carol, lab.gpus[:1], at(12), 1)
    own = standing(user=alice, now=NOW).memberships[0]
    assert own.path[1].norm_shares == 1.0
