"""Moving, lengthening, shortening: RELEASE and HOLD in pairs."""

from datetime import timedelta

import pytest

from reservations import tick
from reservations.booking import booking_change
from reservations.booking.release import cancel
from reservations.booking.service import preview
from reservations.models import LateReturn, LedgerEntry
from reservations.rules import errors
from reservations.rules.lifecycle import Kind, State
from reservations.rules.policy import Policy
from tests.reservations.conftest import HOUR, NOW, WEIGHT, at, balance


def change(reservation, user, *, version=None, now=NOW, gpus=None, **fields):
    return booking_change.change(
        reservation_id=reservation.pk,
        user=user,
        version=reservation.version if version is None else version,
        gpu_ids=[gpu.pk for gpu in gpus] if gpus is not None else None,
        now=now,
        **fields,
    )


def test_lengthening_holds_more(lab, alice) -> None:
    made = lab.book(alice, lab.gpus[:1], at(14, day=4), 2)
    after = change(made, alice, end=at(18, day=4))
    assert (after.end, after.booked_end, after.version) == (
        at(18, day=4),
        at(18, day=4),
        2,
    )
    assert balance(made) == (WEIGHT * 4 * HOUR, 0)
    kinds = LedgerEntry.objects.order_by("pk").values_list("kind", "gpu_seconds")
    cost = WEIGHT * 2 * HOUR
    assert list(kinds) == [("hold", cost), ("release", -cost), ("hold", 2 * cost)]
    assert made.allocations.get().end == at(18, day=4)


def test_moving_to_other_gpus_and_another_time(lab, alice) -> None:
    made = lab.book(alice, lab.gpus[:2], at(14, day=4), 2)
    after = change(
        made, alice, start=at(8, day=5), end=at(9, day=5), gpus=lab.gpus[1:4]
    )
    assert after.cost_gpu_seconds == WEIGHT * 3 * HOUR
    assert balance(made) == (WEIGHT * 3 * HOUR, 0)
    assert set(made.allocations.values_list("gpu", "start", "live")) == {
        (gpu.pk, at(8, day=5), True) for gpu in lab.gpus[1:4]
    }
    assert not LateReturn.objects.exists()


@pytest.mark.once
def test_what_a_move_gives_back_late_is_remembered(lab, alice) -> None:
    made = lab.book(alice, lab.gpus[:1], at(14), 2)
    change(made, alice, start=at(15), end=at(17))
    late = LateReturn.objects.get()
    assert (late.start, late.end, late.permille) == (at(14), at(15), 500)


@pytest.mark.once
def test_flex_that_becomes_firm_gives_its_late_hours_back_as_flex(lab, alice) -> None:
    lab.set(quota_gpu_seconds=0)
    made = lab.book(alice, lab.gpus[:1], at(14), 2)
    assert made.kind == Kind.FLEX
    lab.set(quota_gpu_seconds=WEIGHT * 2 * HOUR)
    after = change(made, alice, start=at(16), end=at(18))
    late = LateReturn.objects.get()
    # The change was judged without them: as firm hours they would exceed the quota.
    assert after.kind == Kind.FIRM and not late.firm


@pytest.mark.once
def test_dragging_the_end_to_and_fro_costs_what_keeping_costs(lab, alice) -> None:
    made = lab.book(alice, lab.gpus[:1], at(12), 4)
    for end in (14, 16, 13, 15, 14, 16):
        made = change(made, alice, end=at(end))
    assert not LateReturn.objects.exists()
    tick.tick(at(16, 1))
    tick.tick(at(16, 2))
    assert balance(made) == (0, WEIGHT * 4 * HOUR)


@pytest.mark.once
def test_hours_that_stay_given_back_are_owed_once(lab, alice) -> None:
    made = lab.book(alice, lab.gpus[:1], at(12), 4)
    for end in (13, 16, 14):
        made = change(made, alice, end=at(end))
    late = LateReturn.objects.get()
    assert (late.start, late.end) == (at(14), at(16))
    tick.tick(at(16, 1))
    tick.tick(at(16, 2))
    assert balance(made) == (0, WEIGHT * 3 * HOUR)


@pytest.mark.once
def test_taking_back_what_was_given_back_needs_no_more_quota(lab, alice) -> None:
    lab.set(quota_gpu_seconds=WEIGHT * 4 * HOUR)
    made = lab.book(alice, lab.gpus[:1], at(12), 4)
    made = change(made, alice, end=at(13))
    assert change(made, alice, end=at(16)).kind == Kind.FIRM


@pytest.mark.once
def test_a_change_into_somebody_elses_time_is_refused(lab, alice, bob) -> None:
    lab.book(bob, lab.gpus[:1], at(16), 2)
    made = lab.book(alice, lab.gpus[:1], at(14), 2)
    with pytest.raises(errors.GpuTaken) as refused:
        change(made, alice, end=at(17))
    assert refused.value.next_slot is not None
    made.refresh_from_db()
    assert (made.end, made.version) == (at(16), 1)
    assert balance(made) == (made.cost_gpu_seconds, 0)


@pytest.mark.once
def test_a_stale_page_does_not_overwrite(lab, alice) -> None:
    made = lab.book(alice, lab.gpus[:1], at(14, day=4), 2)
    change(made, alice, end=at(17, day=4))
    with pytest.raises(errors.StaleVersion):
        change(made, alice, end=at(18, day=4), version=1)


@pytest.mark.once
def test_firm_never_becomes_flex_by_lengthening(lab, alice) -> None:
    lab.set(quota_gpu_seconds=WEIGHT * 3 * HOUR)
    made = lab.book(alice, lab.gpus[:1], at(14), 2)
    with pytest.raises(errors.QuotaExceeded):
        change(made, alice, end=at(18))
    assert change(made, alice, end=at(17)).kind == Kind.FIRM


@pytest.mark.once
def test_shortening_is_allowed_whatever_the_quota_is_now(lab, alice) -> None:
    made = lab.book(alice, lab.gpus[:1], at(14), 4)
    lab.set(quota_gpu_seconds=0, gpus_at_once=1, flex_horizon_seconds=0)
    after = change(made, alice, end=at(16))
    assert after.kind == Kind.FIRM
    assert balance(made) == (WEIGHT * 2 * HOUR, 0)
    with pytest.raises(errors.OffGrid):
        change(after, alice, end=at(15, 30))


@pytest.mark.once
def test_what_runs_changes_its_end_only(lab, alice) -> None:
    made = lab.book(alice, lab.gpus[:1], NOW, 2)
    assert made.state == State.ACTIVE
    after = change(made, alice, end=at(12), now=at(9, 30))
    assert (after.start, after.end, after.state) == (NOW, at(12), State.ACTIVE)
    assert change(after, alice, start=NOW, end=at(13), now=at(9, 31)).end == at(13)
    after.refresh_from_db()
    with pytest.raises(errors.NotChangeable):
        change(after, alice, start=at(10), end=at(12), now=at(9, 30))
    with pytest.raises(errors.NotChangeable):
        change(after, alice, gpus=lab.gpus[1:2], now=at(9, 30))
    with pytest.raises(errors.EndNotAfterStart):
        change(after, alice, end=at(9), now=at(9, 30))
    with pytest.raises(errors.InThePast):
        change(after, alice, end=at(9, 10), now=at(9, 30))


@pytest.mark.once
def test_what_runs_may_end_as_late_as_a_refusal_says(lab, alice, bob) -> None:
    made = lab.book(alice, lab.gpus[:1], NOW, 2)
    lab.book(bob, lab.gpus[:1], at(12), 2)

    now = at(9, 30)

    def longest(end):
        with pytest.raises(errors.Refusal) as refused:
            change(made, alice, end=end, now=now)
        seen = preview(
            user=alice,
            membership=None,
            gpu_ids=[lab.gpus[0].pk],
            start=NOW,
            end=end,
            now=now,
            ignoring=made.pk,
        )
        assert seen.refusal.longest_end == refused.value.longest_end
        assert seen.next_slot is refused.value.next_slot is None, "it cannot move"
        return refused.value.longest_end

    assert longest(at(13)) == at(12)
    assert longest(at(13) + timedelta(days=400)) == at(12)
    change(made, alice, end=at(12), now=at(9, 30))
    made.refresh_from_db()
    assert longest(at(13)) is None, "nothing is free after it"
    assert longest(at(9, 10)) is None


@pytest.mark.once
def test_a_running_booking_may_last_as_long_as_any(lab, alice) -> None:
    made = lab.book(alice, lab.gpus[:1], NOW, 2)
    with pytest.raises(errors.TooLong) as refused:
        change(made, alice, end=NOW + timedelta(hours=30), now=at(9, 30))
    most = NOW + timedelta(seconds=Policy().longest_seconds)
    assert refused.value.longest_end == most
    assert refused.value.members["longest_end"].endswith("Z")


@pytest.mark.once
def test_moving_the_start_to_now_begins_at_once(lab, alice) -> None:
    made = lab.book(alice, lab.gpus[:1], at(14), 2)
    after = change(made, alice, start=at(9), end=at(11), now=at(9, 12))
    assert (after.start, after.state) == (at(9, 12), State.ACTIVE)


@pytest.mark.once
def test_what_is_over_cannot_be_changed(lab, alice) -> None:
    made = lab.book(alice, lab.gpus[:1], at(14), 2)
    cancel(reservation_id=made.pk, user=alice, now=NOW)
    made.refresh_from_db()
    with pytest.raises(errors.NotChangeable):
        change(made, alice, end=at(18))


@pytest.mark.once
def test_the_quota_counts_what_has_run_when_the_end_moves(lab, alice) -> None:
    lab.set(quota_gpu_seconds=WEIGHT * 4 * HOUR, longest_seconds=24 * HOUR)
    made = lab.book(alice, lab.gpus[:1], NOW, 3)
    with pytest.raises(errors.QuotaExceeded):
        change(made, alice, end=at(14), now=at(11, 30))
    seen = preview(
        user=alice,
        membership=None,
        gpu_ids=[lab.gpus[0].pk],
        start=NOW,
        end=at(13),
        now=at(11, 30),
        ignoring=made.pk,
    )
    assert (seen.kind, seen.quota_left_gpu_seconds) == (Kind.FIRM, 0)
