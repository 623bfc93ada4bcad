"""The review of running Jobs: its facts and its decisions."""

import pytest

from placement.models import Job, PlacementPolicy
from placement.rebalance import plan_evaluation
from placement.rebalance.move_proposals import allow_moves
from placement.rebalance.rebalance_tick import rebalance_jobs
from placement.rules.job_refusals import RestartNotAllowed
from placement.rules.rebalance_policy import RebalanceAction, RestartMode
from reservations.models import Reservation
from tests.placement.lab import GIB, send_frame
from tests.placement.watched import (
    NOW,
    M,
    after,
    agree,
    booked,
    busy,
    look,
    moves,
)

pytestmark = pytest.mark.django_db

# --- nothing moves ----------------------------------------------------------------


@pytest.mark.once
def test_nothing_moves_when_nothing_changed(watched, cards, redis_client, alice):
    busy(redis_client, cards[0], job=watched)
    send_frame(redis_client, {0: 2048 + 400})
    for seconds in (0, 60, 120):
        look(seconds)
    (row,) = moves(watched)
    assert (row.state, row.looks, row.cause) == (M.STAYS, 3, "look")
    assert "no other GPUs are better" in row.reason
    assert Reservation.objects.filter(user=alice).count() == 1


@pytest.mark.once
def test_a_jobs_own_use_does_not_drive_it_away(watched, cards, redis_client):
    busy(redis_client, cards[0], job=watched, memory=60 * GIB)
    send_frame(redis_client, {0: 60 * 1024 + 400})
    offer = plan_evaluation.offers_for(watched, NOW)[cards[0].uuid]
    assert offer.used_bytes == 400 * 2**20
    assert (offer.compute_processes, offer.share_ratio) == (0, 1.0)


def test_a_job_that_does_not_ask_is_not_looked_at(watched):
    allow_moves(
        job_id=watched.pk, user=watched.owner, may_move=False, restart="", now=NOW
    )
    assert look()["looked"] == 0
    assert moves(watched) == []


@pytest.mark.once
def test_the_site_can_switch_looking_off(watched, rules):
    rules.look_again_seconds = 0
    rules.save()
    assert look()["looked"] == 0


def test_a_job_is_looked_at_once_in_an_interval(watched, rules):
    assert rebalance_jobs(after(0))["looked"] == 1
    assert rebalance_jobs(after(59))["looked"] == 0
    assert rebalance_jobs(after(61))["looked"] == 1


@pytest.mark.once
def test_two_ticks_at_once_make_one_decision(watched, monkeypatch):
    from placement.rebalance import rebalance_tick

    taken = rebalance_tick._jobs_to_evaluate(PlacementPolicy.current(), {}, NOW)
    again = rebalance_tick._jobs_to_evaluate(PlacementPolicy.current(), {}, NOW)
    rules = PlacementPolicy.current()
    assert rebalance_tick._judge_job(taken[0], None, rules, NOW)
    assert not rebalance_tick._judge_job(again[0], None, rules, NOW)
    assert len(moves(watched)) == 1


# --- a better place ---------------------------------------------------------------


@pytest.mark.once
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
    slow, cards, bob, carol
):
    look()
    look(60)
    (row,) = moves(slow)
    assert (row.state, row.looks) == (M.PROPOSED, 2)
    booked(bob, cards[:2])
    booked(carol, cards[2:4])
    look(120)
    first, second = moves(slow)
    assert (first.state, second.state) == (M.WITHDRAWN, M.STAYS)
    assert "Withdrawn: Stays" in first.reason


@pytest.mark.once
def test_a_move_that_does_not_pay_stays_and_says_why(slow, rules):
    rules.pause_seconds = 40_000
    rules.save()
    look()
    (row,) = moves(slow)
    assert row.state == M.STAYS and "must save more than" in row.reason


def test_an_unknown_end_waits_until_staying_has_cost_as_much(slow, rules):
    rules.pause_seconds = 100
    rules.save()
    Job.objects.filter(pk=slow.pk).update(
        kind="script", recipe="", script="python x.py", restart=RestartMode.RESUMES
    )
    look()
    assert moves(slow)[0].state == M.STAYS
    seen = [moves(slow)[0].regret_seconds]
    for seconds in range(60, 601, 60):
        Job.objects.update(looked_at=after(seconds - 60))
        rebalance_jobs(after(seconds))
        seen.append(moves(slow)[-1].regret_seconds)
        if moves(slow)[-1].state == M.PROPOSED:
            break
    assert moves(slow)[-1].state == M.PROPOSED
    assert "staying has lost" in moves(slow)[-1].reason
    assert seen == sorted(seen) and len(seen) > 2


@pytest.mark.once
def test_policy_never_says_so_and_does_nothing(slow, rules):
    rules.when_faster = RebalanceAction.NEVER
    rules.save()
    look()
    (row,) = moves(slow)
    assert row.state == M.STAYS and "not moved for speed" in row.reason


def test_what_the_job_did_not_allow_is_only_proposed(slow, rules):
    rules.when_faster = RebalanceAction.DO
    rules.save()
    Job.objects.filter(pk=slow.pk).update(restart=RestartMode.NOT)
    look()
    (row,) = moves(slow)
    assert row.state == M.PROPOSED and "choose first how" in row.reason
    with pytest.raises(RestartNotAllowed):
        agree(slow)


@pytest.mark.once
def test_dearer_gpus_are_never_taken_without_asking(slow, rules):
    rules.when_faster = RebalanceAction.DO
    rules.save()
    look()
    (row,) = moves(slow)
    assert row.state == M.PROPOSED and "cost more credits" in row.reason
