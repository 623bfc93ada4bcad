"""From a ModelSpec and present or future Gpus to ranked Plans.

``available_gpus.py`` has the Gpus, ``placement.planner.search.planner`` makes Plans.
This module searches the calendar for a start.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import reduce
from operator import or_

from django.db import transaction
from django.db.models import Exists, OuterRef

from placement.models import Backfill, StoredPlan, WaitingLaunch
from placement.planner.model.spec import ModelSpec
from placement.planner.search.memory_savings import PlanLimits
from placement.planner.search.planner import plan as make_plan_set
from placement.planner.values.errors import WorkloadInvalid
from placement.planner.values.gpu_availability import GpuOffer, peak_flops_of
from placement.planner.values.objective import Objective
from placement.planner.values.plan import Plan, PlanSet
from placement.planner.values.workload import Workload
from placement.plans.available_gpus import (
    BOOKED,
    MOST_HOURS,
    AvailableGpus,
    link_groups,
    offered,
    placement_policy,
    planned_gpus,
    product_name,
)
from placement.plans.earliest_start import (
    Candidate,
    EarliestStart,
    first_start,
    later_starts,
    needs_of,
)
from placement.plans.measured_error import learned
from reservations.models import User
from reservations.rules.calendar import SlotSearch
from reservations.rules.window import grid_ceil
from reservations.store.booking_facts import site_policy
from reservations.store.booking_snapshot import calendar_of
from reservations.store.gpu_rows import calendar_gpus

MOST_STARTS = 12
"""Starts that are tried one after another until one has a Plan."""
KEPT_PLANS = 200
"""Plans of one User that no job and no move refers to."""

__all__ = [
    "BOOKED",
    "MOST_HOURS",
    "AvailableGpus",
    "earliest_start",
    "make_plans",
    "offered",
    "save_plan",
    "soonest_plans",
]


def make_plans(
    *,
    spec: ModelSpec,
    workload: Workload,
    offers: Sequence[GpuOffer],
    max_gpus: int | None = None,
    limits: PlanLimits | None = None,
    objective: Objective | None = None,
) -> PlanSet:
    """Return ranked Plans and the lost strategies, each with its reason.

    Memory and times are corrected by the site's measured error if the policy allows it
    (`measured_error.py`).
    """
    allowed, policy = limits or PlanLimits(), placement_policy()
    if allowed.offload_memory_bytes is None:
        known = policy.offload_memory_bytes
        allowed = replace(allowed, offload_memory_bytes=known)
    return make_plan_set(
        spec,
        workload,
        offers,
        max_gpus=max_gpus,
        limits=allowed,
        objective=objective,
        learned=learned(policy),
    )


@dataclass(frozen=True)
class EarliestPlans:
    """The first start with a Plan, its Plans and the Gpus as they are then."""

    found: PlanSet
    offered: AvailableGpus
    first: "EarliestPlans | None" = None
    """The answer for the requested start. None: this is it."""


def soonest_plans(
    *,
    user: User | None,
    spec: ModelSpec,
    workload: Workload,
    at: datetime | None,
    hours: float,
    now: datetime,
    max_gpus: int | None = None,
    limits: PlanLimits | None = None,
    objective: Objective | None = "soonest",
    accept: Callable[[Plan], bool] = lambda _: True,
    known: AvailableGpus | None = None,
) -> EarliestPlans:
    """Return Plans for the first start at which there is one, ranked soonest first.

    The requested start comes first, then every instant at which Gpus become free,
    within the calendar's horizon. If no start has a Plan, the answer is that of the
    requested start.

    Args:
        objective: by which the Plans of a start are ranked.
        accept: decides whether the best Plan of a start is good enough. If no start is,
            the answer is that of the requested start.
        known: the Gpus at the requested start. None: they are read.

    Raises:
        WorkloadInvalid: hours out of range.
    """
    first: EarliestPlans | None = None
    tried: list[frozenset[str]] = []
    for start in _starts(at, hours, now):
        there = known if first is None else None
        there = there or offered(user=user, at=start, hours=hours, now=now)
        usable = frozenset(offer.uuid for offer in there.offers if offer.usable)
        # A model that did not fit on more empty Gpus does not fit on fewer.
        if any(usable <= earlier for earlier in tried):
            continue
        found = make_plans(
            spec=spec,
            workload=workload,
            offers=there.offers,
            max_gpus=max_gpus,
            limits=limits,
            objective=objective,
        )
        first = first or EarliestPlans(found, there)
        if found.plans and accept(found.plans[0]):
            wait = max(0.0, (there.start - first.offered.start).total_seconds())
            plans = tuple(replace(one, wait_seconds=wait) for one in found.plans)
            earlier = None if first.offered is there else first
            return EarliestPlans(replace(found, plans=plans), there, earlier)
        if there.later:
            tried.append(usable)
    assert first is not None
    return first


def _starts(
    at: datetime | None, hours: float, now: datetime
) -> Iterator[datetime | None]:
    """Yield the requested start first. The calendar is read only for later ones."""
    yield at
    yield from _later(at, hours, now)


def _later(at: datetime | None, hours: float, now: datetime) -> list[datetime]:
    """Return the later starts at which Gpus become free."""
    gpus = calendar_gpus()
    search = _search(at, now)
    end = search.latest + timedelta(hours=hours)
    calendar = calendar_of(gpus, search.earliest, end, searching=True)
    return later_starts(calendar, search, MOST_STARTS)[1:]


def _search(at: datetime | None, now: datetime) -> SlotSearch:
    """Return the range of the calendar's search: from a start to the horizon."""
    policy = site_policy()
    begin = now if at is None or at <= now else grid_ceil(at, policy.grid_seconds)
    return SlotSearch(
        earliest=begin,
        latest=max(begin, now + timedelta(seconds=policy.firm_horizon_seconds)),
        grid_seconds=policy.grid_seconds,
        longest_seconds=MOST_HOURS * 3600,
    )


def earliest_start(
    *,
    plan: Plan,
    at: datetime | None,
    hours: float,
    now: datetime,
    same_gpus: bool = False,
) -> EarliestStart | None:
    """Return the first Window from a start on in which a Plan can be booked.

    On its own Gpus if they are free together then, otherwise on other suitable ones.
    Only the calendar counts. Quota and limits are checked on booking.

    Args:
        same_gpus: only on its own Gpus.

    Raises:
        WorkloadInvalid: hours out of range.
    """
    if not 0 < hours <= MOST_HOURS:
        raise WorkloadInvalid({"hours": f"must be above 0 and at most {MOST_HOURS}"})
    search = _search(at, now)
    nodes = max(1, len(plan.nodes))
    known = {
        gpu.pk: gpu
        for gpu in calendar_gpus()
        # Jobs of Slurm's nodes run on one of them.
        if gpu.bookable and (nodes == 1 or not gpu.engine)
    }
    rows = list(
        planned_gpus()
        .filter(pk__in=known)
        .select_related("node", "pool")
        .order_by("pk")
    )
    if same_gpus:
        rows = [row for row in rows if row.uuid in plan.gpu_uuids]
    groups = link_groups({row.node for row in rows})
    candidates = [
        Candidate(
            gpu=known[row.pk],
            uuid=row.uuid,
            peak_flops=row.pool.peak_flops
            or peak_flops_of(product_name(row.name, row.node.engine)),
            link_group=groups.get(row.uuid, ""),
        )
        for row in rows
    ]
    seconds = int(hours * 3600)
    end = search.latest + timedelta(seconds=2 * seconds)
    return first_start(
        calendar_of(list(known.values()), search.earliest, end, searching=True),
        candidates,
        needs_of(plan, {one.uuid: one.peak_flops for one in candidates}),
        search,
        duration_seconds=seconds,
        nodes=nodes,
    )


def save_plan(
    *, user: User, spec: ModelSpec, plan: Plan, now: datetime, address: str = ""
) -> StoredPlan:
    """Store a chosen Plan, so that a booking and a Job can refer to it.

    The oldest Plans of this User beyond `KEPT_PLANS` are deleted, unless they are in
    use.

    Args:
        address: the query that opens the planning page with the same question.
    """
    with transaction.atomic(durable=True):
        kept = StoredPlan.objects.create(
            owner=user,
            title=f"{spec.name}: {plan.title}"[:160],
            spec=spec.to_json(),
            workload=plan.workload.to_json(),
            plan=plan.to_json(),
            address=address,
            created_at=now,
        )
        forget_old_plans(user)
    return kept


def forget_old_plans(user: User) -> None:
    """Delete a User's oldest Plans beyond `KEPT_PLANS` that are not in use.

    Jobs and moves refer to Plans by a key, and waiting Jobs in their stored launch.
    """
    wanted = [
        *WaitingLaunch.objects.filter(waiting__user=user).values_list("launch"),
        *Backfill.objects.live().filter(owner=user).values_list("launch"),
    ]
    ids = {launch.get("plan_id") for (launch,) in wanted} - {None}
    named = [
        Exists(
            one.related_model._default_manager.filter(
                **{one.field.name: OuterRef("pk")}
            )
        )
        for one in StoredPlan._meta.related_objects
    ]
    free = StoredPlan.objects.filter(owner=user).exclude(pk__in=ids)
    free = free.exclude(reduce(or_, named))
    old = free.order_by("-created_at", "-pk").values_list("pk", flat=True)
    StoredPlan.objects.filter(pk__in=[*old[KEPT_PLANS:]]).delete()
