"""The tick of Jobs: its commands, messages and stops. The broker is real."""

from datetime import timedelta

import pytest

from placement.jobs import service as jobs_service
from placement.jobs.job_arrays import launch_array
from placement.jobs.tick import job_tick
from placement.models import Job
from placement.protocol.commands import OrderKind
from placement.protocol.job_lifecycle import JobState
from placement.workspace.service import open_workspace
from reservations.models import Notice, Reservation
from reservations.rules.lifecycle import State
from telemetry import request_id
from telemetry.models import Alert
from tests.factories import make_reservation
from tests.placement.stage import NOW, after, belief, fact, now_is, record

pytestmark = pytest.mark.django_db


# --- ordering ---


@pytest.mark.once
def test_a_due_job_is_ordered_once_with_everything_in_it(job, orders, reservation):
    assert job_tick.tick(NOW)["ordered"] == 1
    assert job_tick.tick(NOW)["ordered"] == 0
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


def test_orders_have_the_id_of_the_request_that_launched_the_job(job, monkeypatch):
    Job.objects.filter(pk=job.pk).update(request_id="launched-by-this")
    seen = []
    monkeypatch.setattr(
        "placement.jobs.nodes.command_queue.current_app.send_task",
        lambda *_args, **_kwargs: seen.append(request_id.current()),
    )
    job_tick.tick(NOW)
    assert seen == ["launched-by-this"]
    assert request_id.current() == ""


@pytest.mark.once
def test_nothing_is_ordered_before_the_reservation_is_active(job, orders, reservation):
    Reservation.objects.filter(pk=reservation.pk).update(state=State.CONFIRMED)
    assert job_tick.tick(NOW)["ordered"] == 0
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
        reservation=before,
        owner=bob,
        node=job.node,
        name="late",
        kind="recipe",
        recipe="burn-in",
        state=JobState.STOPPING,
        stop_at=NOW,
        ordered_at=NOW,
        seen_at=NOW,
        attempt=1,
    )
    assert job_tick.tick(NOW)["ordered"] == 0
    job.refresh_from_db()
    assert job.reason.startswith(f"waits for job {other.pk}, which uses "), job.reason
    assert job.reason.endswith(" at the latest")
    Job.objects.filter(pk=other.pk).update(state=JobState.STOPPED)
    alert = Alert.objects.create(
        gpu=gpus[1], rule="intruder", opened_at=NOW, last_seen_at=NOW
    )
    assert job_tick.tick(NOW)["ordered"] == 0
    job.refresh_from_db()
    assert job.reason == f"waits until another person's process has left {gpus[1]}"
    alert.delete()
    assert job_tick.tick(NOW)["ordered"] == 1
    assert now_is(job) == JobState.STARTING
    assert job.reason == ""


@pytest.mark.once
def test_an_unheard_job_is_ordered_again_as_the_same_attempt(job, orders):
    job_tick.tick(NOW)
    (first,) = orders()
    assert job_tick.tick(after(10))["ordered_again"] == 0
    assert job_tick.tick(after(21))["ordered_again"] == 1
    (second,) = orders()
    assert (second.job, second.attempt) == (first.job, first.attempt)
    assert second.nonce != first.nonce


@pytest.mark.once
def test_a_broker_that_is_away_costs_nothing_but_time(job, orders, monkeypatch):
    monkeypatch.setattr(
        "placement.jobs.nodes.command_queue.current_app.send_task", _refuse
    )
    assert job_tick.tick(NOW)["ordered"] == 0
    assert now_is(job) == JobState.STARTING
    monkeypatch.undo()
    assert job_tick.tick(after(21))["ordered_again"] == 1


def _refuse(*_args, **_kwargs):
    raise ConnectionError("no broker")


@pytest.mark.once
def test_a_moved_end_is_told_to_the_shim(running, orders, reservation):
    assert job_tick.tick(NOW)["told"] == 0
    later = reservation.end + timedelta(hours=1)
    Reservation.objects.filter(pk=reservation.pk).update(end=later)
    assert job_tick.tick(NOW)["told"] == 1
    assert job_tick.tick(NOW)["told"] == 0
    (order,) = orders()
    assert (order.kind, order.deadline_at) == (OrderKind.START, later.timestamp())


@pytest.mark.once
def test_a_node_that_missed_the_new_end_is_told_again(running, orders, reservation):
    heard = belief(running)
    Reservation.objects.filter(pk=reservation.pk).update(
        end=reservation.end + timedelta(hours=1)
    )
    job_tick.tick(NOW)
    orders()
    record(heard)
    assert job_tick.tick(NOW)["told"] == 1


# --- stopping ---


@pytest.mark.parametrize("state", [State.ENDED, State.RELEASED, State.REFUNDED])
def test_a_reservation_that_is_over_stops_its_jobs(running, orders, reservation, state):
    Reservation.objects.filter(pk=reservation.pk).update(state=state, end=NOW)
    done = job_tick.tick(after(1))
    assert (done["stopped"], done["stops_sent"]) == (1, 1)
    assert now_is(running) == JobState.STOPPING
    (order,) = orders()
    assert (order.kind, order.job) == (OrderKind.STOP, running.pk)
    assert "reservation" in order.reason
    assert job_tick.tick(after(2))["stops_sent"] == 0
    assert job_tick.tick(after(8))["stops_sent"] == 1
    record(fact(running, "exited", exit_code=0, stopped=True))
    assert now_is(running) == JobState.STOPPED
    assert job_tick.tick(after(20))["stops_sent"] == 0


@pytest.mark.once
def test_a_job_that_never_began_ends_with_its_reservation(job, orders, reservation):
    Reservation.objects.filter(pk=reservation.pk).update(state=State.CANCELLED)
    job_tick.tick(NOW)
    assert now_is(job) == JobState.STOPPED
    assert job.reason == "never started: the reservation was cancelled"
    assert orders() == []


def test_a_silent_nodes_job_is_given_up_a_minute_after_the_end(running, reservation):
    end = NOW + timedelta(seconds=10)
    Reservation.objects.filter(pk=reservation.pk).update(end=end, state=State.ENDED)
    job_tick.tick(after(11))
    job_tick.tick(after(60))
    assert now_is(running) == JobState.STOPPING
    for seconds in range(80, 201, 20):  # who does not tick cannot hear it either
        job_tick.tick(after(seconds))
    assert now_is(running) == JobState.LOST
    assert "red has not reported since" in running.reason


@pytest.mark.once
def test_a_silent_node_is_not_the_jobs_fault_before_that(running):
    job_tick.tick(after(600))
    assert now_is(running) == JobState.RUNNING


@pytest.mark.once
def test_jobs_of_one_reservation_run_one_after_the_other(
    job, orders, reservation, alice
):
    second = jobs_service.launch(
        user=alice,
        reservation_id=reservation.pk,
        name="next",
        kind="recipe",
        recipe="burn-in",
        now=NOW,
    )
    job_tick.tick(NOW)
    assert [order.job for order in orders()] == [job.pk]
    second.refresh_from_db()
    assert second.reason.startswith(f"waits for job {job.pk}, which uses ")
    record(fact(job, "started"))
    record(fact(job, "exited", exit_code=0))
    job_tick.tick(NOW)
    assert [order.job for order in orders()] == [second.pk]


@pytest.mark.once
def test_narrow_jobs_share_the_gpus_and_none_overtakes_a_wide_one(
    orders, reservation, alice
):
    jobs = [
        jobs_service.launch(
            user=alice,
            reservation_id=reservation.pk,
            name=f"{number}",
            kind="recipe",
            recipe="burn-in",
            gpu_count=count,
            now=NOW,
        )
        for number, count in enumerate([1, 2, 1])
    ]
    job_tick.tick(NOW)
    (first,) = orders()
    assert first.job == jobs[0].pk and len(first.gpu_uuids) == 1
    jobs[2].refresh_from_db()
    assert jobs[2].reason == (
        f"waits for job {jobs[1].pk}, which is ahead in the queue"
    )
    jobs[0].refresh_from_db()
    record(fact(jobs[0], "exited", exit_code=0))
    job_tick.tick(NOW)
    (wide,) = orders()
    assert wide.job == jobs[1].pk and len(wide.gpu_uuids) == 2


def test_a_terminal_shares_the_gpus_with_jobs_of_its_reservation_only(
    orders, reservation, alice, settings
):
    settings.ALLOW_UNISOLATED_SCRIPTS = True

    def burn_in(name, count=None):
        return jobs_service.launch(
            user=alice,
            reservation_id=reservation.pk,
            name=name,
            kind="recipe",
            recipe="burn-in",
            gpu_count=count,
            now=NOW,
        )

    running, waiting = burn_in("running"), burn_in("waiting")
    job_tick.tick(NOW)
    assert [order.job for order in orders()] == [running.pk]
    terminal = open_workspace(
        user=alice, reservation_id=reservation.pk, app="terminal", now=after(1)
    ).job
    job_tick.tick(after(1))
    (order,) = orders()
    assert order.job == terminal.pk and len(order.gpu_uuids) == 2
    terminal.refresh_from_db()
    running.refresh_from_db()
    record(fact(terminal, "started"))
    record(fact(running, "exited", exit_code=0))
    job_tick.tick(after(2))
    assert [order.job for order in orders()] == [waiting.pk]
    # A terminal that still ends in the reservation before is in the way.
    gpus = [row.gpu for row in reservation.allocations.all()]
    earlier = make_reservation(
        alice, gpus, start=NOW - timedelta(hours=1), end=NOW, state=State.ENDED
    )
    Job.objects.filter(pk=waiting.pk).update(state=JobState.STOPPED)
    Job.objects.filter(pk=terminal.pk).update(
        state=JobState.STOPPING, reservation=earlier
    )
    late = burn_in("late")
    job_tick.tick(after(3))
    late.refresh_from_db()
    assert late.reason.startswith(f"waits for job {terminal.pk}, which uses ")


def test_the_owner_is_warned_ten_minutes_and_one_minute_before_the_end(
    running, reservation
):
    end = reservation.end
    for seconds, count in ((601, 0), (599, 1), (400, 1), (59, 2), (20, 2)):
        job_tick.tick(end - timedelta(seconds=seconds))
        assert Notice.objects.filter(kind="job_warning").count() == count, seconds
    first, last = Notice.objects.order_by("told_at")
    assert "is stopped in 10 min" in first.detail["text"]
    assert "is stopped in 59 s" in last.detail["text"]


def test_a_job_lost_with_its_node_starts_again_as_often_as_it_may(
    job, orders, reservation
):
    Job.objects.filter(pk=job.pk).update(retries=1, state=JobState.LOST, attempt=2)
    silent = NOW + timedelta(seconds=40)
    job_tick.tick(silent)
    assert Job.objects.count() == 1, "its node is not there yet"
    job_tick.tick(NOW)
    job_tick.tick(NOW)
    again = Job.objects.get(resume_from=job)
    assert (again.retries, again.recipe_settings) == (0, job.recipe_settings)
    (order,) = orders()
    assert (order.job, order.resume_job, order.resume_attempt) == (again.pk, job.pk, 2)
    Job.objects.filter(pk=again.pk).update(state=JobState.LOST)
    job_tick.tick(NOW)
    assert Job.objects.count() == 2


def test_a_job_that_failed_starts_again_where_its_owner_chose_so(
    job, orders, reservation
):
    failed = {"state": JobState.FAILED, "exit_code": 1, "ended_at": NOW, "retries": 2}
    Job.objects.filter(pk=job.pk).update(attempt=1, started_at=NOW, **failed)
    assert job_tick.tick(NOW)["retried"] == 0, "only if it is chosen"
    chosen = Job.objects.filter(pk=job.pk)
    chosen.update(retry_failed=True, exit_code=126)
    assert job_tick.tick(NOW)["retried"] == 0, "its program could not be started"
    chosen.update(exit_code=None, exit_signal=None)
    assert job_tick.tick(NOW)["retried"] == 0, "its node refused it"
    chosen.update(exit_code=1, ended_at=NOW - timedelta(hours=2))
    assert job_tick.tick(NOW)["retried"] == 0, "long ago"
    chosen.update(ended_at=NOW)
    assert job_tick.tick(NOW)["retried"] == 1
    again = Job.objects.get(resume_from=job)
    assert (again.retries, again.retry_failed) == (1, True)
    assert again.events.get().reason == f"job #{job.pk} failed; 1 more retries"
    job_tick.tick(NOW)
    (order,) = orders()
    assert (order.job, order.resume_job) == (again.pk, job.pk)
    signal = failed | {"exit_code": None, "exit_signal": 9, "retries": 1}
    Job.objects.filter(pk=again.pk).update(started_at=NOW, **signal)
    assert job_tick.tick(NOW)["retried"] == 1
    last = Job.objects.get(resume_from=again)
    Job.objects.filter(pk=last.pk).update(started_at=NOW, **failed | {"retries": 0})
    assert job_tick.tick(NOW)["retried"] == 0, "as often as it may"


def test_a_job_that_a_person_stopped_does_not_start_again(job):
    Job.objects.filter(pk=job.pk).update(
        state=JobState.STOPPED,
        started_at=NOW,
        ended_at=NOW,
        exit_signal=15,
        retries=1,
        retry_failed=True,
    )
    assert job_tick.tick(NOW)["retried"] == 0


def test_owners_hear_how_their_jobs_ended_and_of_an_array_once(
    job, orders, reservation, alice
):
    job_tick.tick(NOW)
    job.refresh_from_db()
    record(fact(job, "exited", exit_code=3))
    failed = Notice.objects.get(kind="job_failed")
    assert failed.user == alice and failed.detail["url"] == f"/jobs/{job.pk}/"
    launch_array(
        user=alice,
        reservation_id=reservation.pk,
        name="all",
        kind="recipe",
        recipe="burn-in",
        sweep={"seconds": [1, 2]},
        now=NOW,
    )
    job_tick.tick(NOW)
    for task in Job.objects.filter(array__isnull=False):
        record(fact(task, "exited", exit_code=0))
    told = Notice.objects.get(kind="job_done")
    assert told.detail["text"] == "All jobs of “all” have ended: 2 done."
