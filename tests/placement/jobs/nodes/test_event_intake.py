"""Nodes' reports of Jobs, and their limits of trust."""

import time
from datetime import timedelta

import pytest
from django.utils import timezone

from placement.jobs import service as jobs_service
from placement.jobs.tick import job_tick
from placement.models import Job
from placement.protocol.commands import OrderKind
from placement.protocol.job_lifecycle import JobState
from reservations.models import CoUser
from tests.factories import make_node
from tests.placement.stage import NOW, belief, fact, now_is, record

pytestmark = pytest.mark.django_db


# --- facts ---


def test_started_then_exited_well_is_done(job):
    job_tick.tick(NOW)
    assert record(fact(job, "started"))
    job.refresh_from_db()
    assert (job.state, job.started_at is not None) == (JobState.RUNNING, True)
    assert record(fact(job, "exited", exit_code=0, log_bytes=10, last_lines=["bye"]))
    job.refresh_from_db()
    assert (job.state, job.exit_code, job.last_lines) == (JobState.DONE, 0, ["bye"])
    assert job.log_bytes == 10
    words = list(job.events.values_list("old", "new", "actor"))
    assert words == [
        ("", "queued", "alice"),
        ("queued", "starting", "portal"),
        ("starting", "running", "red"),
        ("running", "done", "red"),
    ]


@pytest.mark.once
def test_text_that_a_database_cannot_hold_does_not_cost_the_fact(job):
    job_tick.tick(NOW)
    bad = "bye\0\ud800!"
    assert record(fact(job, "exited", exit_code=1, reason=bad, last_lines=[bad]))
    job.refresh_from_db()
    assert (job.state, job.reason) == (JobState.FAILED, "bye?!")
    assert job.last_lines == ["bye?!"]


@pytest.mark.once
def test_a_job_that_starts_checks_its_holder_in(job, reservation):
    job_tick.tick(NOW)
    record(fact(job, "started"))
    reservation.refresh_from_db()
    assert reservation.checked_in_at is not None


def test_a_short_jobs_end_may_come_before_its_start_was_heard(job, reservation):
    job_tick.tick(NOW)
    now = time.time()
    record(fact(job, "exited", exit_code=0, started_at=now, at=now))
    job.refresh_from_db()
    assert job.state == JobState.DONE and job.started_at is not None
    reservation.refresh_from_db()
    assert reservation.checked_in_at is not None


@pytest.mark.parametrize(
    ("more", "state", "reason"),
    [
        ({"exit_code": 7}, JobState.FAILED, "exit code 7"),
        (
            {"exit_code": 1, "last_lines": ["Traceback:", "KeyError: 'x'", ""]},
            JobState.FAILED,
            "exit code 1: KeyError: 'x'",
        ),
        ({"signal": 9}, JobState.FAILED, "ended by SIGKILL"),
        (
            {"signal": 15, "stopped": True, "reason": "the reservation's end"},
            JobState.STOPPED,
            "the reservation's end",
        ),
        ({"exit_code": 1, "reason": "out of memory"}, JobState.FAILED, "out of memory"),
    ],
)
def test_how_it_ended_decides_the_state(running, more, state, reason):
    record(fact(running, "exited", **more))
    assert (now_is(running), running.reason) == (state, reason)
    assert running.exit_signal == more.get("signal")


def test_facts_that_come_twice_change_nothing(running):
    said = fact(running, "exited", exit_code=3)
    assert record(said)
    events = running.events.count()
    assert not record(said)
    assert not record(fact(running, "started"))
    assert not record(fact(running, "exited", exit_code=0))
    assert now_is(running) == JobState.FAILED
    assert running.events.count() == events


@pytest.mark.once
def test_a_node_cannot_speak_of_another_nodes_job(running):
    make_node("blue")
    assert not record(fact(running, "exited", exit_code=0), node="blue")
    assert not record(belief(running, ended=[fact(running, "lost")]), node="blue")
    assert now_is(running) == JobState.RUNNING


@pytest.mark.once
def test_unknown_jobs_and_attempts_are_ignored(running):
    assert not record({**fact(running, "exited"), "job": 999_999})
    assert not record({**fact(running, "exited"), "attempt": 2})
    assert now_is(running) == JobState.RUNNING


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"v": 1},
        {"v": 1, "kind": "job"},
        {"v": 1, "kind": "jobs", "at": "now"},
        {"v": 1, "kind": "jobs", "at": 1, "running": {}},
        {"v": 1, "kind": "jobs", "at": 1, "running": [{"job": "x"}]},
        {"v": 1, "kind": "jobs", "at": float("nan"), "running": []},
    ],
)
def test_garbage_is_refused(message):
    assert not record(message)


@pytest.mark.once
@pytest.mark.parametrize(
    "broken",
    [
        {"exit_code": "0"},
        {"exit_code": 300},
        {"signal": -1},
        {"last_lines": "x"},
        {"at": 1e300},
        {"reason": 7},
        {"event": "gone"},
        {"job": True},
    ],
)
def test_a_fact_with_a_wrong_field_moves_nothing(running, broken):
    assert not record({**fact(running, "exited", exit_code=0), **broken})
    assert now_is(running) == JobState.RUNNING


@pytest.mark.once
def test_a_nodes_wrong_clock_does_not_turn_time_around(job):
    job_tick.tick(NOW)
    now = timezone.now()
    record(fact(job, "started", at=now.timestamp() + 86_400), now)
    job.refresh_from_db()
    assert job.started_at == now
    record(fact(job, "exited", at=5.0, exit_code=0), now)
    job.refresh_from_db()
    assert job.started_at <= job.ended_at <= now


@pytest.mark.once
def test_a_refusal_fails_the_job_with_the_nodes_words(job):
    job_tick.tick(NOW)
    job.refresh_from_db()
    assert record(
        fact(job, "refused", code="recipe", nonce=job.order_nonce, reason="no torch")
    )
    assert (now_is(job), job.reason) == (JobState.FAILED, "no torch")


@pytest.mark.once
def test_a_refusal_of_somebody_elses_order_ends_nothing(job):
    job_tick.tick(NOW)
    job.refresh_from_db()
    forged = {"code": "signature", "nonce": "0" * 32, "reason": "x"}
    assert not record(fact(job, "refused", **forged))
    replay = {"code": "replayed", "nonce": job.order_nonce, "reason": "x"}
    assert not record(fact(job, "refused", **replay))
    assert now_is(job) == JobState.STARTING


# --- beliefs ---


@pytest.mark.once
def test_a_belief_makes_up_for_a_lost_start(job):
    job_tick.tick(NOW)
    assert record(belief(job))
    assert now_is(job) == JobState.RUNNING


@pytest.mark.once
def test_a_belief_makes_up_for_a_lost_end(running):
    assert record(belief(ended=[fact(running, "exited", exit_code=4)]))
    assert (now_is(running), running.exit_code) == (JobState.FAILED, 4)


@pytest.mark.once
def test_a_job_that_its_node_does_not_name_for_15_seconds_is_lost(running):
    start = timezone.now()

    def hear(seconds, *jobs):
        now = start + timedelta(seconds=seconds)
        record(belief(*jobs, at=now.timestamp()), now)
        return now_is(running)

    assert hear(0, running) == JobState.RUNNING
    assert hear(5) == JobState.RUNNING
    assert hear(10) == JobState.RUNNING
    assert hear(12, running) == JobState.RUNNING
    assert hear(20) == JobState.RUNNING
    assert hear(28) == JobState.LOST
    assert "no longer has this job" in running.reason


@pytest.mark.once
def test_a_belief_from_before_the_start_loses_nothing(running):
    late = running.started_at + timedelta(seconds=60)
    old = running.started_at.timestamp() - 1
    record(belief(at=old), late)
    assert now_is(running) == JobState.RUNNING


@pytest.mark.once
def test_what_has_ended_here_and_still_runs_there_is_stopped(running, orders):
    record(fact(running, "lost"))
    ended = timezone.now() + timedelta(seconds=11)
    record(belief(running), ended)
    assert job_tick.tick(ended)["stops_sent"] == 1
    (order,) = orders()
    assert (order.kind, order.job) == (OrderKind.STOP, running.pk)
    assert now_is(running) == JobState.LOST


def test_one_bad_row_never_blocks_the_rest(
    job, alice, reservation, orders, monkeypatch
):
    second = jobs_service.launch(
        user=alice,
        reservation_id=reservation.pk,
        name="two",
        kind="recipe",
        recipe="burn-in",
        gpu_count=1,
        now=NOW,
    )
    Job.objects.filter(pk=job.pk).update(recipe_settings={"broken": 1}, gpu_count=1)
    job_tick.tick(NOW)
    assert [order.job for order in orders()] == [second.pk]


def test_a_notebooks_work_is_noted_by_its_age(running, reservation, alice, bob):
    """The node's clock is an hour ahead."""

    def told(age_seconds, at):
        said = belief(running, at=at.timestamp() + 3600)
        said["running"][0]["worked_at"] = said["at"] - age_seconds
        record(said, now=at)
        reservation.refresh_from_db()
        return reservation.worked_at

    at = NOW + timedelta(minutes=30)
    assert told(0, at) is None, "no workspace"
    Job.objects.update(kind=Job.Kind.WORKSPACE)
    assert told(86_400, at) is None, "before the job began"
    Job.objects.update(gpu_count=0)
    assert told(60, at) is None, "without GPUs"
    Job.objects.update(gpu_count=1, owner=bob)
    assert told(60, at) is None, "of a person who does not share the reservation"
    Job.objects.update(owner=alice)
    noted = told(60, at)
    assert abs(noted - (at - timedelta(seconds=60))) < timedelta(milliseconds=10)
    assert told(65, at + timedelta(seconds=5)) == noted, "the same work"
    assert told(-600, at + timedelta(minutes=1)) == at + timedelta(minutes=1)
    CoUser.objects.create(reservation=reservation, user=bob, added_by=alice)
    Job.objects.update(owner=bob)
    assert told(0, at + timedelta(minutes=2)) == at + timedelta(minutes=2)
