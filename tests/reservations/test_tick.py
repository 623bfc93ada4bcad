"""The tick: begin, watch, end, charge; twice and concurrently the same."""

from datetime import time, timedelta

import pytest

from reservations import tick
from reservations.models import (
    LateReturn,
    LedgerEntry,
    Notice,
    NoticeSettings,
    Reservation,
)
from reservations.notifications.queries import notices_with_text
from reservations.presence.check_in import check_in, keep_idle, note_work
from reservations.rules import errors
from reservations.rules.booking_alerts import IDLE_WARNING
from reservations.rules.lifecycle import State
from reservations.store import locks
from telemetry.models import Alert
from tests.factories import make_reservation
from tests.reservations.conftest import (
    HOUR,
    NOW,
    WEIGHT,
    at,
    balance,
    make_minutes,
)


@pytest.mark.once
def test_a_reservation_begins_runs_and_is_charged(lab, alice) -> None:
    made = lab.book(alice, lab.gpus[:2], at(10), 2)
    assert tick.tick(at(9, 59))["started"] == 0
    assert tick.tick(at(10))["started"] == 1
    made.refresh_from_db()
    assert made.state == State.ACTIVE
    assert tick.tick(at(12))["ended"] == 1
    made.refresh_from_db()
    assert made.state == State.ENDED
    assert balance(made) == (0, made.cost_gpu_seconds)
    assert not made.allocations.filter(live=True).exists()


@pytest.mark.once
def test_a_second_tick_finds_nothing_to_do(lab, alice) -> None:
    lab.book(alice, lab.gpus[:1], at(10), 1)
    tick.tick(at(10))
    rows = LedgerEntry.objects.count()
    assert not any(tick.tick(at(10)).values())
    tick.tick(at(11))
    after = LedgerEntry.objects.count()
    assert not any(tick.tick(at(11)).values())
    assert (rows, LedgerEntry.objects.count()) == (1, after)


def test_the_holder_hears_once_that_a_booking_begins(lab, alice) -> None:
    NoticeSettings.objects.create(user=alice, webhook_url="https://chat.example/x")
    made = lab.book(alice, lab.gpus[:2], at(10), 2)
    lab.book(alice, lab.gpus[2:3], NOW, 1)  # Whoever books for now knows it.
    tick.tick(at(9, 59))
    assert not Notice.objects.filter(kind="booking_started").exists()
    tick.tick(at(10))
    tick.tick(at(10, 1))
    told = Notice.objects.get(kind="booking_started")
    (info,) = notices_with_text([told], alice)
    assert told.user == alice and told.reservation == made
    assert info.url == f"/reservations/{made.pk}/#steps-title"
    first, second = (str(gpu) for gpu in lab.gpus[:2])
    assert info.text == (
        f"Your booking has started: {first}, {second} until Mon 2 Mar 12:00. Start a "
        "job or log in. Run something or check in before 10:15, or the GPUs are "
        "released."
    )
    assert not told.deliveries.exists()


def test_who_chose_a_channel_hears_there_that_a_booking_begins(lab, alice) -> None:
    NoticeSettings.objects.create(
        user=alice,
        webhook_url="https://chat.example/x",
        chosen={"booking_started": ["webhook"]},
        quiet_from=time(9),
        quiet_until=time(12),
    )
    lab.set(release_no_shows=False)
    lab.book(alice, lab.gpus[:1], at(10), 2)
    tick.tick(at(10))
    told = Notice.objects.get(kind="booking_started")
    assert told.deliveries.get().channel == "webhook"
    assert told.deliveries.get().next_at > at(10)
    (info,) = notices_with_text([told], alice)
    assert info.text.endswith("Start a job or log in.")


def test_nobody_pays_for_a_window_the_portal_slept_through(lab, alice) -> None:
    made = lab.book(alice, lab.gpus[:1], at(10), 1)
    tick.tick(at(15))
    made.refresh_from_db()
    assert made.state == State.REFUNDED
    mine = LedgerEntry.objects.filter(membership__user=alice)
    assert sum(row.gpu_seconds for row in mine) == 0
    site = LedgerEntry.objects.get(membership=None)
    assert site.gpu_seconds == made.cost_gpu_seconds == WEIGHT * HOUR


def test_one_bad_row_does_not_block_the_rest(lab, alice, bob, monkeypatch) -> None:
    bad = lab.book(alice, lab.gpus[:1], at(10), 1)
    good = lab.book(bob, lab.gpus[1:2], at(10), 1)
    original = locks.load_reservation

    def load(pk: int, **fields: object) -> Reservation:
        if pk == bad.pk:
            raise errors.NotFound(what="row")
        return original(pk, **fields)

    monkeypatch.setattr(locks, "load_reservation", load)
    assert tick.tick(at(10))["started"] == 1
    good.refresh_from_db()
    assert good.state == State.ACTIVE


def test_a_process_of_the_holder_is_checking_in(lab, alice) -> None:
    made = lab.book(alice, lab.gpus[:1], NOW, 2)
    make_minutes(lab.gpus[0], NOW, 1, process_n=3)
    assert tick.tick(at(9, 2))["checked_in"] == 1
    made.refresh_from_db()
    assert made.checked_in_at == at(9, 2)


@pytest.mark.once
def test_who_does_not_come_loses_the_gpu_and_pays_what_nobody_took(
    lab, alice, bob
) -> None:
    made = lab.book(alice, lab.gpus[:1], NOW, 3)
    make_minutes(lab.gpus[0], NOW, 15)
    assert tick.tick(at(9, 14))["no_shows"] == 0
    assert tick.tick(at(9, 15))["no_shows"] == 1
    made.refresh_from_db()
    assert (made.state, made.end) == (State.RELEASED, at(9, 15))
    assert balance(made) == (0, WEIGHT * 15 * 60)
    lab.book(bob, lab.gpus[:1], at(9, 15), 0.75, now=at(9, 15))
    tick.tick(at(12))
    # lambda is 1 for a no-show; Bob's 45 minutes are not charged twice.
    assert balance(made) == (0, WEIGHT * (15 * 60 + 2 * HOUR))


@pytest.mark.once
def test_blindness_is_never_the_students_fault(lab, alice) -> None:
    made = lab.book(alice, lab.gpus[:2], NOW, 6)
    for gpu in lab.gpus[:2]:
        make_minutes(gpu, NOW, 10)
    # Then an hour without samples, thin samples, and one Gpu unseen.
    make_minutes(lab.gpus[0], at(11), 30, n=20)
    make_minutes(lab.gpus[1], at(11), 30, n=60)
    make_minutes(lab.gpus[0], at(12), 30)
    assert tick.tick(at(12, 40))["no_shows"] == 0
    made.refresh_from_db()
    assert made.state == State.ACTIVE
    assert made.blind_seconds == 210 * 60
    for gpu in lab.gpus[:2]:
        make_minutes(gpu, at(13), 5)
    assert tick.tick(at(13, 5))["no_shows"] == 1


@pytest.mark.once
def test_no_shows_stay_where_the_site_does_not_release_them(lab, alice) -> None:
    lab.set(release_no_shows=False)
    lab.book(alice, lab.gpus[:1], NOW, 3)
    make_minutes(lab.gpus[0], NOW, 60)
    assert tick.tick(at(10))["no_shows"] == 0


@pytest.mark.once
def test_a_job_that_checked_in_is_no_no_show(lab, alice) -> None:
    made = lab.book(alice, lab.gpus[:1], NOW, 3)
    assert check_in(reservation_id=made.pk, now=at(9, 1), by="job")
    assert not check_in(reservation_id=made.pk, now=at(9, 2), by="job")
    make_minutes(lab.gpus[0], NOW, 60)
    assert tick.tick(at(10))["no_shows"] == 0


@pytest.fixture
def idle(lab, alice) -> Reservation:
    """Alice came at nine and has idled since."""
    lab.set(release_idle=True)
    made = lab.book(alice, lab.gpus[:1], NOW, 5)
    check_in(reservation_id=made.pk, now=NOW)
    make_minutes(lab.gpus[0], NOW, 30, process_n=60, util_pct=1)
    return made


@pytest.mark.once
def test_an_idle_reservation_is_warned_once_and_then_freed(lab, idle) -> None:
    assert tick.tick(at(9, 29))["idle_warned"] == 0
    assert tick.tick(at(9, 30))["idle_warned"] == 1
    alert = Alert.objects.get()
    assert (alert.rule, alert.reservation_id) == (IDLE_WARNING, idle.pk)
    make_minutes(lab.gpus[0], at(9, 30), 10, process_n=60, util_pct=1)
    assert tick.tick(at(9, 39))["idle_released"] == 0
    assert tick.tick(at(9, 40))["idle_released"] == 1
    idle.refresh_from_db()
    assert (idle.state, idle.end) == (State.RELEASED, at(9, 40))
    assert LateReturn.objects.first().permille == 1000
    assert not Alert.objects.open().exists()


def test_work_after_the_warning_takes_it_back(lab, idle) -> None:
    tick.tick(at(9, 30))
    make_minutes(lab.gpus[0], at(9, 30), 1, process_n=60, util_pct=80)
    tick.tick(at(9, 31))
    assert not Alert.objects.open().exists()
    idle.refresh_from_db()
    assert (idle.idle_warned_at, idle.state) == (None, State.ACTIVE)


def test_a_kernel_that_works_keeps_idle_gpus(lab, idle) -> None:
    """Idle time counts from the last work of a notebook, before and after a warning."""
    note_work(idle, at=at(9, 20))
    assert tick.tick(at(9, 30))["idle_warned"] == 0
    make_minutes(lab.gpus[0], at(9, 30), 40, process_n=60, util_pct=1)
    assert tick.tick(at(9, 50))["idle_warned"] == 1
    idle.refresh_from_db()
    note_work(idle, at=at(9, 51))
    note_work(idle, at=at(9, 21))
    assert tick.tick(at(10, 1))["idle_released"] == 0
    idle.refresh_from_db()
    assert (idle.idle_warned_at, idle.worked_at) == (None, at(9, 51))
    assert tick.tick(at(10, 8))["idle_warned"] == 0
    make_minutes(lab.gpus[0], at(10, 10), 11, process_n=60, util_pct=1)
    assert tick.tick(at(10, 21))["idle_warned"] == 1


def test_keep_gives_the_idle_clock_back_once(lab, idle, alice) -> None:
    tick.tick(at(9, 30))
    kept = keep_idle(reservation_id=idle.pk, user=alice, now=at(9, 31))
    assert kept.keep_used
    assert not Alert.objects.open().exists()
    make_minutes(lab.gpus[0], at(9, 30), 25, process_n=60, util_pct=0)
    assert tick.tick(at(9, 55))["idle_warned"] == 0
    with pytest.raises(errors.KeepUsed):
        keep_idle(reservation_id=idle.pk, user=alice, now=at(9, 56))


@pytest.mark.once
def test_a_blind_stretch_does_not_free_an_idle_reservation(lab, idle) -> None:
    tick.tick(at(9, 30))
    assert tick.tick(at(11))["idle_released"] == 0


def test_a_gpu_lost_for_long_is_refunded_and_the_site_pays(lab, alice) -> None:
    made = lab.book(alice, lab.gpus[:2], NOW, 4)
    lab.gpus[0].lost = True
    lab.gpus[0].save()
    assert tick.tick(at(10))["lost"] == 0
    assert tick.tick(at(10, 9))["lost"] == 0
    assert tick.tick(at(10, 10))["lost"] == 1
    made.refresh_from_db()
    assert (made.state, made.end) == (State.REFUNDED, at(10, 10))
    mine = LedgerEntry.objects.exclude(membership=None)
    assert sum(row.gpu_seconds for row in mine) == 0
    site = LedgerEntry.objects.get(membership=None)
    assert site.gpu_seconds == WEIGHT * 2 * 70 * 60


def test_a_gpu_that_comes_back_in_time_is_no_refund(lab, alice) -> None:
    made = lab.book(alice, lab.gpus[:1], NOW, 2)
    for lost, minute in ((True, 10), (False, 15), (True, 20)):
        lab.gpus[0].lost = lost
        lab.gpus[0].save()
        assert tick.tick(at(9, minute))["lost"] == 0
    made.refresh_from_db()
    assert made.lost_since == at(9, 20)


@pytest.mark.once
def test_the_site_pays_the_minutes_a_gpu_was_lost_before_the_end(lab, alice) -> None:
    made = lab.book(alice, lab.gpus[:1], NOW, 2)
    lab.gpus[0].lost = True
    lab.gpus[0].save()
    tick.tick(at(10, 55))
    tick.tick(at(11))
    made.refresh_from_db()
    assert made.state == State.ENDED
    site = LedgerEntry.objects.get(membership=None)
    assert site.gpu_seconds == WEIGHT * 5 * 60
    assert balance(made) == (0, WEIGHT * 2 * HOUR)


def test_rows_without_a_ledger_end_all_the_same(lab, alice) -> None:
    made = make_reservation(
        alice, lab.gpus[:1], at(6), at(8), state=State.ACTIVE, checked_in_at=at(6)
    )
    tick.tick(NOW)
    made.refresh_from_db()
    assert made.state == State.ENDED
    assert balance(made) == (0, WEIGHT * 2 * HOUR)


def test_the_task_runs_the_tick(lab, alice) -> None:
    from django.utils import timezone

    from reservations import tasks

    now = timezone.now()
    made = make_reservation(
        alice,
        lab.gpus[:1],
        now - timedelta(hours=2),
        now - timedelta(hours=1),
        state=State.ACTIVE,
    )
    assert tasks.tick()["ended"] == 1
    made.refresh_from_db()
    assert made.state == State.ENDED
