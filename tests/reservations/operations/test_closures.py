"""Maintenance, blackout and teaching slots: refused, previewed, cleared, ended."""

from dataclasses import replace
from datetime import timedelta

import pytest

from reservations import tick
from reservations.booking import service as booking
from reservations.booking.slot_search import find_slots
from reservations.models import Allocation, AuditEntry, Notice, Voucher
from reservations.operations import closures
from reservations.operations.closures import ClosureDraft
from reservations.operations.evacuation_plan import BookingFate
from reservations.presence.check_in import check_in
from reservations.rules.closed_time import ClosedThen
from reservations.rules.errors import NotFound, StaleVersion
from reservations.rules.lifecycle import State
from reservations.rules.review import FieldsInvalid, PreviewStale
from telemetry.models import Gpu
from tests.factories import at, make_gpus, make_node, make_pool
from tests.reservations.conftest import HOUR, NOW, WEIGHT, balance


def draft(gpus, start, end, **fields) -> ClosureDraft:
    fields.setdefault("kind", "maintenance")
    fields.setdefault("scope", "gpus")
    fields.setdefault("reason", "new fans")
    return ClosureDraft(
        start=start, end=end, gpu_ids=tuple(gpu.pk for gpu in gpus), **fields
    )


def close(wanted: ClosureDraft, omar, now=NOW, **more):
    seen = closures.preview(draft=wanted, now=now, pk=more.get("pk")).mark
    return closures.save(draft=wanted, actor=omar, now=now, mark=seen, **more)


def fates(plan) -> dict[int, BookingFate]:
    return {one.pk: one.fate for one in plan.reliefs}


def test_who_is_in_the_way_is_moved_or_cut_or_refunded_and_told(
    lab, alice, bob, carol, omar
) -> None:
    first, second, third, fourth = lab.gpus
    running = lab.book(alice, [first], NOW, 6)
    moves = lab.book(bob, [second], at(12), 2)
    cut = lab.book(carol, [third, fourth], at(11), 4)
    whole = lab.book(alice, [first, second, third], at(15), 3)
    # Three of four close at 12:00, and the fourth is taken.
    wanted = draft([first, second, third], at(12), at(20))
    plan = closures.preview(draft=wanted, now=NOW)
    assert fates(plan) == {
        running.pk: BookingFate.CUT,
        moves.pk: BookingFate.REFUNDED,
        cut.pk: BookingFate.CUT,
        whole.pk: BookingFate.REFUNDED,
    }
    assert Allocation.objects.filter(live=True).count() == 7  # Only looked at.
    make_gpus(1, make_node("node-b"))
    plan = closures.preview(draft=wanted, now=NOW)
    assert fates(plan)[moves.pk] is BookingFate.MOVED
    row, _ = closures.save(draft=wanted, actor=omar, now=NOW, mark=plan.mark)
    for one in (running, moves, cut, whole):
        one.refresh_from_db()
    assert (running.state, running.end) == (State.ACTIVE, at(12))
    assert (cut.state, cut.end) == (State.CONFIRMED, at(12))
    assert cut.cost_gpu_seconds == 2 * WEIGHT * HOUR
    assert balance(cut) == (cut.cost_gpu_seconds, 0)
    assert (whole.state, balance(whole)) == (State.REFUNDED, (0, 0))
    assert moves.state == State.CONFIRMED
    assert moves.allocations.get().gpu.node.name == "node-b"
    assert Voucher.objects.count() == 3
    kinds = sorted(Notice.objects.values_list("reservation_id", "kind"))
    assert [k for k in kinds if k[1] != "token_given"] == sorted(
        [
            (running.pk, "maintenance"),
            (moves.pk, "moved"),
            (cut.pk, "maintenance"),
            (whole.pk, "maintenance"),
        ]
    )
    assert AuditEntry.objects.filter(
        verb="closure.made", subject=f"closure:{row.pk}", actor=omar
    ).exists()
    # The one that runs pays what it used, when its new end has come.
    check_in(reservation_id=running.pk, now=NOW, by="click")
    tick.tick(at(12, 1))
    running.refresh_from_db()
    assert (running.state, balance(running)) == (State.ENDED, (0, 3 * WEIGHT * HOUR))


@pytest.mark.once
def test_booking_into_a_closure_is_refused_with_its_reason_and_the_next_slot(
    lab, alice, omar
) -> None:
    close(draft(lab.gpus, at(12), at(14)), omar)
    with pytest.raises(ClosedThen) as refused:
        lab.book(alice, lab.gpus[:1], at(13), 2)
    assert "new fans" in refused.value.text()
    assert refused.value.next_slot is not None
    assert refused.value.next_slot.start == at(14)
    preview = booking.preview(
        user=alice,
        membership=None,
        gpu_ids=[lab.gpus[0].pk],
        start=at(11),
        end=at(13),
        now=NOW,
    )
    assert preview.refusal is not None
    assert preview.refusal.code == "closed-then"
    found = find_slots(
        user=alice,
        membership=None,
        count=1,
        min_memory_bytes=0,
        duration_seconds=4 * HOUR,
        earliest=at(11),
        now=NOW,
    )
    assert found[0].start == at(14)
    # Up to its first instant and from its last one on the time is anybody's.
    lab.book(alice, lab.gpus[:1], at(11), 1)
    lab.book(alice, lab.gpus[:1], at(14), 1)


@pytest.mark.once
def test_a_teaching_slot_is_its_courses_alone(lab, alice, carol, omar) -> None:
    vision = alice.memberships.get().account
    hers = lab.book(alice, lab.gpus[:1], at(12), 1)
    outside = lab.book(carol, lab.gpus[1:2], at(12), 1)
    wanted = draft(
        (), at(12), at(14), kind="teaching", scope="site", account_id=vision.pk
    )
    _, plan = close(wanted, omar)
    assert fates(plan) == {outside.pk: BookingFate.REFUNDED}
    hers.refresh_from_db()
    assert hers.state == State.CONFIRMED
    lab.book(alice, lab.gpus[1:2], at(12), 1)
    with pytest.raises(ClosedThen, match="teaching by Vision"):
        lab.book(carol, lab.gpus[2:3], at(13), 1)
    # Nor is what a member holds inside it any way around it.
    with pytest.raises(ClosedThen):
        lab.book(carol, lab.gpus[1:2], at(13), 2)


@pytest.mark.once
def test_a_closure_that_begins_now_ends_what_runs(lab, alice, omar) -> None:
    running = lab.book(alice, lab.gpus[:1], NOW, 6)
    later = NOW + timedelta(hours=1)
    close(
        draft(
            (),
            later,
            at(20),
            scope="node",
            node_id=lab.gpus[0].node_id,
            kind="blackout",
        ),
        omar,
        now=later,
    )
    running.refresh_from_db()
    assert running.state == State.RELEASED
    assert balance(running) == (0, WEIGHT * HOUR)
    assert not running.late_returns.exists()
    assert Voucher.objects.filter(given_for=running).exists()


def test_a_changed_or_ended_closure_gives_time_back_and_undoes_no_refund(
    lab, alice, omar
) -> None:
    gone = lab.book(alice, lab.gpus, at(15), 1)
    row, _ = close(draft(lab.gpus, at(12), at(18)), omar)
    row, _ = close(draft(lab.gpus, at(12), at(14)), omar, pk=row.pk, version=1)
    with pytest.raises(StaleVersion):
        close(draft(lab.gpus, at(12), at(13)), omar, pk=row.pk, version=1)
    lab.book(alice, lab.gpus[:1], at(15), 1)
    # It runs: ending it moves its end; before its start it would be cancelled.
    closures.cancel(pk=row.pk, version=2, actor=omar, now=at(13))
    row.refresh_from_db()
    assert (row.end, row.cancelled_at) == (at(13), None)
    lab.book(alice, lab.gpus[:1], at(13), 1, now=at(13))
    gone.refresh_from_db()
    assert gone.state == State.REFUNDED
    with pytest.raises(NotFound):
        closures.cancel(pk=row.pk, version=3, actor=omar, now=at(14))
    verbs = AuditEntry.objects.filter(subject=f"closure:{row.pk}").order_by("pk")
    assert [entry.verb for entry in verbs] == [
        "closure.made",
        "closure.changed",
        "closure.ended",
    ]


@pytest.mark.once
def test_what_changed_since_the_preview_is_shown_again(lab, alice, omar) -> None:
    wanted = draft(lab.gpus, at(12), at(14))
    seen = closures.preview(draft=wanted, now=NOW).mark
    lab.book(alice, lab.gpus[:1], at(12), 1)
    with pytest.raises(PreviewStale):
        closures.save(draft=wanted, actor=omar, now=NOW, mark=seen)
    assert not closures.Closure.objects.exists()


@pytest.mark.once
def test_a_gpu_that_joins_a_closed_pool_is_cleared_at_the_next_tick(
    lab, alice, omar
) -> None:
    pool = lab.gpus[0].pool
    other = make_gpus(1, make_node("node-b"), pool=make_pool("NVIDIA L4", weight=3))[0]
    booked = lab.book(alice, [other], at(12), 1)
    close(draft((), at(11), at(14), scope="pool", pool_id=pool.pk), omar)
    tick.tick(NOW)
    booked.refresh_from_db()
    assert booked.state == State.CONFIRMED
    Gpu.objects.filter(pk=other.pk).update(pool=pool)
    assert tick.tick(NOW)["closed"] == 1
    assert tick.tick(NOW)["closed"] == 0
    booked.refresh_from_db()
    assert booked.state == State.REFUNDED


@pytest.mark.once
@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"reason": " "}, "reason"),
        ({"end": at(11)}, "end"),
        ({"start": at(6), "end": at(8)}, "end"),
        ({"start": at(7)}, "start"),
        ({"end": at(12) + timedelta(days=400)}, "end"),
        ({"gpu_ids": (10**9,)}, "gpus"),
        ({"gpu_ids": ()}, "gpus"),
        ({"scope": "node"}, "node"),
        ({"scope": "pool", "pool_id": 10**9}, "pool"),
        ({"kind": "teaching"}, "account"),
        ({"kind": "party"}, "kind"),
        ({"scope": "moon"}, "scope"),
    ],
)
def test_a_closure_that_cannot_be_meant_is_refused_by_field(lab, fields, field):
    wanted = replace(draft(lab.gpus, at(12), at(14)), **fields)
    with pytest.raises(FieldsInvalid) as refused:
        closures.preview(draft=wanted, now=NOW)
    assert list(refused.value.fields) == [field]
