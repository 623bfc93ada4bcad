"""Outcomes of plans: measured while a job runs, settled at its end, fed back."""

import json
from datetime import timedelta

import pytest
from django.utils import timezone

from placement.jobs.nodes import log_store
from placement.models import Job, PlacementPolicy, PlanOutcome
from placement.planner.model.adaptation import target_names, with_lora
from placement.planner.values.calibration import ENOUGH
from placement.plans import measured_error, plan_outcome
from placement.plans.available_gpus import placement_policy
from placement.plans.service import save_plan
from placement.protocol.job_lifecycle import JobState
from placement.tick import run_progress_tick
from reservations.rules.lifecycle import State
from telemetry.live.broadcast import DETAIL
from telemetry.models import Gpu, Pool, UsageSummary
from tests.factories import make_reservation
from tests.placement.lab import make_lab, plan_on, send_frame

pytestmark = pytest.mark.django_db


def tell(redis_client, job, gpu, held_bytes) -> None:
    """Publish the bytes that a Job's processes hold, as the node does."""
    processes = [
        {"job": job.pk, "memory_bytes": held_bytes},
        {"job": None, "memory_bytes": 7},
    ]
    gpus = {gpu.uuid: {"processes": processes, "throttle": None}}
    body = {"node": gpu.node.name, "at": 0, "load1": None, "gpus": gpus}
    redis_client.set(DETAIL + gpu.node.name, json.dumps(body))


def write(job, text: str) -> None:
    have = log_store.size(job)
    log_store.append(job, attempt=job.attempt, offset=have, data=text.encode())
    Job.objects.filter(pk=job.pk).update(log_bytes=log_store.size(job))


@pytest.fixture
def planned(alice, redis_client):
    """A running script of Alice by a Plan for one Gpu, and that Gpu."""
    make_lab()
    send_frame(redis_client)
    stored = plan_on(alice, "single")
    gpu = Gpu.objects.get(uuid=stored.plan["shards"][0]["gpu_uuid"])
    held = make_reservation(alice, [gpu], state=State.ACTIVE)
    now = timezone.now()
    job = Job.objects.create(
        reservation=held,
        owner=alice,
        plan=stored,
        name="run",
        kind=Job.Kind.SCRIPT,
        node=gpu.node,
        state=JobState.RUNNING,
        attempt=1,
        started_at=now,
        seen_at=now,
    )
    return job, gpu


def test_a_plan_is_measured_while_it_runs_settled_at_the_end_and_fed_back(
    planned, redis_client, alice
):
    job, gpu = planned
    now = timezone.now()
    shard = job.plan.plan["shards"][0]
    step = job.plan.plan["step_seconds"]
    slow = 2 * step
    write(job, "loading\n")
    tell(redis_client, job, gpu, 10)
    assert run_progress_tick(now)["measured"] == 1
    held = int(1.2 * shard["likely_bytes"])
    tell(redis_client, job, gpu, held)
    for n in range(40):
        row = {"step": n, "steps": 40, "step_seconds": slow, "peak_bytes": 1000 + n}
        write(job, json.dumps(row) + "\n")
    run_progress_tick(now + timedelta(seconds=4))
    tell(redis_client, job, gpu, 5)
    run_progress_tick(now + timedelta(seconds=8))
    row = plan_outcome.measured(job.outcome, job)
    assert row.gpus[0]["actual_bytes"] == held and row.gpus[0]["source"] == "processes"
    assert row.gpus[0]["actual_tensor_bytes"] == 1039
    assert row.step_ratio == pytest.approx(2.0) and row.step_source == "log"
    assert row.settled_at is None
    job.refresh_from_db()
    assert (job.progress_done, job.progress_total) == (39, 40)

    job.state, job.ended_at = JobState.DONE, now + timedelta(seconds=9)
    job.save()
    assert run_progress_tick(now + timedelta(seconds=10))["settled"] == 1
    assert run_progress_tick(now + timedelta(seconds=12))["settled"] == 0
    row.refresh_from_db()
    assert row.settled_at is not None and row.not_counted == ""
    assert row.memory_ratio == pytest.approx(1.2, rel=1e-3)
    assert row.high_ratio == pytest.approx(held / shard["high_bytes"])
    assert (row.gpu_class, row.strategy) == (gpu.pool.gpu_class, "single")
    follows_what_ran(job, row, gpu.pool.gpu_class)


def follows_what_ran(job, row, gpu_class) -> None:
    """Settle more such outcomes; predictions follow them, but not themselves."""
    now, alice, shard = timezone.now(), job.owner, job.plan.plan["shards"][0]
    step = job.plan.plan["step_seconds"]
    # Fed back only with enough runs, and never if the site forbids it.
    assert measured_error.learned(placement_policy()).by_kind == {}
    kinds = list(Pool.objects.values_list("gpu_class", flat=True).distinct())
    others = [
        PlanOutcome(
            job=Job.objects.create(
                reservation=job.reservation,
                owner=alice,
                plan=job.plan,
                name=f"{kind} {n}",
                kind=Job.Kind.SCRIPT,
                node=job.node,
                state=JobState.DONE,
                attempt=1,
            ),
            **{
                name: getattr(row, name)
                for name in (
                    "strategy",
                    "precision",
                    "predicted_step_seconds",
                    "predicted_units_per_second",
                    "step_ratio",
                    "memory_ratio",
                    "high_ratio",
                    "settled_at",
                )
            },
            gpu_class=kind,
            prior_step_seconds=1.0,
        )
        # Of every class, so that the next plan is on the same Gpus.
        for kind in kinds
        for n in range(ENOUGH)
    ]
    PlanOutcome.objects.bulk_create(others)
    found = measured_error.learned(placement_policy())
    assert found.step([gpu_class]).ratio == pytest.approx(2.0)
    after = plan_on(alice, "single").plan
    assert after["prior_step_seconds"] == pytest.approx(step)
    assert after["step_seconds"] == pytest.approx(2 * step)
    assert after["shards"][0]["prior_likely_bytes"] == shard["likely_bytes"]
    # The next outcome is compared with the prior, not with the corrected value.
    job.plan = save_plan(user=alice, spec=_spec(job), plan=_plan(after), now=now)
    PlanOutcome.objects.filter(job=job).delete()
    again = plan_outcome.begin(job, now=now)
    assert again.prior_step_seconds == pytest.approx(step)
    assert again.gpus[0]["prior_likely_bytes"] == shard["likely_bytes"]
    PlacementPolicy.objects.update_or_create(pk=1, defaults={"learns": False})
    assert measured_error.learned(placement_policy()).by_class == {}
    PlanOutcome.objects.update(simulated=True)
    assert measured_error.outcomes(simulated=False) == []
    assert len(measured_error.outcomes(simulated=True)) == ENOUGH * len(kinds)


def _spec(job):
    from placement.planner.model.spec import ModelSpec

    return ModelSpec.from_json(job.plan.spec)


def _plan(data):
    from placement.planner.values.plan import Plan

    return Plan.from_json(data)


def test_what_cannot_be_compared_is_shown_and_not_counted(planned, redis_client):
    job, gpu = planned
    now = timezone.now()
    Job.objects.filter(pk=job.pk).update(
        state=JobState.FAILED, ended_at=now, log_bytes=0
    )
    job.refresh_from_db()
    # It ran between two looks, and its node could not attribute the memory.
    assert run_progress_tick(now + timedelta(seconds=30)) == {
        "progress": 0,
        "curves": 0,
        "measured": 0,
        "missed": 1,
        "settled": 1,
        "dropped": 0,
        "logs_dropped": 0,
        "numbers": 0,
    }
    row = job.outcome
    assert row.not_counted == "the job failed"
    row.settled_at = None
    row.save()
    summary = UsageSummary.objects.create(
        kind="job",
        reservation_id=job.reservation_id,
        job_id=job.pk,
        gpu=gpu,
        from_at=now,
        to_at=now,
        next_at=now,
    )
    assert (
        run_progress_tick(now + timedelta(seconds=2))["settled"] == 0
    )  # not counted yet
    UsageSummary.objects.filter(pk=summary.pk).update(
        n=9, memory_max_bytes=row.gpus[0]["others_bytes"] + 500, next_at=None
    )
    assert run_progress_tick(now + timedelta(seconds=3))["settled"] == 1
    row.refresh_from_db()
    assert row.gpus[0]["actual_bytes"] == 500 and row.gpus[0]["source"] == "gpu"
    job.state, job.kind, job.recipe = JobState.DONE, Job.Kind.RECIPE, "burn-in"
    assert plan_outcome.why_not_counted(row, job) == "the recipe trains nothing"
    plan = job.plan.plan
    tokens = plan["workload"]["sequence_length"]
    batch = plan["workload"]["batch"] // plan["launch"].get("accumulation", 1)
    job.recipe, job.recipe_settings = "fine-tune", {"seq": tokens, "batch": batch}
    write(job, json.dumps({"step": 0, "parameters": plan["parameter_count"]}) + "\n")
    assert plan_outcome.why_not_counted(row, job) == ""
    whole, names = _spec(job), target_names(_spec(job))
    job.plan.spec = with_lora(whole, rank=2, targets=names[:1]).to_json()
    assert "of the parameters, planned" in plan_outcome.why_not_counted(row, job)
    job.plan.spec = whole.to_json()
    job.recipe_settings["weights"] = "nf4"
    assert "weights were nf4" in plan_outcome.why_not_counted(row, job)
    job.recipe_settings |= {"weights": "full", "seq": 8}
    assert "its sequences had 8 tokens" in plan_outcome.why_not_counted(row, job)
    plan["parameter_count"] *= 2
    assert "it trained a model of" in plan_outcome.why_not_counted(row, job)
    job.recipe, job.recipe_settings = "tiny-transformer", {"layers": 2, "hidden": 64}
    why = "the recipe trains its own model, not the model of the plan"
    assert plan_outcome.why_not_counted(row, job) == why
