"""Looking again at running Jobs: what is seen, decided, proposed, carried out."""

import json
import time
from datetime import timedelta

import pytest
from django.utils import timezone

from placement import logs, services
from placement.domain.lifecycle import JobState
from placement.domain.look import Act, Restart
from placement.domain.offer import GpuOffer
from placement.domain.plan import Plan
from placement.domain.refusals import MoveGone, RestartNotAllowed
from placement.domain.well_known import well_known_spec
from placement.domain.workload import Workload
from placement.models import Job, MoveDecision, PlacementPolicy
from placement.services import weighing
from reservations import services as reservations
from reservations.domain.errors import NotAllowed, NotFound
from reservations.domain.lifecycle import State
from reservations.models import Allocation, AuditEntry, Reservation
from telemetry import live
from telemetry.domain.rules import INTRUDER, LOST
from telemetry.models import Gpu
from telemetry.services import close_alert, open_alert
from tests.factories import make_reservation
from tests.placement.lab import GIB, make_lab, send_frame

pytestmark = pytest.mark.django_db
M = MoveDecision.State
NOW = timezone.now().replace(microsecond=0)


def after(seconds):
    return NOW + timedelta(seconds=seconds)


@pytest.fixture
def gpus(db, redis_client, monkeypatch):
    # Ticks here are minutes apart; readings are sent once.
    monkeypatch.setattr("placement.services.offering.FRESH_SECONDS", 1e6)
    found = make_lab()
    send_frame(redis_client)
    return found


@pytest.fixture
def policy(db):
    found = PlacementPolicy.current()
    found.pause_seconds = 10
    found.save()
    return found


@pytest.fixture
def job(alice, gpus, policy):
    """A training on node-a:0 with a Plan, that asks to be looked at."""
    return running(alice, booked(alice, gpus[:1]), gpus[:1])


def booked(user, gpus, hours=10):
    """Book until a full hour, so that the rest of it can be booked again."""
    grid = NOW.replace(minute=0, second=0)
    return reservations.book(
        user=user, membership=None, gpu_ids=[gpu.pk for gpu in gpus],
        start=NOW, end=grid + timedelta(hours=hours), now=NOW,
    )  # fmt: skip


def plan_on(gpus, strategy="single"):
    """The planner's Plan for gpt2 on exactly these Gpus, all idle."""
    offers = [
        GpuOffer(
            uuid=gpu.uuid, node=gpu.node.name, index=gpu.index, name=gpu.name,
            gpu_class=gpu.pool.gpu_class, memory_total_bytes=gpu.memory_total_bytes,
            used_bytes=400 * 2**20, free_bytes=gpu.memory_total_bytes - 400 * 2**20,
            util_pct=3.0, peak_flops=312e12 if "A100" in gpu.name else 71e12,
        )
        for gpu in gpus
    ]  # fmt: skip
    found = services.make_plans(
        spec=well_known_spec("gpt2"), workload=Workload(batch=16), offers=offers
    )
    return next(
        plan
        for plan in found.plans
        if plan.strategy == strategy and len(plan.shards) == len(gpus)
    )


def running(user, reservation, gpus, strategy="single", **more):
    spec = well_known_spec("gpt2")
    stored = services.keep_plan(
        user=user, spec=spec, plan=plan_on(gpus, strategy), now=NOW
    )
    fields = {"may_move": True, "restart": Restart.FRESH, **more}
    made = services.launch(
        user=user, reservation_id=reservation.pk, name="train", kind="recipe",
        recipe="tiny-transformer", recipe_settings={"steps": 100_000},
        plan_id=stored.pk, node=gpus[0].node.name, now=NOW, **fields,
    )  # fmt: skip
    Job.objects.filter(pk=made.pk).update(
        state=JobState.RUNNING, attempt=1, started_at=NOW, seen_at=NOW
    )
    Reservation.objects.filter(pk=reservation.pk).update(checked_in_at=NOW)
    made.refresh_from_db()
    return made


def look(seconds=0, policy=None):
    """One tick so long after NOW, every Job due."""
    Job.objects.update(looked_at=after(seconds - 3600) if seconds else None)
    return services.look_again(after(seconds))


def moves(job):
    return list(job.moves.order_by("pk"))


def busy(redis_client, gpu, *, job=None, others=0, memory=2 * GIB):
    """Tell the details of a Gpu's node: the Job's own process and others'."""
    process = {
        "pid": 1, "uid": 1, "user": "x", "command": "python", "memory_bytes": memory,
        "sm_pct": 50, "started_at": 1.0, "job": job.pk if job else None,
    }  # fmt: skip
    processes = [process] if job else []
    processes += [{**process, "job": None} for _ in range(others)]
    detail = {
        "node": gpu.node.name, "at": time.time(), "load1": 0.1,
        "gpus": {gpu.uuid: {
            "processes": processes, "throttle": [], "memory_reserved_bytes": 0,
        }},
    }  # fmt: skip
    redis_client.set(live.DETAIL + gpu.node.name, json.dumps(detail))


def log(job, *steps):
    text = "".join(f"step={step} loss=1.5\n" for step in steps)
    logs.append(job, attempt=job.attempt, offset=logs.size(job), data=text.encode())


# --- nothing moves ----------------------------------------------------------------


def test_nothing_moves_when_nothing_changed(job, gpus, redis_client, alice):
    busy(redis_client, gpus[0], job=job)
    send_frame(redis_client, {0: 2048 + 400})
    for seconds in (0, 60, 120):
        look(seconds)
    (row,) = moves(job)
    assert (row.state, row.looks, row.cause) == (M.STAYS, 3, "look")
    assert "its own GPUs are the best there are" in row.reason
    assert Reservation.objects.filter(user=alice).count() == 1


def test_a_jobs_own_use_does_not_drive_it_away(job, gpus, redis_client):
    busy(redis_client, gpus[0], job=job, memory=60 * GIB)
    send_frame(redis_client, {0: 60 * 1024 + 400})
    offer = weighing.offers_for(job, NOW)[gpus[0].uuid]
    assert offer.used_bytes == 400 * 2**20
    assert (offer.compute_processes, offer.share_ratio) == (0, 1.0)


def test_a_job_that_does_not_ask_is_not_looked_at(job):
    services.allow_moves(
        job_id=job.pk, user=job.owner, may_move=False, restart="", now=NOW
    )
    assert look()["looked"] == 0
    assert moves(job) == []


def test_the_site_can_switch_looking_off(job, policy):
    policy.look_again_seconds = 0
    policy.save()
    assert look()["looked"] == 0


def test_a_job_is_looked_at_once_in_an_interval(job, policy):
    assert services.look_again(after(0))["looked"] == 1
    assert services.look_again(after(59))["looked"] == 0
    assert services.look_again(after(61))["looked"] == 1


def test_two_ticks_at_once_make_one_decision(job, monkeypatch):
    from placement.services import looking

    taken = looking._due(PlacementPolicy.current(), {}, NOW)
    again = looking._due(PlacementPolicy.current(), {}, NOW)
    policy = PlacementPolicy.current()
    assert looking._look(taken[0], None, policy, NOW)
    assert not looking._look(again[0], None, policy, NOW)
    assert len(moves(job)) == 1


# --- a better place ---------------------------------------------------------------


@pytest.fixture
def slow(alice, gpus, policy):
    """A training on the slow node-b:0, while fast Gpus are free."""
    made = running(alice, booked(alice, gpus[4:5]), gpus[4:5])
    log(made, 1, 100)
    return made


def test_a_move_that_pays_is_proposed_with_its_numbers(slow):
    look()
    (row,) = moves(slow)
    assert (row.state, row.automatic) == (M.PROPOSED, False)
    assert row.from_gpus == ["node-b:0"] and row.to_gpus == ["node-a:0"]
    assert row.step_seconds_new < row.step_seconds_now
    assert row.gain_seconds > 1.25 * row.cost_seconds > 0
    assert "Moves to node-a:0" in row.reason and "saves" in row.reason
    assert row.plan.plan["shards"][0]["gpu_label"] == "node-a:0"


def test_a_standing_proposal_is_refreshed_and_withdrawn_when_it_is_gone(
    slow, gpus, bob, carol
):
    look()
    look(60)
    (row,) = moves(slow)
    assert (row.state, row.looks) == (M.PROPOSED, 2)
    booked(bob, gpus[:2])
    booked(carol, gpus[2:4])
    look(120)
    first, second = moves(slow)
    assert (first.state, second.state) == (M.WITHDRAWN, M.STAYS)
    assert "Withdrawn: Stays" in first.reason


def test_a_move_that_does_not_pay_stays_and_says_why(slow, policy):
    policy.pause_seconds = 40_000
    policy.save()
    look()
    (row,) = moves(slow)
    assert row.state == M.STAYS and "must save more than" in row.reason


def test_an_unknown_end_waits_until_staying_has_cost_as_much(slow, policy):
    policy.pause_seconds = 100
    policy.save()
    Job.objects.filter(pk=slow.pk).update(
        kind="script", recipe="", script="python x.py", restart=Restart.RESUMES
    )
    look()
    assert moves(slow)[0].state == M.STAYS
    seen = [moves(slow)[0].regret_seconds]
    for seconds in range(60, 601, 60):
        Job.objects.update(looked_at=after(seconds - 60))
        services.look_again(after(seconds))
        seen.append(moves(slow)[-1].regret_seconds)
        if moves(slow)[-1].state == M.PROPOSED:
            break
    assert moves(slow)[-1].state == M.PROPOSED
    assert "staying has lost" in moves(slow)[-1].reason
    assert seen == sorted(seen) and len(seen) > 2


def test_policy_never_says_so_and_does_nothing(slow, policy):
    policy.when_faster = Act.NEVER
    policy.save()
    look()
    (row,) = moves(slow)
    assert row.state == M.STAYS and "policy is never" in row.reason


def test_what_the_job_did_not_allow_is_only_proposed(slow, policy):
    policy.when_faster = Act.DO
    policy.save()
    Job.objects.filter(pk=slow.pk).update(restart=Restart.NOT)
    look()
    (row,) = moves(slow)
    assert row.state == M.PROPOSED and "has not said how" in row.reason
    with pytest.raises(RestartNotAllowed):
        agree(slow)


def agree(job, user=None, accept=True):
    row = job.moves.filter(state=M.PROPOSED).get()
    return services.decide(
        job_id=job.pk, move_id=row.pk, user=user or job.owner, accept=accept, now=NOW
    )


def test_dearer_gpus_are_never_taken_without_asking(slow, policy):
    policy.when_faster = Act.DO
    policy.save()
    look()
    (row,) = moves(slow)
    assert row.state == M.PROPOSED and "cost more quota" in row.reason


# --- saying yes and no ------------------------------------------------------------


def test_a_no_is_heard_and_not_asked_again(slow):
    look()
    assert agree(slow, accept=False).state == M.DECLINED
    look(60)
    last = moves(slow)[-1]
    assert last.state == M.STAYS and "declined" in last.reason
    with pytest.raises(MoveGone):
        services.decide(
            job_id=slow.pk, move_id=moves(slow)[0].pk, user=slow.owner, accept=True,
            now=NOW,
        )  # fmt: skip


def test_only_the_owner_and_the_operator_decide(slow, bob, carol, omar):
    look()
    for stranger in (bob, carol):
        with pytest.raises(NotFound):
            agree(slow, stranger)
    slow.reservation.membership.account.memberships.filter(user=bob).update(
        is_head=True
    )
    with pytest.raises(NotAllowed):
        agree(slow, bob)
    assert agree(slow, omar).decided_by == omar


# --- carrying out -----------------------------------------------------------------


def test_a_yes_books_gives_back_stops_and_launches_in_one_step(slow, gpus, alice):
    look()
    agree(slow)
    assert services.look_again(after(5))["carried_out"] == 1
    old, new = Reservation.objects.filter(user=alice).order_by("pk")
    assert (old.state, new.state, new.end) == (
        State.RELEASED, State.ACTIVE, old.booked_end,
    )  # fmt: skip
    assert [a.gpu for a in new.allocations.all()] == [gpus[0]]
    assert not Allocation.objects.filter(gpu=gpus[4], live=True).exists()
    slow.refresh_from_db()
    assert (slow.state, slow.reason) == (JobState.STOPPING, "moves to node-a:0")
    row = moves(slow)[0]
    again = row.next_job
    assert (row.state, again.state, again.reservation) == (M.MOVING, "queued", new)
    assert (again.may_move, again.restart) == (True, Restart.FRESH)
    assert AuditEntry.objects.filter(verb="reservation.moved-on").count() == 1
    assert new.late_returns.count() == old.late_returns.count() == 0


def test_the_new_job_waits_until_the_old_one_has_left(slow, monkeypatch):
    monkeypatch.setattr("placement.services.ordering.send", lambda *a, **k: True)
    look()
    agree(slow)
    services.look_again(after(5))
    again = moves(slow)[0].next_job
    assert services.tick(after(6))["ordered"] == 0
    again.refresh_from_db()
    assert again.reason == f"waits for job #{slow.pk} to leave the GPUs"
    Job.objects.filter(pk=slow.pk).update(state=JobState.STOPPED, ended_at=after(7))
    assert services.tick(after(8))["ordered"] == 1


def test_realised_gain_and_cost_stand_beside_the_predicted(slow):
    look()
    agree(slow)
    services.look_again(after(5))
    again = moves(slow)[0].next_job
    Job.objects.filter(pk=again.pk).update(
        state=JobState.RUNNING, attempt=1, started_at=after(25), seen_at=after(25)
    )
    again.refresh_from_db()
    assert services.look_again(after(30))["followed"] == 1
    log(again, 10)
    look(60)
    log(again, 600)
    look(120)
    row = moves(slow)[0]
    assert (row.state, row.realised_cost_seconds) == (M.MOVED, 20.0)
    assert row.realised_step_seconds == pytest.approx(60 / 590)
    wins = (row.step_seconds_now - row.realised_step_seconds) * row.steps_left
    assert row.realised_gain_seconds == pytest.approx(wins)


def test_a_job_that_just_moved_is_held_down(slow, gpus):
    look()
    agree(slow)
    services.look_again(after(5))
    row = moves(slow)[0]
    Job.objects.filter(pk=row.next_job_id).update(
        state=JobState.RUNNING, attempt=1, started_at=after(40)
    )
    services.look_again(after(45))
    weighed = weighing.weigh(
        Job.objects.select_related("plan", "owner", "node", "reservation").get(
            pk=row.next_job_id
        ),
        None, policy=PlacementPolicy.current(), looked_at=None, now=after(65),
    )  # fmt: skip
    assert weighed.look.seconds_since_last_move == 60
    assert weighed.look.last_move_cost_seconds == 35


def test_one_move_is_in_flight_at_a_time(slow, alice, bob, gpus):
    second = running(bob, booked(bob, gpus[5:6]), gpus[5:6])
    log(second, 1, 100)
    look()
    agree(slow)
    agree(second)
    services.look_again(after(5))
    services.look_again(after(10))
    states = sorted(MoveDecision.objects.values_list("state", flat=True))
    assert states == [M.ACCEPTED, M.MOVING]


def test_gpus_that_somebody_booked_first_are_never_taken(slow, gpus, bob):
    look()
    agree(slow)
    booked(bob, gpus[:1])
    services.look_again(after(5))
    row = moves(slow)[0]
    assert row.state == M.FAILED and "could not be done" in row.reason
    slow.refresh_from_db()
    assert slow.state == JobState.RUNNING
    held = Allocation.objects.filter(live=True).values_list("gpu_id", flat=True)
    assert sorted(held) == sorted([gpus[0].pk, gpus[4].pk])


def test_memory_that_a_stranger_took_meanwhile_stops_the_move(slow, gpus, redis_client):
    look()
    agree(slow)
    send_frame(redis_client, {0: 80 * 1024})
    services.look_again(after(5))
    assert moves(slow)[0].state == M.FAILED
    assert "used by somebody else" in moves(slow)[0].reason


def test_a_job_that_ends_by_itself_withdraws_its_proposal(slow):
    look()
    Job.objects.filter(pk=slow.pk).update(state=JobState.DONE, ended_at=after(1))
    assert services.look_again(after(5))["withdrawn"] == 1
    assert moves(slow)[0].state == M.WITHDRAWN


# --- trouble ----------------------------------------------------------------------


def test_a_broken_gpu_is_left_by_itself_where_the_site_and_the_job_want_it(
    job, gpus, policy
):
    policy.when_in_trouble = Act.DO
    policy.save()
    Job.objects.filter(pk=job.pk).update(may_move=False)
    Gpu.objects.filter(pk=gpus[0].pk).update(lost=True)
    open_alert(rule=LOST, gpu_id=gpus[0].pk, now=NOW)
    services.look_again(after(5))
    row = moves(job)[0]
    assert (row.state, row.automatic, row.cause) == (M.ACCEPTED, True, LOST)
    assert "node-a:0 cannot be counted on" in row.reason.replace("Node", "node")
    services.look_again(after(10))
    row.refresh_from_db()
    assert (row.state, row.to_gpus) == (M.MOVING, ["node-a:1"])


def test_an_intruder_makes_a_proposal_and_its_leaving_withdraws_it(
    job, gpus, redis_client
):
    busy(redis_client, gpus[0], job=job, others=1)
    open_alert(rule=INTRUDER, gpu_id=gpus[0].pk, now=NOW)
    services.look_again(after(5))
    row = moves(job)[0]
    assert (row.state, row.cause) == (M.PROPOSED, INTRUDER)
    assert "somebody else runs on node-a:0" in row.reason.lower()
    close_alert(rule=INTRUDER, gpu_id=gpus[0].pk, now=after(30))
    busy(redis_client, gpus[0], job=job)
    look(120)
    row.refresh_from_db()
    assert row.state == M.WITHDRAWN


def test_a_job_that_a_broken_gpu_ended_may_live_again(job, gpus):
    Gpu.objects.filter(pk=gpus[0].pk).update(lost=True)
    open_alert(rule=LOST, gpu_id=gpus[0].pk, now=NOW)
    Job.objects.filter(pk=job.pk).update(state=JobState.FAILED, ended_at=after(1))
    services.look_again(after(5))
    assert moves(job)[0].state == M.PROPOSED
    agree(job)
    services.look_again(after(10))
    row = moves(job)[0]
    assert row.state == M.MOVING and row.next_job.state == JobState.QUEUED
    job.refresh_from_db()
    assert job.state == JobState.FAILED


def test_without_another_gpu_the_words_say_so(job, gpus, bob, carol):
    booked(bob, gpus[1:4])
    booked(carol, gpus[4:])
    open_alert(rule=LOST, gpu_id=gpus[0].pk, now=NOW)
    services.look_again(after(5))
    row = moves(job)[0]
    assert row.state == M.STAYS and "nowhere to go" in row.reason


def test_ones_other_reservations_are_not_moved_onto(job, alice, gpus):
    make_reservation(
        alice, gpus[1:2], NOW - timedelta(hours=1), NOW + timedelta(hours=30),
        state=State.ACTIVE,
    )  # fmt: skip
    offer = weighing.offers_for(job, NOW)[gpus[1].uuid]
    assert not offer.usable and "in your reservation" in offer.reason


def test_a_pair_keeps_the_gpu_that_is_well(alice, gpus, policy):
    held = booked(alice, gpus[:2])
    pair = running(alice, held, gpus[:2], strategy="ddp")
    Gpu.objects.filter(pk=gpus[0].pk).update(lost=True)
    open_alert(rule=LOST, gpu_id=gpus[0].pk, now=NOW)
    services.look_again(after(5))
    row = moves(pair)[0]
    assert row.state == M.PROPOSED
    assert "node-a:1" in row.to_gpus and "node-a:0" not in row.to_gpus
    assert Plan.from_json(row.plan.plan).gpu_uuids
