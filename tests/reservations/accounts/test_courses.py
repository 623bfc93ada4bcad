"""Courses and guests end by date: announced, wound down, archived, restored."""

from datetime import timedelta

import pytest

from reservations import tick
from reservations.accounts import courses
from reservations.accounts.tree import service as accounts
from reservations.accounts.tree.tree_edits import Edit
from reservations.booking.release import cancel
from reservations.models import (
    Account,
    AuditEntry,
    Membership,
    Notice,
    Reservation,
    TreeChange,
    Voucher,
)
from reservations.notifications.queries import notices_of
from reservations.rules.lifecycle import State
from reservations.store.booking_facts import site_policy
from reservations.waitlist import service as waiting
from tests.reservations.conftest import NOW, at, balance

pytestmark = pytest.mark.django_db
END = at(20, day=12)


def end_due(now):
    return courses.end_due(now, site_policy())


def test_a_course_is_told_of_its_end_then_ends_and_can_be_brought_back(
    lab, alice, bob, carol, omar
) -> None:
    vision = Account.objects.get(name="vision")
    carols = lab.book(carol, lab.gpus[2:3], at(12, day=13), 2, now=at(9, day=12))
    runs = lab.book(alice, lab.gpus[:1], at(10, day=12), 10, now=at(9, day=12))
    tick.tick(at(10, day=12))
    ahead = lab.book(bob, lab.gpus[1:2], at(12, day=13), 2, now=at(11, day=12))
    owed = Voucher.objects.create(
        membership=bob.memberships.get(), given_for=ahead, reason="lost GPU"
    )
    waits = waiting.ask(
        user=alice,
        membership=None,
        count=1,
        duration_seconds=3600,
        earliest=at(1, day=14),
        now=at(11, day=12),
    )
    Account.objects.filter(pk=vision.pk).update(ends_at=END)

    assert end_due(END - timedelta(days=7, seconds=1))["endings_told"] == 0
    assert end_due(END - timedelta(days=6))["endings_told"] == 2
    assert end_due(END - timedelta(days=6))["endings_told"] == 0
    assert end_due(END - timedelta(hours=20))["endings_told"] == 2
    texts = [told.text for told in notices_of(alice, unread=True, most=9)]
    ends = "Your membership in Vision ends Thu 12 Mar 20:00"
    assert any(text.startswith(ends) for text in texts)
    assert not Notice.objects.filter(user=carol).exists()

    # Prolonged a little: it still runs when the course ends.
    Reservation.objects.filter(pk=runs.pk).update(end=at(23, day=12))
    done = end_due(END)
    assert done["courses_ended"] == 1
    assert end_due(END) == {"endings_told": 0, "courses_ended": 0, "guests_ended": 0}
    for row in (carols, runs, ahead, owed, waits, vision):
        row.refresh_from_db()
    assert (carols.state, runs.state) == (State.CONFIRMED, State.RELEASED)
    assert (ahead.state, runs.end) == (State.CANCELLED, END)
    assert balance(ahead) == (0, 0)
    assert not runs.late_returns.exists()
    assert owed.revoked_at == END
    assert waits.state == "cancelled"
    assert vision.archived_at == END
    assert not vision.memberships.filter(active=True).exists()
    assert Notice.objects.filter(user=bob, reservation=ahead).count() == 1
    assert AuditEntry.objects.filter(verb="token.ended").count() == 1

    change = TreeChange.objects.get(kind="archive")
    assert change.actor is None
    later = END + timedelta(days=1)
    accounts.undo(change_id=change.pk, actor=omar, now=later)
    vision.refresh_from_db()
    assert vision.archived_at is None
    assert vision.ends_at == later + timedelta(days=7)
    assert vision.memberships.filter(active=True).count() == 2
    assert end_due(later)["courses_ended"] == 0


def test_a_guest_ends_and_their_sponsor_is_told_before(lab, alice, bob, carol) -> None:
    guest = Membership.objects.create(
        user=carol,
        account=Account.objects.get(name="vision"),
        sponsor=alice,
        expires_at=END,
    )
    booked = lab.book(
        carol, lab.gpus[:1], at(10, day=12), 2, membership=guest, now=at(9, day=12)
    )
    assert end_due(END - timedelta(days=3))["endings_told"] == 2
    text = notices_of(alice, unread=True, most=9)[0].text
    assert text.startswith("The time of Carol")
    assert "as a guest in Vision ends" in text
    assert end_due(END)["guests_ended"] == 1
    guest.refresh_from_db()
    booked.refresh_from_db()
    assert (guest.active, booked.state) == (False, State.CANCELLED)
    assert carol.memberships.get(active=True).account.name == "nlp"
    assert end_due(END)["guests_ended"] == 0


@pytest.mark.once
def test_two_ticks_at_once_archive_once(lab, alice, monkeypatch) -> None:
    Account.objects.filter(name="vision").update(ends_at=NOW)
    wind_down, inside = courses.offboarding.wind_down, []

    def twice(of, **more):
        if not inside:
            inside.append({})
            inside[0] |= end_due(NOW)
        return wind_down(of, **more)

    monkeypatch.setattr(courses.offboarding, "wind_down", twice)
    outer = end_due(NOW)
    assert inside[0]["courses_ended"] + outer["courses_ended"] == 1
    assert TreeChange.objects.count() == 1


def test_who_leaves_an_account_waits_no_more_and_is_still_owed(
    lab, alice, bob, omar
) -> None:
    ahead = lab.book(bob, lab.gpus[:1], at(12), 1)
    cancel(reservation_id=ahead.pk, user=bob, now=NOW)
    owed = Voucher.objects.create(
        membership=bob.memberships.get(), given_for=ahead, reason="lost GPU"
    )
    waits = waiting.ask(
        user=bob, membership=None, count=1, duration_seconds=3600, now=NOW
    )
    own = bob.memberships.get()
    edit = Edit("member", own.pk, own.version, {"active": False})
    accounts.save(edits=[edit], actor=omar, reason="left", now=NOW)
    end_due(NOW)
    waits.refresh_from_db()
    owed.refresh_from_db()
    assert (waits.state, owed.revoked_at) == ("cancelled", None)
