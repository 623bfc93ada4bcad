"""Decisions to move: agreed to, carried out, measured; and Gpus in trouble."""

from datetime import timedelta

import pytest

from placement.jobs.tick import job_tick
from placement.models import Job, JobArray, MoveDecision, PlacementPolicy
from placement.planner.values.plan import Plan
from placement.protocol.job_lifecycle import JobState
from placement.rebalance import move_proposals, plan_evaluation
from placement.rebalance.rebalance_tick import rebalance_jobs
from placement.rules.job_refusals import MoveGone
from placement.rules.rebalance_policy import RebalanceAction, RestartMode
from reservations.models import Allocation, AuditEntry, Reservation, SitePolicy
from reservations.rules.booking_alerts import INTRUDER
from reservations.rules.errors import NotAllowed, NotFound
from reservations.rules.lifecycle import State
from telemetry.alerts.service import close_alert, open_alert
from telemetry.models import Gpu
from telemetry.rules.alert_rules import LOST, SILENT
from tests.factories import make_reservation
from tests.placement.lab import send_frame
from tests.placement.watched import (
    NOW,
    M,
    after,
    agree,
    booked,
    busy,
    log,
    look,
    moves,
    running,
)

pytestmark = pytest.mark.django_db

# --- saying yes and no ------------------------------------------------------------


@pytest.mark.once
def test_a_no_is_heard_and_not_asked_again(slow):
    look()
    assert agree(slow, accept=False).state == M.DECLINED
    look(60)
    last = moves(slow)[-1]
    assert last.state == M.STAYS and "declined" in last.reason
    with pytest.raises(MoveGone):
        move_proposals.decide(
            job_id=slow.pk,
            move_id=moves(slow)[0].pk,
            user=slow.owner,
            accept=True,
            now=NOW,
        )


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


def test_a_yes_books_gives_back_stops_and_launches_in_one_step(slow, cards, alice):
    sweep = JobArray.objects.create(
        owner=alice,
        reservation=slow.reservation,
        name="s",
        sweep={"lr": [1, 2]},
        created_at=slow.created_at,
    )
    of_sweep = {"array": sweep, "array_index": 1, "parameters": {"lr": 2}}
    Job.objects.filter(pk=slow.pk).update(**of_sweep)
    look()
    agree(slow)
    assert rebalance_jobs(after(5))["carried_out"] == 1
    old, new = Reservation.objects.filter(user=alice).order_by("pk")
    assert (old.state, new.state, new.end) == (
        State.RELEASED,
        State.ACTIVE,
        old.booked_end,
    )
    assert [a.gpu for a in new.allocations.all()] == [cards[0]]
    assert not Allocation.objects.filter(gpu=cards[4], live=True).exists()
    slow.refresh_from_db()
    assert (slow.state, slow.reason) == (JobState.MOVING, "moves to node-a:0")
    row = moves(slow)[0]
    again = row.next_job
    assert (row.state, again.state, again.reservation) == (M.MOVING, "queued", new)
    assert (again.may_move, again.restart) == (True, RestartMode.FRESH)
    assert {name: getattr(again, name) for name in of_sweep} == of_sweep
    assert AuditEntry.objects.filter(verb="reservation.moved-on").count() == 1
    assert new.late_returns.count() == old.late_returns.count() == 0


@pytest.mark.once
def test_the_new_job_waits_until_the_old_one_has_left(slow, monkeypatch):
    monkeypatch.setattr("placement.jobs.nodes.command_queue.send", lambda *a, **k: True)
    look()
    agree(slow)
    rebalance_jobs(after(5))
    again = moves(slow)[0].next_job
    assert job_tick.tick(after(6))["ordered"] == 0
    again.refresh_from_db()
    assert again.reason.startswith(f"waits for job {slow.pk}, which uses ")
    Job.objects.filter(pk=slow.pk).update(state=JobState.STOPPED, ended_at=after(7))
    assert job_tick.tick(after(8))["ordered"] == 1


def test_realised_gain_and_cost_stand_beside_the_predicted(slow):
    look()
    agree(slow)
    rebalance_jobs(after(5))
    again = moves(slow)[0].next_job
    Job.objects.filter(pk=again.pk).update(
        state=JobState.RUNNING, attempt=1, started_at=after(25), seen_at=after(25)
    )
    again.refresh_from_db()
    assert rebalance_jobs(after(30))["followed"] == 1
    log(again, 10)
    look(60)
    log(again, 600)
    look(120)
    row = moves(slow)[0]
    assert (row.state, row.realised_cost_seconds) == (M.MOVED, 20.0)
    assert row.realised_step_seconds == pytest.approx(60 / 590)
    wins = (row.step_seconds_now - row.realised_step_seconds) * row.steps_left
    assert row.realised_gain_seconds == pytest.approx(wins)


@pytest.mark.once
def test_a_job_that_just_moved_is_held_down(slow, cards):
    look()
    agree(slow)
    rebalance_jobs(after(5))
    row = moves(slow)[0]
    Job.objects.filter(pk=row.next_job_id).update(
        state=JobState.RUNNING, attempt=1, started_at=after(40)
    )
    rebalance_jobs(after(45))
    weighed = plan_evaluation.weigh(
        Job.objects.select_related("plan", "owner", "node", "reservation").get(
            pk=row.next_job_id
        ),
        None,
        policy=PlacementPolicy.current(),
        looked_at=None,
        now=after(65),
    )
    assert weighed.look.seconds_since_last_move == 60
    assert weighed.look.last_move_cost_seconds == 35


def test_one_move_is_in_flight_at_a_time(slow, alice, bob, cards):
    second = running(bob, booked(bob, cards[5:6]), cards[5:6])
    log(second, 1, 100)
    look()
    agree(slow)
    agree(second)
    rebalance_jobs(after(5))
    rebalance_jobs(after(10))
    states = sorted(MoveDecision.objects.values_list("state", flat=True))
    assert states == [M.ACCEPTED, M.MOVING]


def test_gpus_that_somebody_booked_first_are_never_taken(slow, cards, bob):
    look()
    agree(slow)
    booked(bob, cards[:1])
    rebalance_jobs(after(5))
    row = moves(slow)[0]
    assert row.state == M.FAILED and "The move failed" in row.reason
    slow.refresh_from_db()
    assert slow.state == JobState.RUNNING
    held = Allocation.objects.filter(live=True).values_list("gpu_id", flat=True)
    assert sorted(held) == sorted([cards[0].pk, cards[4].pk])


@pytest.mark.once
def test_memory_that_a_stranger_took_meanwhile_stops_the_move(
    slow, cards, redis_client
):
    look()
    agree(slow)
    send_frame(redis_client, {0: 80 * 1024})
    rebalance_jobs(after(5))
    assert moves(slow)[0].state == M.FAILED
    assert "another process uses its memory" in moves(slow)[0].reason


@pytest.mark.once
def test_a_job_that_ends_by_itself_withdraws_its_proposal(slow):
    look()
    Job.objects.filter(pk=slow.pk).update(state=JobState.DONE, ended_at=after(1))
    assert rebalance_jobs(after(5))["withdrawn"] == 1
    assert moves(slow)[0].state == M.WITHDRAWN


# --- trouble ----------------------------------------------------------------------


@pytest.mark.once
def test_a_broken_gpu_is_left_by_itself_where_the_site_and_the_job_want_it(
    watched, cards, rules
):
    rules.when_in_trouble = RebalanceAction.DO
    rules.save()
    Job.objects.filter(pk=watched.pk).update(may_move=False)
    Gpu.objects.filter(pk=cards[0].pk).update(lost=True)
    open_alert(rule=LOST, gpu_id=cards[0].pk, now=NOW)
    rebalance_jobs(after(5))
    row = moves(watched)[0]
    assert (row.state, row.automatic, row.cause) == (M.ACCEPTED, True, LOST)
    assert "GPU node-a:0 is not reliable" in row.reason
    rebalance_jobs(after(10))
    row.refresh_from_db()
    assert (row.state, row.to_gpus) == (M.MOVING, ["node-a:1"])


@pytest.mark.once
def test_an_intruder_makes_a_proposal_and_its_leaving_withdraws_it(
    watched, cards, redis_client
):
    busy(redis_client, cards[0], job=watched, others=1)
    open_alert(rule=INTRUDER, gpu_id=cards[0].pk, now=NOW)
    rebalance_jobs(after(5))
    row = moves(watched)[0]
    assert (row.state, row.cause) == (M.PROPOSED, INTRUDER)
    assert "someone else uses node-a:0" in row.reason.lower()
    close_alert(rule=INTRUDER, gpu_id=cards[0].pk, now=after(30))
    busy(redis_client, cards[0], job=watched)
    look(120)
    row.refresh_from_db()
    assert row.state == M.WITHDRAWN


@pytest.mark.once
def test_a_job_that_a_broken_gpu_ended_may_live_again(watched, cards):
    Gpu.objects.filter(pk=cards[0].pk).update(lost=True)
    open_alert(rule=LOST, gpu_id=cards[0].pk, now=NOW)
    Job.objects.filter(pk=watched.pk).update(state=JobState.FAILED, ended_at=after(1))
    rebalance_jobs(after(5))
    assert moves(watched)[0].state == M.PROPOSED
    agree(watched)
    rebalance_jobs(after(10))
    row = moves(watched)[0]
    assert row.state == M.MOVING and row.next_job.state == JobState.QUEUED
    watched.refresh_from_db()
    assert watched.state == JobState.FAILED


@pytest.mark.once
def test_without_another_gpu_the_words_say_so(watched, cards, bob, carol):
    booked(bob, cards[1:4])
    booked(carol, cards[4:])
    open_alert(rule=LOST, gpu_id=cards[0].pk, now=NOW)
    rebalance_jobs(after(5))
    row = moves(watched)[0]
    assert row.state == M.STAYS and "no other GPUs fit" in row.reason
    assert "5 booked" in row.reason


@pytest.mark.once
def test_ones_other_reservations_are_not_moved_onto(watched, alice, cards):
    make_reservation(
        alice,
        cards[1:2],
        NOW - timedelta(hours=1),
        NOW + timedelta(hours=30),
        state=State.ACTIVE,
    )
    offer = plan_evaluation.offers_for(watched, NOW)[cards[1].uuid]
    assert not offer.usable and "in your reservation" in offer.reason


@pytest.mark.once
def test_a_pair_keeps_the_gpu_that_is_well(alice, cards, rules):
    held = booked(alice, cards[:2])
    pair = running(alice, held, cards[:2], strategy="ddp")
    Gpu.objects.filter(pk=cards[0].pk).update(lost=True)
    open_alert(rule=LOST, gpu_id=cards[0].pk, now=NOW)
    rebalance_jobs(after(5))
    row = moves(pair)[0]
    assert row.state == M.PROPOSED
    assert "node-a:1" in row.to_gpus and "node-a:0" not in row.to_gpus
    assert Plan.from_json(row.plan.plan).gpu_uuids


@pytest.mark.once
def test_what_the_rules_refuse_is_not_tried_again_at_once(slow, rules):
    site = SitePolicy.current()
    site.quota_gpu_seconds = 3600
    site.save()
    look()
    agree(slow)
    rebalance_jobs(after(5))
    look(60)
    first, second = moves(slow)
    assert (first.state, second.state) == (M.FAILED, M.STAYS)
    assert "It failed recently" in second.reason
    slow.refresh_from_db()
    assert slow.state == JobState.RUNNING


def test_a_silent_node_is_left_only_when_somebody_says_so(watched, cards, rules):
    rules.when_in_trouble = RebalanceAction.DO
    rules.save()
    open_alert(rule=SILENT, node_id=watched.node_id, now=NOW)
    rebalance_jobs(after(5))
    row = moves(watched)[0]
    assert (row.state, row.to_gpus) == (M.PROPOSED, ["node-b:0"])
    assert "the job may still run" in row.reason
