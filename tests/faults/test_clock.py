"""Clocks that are set while the site runs: those of the portal, of a node, of beat."""

import signal
import time
from datetime import timedelta

import pytest
from celery import Celery
from django.db import transaction
from django.utils import timezone

from gpuportal import beat
from placement.agent.command_handler import OrderDesk
from placement.agent.local_runner import LocalRunner
from placement.jobs.job_transitions import move
from placement.jobs.nodes.event_intake import record_fact
from placement.jobs.service import launch_in
from placement.jobs.tick import job_tick
from placement.models import Job, MoveDecision
from placement.protocol import signing
from placement.protocol.commands import OrderKind
from placement.protocol.job_lifecycle import JobState
from placement.rebalance.rebalance_tick import rebalance_jobs
from reservations import tick
from reservations.booking.relocation import relocate_rest
from reservations.models import LedgerEntry
from reservations.rules.lifecycle import State
from tests.placement.nodes import ended, log_text, make_order, script_order, until

HOUR = 3600.0


# --- the node's clock -------------------------------------------------------------


def test_a_job_has_its_time_whatever_the_nodes_clock_does(clock):
    folder = clock.start(make_order())
    until(folder.log_bytes)
    now, began = time.time(), time.monotonic()
    end_seconds = 4.0
    folder.write("deadline", {"deadline_at": now + end_seconds, "issued_at": now})
    # It has read the new end when it warns of it.
    until(lambda: "the reservation ends in" in log_text(folder))
    for jump in (HOUR, -HOUR):
        clock.set(jump)
        time.sleep(1.1)  # it looks at its clock each second
        ran = folder.read("status")["event"] == "started"
        assert ran or time.monotonic() - began >= end_seconds
    # It does not wait for the hour by which its clock was set back.
    status = ended(folder)
    assert (status["event"], status["reason"]) == ("exited", "the reservation's end")
    assert time.monotonic() - began > end_seconds - 0.5


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_a_node_whose_clock_is_off_starts_nothing_but_stops_what_runs(
    node, clock, jump
):
    told = []
    desk = OrderDesk(node, publish=told.append)

    def give(order, now):
        payload = order.payload()
        return desk.take(payload, signing.sign(payload), now=now)

    folder = clock.start(make_order())
    until(folder.log_bytes)
    clock.set(jump)
    off = time.time() + jump
    assert not give(make_order(job=8), off)
    assert told[-1]["code"] in ("expired", "clock")
    assert give(make_order(kind=OrderKind.STOP, reason="enough"), off)
    assert ended(folder)["reason"] == "enough"


SAVES = "trap 'echo saving; sleep 1; echo saved; exit 0' TERM\n"
STUBBORN = "trap 'echo saving' TERM\n"
ON = "echo up\nwhile :; do sleep 0.05; done\n"


@pytest.mark.pure
@pytest.mark.parametrize(
    ("script", "jump", "end"),
    [(SAVES, HOUR, (0, None)), (STUBBORN, -HOUR, (None, signal.SIGKILL))],
    ids=["saves, an hour forwards", "ignores, an hour back"],
)
def test_what_saves_before_a_move_has_its_grace_whatever_the_nodes_clock_does(
    node, clock, serve, script, jump, end
):
    web = serve(script + ON)
    folder = clock.start(script_order(web, grace_seconds=3.0), web)
    until(folder.log_bytes)
    LocalRunner(node).stop(folder, "moves to red:0")
    until(lambda: b"saving" in folder.log.read_bytes())
    clock.set(jump)
    status = ended(folder)
    assert (status["exit_code"], status["signal"]) == end
    assert (status["stopped"], status["reason"]) == (True, "moves to red:0")
    assert (b"saved" in folder.log.read_bytes()) == (end == (0, None))


# --- the portal's -----------------------------------------------------------------


def fact(job, event, at, **more):
    said = {"v": 1, "kind": "job", "job": job.pk, "attempt": 1, "event": event}
    return {**said, "at": at.timestamp(), **more}


def hear(job, message, now):
    record_fact("red", message, now)
    job.refresh_from_db()
    return job.state


@pytest.mark.django_db
def test_a_job_waits_and_says_why_until_its_nodes_clock_is_right(job, alice):
    now = timezone.now()
    job_tick.tick(now)
    job.refresh_from_db()
    refused = fact(job, "refused", now, code="expired", nonce=job.order_nonce)
    for _ in range(2):
        assert hear(job, {**refused, "reason": "expired 3540 s ago"}, now) == "starting"
    assert job.reason.startswith("red: its clock differs from the portal's")
    assert job.events.filter(reason=job.reason).count() == 1
    assert job_tick.tick(now + timedelta(seconds=21))["ordered_again"] == 1
    assert hear(job, fact(job, "started", now), now) == "running"
    # A new end, sent under the wrong clock, is refused and is no reason to end the Job.
    job.refresh_from_db()
    refused["nonce"] = job.order_nonce
    assert hear(job, {**refused, "reason": "expired"}, now) == "running"
    behind = fact(job, "exited", now - timedelta(hours=1), exit_code=0)
    later = now + timedelta(minutes=20)
    assert hear(job, behind, later) == "done"
    assert (job.ended_at - job.started_at).total_seconds() > 19 * 60


@pytest.mark.django_db
@pytest.mark.parametrize("state", [JobState.STARTING, JobState.STOPPING])
def test_orders_go_out_again_after_the_portals_clock_was_set_back(job, state):
    now = timezone.now()
    job_tick.tick(now)
    Job.objects.filter(pk=job.pk).update(
        state=state, ordered_at=now + timedelta(hours=1)
    )
    done = job_tick.tick(now + timedelta(seconds=1))
    assert done["ordered_again"] + done["stops_sent"] == 1


@pytest.fixture
def moving(job):
    """Move the Job on the same node. Return the Job that continues, and the move."""
    now = timezone.now()
    job_tick.tick(now)
    assert hear(job, fact(job, "started", now), now) == "running"
    with transaction.atomic():
        gpu_ids = list(job.reservation.allocations.values_list("gpu_id", flat=True))
        held = relocate_rest(
            reservation_id=job.reservation_id,
            gpu_ids=gpu_ids,
            actor=None,
            now=now,
            reason="moves",
        )
        told = {"stop_at": now, "ordered_at": None}
        move(job, JobState.MOVING, now=now, actor="portal", reason="moves", fields=told)
        after = launch_in(
            user=job.owner,
            reservation_id=held.pk,
            name="goes on",
            kind="recipe",
            recipe="burn-in",
            now=now,
        )
        Job.objects.filter(pk=after.pk).update(resume_from=job)
        row = MoveDecision.objects.create(
            job=job,
            seen_at=now,
            cause="look",
            state="moving",
            reason="faster",
            moved_at=now,
            next_job=after,
        )
    assert job_tick.tick(now + timedelta(seconds=1))["stops_sent"] == 1
    return after, row


@pytest.mark.django_db
@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_a_job_that_moves_is_heard_out_after_the_portals_clock_was_set(
    job, moving, jump
):
    after, row = moving
    right, now = timezone.now(), timezone.now() + timedelta(seconds=jump)
    done = job_tick.tick(now)
    job.refresh_from_db()
    assert (job.state, done["stops_sent"], done["given_up"]) == ("moving", 1, 0)
    assert done["ordered"] == 0, "the other has not left"
    at = now + timedelta(seconds=2)
    # The node's clock is right.
    left = fact(job, "exited", right + timedelta(seconds=2), exit_code=0, stopped=True)
    assert hear(job, left, at) == "stopped"
    assert job_tick.tick(at)["ordered"] == 1
    after.refresh_from_db()
    started = fact(after, "started", right + timedelta(seconds=3))
    assert hear(after, started, at + timedelta(seconds=1)) == "running"
    assert job_tick.tick(at + timedelta(seconds=2))["ordered"] == 0
    rebalance_jobs(at + timedelta(seconds=2))
    row.refresh_from_db()
    assert row.state == "moved" and row.realised_cost_seconds >= 0
    assert Job.objects.live().get() == after


@pytest.mark.django_db
def test_a_job_that_moves_off_a_silent_node_is_given_up_after_the_clock_was_set(
    job, moving
):
    after, _ = moving
    now = timezone.now() + timedelta(hours=1)
    states = []
    for seconds in range(0, 121, 20):
        job_tick.tick(now + timedelta(seconds=seconds))
        job.refresh_from_db()
        states.append(job.state)
    assert states[:5] == ["moving"] * 5 and states[-1] == "lost"
    after.refresh_from_db()
    assert (
        after.state in ("queued", "starting") and "has not reported since" in job.reason
    )


@pytest.mark.django_db
def test_what_a_node_forgot_is_noticed_under_any_clock(job):
    now = timezone.now()
    job_tick.tick(now)
    assert hear(job, fact(job, "started", now), now) == "running"
    gone = {"v": 1, "kind": "jobs", "running": [], "ended": []}
    an_hour_behind = gone | {"at": (now - timedelta(hours=1)).timestamp()}
    for seconds in (5, 20, 299):
        later = now + timedelta(seconds=seconds)
        assert hear(job, an_hour_behind, later) == "running"
    # The portal's own clock is set back: it counts again and does not wait for an hour.
    Job.objects.filter(pk=job.pk).update(seen_at=now + timedelta(hours=1))
    beliefs = gone | {"at": (now + timedelta(hours=2)).timestamp()}
    assert hear(job, beliefs, now) == "running"
    assert hear(job, beliefs, now + timedelta(seconds=16)) == "lost"


@pytest.mark.django_db
def test_an_hour_forwards_and_back_charges_nobody_twice(job, alice):
    now = timezone.now()
    held = job.reservation
    for minutes in (0, 60, 1, 400, 2, 401):
        at = now + timedelta(minutes=minutes)
        tick.tick(at)
        job_tick.tick(at)
    held.refresh_from_db()
    assert held.state == State.ENDED
    job.refresh_from_db()
    assert job.state in (JobState.STOPPING, JobState.LOST)
    rows = LedgerEntry.objects.filter(reservation=held)
    kinds = sorted(rows.values_list("kind", flat=True))
    assert kinds == sorted(set(kinds)), "each kind of entry once"


# --- beat's -----------------------------------------------------------------------


def test_beat_ticks_on_after_its_clock_was_set(monkeypatch):
    app = Celery("beats", broker="memory://", set_as_current=False)
    app.conf.beat_schedule = {
        name: {"task": name, "schedule": 1.0} for name in ("first", "second")
    }
    # Celery calls datetime and this calls time. Both use one clock that can be set.
    off, real = [0.0], time.time
    monkeypatch.setattr(beat.time, "time", lambda: real() + off[0])
    now = timezone.now
    monkeypatch.setattr(app, "now", lambda: now() + timedelta(seconds=off[0]))
    sent = []
    monkeypatch.setattr(
        beat.SteadyScheduler,
        "apply_async",
        lambda _self, entry, **_more: sent.append(entry.name),
    )
    scheduler = beat.SteadyScheduler(app)

    def both_within(seconds):
        sent.clear()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and len(set(sent)) < 2:
            time.sleep(min(0.05, max(0.0, scheduler.tick())))
        return set(sent)

    assert both_within(60) == {"first", "second"}
    for off[0] in (-HOUR, HOUR):
        assert both_within(60) == {"first", "second"}
