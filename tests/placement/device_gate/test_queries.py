"""The grants of reservations: each change of one changes the grants of its node."""

import pytest

from placement.device_gate.queries import grants_of
from placement.protocol.device_grants import HolderGrant
from reservations import tick
from reservations.booking.booking_change import change
from reservations.booking.overstay import set_overstay
from reservations.booking.release import cancel, release
from reservations.models import Membership, User
from reservations.presence.check_in import check_in
from reservations.sharing import co_use, offers
from telemetry.models import Node
from tests.factories import make_gpus, make_node
from tests.reservations.conftest import HOUR, NOW, WEIGHT, at, lab, make_minutes

__all__ = ["lab"]


def granted(now):
    """Return who may open which of node-a's cards, and until when."""
    found = {}
    for grant in grants_of(Node.objects.get(name="node-a"), now):
        for uuid in grant.gpu_uuids:
            found[uuid] = (set(grant.users), grant.until)
    return found


@pytest.mark.once
def test_a_reservation_grants_its_cards_from_start_to_end(lab, alice, bob) -> None:
    User.objects.filter(pk=alice.pk).update(unix_user="ada")
    first, other, *_ = lab.gpus
    lab.book(alice, [first], at(10), 2)
    lab.book(bob, [other], at(11), 2)
    assert granted(at(9, 59)) == {}
    ends = at(12).timestamp()
    assert granted(at(10)) == {first.uuid: ({"ada"}, ends)}
    assert granted(at(11)) == {
        first.uuid: ({"ada"}, ends),
        other.uuid: ({"bob"}, at(13).timestamp()),
    }
    assert granted(at(12)).keys() == {other.uuid}
    elsewhere = make_node("node-b")
    make_gpus(1, elsewhere)
    assert grants_of(elsewhere, at(11)) == ()


@pytest.mark.once
def test_one_entry_holds_the_cards_of_one_reservation(lab, alice) -> None:
    lab.book(alice, lab.gpus[:2], NOW, 2)
    lab.book(alice, lab.gpus[2:3], NOW, 3)
    uuids = [gpu.uuid for gpu in lab.gpus]
    assert grants_of(Node.objects.get(), NOW) == (
        HolderGrant(("alice",), tuple(sorted(uuids[:2])), at(11).timestamp()),
        HolderGrant(("alice",), (uuids[2],), at(12).timestamp()),
    )


@pytest.mark.once
def test_extension_release_and_cancel_are_followed(lab, alice) -> None:
    made = lab.book(alice, lab.gpus[:1], NOW, 2)
    tick.tick(NOW)
    check_in(reservation_id=made.pk, now=NOW)
    made.refresh_from_db()
    longer = change(
        reservation_id=made.pk, user=alice, version=made.version, end=at(13), now=NOW
    )
    (users, until) = granted(NOW)[lab.gpus[0].uuid]
    assert (users, until) == ({"alice"}, at(13).timestamp())
    set_overstay(reservation_id=longer.pk, user=alice, now=NOW)
    assert granted(at(14))[lab.gpus[0].uuid][1] > at(14).timestamp()
    release(reservation_id=made.pk, user=alice, now=at(10))
    assert granted(at(10)) == {}
    other = lab.book(alice, lab.gpus[:1], at(12), 1, now=at(10))
    assert granted(at(12)).keys() == {lab.gpus[0].uuid}
    cancel(reservation_id=other.pk, user=alice, now=at(11))
    assert granted(at(12)) == {}


@pytest.mark.once
def test_a_reservation_that_nobody_comes_for_loses_its_grant(lab, alice) -> None:
    made = lab.book(alice, lab.gpus[:1], NOW, 4)
    tick.tick(NOW)
    assert granted(NOW).keys() == {lab.gpus[0].uuid}
    make_minutes(lab.gpus[0], NOW, 60)
    tick.tick(at(10))
    made.refresh_from_db()
    assert made.no_show
    assert granted(at(10)) == {}


@pytest.mark.once
def test_a_displaced_reservation_grants_nothing(lab, bob, carol) -> None:
    lab.set(quota_gpu_seconds=0)
    own = Membership.objects.get(user=carol)
    own.quota_gpu_seconds = WEIGHT * 40 * HOUR
    own.save()
    tuesday = at(14, day=3)
    lab.book(bob, lab.gpus[:1], tuesday, 2)
    lab.book(carol, lab.gpus[:1], tuesday, 2)
    assert granted(tuesday)[lab.gpus[0].uuid][0] == {"carol"}


@pytest.mark.once
def test_co_users_open_the_card_too_until_they_leave(lab, alice, bob) -> None:
    User.objects.filter(pk=bob.pk).update(unix_user="robert")
    made = lab.book(alice, lab.gpus[:1], NOW, 2)
    co_use.share(reservation_id=made.pk, user=alice, username="bob", now=NOW)
    assert granted(NOW)[lab.gpus[0].uuid][0] == {"alice", "robert"}
    co_use.unshare(reservation_id=made.pk, user=bob, co_user_id=bob.pk, now=NOW)
    assert granted(NOW)[lab.gpus[0].uuid][0] == {"alice"}


@pytest.mark.once
def test_what_is_handed_over_opens_to_the_new_holder(lab, alice, bob) -> None:
    made = lab.book(alice, lab.gpus[:1], NOW, 2)
    tick.tick(NOW)
    given = offers.offer(reservation_id=made.pk, user=alice, to="bob", now=NOW)
    offers.accept(offer_id=given.pk, user=bob, now=NOW)
    assert granted(NOW)[lab.gpus[0].uuid][0] == {"bob"}


@pytest.mark.once
def test_a_swap_opens_each_card_to_the_other_user(lab, alice, bob) -> None:
    own = lab.book(alice, lab.gpus[:1], at(10), 2)
    theirs = lab.book(bob, lab.gpus[1:2], at(10), 2)
    given = offers.offer(
        reservation_id=own.pk, user=alice, wanted_id=theirs.pk, now=NOW
    )
    offers.accept(offer_id=given.pk, user=bob, now=NOW)
    found = granted(at(10))
    assert [found[gpu.uuid][0] for gpu in lab.gpus[:2]] == [{"bob"}, {"alice"}]
