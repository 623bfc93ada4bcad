"""Compare a running Job's Plan in its present place with the best Plan elsewhere.

The planner runs two or three times: on the Job's own Gpus without the Job, on all Gpus
that are free in the calendar for the rest of its Window, and, if that answer differs
from the present place only in the names of its Gpus, on the nearest equal Gpus. Only
the Job's strategy, number of Gpus and remedies are allowed, because its code is fixed.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.conf import settings
from redis import Redis

from placement.jobs.tick.job_progress import progress_of
from placement.models import Job, PlacementPolicy
from placement.planner.model.spec import ModelSpec
from placement.planner.search.memory_savings import PlanLimits
from placement.planner.search.move_or_stay import restart_cost_seconds
from placement.planner.values.gpu_availability import GpuOffer
from placement.planner.values.humanize import gib
from placement.planner.values.plan import Plan
from placement.planner.values.workload import Workload
from placement.plans import service as planning
from placement.plans.available_gpus import BOOKED
from placement.rules.nearest_place import moved_bytes, nearest_set, renamed
from placement.rules.rebalance_policy import RebalancePolicy, RestartMode
from placement.rules.rebalance_review import GpuTrouble, MoveSnapshot
from reservations.models import Allocation
from reservations.rules.booking_alerts import INTRUDER, SQUATTER
from telemetry.live import broadcast
from telemetry.models import Alert, Gpu
from telemetry.protocol.sentences import counted, joined, sentence
from telemetry.rules.alert_rules import breaking_rules

STATE_BYTES_PER_SECOND = 1e9
"""Through a checkpoint on a drive of the node, written and read."""
MOST_NAMED = 6
"""Gpus that a reason names."""
MOST_ELAPSED_LOOKS = 3
"""Time without reviews does not count as regret."""


@dataclass(frozen=True)
class RebalanceEvaluation:
    """The facts of one review, and the requirements of a move."""

    look: MoveSnapshot
    spec: ModelSpec
    current: Plan
    plan: Plan | None
    gpu_ids: tuple[int, ...] = ()
    """All Gpus that the rest of the Reservation would hold."""

    @property
    def from_gpus(self) -> list[str]:
        """Labels by rank."""
        return [shard.gpu_label for shard in self.current.shards]

    @property
    def to_gpus(self) -> list[str]:
        """Labels by rank. []: there is no other place."""
        return [] if self.plan is None else [s.gpu_label for s in self.plan.shards]


def uuids_of(job: Job) -> list[str]:
    """Return the Gpus of a Job's Plan, by rank."""
    assert job.plan is not None
    return [str(shard["gpu_uuid"]) for shard in job.plan.plan.get("shards", ())]


def weigh(
    job: Job,
    trouble: GpuTrouble | None,
    *,
    policy: PlacementPolicy,
    looked_at: datetime | None,
    now: datetime,
) -> RebalanceEvaluation:
    """Compare a Job's Plan with other places.

    Raises:
        PlanInvalid, SpecInvalid, WorkloadInvalid: its stored Plan has an old form.
    """
    assert job.plan is not None
    spec = ModelSpec.from_json(job.plan.spec)
    current = Plan.from_json(job.plan.plan)
    workload = Workload.from_json(job.plan.workload)
    offers = offers_for(job, now)
    own = _seconds_on_own_gpus(spec, workload, current, offers)
    best, why_none = _best_other_plan(spec, workload, current, offers, trouble)
    pace = 1.0
    step_now = own
    if job.step_seconds is not None and own:
        # Predictions are scaled by the Job's measured pace.
        pace, step_now = job.step_seconds / own, job.step_seconds
    step_new = None if best is None else best.step_seconds * pace
    gpu_ids, dearer = _holding(job, best, offers)
    progress = progress_of(job)
    last = getattr(job, "came_by", None)
    elapsed = (now - looked_at).total_seconds() if looked_at else 0.0
    most = MOST_ELAPSED_LOOKS * max(1, policy.look_again_seconds)
    look = MoveSnapshot(
        rules=policy.value_of(RebalancePolicy),
        may_move=job.may_move,
        restart=RestartMode(job.restart),
        trouble=trouble,
        step_seconds_now=step_now,
        step_seconds_new=step_new,
        no_plan=why_none,
        places=", ".join(s.gpu_label for s in best.shards) if best else "",
        steps_left=progress.left,
        window_seconds=(job.reservation.end - now).total_seconds(),
        cost_seconds=_cost(job, current, best, step_new, progress.done, policy),
        regret_seconds=_last_regret_seconds(job),
        elapsed_seconds=min(elapsed, float(most)),
        seconds_since_last_move=_seconds_since_move(last, now),
        last_move_cost_seconds=_last_cost(last),
        dearer=dearer,
        companions=job.reservation.jobs.live().exclude(pk=job.pk).count(),
    )
    return RebalanceEvaluation(look, spec, current, best, gpu_ids)


# --- the offered Gpus -----------------------------------------------------------------


def offers_for(job: Job, now: datetime) -> dict[str, GpuOffer]:
    """Return, by UUID, the Gpus without the Job, for the rest of its Window.

    Gpus of other Reservations are not offered, not even those of the same User.
    """
    found = planning.offered(
        user=job.owner, at=None, hours=1, now=now, until=job.reservation.end
    )
    uses = _job_gpu_use(job)
    made = {}
    for offer in found.offers:
        other = found.own.get(offer.uuid)
        if other is not None and other != job.reservation_id:
            reason = sentence("in your reservation {other}", other=other)
            offer = replace(offer, bookable=False, free_bytes=0, reason=reason)
        made[offer.uuid] = _without(offer, uses.get(offer.uuid))
    return made


@dataclass(frozen=True)
class _GpuUse:
    """The use of one Gpu by the Job's own processes, and by others."""

    own_bytes: int
    own_processes: int
    others_util_pct: float | None


def _job_gpu_use(job: Job) -> dict[str, _GpuUse]:
    """Return ingest's last readings of the Job's processes, by UUID."""
    with Redis.from_url(settings.REDIS_URL) as client:
        text = client.get(broadcast.DETAIL + job.node.name)
    assert job.plan is not None
    likely = {s["gpu_uuid"]: int(s["likely_bytes"]) for s in job.plan.plan["shards"]}
    gpus: Mapping[str, Any] = json.loads(text)["gpus"] if text else {}  # type: ignore[arg-type]
    return {
        uuid: _use(gpu["processes"] or (), job.pk, likely.get(uuid, 0))
        for uuid, gpu in gpus.items()
    }


def _use(processes: Sequence[Mapping[str, Any]], job: int, likely: int) -> _GpuUse:
    own = [process for process in processes if process["job"] == job]
    told = [process["memory_bytes"] for process in own]
    known = [int(size) for size in told if size is not None]
    # If the driver does not report a process's memory, the planned bytes count.
    mine = sum(known) if len(known) == len(told) else likely
    shares = [p["sm_pct"] for p in processes if p["job"] != job]
    util = None if None in shares else float(min(100, sum(shares)))
    return _GpuUse(mine, len(own), util)


def _without(offer: GpuOffer, use: _GpuUse | None) -> GpuOffer:
    """Return the Gpu without the Job."""
    if use is None or not use.own_processes:
        return offer
    used = max(0, offer.used_bytes - use.own_bytes)
    return replace(
        offer,
        used_bytes=used,
        free_bytes=offer.memory_total_bytes - used if offer.bookable else 0,
        compute_processes=max(0, offer.compute_processes - use.own_processes),
        util_pct=use.others_util_pct,
    )


# --- the planner's answers
# --------------------------------------------------------------


def _plans(
    spec: ModelSpec, workload: Workload, like: Plan, offers: Sequence[GpuOffer]
) -> list[Plan]:
    """Return Plans with the same strategy, number of Gpus and remedies, fastest
    first.
    """
    found = planning.make_plans(
        spec=spec,
        workload=workload,
        offers=offers,
        max_gpus=len(like.shards),
        limits=PlanLimits(
            strategies=(like.strategy,),
            fused_optimizer=False,
            accumulation=False,
            checkpointing=False,
            small_optimizer=False,
            offload=False,
            quantization=False,
            beaten_too=True,
        ),
        objective="fastest",
    )
    alike = [
        plan
        for plan in found.plans
        if plan.strategy == like.strategy
        and len(plan.shards) == len(like.shards)
        and not plan.spans_nodes
    ]
    return sorted(alike, key=lambda plan: (plan.step_seconds, plan.gpu_uuids))


def _seconds_on_own_gpus(
    spec: ModelSpec,
    workload: Workload,
    current: Plan,
    offers: Mapping[str, GpuOffer],
) -> float | None:
    """Return the step time on the Job's Gpus as they are now. None: it does not fit."""
    own = [offers[uuid] for uuid in current.gpu_uuids if uuid in offers]
    if len(own) < len(current.shards) or not all(offer.usable for offer in own):
        return None
    plans = _plans(spec, workload, current, own)
    if plans:
        return plans[0].step_seconds
    fits = all(
        offers[shard.gpu_uuid].free_bytes >= shard.low_bytes for shard in current.shards
    )
    # The planner would not choose this, yet it runs: as planned, slowed by others.
    slowest = min(offer.share_ratio for offer in own)
    return current.step_seconds / slowest if fits else None


def _best_other_plan(
    spec: ModelSpec,
    workload: Workload,
    current: Plan,
    offers: Mapping[str, GpuOffer],
    trouble: GpuTrouble | None,
) -> tuple[Plan | None, str]:
    """Return the best Plan on other Gpus, nearest first, or why there is none."""
    shunned = _troubled_gpus()
    open_to = {
        uuid: offer
        for uuid, offer in offers.items()
        if offer.usable
        and uuid not in shunned
        and (trouble is None or offer.label != trouble.gpu_label)
    }
    plans = _plans(spec, workload, current, list(open_to.values()))
    if not plans:
        return None, _no_place_reason(current, offers, open_to, shunned)
    best = plans[0]
    near = nearest_set(best.gpu_uuids, current.gpu_uuids, open_to)
    if set(near) != set(best.gpu_uuids):
        again = _plans(spec, workload, current, [open_to[uuid] for uuid in near])
        if again and again[0].step_seconds <= best.step_seconds * (1 + 1e-9):
            best = again[0]
    if set(best.gpu_uuids) == set(current.gpu_uuids):
        return None, sentence("no other GPUs are better")
    return renamed(best, current, open_to), ""


def _troubled_gpus() -> dict[str, str]:
    """Return by UUID the problems of Gpus that no Job should move to."""
    rules = [INTRUDER, SQUATTER, *breaking_rules()]
    found = Alert.objects.open().filter(rule__in=rules).rules_by_gpu()
    uuids = Gpu.objects.filter(pk__in=found).values_list("pk", "uuid")
    return {uuid: min(found[pk]) for pk, uuid in uuids}


def _no_place_reason(
    current: Plan,
    offers: Mapping[str, GpuOffer],
    open_to: Mapping[str, GpuOffer],
    shunned: Mapping[str, str],
) -> str:
    """Return why each other Gpu is excluded. Booked Gpus are counted together."""
    booked, others = 0, []
    for uuid, offer in offers.items():
        if uuid in current.gpu_uuids:
            continue
        if uuid in open_to:
            others.append(
                sentence(
                    "{gpu} {free} free", gpu=offer.label, free=gib(offer.free_bytes)
                )
            )
        elif uuid in shunned:
            others.append(joined([offer.label, shunned[uuid]]))
        elif offer.reason.startswith(BOOKED):
            booked += 1
        else:
            why = offer.reason or sentence("no free memory")
            others.append(joined([offer.label, why]))
    if booked:
        others.append(
            sentence(
                "{booked} booked till the reservation's end or before", booked=booked
            )
        )
    named = joined(others[:MOST_NAMED], ", ")
    if len(others) > MOST_NAMED:
        more = len(others) - MOST_NAMED
        named = sentence("{named} and {more} more", named=named, more=more)
    return counted(
        "it needs {n} GPU elsewhere ({others})",
        "it needs {n} GPUs elsewhere ({others})",
        len(current.shards),
        others=named or sentence("there is no other"),
    )


# --- requirements and cost of a move
# -----------------------------------------------------


def _holding(
    job: Job, best: Plan | None, offers: Mapping[str, GpuOffer]
) -> tuple[tuple[int, ...], bool]:
    """Return the Gpus for the rest of the Reservation, and whether they cost more.

    Its Gpus beyond the Job's Plan stay, if they can still be booked.
    """
    if best is None:
        return (), False
    held = [
        allocation.gpu
        for allocation in Allocation.objects.filter(
            reservation=job.reservation_id, live=True
        ).select_related("gpu__pool")
    ]
    planned = set(uuids_of(job))
    extra = {
        gpu.uuid
        for gpu in held
        if gpu.uuid not in planned and gpu.uuid in offers and offers[gpu.uuid].usable
    }
    rows = list(
        Gpu.objects.filter(uuid__in=extra | set(best.gpu_uuids)).select_related("pool")
    )
    weight = sum(gpu.pool.weight for gpu in rows)
    return (
        tuple(sorted(gpu.pk for gpu in rows)),
        weight > sum(gpu.pool.weight for gpu in held),
    )


def _cost(
    job: Job,
    current: Plan,
    best: Plan | None,
    step_new: float | None,
    done: int | None,
    policy: PlacementPolicy,
) -> float:
    if best is None or step_new is None:
        return 0.0
    return restart_cost_seconds(
        pause_seconds=float(policy.pause_seconds),
        steps_done=done,
        step_seconds_new=step_new,
        from_start=job.restart != RestartMode.RESUMES,
        bytes_moved=float(moved_bytes(best, current)),
        bytes_per_second=STATE_BYTES_PER_SECOND,
    )


def _last_regret_seconds(job: Job) -> float:
    last = job.moves.first()
    return last.regret_seconds if last is not None else 0.0


def _seconds_since_move(last: Any, now: datetime) -> float | None:
    if last is None or last.moved_at is None:
        return None
    return float((now - last.moved_at).total_seconds())


def _last_cost(last: Any) -> float:
    if last is None:
        return 0.0
    return float(last.realised_cost_seconds or last.cost_seconds or 0.0)
