"""The rest of a running Reservation on other Gpus: all of it, or nothing."""

from datetime import timedelta

import pytest
from django.core.management import call_command
from django.db import transaction

from reservations import tick
from reservations.booking.relocation import relocate_rest
from reservations.booking.service import book
from reservations.models import Allocation, AuditEntry, LedgerEntry, SitePolicy
from reservations.presence.check_in import check_in, keep_idle
from reservations.rules.errors import (
    GpuNotBookable,
    GpuTaken,
    NotAllowed,
    NotChangeable,
    QuotaExceeded,
)
from reservations.rules.lifecycle import State
from telemetry.models import Gpu
from tests.factories import at, make_gpus, make_node

pytestmark = pytest.mark.django_db


@pytest.fixture
def gpus():
    return make_gpus(4, make_node("red"))


@pytest.fixture
def held(alice, gpus):
    """Alice's Reservation of two Gpus, 9 to 15 o'clock; it is 9."""
    return book(
        user=alice,
        membership=None,
        gpu_ids=[gpus[0].pk, gpus[1].pk],
        start=at(9),
        end=at(15),
        purpose="train",
        now=at(9),
    )


def rest(held, gpus, *, now=None, actor=None):
    with transaction.atomic():
        return relocate_rest(
            reservation_id=held.pk,
            gpu_ids=[gpu.pk for gpu in gpus],
            actor=actor,
            now=now or at(11),
            reason="test",
        )


def test_the_rest_goes_on_elsewhere_and_costs_the_same(held, gpus, alice):
    made = rest(held, [gpus[1], gpus[2]], actor=alice)
    held.refresh_from_db()
    assert (held.state, held.end) == (State.RELEASED, at(11))
    assert (made.state, made.start, made.end) == (State.ACTIVE, at(11), at(15))
    assert (made.user, made.purpose, made.kind) == (alice, "train", held.kind)
    live = Allocation.objects.filter(live=True).order_by("gpu_id")
    assert [(a.gpu, a.reservation) for a in live] == [(gpus[1], made), (gpus[2], made)]
    assert held.cost_gpu_seconds + made.cost_gpu_seconds == 2 * 10 * 6 * 3600
    call_command("check_books")


def test_nothing_is_charged_for_hours_that_the_portal_asked_for(held, gpus):
    rest(held, [gpus[2], gpus[3]])
    tick.tick(at(15, 1))
    kinds = LedgerEntry.objects.filter(kind="charge").order_by("pk")
    assert [row.gpu_seconds for row in kinds] == [2 * 10 * 7200, 2 * 10 * 4 * 3600]
    held.refresh_from_db()
    assert held.late_returns.count() == 0
    call_command("check_books")


@pytest.mark.once
def test_it_stands_in_the_audit_log(held, gpus, alice):
    made = rest(held, [gpus[1], gpus[2]], actor=alice)
    entry = AuditEntry.objects.get(verb="reservation.moved-on")
    assert (entry.actor, entry.subject) == (alice, f"reservation:{held.pk}")
    assert entry.detail == {
        "to": made.pk,
        "gpus": [gpus[1].pk, gpus[2].pk],
        "gave_back": [gpus[0].pk],
    }


def unchanged(held, gpus):
    held.refresh_from_db()
    live = Allocation.objects.filter(live=True, reservation=held)
    return held.state == State.ACTIVE and [a.gpu for a in live] == gpus[:2]


@pytest.mark.once
def test_a_gpu_that_somebody_holds_changes_nothing(held, gpus, bob):
    book(
        user=bob,
        membership=None,
        gpu_ids=[gpus[2].pk],
        start=at(13),
        end=at(14),
        now=at(10),
    )
    with pytest.raises(GpuTaken):
        rest(held, [gpus[1], gpus[2]])
    assert unchanged(held, gpus)


def test_a_broken_gpu_is_not_moved_onto(held, gpus):
    Gpu.objects.filter(pk=gpus[2].pk).update(lost=True)
    with pytest.raises(GpuNotBookable):
        rest(held, [gpus[2]])
    assert unchanged(held, gpus)


@pytest.mark.once
def test_a_firm_right_never_turns_into_a_weaker_one(held, gpus):
    policy = SitePolicy.current()
    policy.quota_gpu_seconds = 3600
    policy.save()
    with pytest.raises(QuotaExceeded):
        rest(held, [gpus[2], gpus[3]])
    assert unchanged(held, gpus)


@pytest.mark.once
def test_only_what_runs_can_move_and_only_by_whom_it_concerns(held, gpus, carol):
    with pytest.raises(NotAllowed):
        rest(held, [gpus[2]], actor=carol)
    with pytest.raises(NotChangeable):
        rest(held, [gpus[2]], now=at(15) + timedelta(seconds=1))
    assert unchanged(held, gpus)


def test_who_came_has_come_and_what_was_kept_stays_kept(held, gpus, alice):
    check_in(reservation_id=held.pk, now=at(9, 5), by="click")
    keep_idle(reservation_id=held.pk, user=alice, now=at(10))
    made = rest(held, [gpus[2]])
    assert (made.checked_in_at, made.keep_used) == (at(9, 5), True)
