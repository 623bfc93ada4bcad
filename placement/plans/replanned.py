"""Plan again for the Gpus on which a Job's waiting request was placed.

A Plan names its Gpus, and the Gpus of a waiting request are not known beforehand. The
same question is planned again for the Gpus now held, and the owner is notified. If no
Plan fits them, the launch is refused like any Plan for other Gpus, with this reason.
"""

import logging
from collections.abc import Mapping
from datetime import datetime

from placement.jobs.launch_checks import recipe_problem
from placement.models import Job, StoredPlan
from placement.planner.launch.recipes import checked_settings
from placement.planner.model.spec import ModelSpec
from placement.planner.search.memory_savings import PlanLimits
from placement.planner.values.plan import Plan
from placement.planner.values.workload import Workload
from placement.plans.available_gpus import offered
from placement.plans.service import make_plans, save_plan
from reservations.models import Reservation, User
from reservations.notifications import service as notices
from telemetry.protocol.sentences import sentence
from telemetry.rules.isolated_steps import isolated

log = logging.getLogger(__name__)


def plan_for(
    *,
    user: User,
    plan_id: int,
    reservation: Reservation,
    kind: str,
    recipe: str,
    settings: Mapping[str, object],
    now: datetime,
) -> StoredPlan | None:
    """Save and return a Plan of the same question for the Reservation's Gpus.

    Do not call it inside a transaction, because planning takes seconds.

    Args:
        kind: a recipe may run by another strategy; a script cannot be changed.
        recipe: its name; "": a script.
        settings: of the recipe.

    Returns:
        None if the Plan is already for these Gpus, or no Plan fits them.
    """
    kept = StoredPlan.objects.filter(pk=plan_id, owner=user).first()
    held = set(
        reservation.allocations.filter(live=True).values_list("gpu__uuid", flat=True)
    )
    shards = () if kept is None else kept.plan.get("shards", ())
    if kept is None or {one.get("gpu_uuid") for one in shards} <= held:
        return None
    chosen = None
    with isolated(log, "plan %s cannot be made again", plan_id):
        plans = plans_on(kept, reservation_id=reservation.pk, now=now)
        chosen = _nearest_plan(kept, plans, kind, recipe, settings)
    if chosen is None:
        return None
    return save_again(kept, chosen, now)


def plans_on(
    kept: StoredPlan, *, reservation_id: int, now: datetime
) -> tuple[Plan, ...]:
    """Return the Plans of a saved Plan's question for a Reservation, best first.

    Raises:
        BadInput: the Reservation is not one of the User's, or it is over.
        SpecInvalid, WorkloadInvalid: the question cannot be read any more.
    """
    there = offered(
        user=kept.owner, at=None, hours=1, now=now, reservation_id=reservation_id
    )
    return make_plans(
        spec=ModelSpec.from_json(kept.spec),
        workload=Workload.from_json(kept.workload),
        offers=there.offers,
        limits=PlanLimits(beaten_too=True),
    ).plans


def save_again(kept: StoredPlan, plan: Plan, now: datetime) -> StoredPlan:
    """Store another Plan of a saved Plan's question."""
    return save_plan(
        user=kept.owner,
        spec=ModelSpec.from_json(kept.spec),
        plan=plan,
        now=now,
        address=kept.address,
    )


def _nearest_plan(
    kept: StoredPlan,
    plans: tuple[Plan, ...],
    kind: str,
    recipe: str,
    settings: Mapping[str, object],
) -> Plan | None:
    """Return the Plan nearest to the kept one that may be launched."""
    if kind == Job.Kind.RECIPE:
        given = checked_settings(recipe, settings)
        plans = tuple(
            one
            for one in plans
            if not recipe_problem(recipe, given, one.to_json(), kept.spec)
        )
    before = kept.plan["strategy"], len(kept.plan["shards"])
    same = [one for one in plans if (one.strategy, len(one.shards)) == before]
    if same or kind != Job.Kind.RECIPE:
        return same[0] if same else None
    return plans[0] if plans else None


def notify_new_plan(
    user: User, name: str, plan: StoredPlan, reservation: Reservation, now: datetime
) -> None:
    """Notify the owner that a Job continues with another Plan than requested."""
    notices.notify(
        user=user,
        kind="plan_again",
        reservation=reservation,
        detail={
            "url": f"/plan/{plan.pk}/",
            "text": sentence(
                "The time of job “{name}” came on other GPUs than its plan was for: "
                "the plan was made again, as “{plan}”.",
                name=name,
                plan=plan.title,
            ),
        },
        now=now,
        key=f"plan-again:{plan.pk}",
    )
