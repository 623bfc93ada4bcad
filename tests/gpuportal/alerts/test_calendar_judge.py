"""Readings joined with the calendar, as ingest requests it."""

import json
import threading
import time
from datetime import timedelta

import pytest
import redis
from django.db import OperationalError
from django.utils import timezone

from gpuportal.alerts.calendar_judge import CalendarJudge, load_logins
from reservations.models import SitePolicy
from reservations.rules.lifecycle import State
from telemetry.models import TelemetryPolicy
from telemetry.protocol.gpu_state import GpuState
from telemetry.protocol.sample import GpuReading, ProcessReading
from tests.factories import make_gpu, make_gpus, make_reservation, make_user

HOUR = timedelta(hours=1)


def reading(*users: str, util_pct: int = 50, job: int | None = None) -> GpuReading:
    processes = tuple(
        ProcessReading(pid=100 + n, uid=1001 + n, user=user, job=job)
        for n, user in enumerate(users)
    )
    return GpuReading(uuid="GPU-1", util_pct=util_pct, processes=processes)


def watched(judge: CalendarJudge, gpu_id: int, seen: GpuReading, seconds: int = 8):
    """The state after so many seconds of the same reading."""
    start = timezone.now()
    state = GpuState.UNKNOWN
    for second in range(seconds):
        state = judge.judge(gpu_id, seen, 0.3, start + timedelta(seconds=second))
    return state


@pytest.fixture
def judge(db):
    made = CalendarJudge()
    made.refresh(timezone.now())
    return made


class TestStates:
    @pytest.mark.once
    def test_the_holders_process_is_busy_and_another_is_an_intruder(self, alice, bob):
        gpu = make_gpu()
        booked = make_reservation(alice, [gpu], state=State.ACTIVE)
        judge = CalendarJudge()
        judge.refresh(timezone.now())
        assert watched(judge, gpu.pk, reading("alice")) is GpuState.BUSY
        assert watched(judge, gpu.pk, reading("bob")) is GpuState.INTRUDER
        (found,) = judge.findings(gpu.pk)
        assert (found.rule, found.reservation_id) == ("intruder", booked.pk)
        assert found.detail["users"] == ["bob"]
        assert found.detail["processes"][0]["pid"] == 100
        assert len(found.trail.facts()) == 8

    def test_one_sample_accuses_nobody(self, alice, bob):
        gpu = make_gpu()
        make_reservation(alice, [gpu], state=State.ACTIVE)
        judge = CalendarJudge()
        judge.refresh(timezone.now())
        assert watched(judge, gpu.pk, reading("bob"), 1) is not GpuState.INTRUDER
        assert not list(judge.findings(gpu.pk))

    def test_a_process_where_nobody_booked_is_a_squatter(self, judge, bob):
        gpu = make_gpu()
        assert watched(judge, gpu.pk, reading("bob")) is GpuState.BUSY
        assert watched(judge, gpu.pk, reading("bob"), 12) is GpuState.SQUATTER
        (found,) = judge.findings(gpu.pk)
        assert found.detail["users"] == ["bob"]
        assert watched(judge, gpu.pk, reading()) is GpuState.FREE
        assert not list(judge.findings(gpu.pk))

    def test_a_booking_that_begins_between_two_refreshes_counts_at_once(self, alice):
        gpu = make_gpu()
        start = timezone.now() + timedelta(seconds=2)
        make_reservation(alice, [gpu], start, start + HOUR)
        judge = CalendarJudge()
        judge.refresh(timezone.now())
        assert judge.judge(gpu.pk, reading(), 0.3, timezone.now()) is GpuState.FREE
        later = start + timedelta(seconds=1)
        assert judge.judge(gpu.pk, reading(), 0.3, later) is GpuState.RESERVED
        assert judge.holder_present(gpu.pk, reading("alice"), later)
        assert not judge.holder_present(gpu.pk, reading("bob"), later)

    def test_a_job_leads_to_its_owner_whatever_unix_user_it_runs_as(self, alice):
        from placement.models import Job

        gpu = make_gpu()
        booked = make_reservation(alice, [gpu], state=State.ACTIVE)
        job = Job.objects.create(
            reservation=booked,
            owner=alice,
            name="train",
            kind=Job.Kind.RECIPE,
            recipe="tiny",
            node=gpu.node,
            state="running",
        )
        judge = CalendarJudge()
        judge.refresh(timezone.now())
        running = reading("nobody", job=job.pk)
        assert watched(judge, gpu.pk, running) is GpuState.BUSY

    def test_without_the_calendar_nobody_is_accused(self, db, bob):
        judge = CalendarJudge()
        assert watched(judge, 1, reading("bob")) is GpuState.BUSY
        assert not judge.holder_present(1, reading("bob"), timezone.now())
        assert not list(judge.findings(1))

    def test_silence_is_stale_and_never_an_accusation(self, judge):
        now = timezone.now()
        assert judge.judge(1, reading("bob"), 4.0, now) is GpuState.STALE
        assert judge.judge(1, None, float("inf"), now) is GpuState.UNKNOWN


class TestPicture:
    def test_a_unix_login_of_the_operators_counts_before_a_portal_name(self, db):
        taken = make_user("al")
        owner = make_user("zoe", unix_user="al")
        plain = make_user("bo")
        logins = load_logins()
        assert logins["al"] == owner.pk != taken.pk
        assert logins["bo"] == plain.pk
        assert "zoe" not in logins

    @pytest.mark.once
    def test_no_query_more_for_more_gpus(self, alice, django_assert_max_num_queries):
        for gpu in make_gpus(20):
            make_reservation(alice, [gpu], state=State.ACTIVE)
        SitePolicy.current()
        TelemetryPolicy.current()
        judge = CalendarJudge()
        judge.refresh(timezone.now())
        with django_assert_max_num_queries(10):
            judge.refresh(timezone.now())

    def test_a_database_that_is_away_leaves_the_last_picture(
        self, alice, monkeypatch, caplog
    ):
        gpu = make_gpu()
        make_reservation(alice, [gpu], state=State.ACTIVE)
        judge = CalendarJudge()
        judge.refresh(timezone.now())

        def away(*_args, **_kwargs):
            raise OperationalError("away")

        monkeypatch.setattr("gpuportal.alerts.calendar_judge.load_picture", away)
        monkeypatch.setattr(
            "gpuportal.alerts.calendar_judge.close_old_connections", lambda: None
        )
        judge._try_refresh()
        assert "cannot be read" in caplog.text
        assert watched(judge, gpu.pk, reading("alice")) is GpuState.BUSY


@pytest.mark.django_db(transaction=True)
def test_a_change_of_the_calendar_is_seen_at_once(
    valkey_url, redis_client, monkeypatch
):
    from tests.factories import make_membership

    # Long enough that only the message can be what it follows.
    monkeypatch.setattr("gpuportal.alerts.calendar_judge.REFRESH_SECONDS", 3600.0)

    alice = make_user("alice")
    make_membership(alice, "vision")
    gpu = make_gpu()
    judge, stop = CalendarJudge(), threading.Event()
    thread = threading.Thread(
        target=judge.run, args=(stop, lambda: redis.Redis.from_url(valkey_url))
    )
    thread.start()

    def state() -> GpuState:
        return judge.judge(gpu.pk, reading(), 0.3, timezone.now())

    def wait_for(wanted: GpuState) -> None:
        deadline = time.monotonic() + 60
        while state() is not wanted:
            assert time.monotonic() < deadline, json.dumps(state().name)
            time.sleep(0.05)

    try:
        wait_for(GpuState.FREE)
        make_reservation(alice, [gpu])
        redis_client.publish("reservations.changed", "1")
        wait_for(GpuState.RESERVED)
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()
