"""The tick of Jobs, and what nodes say of them. The broker is real."""

import json
import time
from datetime import timedelta

import pytest
from celery import current_app
from django.utils import timezone

import gpuportal.celery
from placement import services, signing
from placement.domain.lifecycle import JobState
from placement.domain.orders import OrderKind, parse_order
from placement.models import Job
from reservations.domain.lifecycle import State
from reservations.models import Reservation
from tests.factories import make_gpus, make_node, make_reservation

pytestmark = pytest.mark.django_db
NOW = timezone.now()
assert current_app.main == gpuportal.celery.app.main


def after(seconds):
    return NOW + timedelta(seconds=seconds)


@pytest.fixture
def node():
    return make_node("red")


@pytest.fixture
def reservation(alice, node):
    return make_reservation(alice, make_gpus(2, node), start=NOW, state=State.ACTIVE)


@pytest.fixture
def job(alice, reservation):
    return services.launch(
        user=alice, reservation_id=reservation.pk, name="try", kind="recipe",
        recipe="burn-in", recipe_settings={"seconds": 5}, now=NOW,
    )  # fmt: skip


@pytest.fixture
def orders(redis_client):
    """Take what is in the node's queue, as its worker would."""

    def take(node="red"):
        taken = []
        while raw := redis_client.lpop(f"node.{node}"):
            body = json.loads(json.loads(raw)["body"])
            assert json.loads(raw)["headers"]["task"] == "node.order"
            signing.verify(
                body[1]["payload"], body[1]["signature"], signing.public_key_pem()
            )
            taken.insert(0, parse_order(body[1]["payload"]))
        return taken[::-1]

    return take


@pytest.fixture(autouse=True)
def _text_bodies(monkeypatch):
    """Have kombu put bodies into the queue as text, to be read here."""
    from kombu.transport.virtual.base import Channel

    monkeypatch.setattr(Channel, "body_encoding", None)


def fact(job, event, at=None, **more):
    return {
        "v": 1, "kind": "job", "job": job.pk, "attempt": max(job.attempt, 1),
        "event": event, "at": at or time.time(), **more,
    }  # fmt: skip


def belief(*running, at=None, ended=()):
    items = [
        {"job": job.pk, "attempt": 1, "started_at": NOW.timestamp(),
         "deadline_at": job.reservation.end.timestamp()}
        for job in running
    ]  # fmt: skip
    return {
        "v": 1, "kind": "jobs", "at": at or time.time(), "running": items,
        "ended": list(ended),
    }  # fmt: skip


def record(message, now=None, node="red"):
    return services.record_fact(node, message, now or timezone.now())


def now_is(job):
    job.refresh_from_db()
    return job.state


@pytest.fixture
def running(job, orders):
    services.tick(NOW)
    record(fact(job, "started"))
    orders()
    assert now_is(job) == JobState.RUNNING
    return job


# --- ordering ---


def test_a_due_job_is_ordered_once_with_everything_in_it(job, orders, reservation):
    assert services.tick(NOW)["ordered"] == 1
    assert services.tick(NOW)["ordered"] == 0
    (order,) = orders()
    job.refresh_from_db()
    assert (job.state, job.attempt) == (JobState.STARTING, 1)
    assert order.kind is OrderKind.START
    assert (order.job, order.attempt, order.nonce) == (job.pk, 1, job.order_nonce)
    assert order.gpu_uuids == ("GPU-red-0", "GPU-red-1")
    assert order.deadline_at == reservation.end.timestamp()
    assert order.expires_at <= order.deadline_at
    assert (order.recipe, order.user) == ("burn-in", "alice")
    assert order.simulated and order.claim_bytes_per_gpu == 8 * 2**30
    assert order.settings["seconds"] == 5


def test_nothing_is_ordered_before_the_reservation_is_active(job, orders, reservation):
    Reservation.objects.filter(pk=reservation.pk).update(state=State.CONFIRMED)
    assert services.tick(NOW)["ordered"] == 0
    assert orders() == []
    assert now_is(job) == JobState.QUEUED


def test_a_job_waits_until_the_last_ones_job_has_left_the_gpus(
    job, orders, reservation, bob
):
    gpus = [row.gpu for row in reservation.allocations.all()]
    before = make_reservation(
        bob, gpus, start=NOW - timedelta(hours=1), end=NOW, state=State.ENDED
    )
    other = Job.objects.create(
        reservation=before, owner=bob, node=job.node, name="late", kind="recipe",
        recipe="burn-in", state=JobState.STOPPING, stop_at=NOW, ordered_at=NOW,
        seen_at=NOW, attempt=1,
    )  # fmt: skip
    assert services.tick(NOW)["ordered"] == 0
    job.refresh_from_db()
    assert job.reason == f"waits for job #{other.pk} to leave the GPUs"
    Job.objects.filter(pk=other.pk).update(state=JobState.STOPPED)
    assert services.tick(NOW)["ordered"] == 1
    assert now_is(job) == JobState.STARTING
    assert job.reason == ""


def test_an_unheard_job_is_ordered_again_as_the_same_attempt(job, orders):
    services.tick(NOW)
    (first,) = orders()
    assert services.tick(after(10))["ordered_again"] == 0
    assert services.tick(after(21))["ordered_again"] == 1
    (second,) = orders()
    assert (second.job, second.attempt) == (first.job, first.attempt)
    assert second.nonce != first.nonce


def test_a_broker_that_is_away_costs_nothing_but_time(job, orders, monkeypatch):
    monkeypatch.setattr("placement.services.ordering.current_app.send_task", _refuse)
    assert services.tick(NOW)["ordered"] == 0
    assert now_is(job) == JobState.STARTING
    monkeypatch.undo()
    assert services.tick(after(21))["ordered_again"] == 1


def _refuse(*_args, **_kwargs):
    raise ConnectionError("no broker")


def test_a_moved_end_is_told_to_the_shim(running, orders, reservation):
    assert services.tick(NOW)["told"] == 0
    later = reservation.end + timedelta(hours=1)
    Reservation.objects.filter(pk=reservation.pk).update(end=later)
    assert services.tick(NOW)["told"] == 1
    assert services.tick(NOW)["told"] == 0
    (order,) = orders()
    assert (order.kind, order.deadline_at) == (OrderKind.START, later.timestamp())


def test_a_node_that_missed_the_new_end_is_told_again(running, orders, reservation):
    heard = belief(running)
    Reservation.objects.filter(pk=reservation.pk).update(
        end=reservation.end + timedelta(hours=1)
    )
    services.tick(NOW)
    orders()
    record(heard)
    assert services.tick(NOW)["told"] == 1


# --- stopping ---


@pytest.mark.parametrize("state", [State.ENDED, State.RELEASED, State.REFUNDED])
def test_a_reservation_that_is_over_stops_its_jobs(running, orders, reservation, state):
    Reservation.objects.filter(pk=reservation.pk).update(state=state, end=NOW)
    done = services.tick(after(1))
    assert (done["stopped"], done["stops_sent"]) == (1, 1)
    assert now_is(running) == JobState.STOPPING
    (order,) = orders()
    assert (order.kind, order.job) == (OrderKind.STOP, running.pk)
    assert "reservation" in order.reason
    assert services.tick(after(2))["stops_sent"] == 0
    assert services.tick(after(8))["stops_sent"] == 1
    record(fact(running, "exited", exit_code=0, stopped=True))
    assert now_is(running) == JobState.STOPPED
    assert services.tick(after(20))["stops_sent"] == 0


def test_a_job_that_never_began_ends_with_its_reservation(job, orders, reservation):
    Reservation.objects.filter(pk=reservation.pk).update(state=State.CANCELLED)
    services.tick(NOW)
    assert now_is(job) == JobState.STOPPED
    assert job.reason == "never began: the reservation was cancelled"
    assert orders() == []


def test_a_silent_nodes_job_is_given_up_a_minute_after_the_end(running, reservation):
    end = NOW + timedelta(seconds=10)
    Reservation.objects.filter(pk=reservation.pk).update(end=end, state=State.ENDED)
    services.tick(after(11))
    services.tick(after(60))
    assert now_is(running) == JobState.STOPPING
    services.tick(after(200))
    assert now_is(running) == JobState.LOST
    assert "red is silent since" in running.reason


def test_a_silent_node_is_not_the_jobs_fault_before_that(running):
    services.tick(after(600))
    assert now_is(running) == JobState.RUNNING


# --- facts ---


def test_started_then_exited_well_is_done(job):
    services.tick(NOW)
    assert record(fact(job, "started"))
    job.refresh_from_db()
    assert (job.state, job.started_at is not None) == (JobState.RUNNING, True)
    assert record(fact(job, "exited", exit_code=0, log_bytes=10, last_lines=["bye"]))
    job.refresh_from_db()
    assert (job.state, job.exit_code, job.last_lines) == (JobState.DONE, 0, ["bye"])
    assert job.log_bytes == 10
    words = list(job.events.values_list("old", "new", "actor"))
    assert words == [
        ("", "queued", "alice"), ("queued", "starting", "portal"),
        ("starting", "running", "red"), ("running", "done", "red"),
    ]  # fmt: skip


def test_a_job_that_starts_checks_its_holder_in(job, reservation):
    services.tick(NOW)
    record(fact(job, "started"))
    reservation.refresh_from_db()
    assert reservation.checked_in_at is not None


def test_a_short_jobs_end_may_come_before_its_start_was_heard(job, reservation):
    services.tick(NOW)
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
        ({"signal": 9}, JobState.FAILED, "ended by SIGKILL"),
        ({"signal": 15, "stopped": True, "reason": "the reservation's end"},
         JobState.STOPPED, "the reservation's end"),
        ({"exit_code": 1, "reason": "out of memory"}, JobState.FAILED, "out of memory"),
    ],
)  # fmt: skip
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


def test_a_node_cannot_speak_of_another_nodes_job(running):
    make_node("blue")
    assert not record(fact(running, "exited", exit_code=0), node="blue")
    assert not record(belief(running, ended=[fact(running, "lost")]), node="blue")
    assert now_is(running) == JobState.RUNNING


def test_unknown_jobs_and_attempts_are_ignored(running):
    assert not record({**fact(running, "exited"), "job": 999_999})
    assert not record({**fact(running, "exited"), "attempt": 2})
    assert now_is(running) == JobState.RUNNING


@pytest.mark.parametrize(
    "message",
    [
        {}, {"v": 1}, {"v": 1, "kind": "job"}, {"v": 1, "kind": "jobs", "at": "now"},
        {"v": 1, "kind": "jobs", "at": 1, "running": {}},
        {"v": 1, "kind": "jobs", "at": 1, "running": [{"job": "x"}]},
        {"v": 1, "kind": "jobs", "at": float("nan"), "running": []},
    ],
)  # fmt: skip
def test_garbage_is_refused(message):
    assert not record(message)


@pytest.mark.parametrize(
    "broken",
    [{"exit_code": "0"}, {"exit_code": 300}, {"signal": -1}, {"last_lines": "x"},
     {"at": 1e300}, {"reason": 7}, {"event": "gone"}, {"job": True}],
)  # fmt: skip
def test_a_fact_with_a_wrong_field_moves_nothing(running, broken):
    assert not record({**fact(running, "exited", exit_code=0), **broken})
    assert now_is(running) == JobState.RUNNING


def test_a_nodes_wrong_clock_does_not_turn_time_around(job):
    services.tick(NOW)
    now = timezone.now()
    record(fact(job, "started", at=now.timestamp() + 86_400), now)
    job.refresh_from_db()
    assert job.started_at == now
    record(fact(job, "exited", at=5.0, exit_code=0), now)
    job.refresh_from_db()
    assert job.started_at <= job.ended_at <= now


def test_a_refusal_fails_the_job_with_the_nodes_words(job):
    services.tick(NOW)
    job.refresh_from_db()
    assert record(
        fact(job, "refused", code="recipe", nonce=job.order_nonce, reason="no torch")
    )
    assert (now_is(job), job.reason) == (JobState.FAILED, "no torch")


def test_a_refusal_of_somebody_elses_order_ends_nothing(job):
    services.tick(NOW)
    job.refresh_from_db()
    forged = {"code": "signature", "nonce": "0" * 32, "reason": "x"}
    assert not record(fact(job, "refused", **forged))
    replay = {"code": "replayed", "nonce": job.order_nonce, "reason": "x"}
    assert not record(fact(job, "refused", **replay))
    assert now_is(job) == JobState.STARTING


# --- beliefs ---


def test_a_belief_makes_up_for_a_lost_start(job):
    services.tick(NOW)
    assert record(belief(job))
    assert now_is(job) == JobState.RUNNING


def test_a_belief_makes_up_for_a_lost_end(running):
    assert record(belief(ended=[fact(running, "exited", exit_code=4)]))
    assert (now_is(running), running.exit_code) == (JobState.FAILED, 4)


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
    assert "does not know of it" in running.reason


def test_a_belief_from_before_the_start_loses_nothing(running):
    late = timezone.now() + timedelta(seconds=60)
    old = running.started_at.timestamp() - 1
    record(belief(at=old), late)
    assert now_is(running) == JobState.RUNNING


def test_what_has_ended_here_and_still_runs_there_is_stopped(running, orders):
    record(fact(running, "lost"))
    ended = timezone.now() + timedelta(seconds=11)
    record(belief(running), ended)
    assert services.tick(ended)["stops_sent"] == 1
    (order,) = orders()
    assert (order.kind, order.job) == (OrderKind.STOP, running.pk)
    assert now_is(running) == JobState.LOST


def test_one_bad_row_never_blocks_the_rest(
    job, alice, reservation, orders, monkeypatch
):
    second = services.launch(
        user=alice, reservation_id=reservation.pk, name="two", kind="recipe",
        recipe="burn-in", now=NOW,
    )  # fmt: skip
    Job.objects.filter(pk=job.pk).update(recipe_settings={"broken": 1})
    services.tick(NOW)
    assert [order.job for order in orders()] == [second.pk]
