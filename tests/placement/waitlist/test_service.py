"""Jobs wait with a request and follow a displaced Reservation, through the services."""

from datetime import timedelta

import pytest
from django.utils import timezone

from placement import tick as placement_tick
from placement.jobs import service as jobs
from placement.models import Job, WaitingLaunch
from placement.planner.model.well_known import well_known_spec
from placement.planner.search.memory_savings import PlanLimits
from placement.planner.values.errors import LaunchInvalid
from placement.planner.values.workload import Workload
from placement.plans.service import make_plans, offered, save_plan
from placement.protocol.job_lifecycle import JobState
from reservations import tick
from reservations.accounts.api_tokens import create_token
from reservations.booking.release import release
from reservations.booking.service import book
from reservations.models import Membership, Notice, SitePolicy, WaitingRequest
from reservations.rules.lifecycle import Kind, State
from reservations.sharing import co_use
from reservations.store.booking_facts import site_policy
from reservations.waitlist import scheduler
from reservations.waitlist import service as waiting
from tests.factories import make_gpus, make_reservation
from tests.placement.stage import NOW as STAGE
from tests.reservations.calling import Caller

pytestmark = pytest.mark.django_db
NOW = STAGE.replace(minute=0, second=0, microsecond=0)
HOUR = timedelta(hours=1)
JOB = {
    "name": "train",
    "kind": "recipe",
    "recipe": "burn-in",
    "recipe_settings": {"seconds": 5},
    "restart": "",
}


def ask(user, *, job=None, **fields) -> WaitingRequest:
    fields = {"count": 1, "duration_seconds": 7200, "now": NOW, **fields}
    return waiting.ask(user=user, membership=None, job=job, **fields)


def place(at) -> WaitingRequest:
    scheduler.place(at, site_policy())
    return WaitingRequest.objects.order_by("pk").last()


@pytest.fixture(autouse=True)
def rules(alice) -> None:
    """Alice has no firm quota: what she gets is flex."""
    policy = SitePolicy.current()
    policy.grid_seconds, policy.live_reservations = 3600, 9
    policy.save()
    Membership.objects.filter(user=alice).update(quota_gpu_seconds=0)


@pytest.mark.once
def test_a_booking_that_a_job_starts_with_is_no_news(alice, node) -> None:
    gpus = make_gpus(2, node)
    with_job, without = (
        make_reservation(
            alice, [gpu], start=NOW, end=NOW + 2 * HOUR, state=State.CONFIRMED
        )
        for gpu in gpus
    )
    Job.objects.create(
        reservation=with_job,
        owner=alice,
        name="train",
        kind="recipe",
        recipe="burn-in",
        node=node,
    )
    assert tick.tick(NOW)["started"] == 2
    told = Notice.objects.filter(kind="booking_started")
    assert [one.reservation for one in told] == [without]


def test_a_job_that_waits_with_a_request_is_queued_where_it_is_placed(
    alice, bob, node
) -> None:
    (gpu,) = make_gpus(1, node)
    held = make_reservation(
        bob, [gpu], start=NOW - HOUR, end=NOW + 30 * HOUR, state=State.ACTIVE
    )
    for wrong, field in (
        ({"recipe": "nothing"}, "recipe"),
        ({"reservation": 7}, "reservation"),
        ({"colour": "red"}, "colour"),
        ({"retries": 99}, "retries"),
    ):
        with pytest.raises(LaunchInvalid) as refused:
            ask(alice, job=JOB | wrong)
        assert field in refused.value.fields
    assert not WaitingRequest.objects.exists()

    row = ask(alice, job=JOB, latest=NOW + 11 * HOUR)
    place(NOW)
    assert row.has_job and placement_tick.tick(NOW)["brought"] == 0
    release(reservation_id=held.pk, user=bob, now=NOW + HOUR)
    row = place(NOW + HOUR)
    assert row.state == "placed", "inside the freeze, without asking"
    assert row.reservation.start == NOW + HOUR
    assert placement_tick.tick(NOW + HOUR)["brought"] == 1, "and it is ordered at once"
    job = Job.objects.get()
    assert (job.reservation, job.state, job.name) == (
        row.reservation,
        JobState.STARTING,
        "train",
    )
    assert not WaitingLaunch.objects.exists()

    late = {"now": NOW + HOUR, "earliest": NOW + 9 * HOUR, "gpu_class": ""}
    gone = ask(alice, job=JOB, **late)
    waiting.withdraw(waiting_id=gone.pk, user=alice, now=NOW + HOUR)
    placement_tick.tick(NOW + HOUR)
    assert not WaitingLaunch.objects.exists() and Job.objects.count() == 1

    too_wide = ask(alice, job=JOB | {"gpus": 2}, **late)
    place(NOW + 2 * HOUR)
    placement_tick.tick(NOW + 2 * HOUR)
    too_wide.refresh_from_db()
    assert too_wide.state == "placed" and Job.objects.count() == 1
    told = Notice.objects.get(user=alice, kind="job_failed")
    assert "gpu_count: must be 1, the GPUs held on" in told.detail["text"]


def test_a_plan_is_made_again_where_its_request_is_placed_on_other_gpus(
    alice, bob, node
) -> None:
    gpus = make_gpus(2, node)
    start = NOW + 9 * HOUR
    spec = well_known_spec("gpt2")
    there = offered(user=alice, at=start, hours=2, now=NOW)
    found = make_plans(
        spec=spec,
        workload=Workload(),
        offers=there.offers,
        limits=PlanLimits(beaten_too=True),
    )
    plan = next(one for one in found.plans if one.strategy == "single")
    kept = save_plan(user=alice, spec=spec, plan=plan, now=NOW)
    (planned_on,) = [gpu for gpu in gpus if gpu.uuid == plan.shards[0].gpu_uuid]
    make_reservation(bob, [planned_on], start=NOW, end=NOW + 60 * HOUR)
    job = JOB | {"recipe": "tiny-transformer", "recipe_settings": {}, "plan": kept.pk}
    ask(alice, job=job, earliest=start, latest=NOW + 20 * HOUR)
    row = place(NOW)
    assert row.state == "placed" and placement_tick.tick(NOW)["brought"] == 1
    made = Job.objects.get()
    assert made.plan != kept and made.recipe_settings["strategy"] == "single"
    (shard,) = made.plan.plan["shards"]
    assert shard["gpu_uuid"] != planned_on.uuid
    told = Notice.objects.get(user=alice, kind="plan_again")
    assert "the plan was made again" in told.detail["text"]
    # What does not fit on what it got is refused, and its owner is told why.
    wide = next(one for one in found.plans if len(one.shards) == 2)
    kept = save_plan(user=alice, spec=spec, plan=wide, now=NOW)
    script = {"name": "own", "kind": "script", "script": "true", "plan": kept.pk}
    ask(alice, job=script, earliest=start + 4 * HOUR, latest=NOW + 20 * HOUR)
    place(NOW)
    placement_tick.tick(NOW)
    assert Job.objects.count() == 1
    told = Notice.objects.get(user=alice, kind="job_failed")
    assert "The plan is for" in told.detail["text"]


def test_queued_jobs_and_co_users_follow_a_displaced_reservation(
    alice, bob, node, django_user_model
) -> None:
    one, two = make_gpus(2, node)
    start = NOW + 20 * HOUR
    flex = book(
        user=alice,
        membership=None,
        gpu_ids=[one.pk],
        start=start,
        end=start + 2 * HOUR,
        now=NOW,
    )
    assert flex.kind == Kind.FLEX
    co_use.share(reservation_id=flex.pk, user=alice, username="bob", now=NOW)
    own, shared = (
        jobs.launch(user=user, reservation_id=flex.pk, now=NOW, **JOB)
        for user in (alice, bob)
    )
    later = NOW + HOUR
    book(
        user=bob,
        membership=None,
        gpu_ids=[one.pk],
        start=start,
        end=start + 2 * HOUR,
        now=later,
    )
    row = WaitingRequest.objects.get()
    assert (row.displaced_from, row.has_job, row.state) == (flex, True, "waiting")
    placement_tick.tick(later)
    own.refresh_from_db()
    assert (own.state, own.waits_with) == (JobState.QUEUED, row)
    jobs.stop(job_id=shared.pk, user=bob, now=later)

    row = place(later)
    made = row.reservation
    assert [a.gpu_id for a in made.allocations.all()] == [two.pk]
    assert [c.user for c in made.co_users.all()] == [bob]
    assert placement_tick.tick(later)["brought"] == 2
    own.refresh_from_db()
    shared.refresh_from_db()
    assert (own.reservation, own.waits_with, own.state) == (made, None, JobState.QUEUED)
    assert (shared.state, shared.waits_with) == (JobState.STOPPED, None)
    assert f"follows to #{made.pk}" in own.events.last().reason

    book(
        user=bob,
        membership=None,
        gpu_ids=[two.pk],
        start=start,
        end=start + 2 * HOUR,
        now=later,
    )
    row.refresh_from_db()
    assert row.has_job and row.state == "waiting"
    jobs.stop(job_id=own.pk, user=alice, now=later)
    placement_tick.tick(later)
    row.refresh_from_db()
    assert not row.has_job, "nothing waits with it any more"


def test_the_api_takes_a_job_with_a_request_from_who_may_run_jobs(alice, node) -> None:
    make_gpus(1, node)

    def told(job, *scopes):
        token = create_token(
            user=alice, label="script", scopes=scopes, days=1, now=timezone.now()
        )[1]
        return Caller(token=token)("POST", "/waiting", {"hours": 2, "job": job})

    refused = told(JOB, "book")
    assert refused.status_code == 403 and "job" in refused.body["detail"]
    bad = told(JOB | {"recipe": "nothing"}, "book", "job")
    assert bad.status_code == 422 and "recipe" in bad.body["fields"]
    made = told(JOB, "book", "job")
    assert made.status_code == 201 and made.body["has_job"]
    assert WaitingLaunch.objects.get().launch["recipe"] == "burn-in"
