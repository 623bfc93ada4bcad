"""A running Job to review: its lab, its Plan, its log, its ticks."""

import json
import time
from datetime import timedelta

import pytest
from django.utils import timezone

from placement.jobs import service as jobs
from placement.jobs.nodes import log_store
from placement.models import Job, MoveDecision, PlacementPolicy
from placement.planner.model.well_known import well_known_spec
from placement.planner.search.memory_savings import PlanLimits
from placement.planner.values.gpu_availability import GpuOffer
from placement.planner.values.workload import Workload
from placement.plans.service import make_plans, save_plan
from placement.protocol.job_lifecycle import JobState
from placement.rebalance import move_proposals
from placement.rebalance.rebalance_tick import rebalance_jobs
from placement.rules.rebalance_policy import RestartMode
from reservations.booking.service import book
from reservations.models import Reservation
from telemetry.live import broadcast
from tests.placement.lab import GIB, make_lab, send_frame

M = MoveDecision.State
NOW = timezone.now().replace(microsecond=0)


def after(seconds):
    return NOW + timedelta(seconds=seconds)


@pytest.fixture
def cards(db, redis_client, monkeypatch):
    # Ticks here are minutes apart; readings are sent once.
    monkeypatch.setattr("placement.plans.available_gpus.FRESH_SECONDS", 1e6)
    found = make_lab()
    send_frame(redis_client)
    return found


@pytest.fixture
def rules(db):
    found = PlacementPolicy.current()
    found.pause_seconds = 10
    found.save()
    return found


@pytest.fixture
def watched(alice, cards, rules):
    """A training on node-a:0 with a Plan, that asks to be looked at."""
    return running(alice, booked(alice, cards[:1]), cards[:1])


def booked(user, gpus, hours=10):
    """Book until a full hour, so that the rest of it can be booked again."""
    grid = NOW.replace(minute=0, second=0)
    return book(
        user=user,
        membership=None,
        gpu_ids=[gpu.pk for gpu in gpus],
        start=NOW,
        end=grid + timedelta(hours=hours),
        now=NOW,
    )


def plan_on(gpus, strategy="single"):
    """The planner's Plan for gpt2 on exactly these Gpus, all idle."""
    offers = [
        GpuOffer(
            uuid=gpu.uuid,
            node=gpu.node.name,
            index=gpu.index,
            name=gpu.name,
            gpu_class=gpu.pool.gpu_class,
            memory_total_bytes=gpu.memory_total_bytes,
            used_bytes=400 * 2**20,
            free_bytes=gpu.memory_total_bytes - 400 * 2**20,
            util_pct=3.0,
            peak_flops=312e12 if "A100" in gpu.name else 71e12,
        )
        for gpu in gpus
    ]
    found = make_plans(
        spec=well_known_spec("gpt2"),
        workload=Workload(batch=16),
        offers=offers,
        limits=PlanLimits(beaten_too=True),
    )
    return next(
        plan
        for plan in found.plans
        if plan.strategy == strategy and len(plan.shards) == len(gpus)
    )


def running(user, reservation, gpus, strategy="single", **more):
    spec = well_known_spec("gpt2")
    stored = save_plan(user=user, spec=spec, plan=plan_on(gpus, strategy), now=NOW)
    fields = {"may_move": True, "restart": RestartMode.FRESH, **more}
    made = jobs.launch(
        user=user,
        reservation_id=reservation.pk,
        name="train",
        kind="recipe",
        recipe="tiny-transformer",
        recipe_settings={"steps": 100_000},
        plan_id=stored.pk,
        node=gpus[0].node.name,
        now=NOW,
        **fields,
    )
    Job.objects.filter(pk=made.pk).update(
        state=JobState.RUNNING, attempt=1, started_at=NOW, seen_at=NOW
    )
    Reservation.objects.filter(pk=reservation.pk).update(checked_in_at=NOW)
    made.refresh_from_db()
    return made


def look(seconds=0, policy=None):
    """Tick once so long after NOW, with every Job due."""
    Job.objects.update(looked_at=after(seconds - 3600) if seconds else None)
    return rebalance_jobs(after(seconds))


def moves(job):
    return list(job.moves.order_by("pk"))


def busy(redis_client, gpu, *, job=None, others=0, memory=2 * GIB):
    """Tell the details of a Gpu's node: the Job's own process and others'."""
    process = {
        "pid": 1,
        "uid": 1,
        "user": "x",
        "command": "python",
        "memory_bytes": memory,
        "sm_pct": 50,
        "started_at": 1.0,
        "job": job.pk if job else None,
    }
    processes = [process] if job else []
    processes += [{**process, "job": None} for _ in range(others)]
    detail = {
        "node": gpu.node.name,
        "at": time.time(),
        "load1": 0.1,
        "gpus": {
            gpu.uuid: {
                "processes": processes,
                "throttle": [],
                "memory_reserved_bytes": 0,
            }
        },
    }
    redis_client.set(broadcast.DETAIL + gpu.node.name, json.dumps(detail))


def log(job, *steps):
    text = "".join(f"step={step} loss=1.5\n" for step in steps)
    log_store.append(
        job, attempt=job.attempt, offset=log_store.size(job), data=text.encode()
    )


@pytest.fixture
def slow(alice, cards, rules):
    """A training on the slow node-b:0, while fast Gpus are free."""
    made = running(alice, booked(alice, cards[4:5]), cards[4:5])
    log(made, 1, 100)
    return made


def agree(job, user=None, accept=True):
    row = job.moves.filter(state=M.PROPOSED).get()
    return move_proposals.decide(
        job_id=job.pk, move_id=row.pk, user=user or job.owner, accept=accept, now=NOW
    )
