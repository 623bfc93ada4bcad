"""A Job that begins once another one is done: what frees it, and what ends it."""

import pytest

from placement.backfill.service import queue_for_gaps
from placement.jobs import service as jobs
from placement.jobs.queries import waiting_reason
from placement.jobs.tick import job_tick
from placement.models import Backfill, Job, MoveDecision
from placement.planner.values.errors import LaunchInvalid
from placement.protocol.job_lifecycle import JobState
from placement.waitlist import service as waitlist
from reservations.models import Notice, Reservation
from reservations.rules.lifecycle import State
from tests.factories import make_gpus, make_node, make_reservation
from tests.placement.stage import NOW, after, now_is

pytestmark = pytest.mark.django_db
BURN = {"name": "then", "kind": "recipe", "recipe": "burn-in"}


def launch(user, reservation, **changes):
    given = BURN | {"now": NOW} | changes
    return jobs.launch(user=user, reservation_id=reservation.pk, **given)


def ended(job, state, **fields):
    Job.objects.filter(pk=job.pk).update(
        state=state, started_at=NOW, ended_at=NOW, **fields
    )


@pytest.fixture
def second(alice, reservation, job):
    return launch(alice, reservation, after=job.pk, gpu_count=1)


def test_it_begins_once_the_other_is_done(job, second, alice, reservation, orders):
    assert (second.after, second.after_done) == (job, False)
    assert waiting_reason(second) == f"waits until job {job.pk} is done"
    third = launch(alice, reservation, gpu_count=1)
    Job.objects.filter(pk=job.pk).update(gpu_count=1)
    assert job_tick.tick(NOW)["ordered"] == 2, "the third does not wait behind it"
    assert (now_is(second), now_is(third)) == ("queued", "starting")
    ended(job, JobState.DONE)
    counts = job_tick.tick(NOW)
    assert (counts["settled"], counts["ordered"]) == (1, 1)
    assert now_is(second) == JobState.STARTING
    assert job_tick.tick(NOW)["settled"] == 0
    named = launch(alice, reservation, after=job.pk)
    assert job_tick.tick(NOW)["settled"] == 1, "what is done already is no wait"
    assert Job.objects.get(pk=named.pk).after_done


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.STOPPED, JobState.LOST])
def test_it_fails_without_a_start_where_the_other_ends_otherwise(
    job, second, alice, reservation, orders, state
):
    last = launch(alice, reservation, after=second.pk)
    ended(job, state)
    job_tick.tick(NOW)
    job_tick.tick(NOW)
    second.refresh_from_db()
    why = f"never started: job {job.pk} ended without success ({state})"
    assert (second.state, second.reason, second.started_at) == ("failed", why, None)
    assert now_is(last) == JobState.FAILED, "and so does the next in the chain"
    told = Notice.objects.filter(kind="job_failed", detail__job=second.pk)
    assert why in told.get().detail["text"]
    assert orders() == []


@pytest.mark.once
def test_a_stop_by_hand_ends_the_ones_that_wait(job, second, alice):
    jobs.stop(job_id=job.pk, user=alice, now=NOW)
    job_tick.tick(NOW)
    assert now_is(second) == JobState.FAILED


@pytest.mark.once
def test_the_reservations_end_stops_the_wait(job, second, reservation, orders):
    ended(job, JobState.RUNNING)
    Reservation.objects.filter(pk=reservation.pk).update(state=State.ENDED)
    job_tick.tick(NOW)
    second.refresh_from_db()
    assert second.state == JobState.STOPPED
    assert second.reason == "never started: the reservation's end"


def test_a_restart_and_a_move_carry_the_wait_on(job, second, alice, reservation):
    ended(job, JobState.LOST, retries=1)
    type(job.node).objects.filter(pk=job.node_id).update(last_seen_at=None)
    assert job_tick.tick(NOW)["settled"] == 0
    assert now_is(second) == JobState.QUEUED, "its node may come back"
    type(job.node).objects.filter(pk=job.node_id).update(last_seen_at=after(60))
    job_tick.tick(after(60))
    restarted = Job.objects.get(resume_from=job)
    job_tick.tick(after(61))
    second.refresh_from_db()
    assert (second.after, second.state) == (restarted, JobState.QUEUED)
    assert now_is(restarted) == JobState.STARTING, "it is not behind the waiting one"
    ended(restarted, JobState.STOPPED)
    moved = launch(alice, reservation)
    MoveDecision.objects.create(
        job=restarted, at=NOW, seen_at=NOW, cause="look", state="moved", next_job=moved
    )
    job_tick.tick(after(62))
    second.refresh_from_db()
    assert (second.after, second.state) == (moved, JobState.QUEUED)


def test_a_job_that_failed_and_restarts_is_waited_for(job, second, alice):
    again = {"retries": 1, "retry_failed": True, "exit_code": 1}
    ended(job, JobState.FAILED, **again)
    counts = job_tick.tick(NOW)
    assert (counts["settled"], counts["retried"]) == (0, 1)
    assert job_tick.tick(NOW)["settled"] == 1
    second.refresh_from_db()
    assert second.after == Job.objects.get(resume_from=job)
    assert second.state == JobState.QUEUED


def test_a_job_in_gaps_is_done_when_its_last_stretch_is(
    job, second, alice, reservation
):
    payer = alice.memberships.get()
    row = Backfill.objects.create(
        owner=alice,
        membership=payer,
        name="gaps",
        gpu_count=1,
        shortest_seconds=60,
        launch={},
        state="running",
    )
    ended(job, JobState.STOPPED, backfill=row)
    assert job_tick.tick(NOW)["settled"] == 0
    stretch = launch(alice, reservation)
    ended(stretch, JobState.DONE, backfill=row)
    assert job_tick.tick(NOW)["settled"] == 1
    second.refresh_from_db()
    assert (second.after, second.after_done) == (stretch, True)


def test_what_cannot_be_waited_for_is_refused_at_the_field(
    alice, bob, omar, job, reservation, second
):
    other = make_reservation(bob, make_gpus(1, make_node("far")), start=NOW)
    later = make_reservation(
        alice, make_gpus(1, make_node("late")), start=reservation.end
    )
    ahead = launch(alice, later)

    def why(user, booked, **given):
        with pytest.raises(LaunchInvalid) as refused:
            launch(user, booked, **given)
        assert list(refused.value.fields) == ["after"], refused.value.fields
        return refused.value.fields["after"]

    assert why(bob, other, after=job.pk) == (
        f"there is no job #{job.pk} that you may see"
    ), "another person's job"
    for wrong in (0, -1, 2**70, second.pk + 99):
        assert "there is no job" in why(alice, reservation, after=wrong)
    assert "begins after reservation" in why(alice, reservation, after=ahead.pk)
    ended(job, JobState.FAILED)
    assert "ended without success (failed)" in why(alice, reservation, after=job.pk)
    both = {"after": second.pk, "resume_from": job.pk}
    assert "from a checkpoint cannot wait" in why(alice, reservation, **both)
    Job.objects.filter(pk=job.pk).update(kind="serve")
    assert "serves models" in why(alice, reservation, after=job.pk)
    assert Job.objects.count() == 3
    assert launch(alice, later, after=second.pk).after == second


@pytest.mark.once
def test_a_request_may_wait_for_a_job_and_gaps_may_not(alice, bob, job):
    wanted = {"name": "later", "recipe": "burn-in", "after": job.pk}
    assert waitlist.check(alice, wanted)["after"] == job.pk
    with pytest.raises(LaunchInvalid) as refused:
        waitlist.check(bob, wanted)
    assert "after" in refused.value.fields
    both = wanted | {"retries": 1, "retry_failed": True}
    with pytest.raises(LaunchInvalid) as refused:
        queue_for_gaps(user=alice, job=both, now=NOW)
    assert "gaps cannot wait" in refused.value.fields["after"]
    assert "with its node only" in refused.value.fields["retry_failed"]


def test_a_waiting_job_does_not_start_with_its_reservation(second, job, reservation):
    Job.objects.filter(pk=job.pk).update(state=JobState.RUNNING)
    assert not waitlist.starts(reservation)
    Job.objects.filter(pk=second.pk).update(after_done=True)
    assert waitlist.starts(reservation)
