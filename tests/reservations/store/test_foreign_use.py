"""A GPU that someone else's process uses is offered last, and with a warning."""

from datetime import timedelta

import pytest

from reservations import tick
from reservations.booking.release import release
from reservations.booking.slot_search import find_slots
from reservations.rules.booking_alerts import INTRUDER, SQUATTER
from reservations.rules.lifecycle import State
from reservations.store.membership_rights import payers
from reservations.waitlist import service as waiting
from telemetry.models import Alert
from tests.factories import make_gpu, make_membership, make_reservation
from tests.reservations.conftest import NOW

MINUTE = timedelta(minutes=1)


def squat(gpu, rule=SQUATTER) -> Alert:
    return Alert.objects.create(rule=rule, gpu=gpu, opened_at=NOW, last_seen_at=NOW)


def find(user, **fields):
    return find_slots(
        user=user,
        membership=None,
        count=fields.pop("count", 1),
        min_memory_bytes=0,
        duration_seconds=7200,
        now=NOW,
        **fields,
    )


@pytest.mark.once
@pytest.mark.parametrize("rule", [SQUATTER, INTRUDER])
def test_a_clean_gpu_is_found_first(lab, alice, rule) -> None:
    squat(lab.gpus[0], rule)
    first, *others = find(alice)
    assert first.gpu_ids == (lab.gpus[1].pk,)
    assert first.foreign_gpu_ids == ()
    # No second offer of the same node and time that is worse.
    assert all(one.start > first.start for one in others)


def test_where_no_other_is_free_it_is_offered_and_marked(lab, alice, bob) -> None:
    squat(lab.gpus[0])
    lab.book(bob, lab.gpus[1:], NOW, 4)
    first = find(alice)[0]
    assert first.gpu_ids == (lab.gpus[0].pk,)
    assert first.start == NOW
    assert first.foreign_gpu_ids == (lab.gpus[0].pk,)


def test_several_gpus_leave_it_out_where_they_can(lab, alice) -> None:
    squat(lab.gpus[1])
    first = find(alice, count=3)[0]
    assert first.gpu_ids == (lab.gpus[0].pk, lab.gpus[2].pk, lab.gpus[3].pk)


def test_a_clean_gpu_of_a_larger_class_comes_before_it(lab, alice) -> None:
    for gpu in lab.gpus:
        squat(gpu)
    large = make_gpu(lab.gpus[0].node, memory_total_bytes=160 * 2**30)
    assert find(alice)[0].gpu_ids == (large.pk,)


def test_a_later_start_is_not_warned_about(lab, alice) -> None:
    squat(lab.gpus[0])
    first = find(alice, earliest=NOW + timedelta(hours=6))[0]
    assert first.gpu_ids == (lab.gpus[0].pk,)
    assert first.foreign_gpu_ids == ()


def test_what_is_over_does_not_count(lab, alice) -> None:
    alert = squat(lab.gpus[0])
    alert.closed_at = NOW
    alert.save()
    assert find(alice)[0].gpu_ids == (lab.gpus[0].pk,)


def test_the_payer_of_the_newest_booking_comes_first(lab, alice) -> None:
    [vision] = alice.memberships.all()
    course = make_membership(alice, "a-course")
    assert payers(alice) == [course, vision]  # nothing booked: by name
    lab.book(alice, lab.gpus[:1], NOW, 1, membership=vision)
    assert payers(alice) == [vision, course]
    lab.book(alice, lab.gpus[1:2], NOW, 1, membership=course)
    assert payers(alice) == [course, vision]
    course.active = False
    course.save()
    assert payers(alice) == [vision]


@pytest.mark.once
@pytest.mark.parametrize("start", [NOW, NOW + timedelta(hours=6)])
def test_the_waitlist_avoids_it_for_a_start_now(lab, alice, bob, start) -> None:
    squat(lab.gpus[0])
    until = NOW + timedelta(hours=8)
    held = make_reservation(bob, lab.gpus, NOW, until, state=State.ACTIVE)
    asked = waiting.ask(
        user=alice,
        membership=None,
        count=1,
        duration_seconds=7200,
        earliest=start,
        latest=NOW + timedelta(hours=9),
        any_notice=True,
        now=NOW,
    )
    assert tick.tick(NOW)["placed"] == 0
    release(reservation_id=held.pk, user=bob, now=NOW + MINUTE)
    tick.tick(NOW + MINUTE)
    asked.refresh_from_db()
    (got,) = asked.reservation.allocations.all()
    clean = lab.gpus[1] if start == NOW else lab.gpus[0]
    assert (got.gpu, asked.state) == (clean, "placed")


@pytest.mark.once
def test_the_waitlist_takes_it_where_no_other_is_free(lab, alice, bob) -> None:
    squat(lab.gpus[0])
    lab.book(bob, lab.gpus[1:], NOW, 8)
    row = waiting.ask(
        user=alice,
        membership=None,
        count=1,
        duration_seconds=7200,
        latest=NOW + timedelta(hours=3),
        any_notice=True,
        now=NOW,
    )
    tick.tick(NOW)
    row.refresh_from_db()
    assert [one.gpu for one in row.reservation.allocations.all()] == [lab.gpus[0]]
