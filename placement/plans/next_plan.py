"""The next best Plan where a recipe cannot run the chosen one.

A recipe cannot follow every Plan: the family of a model may have no tensor-parallel
plan, for example. The same question is then planned again for the Gpus of the Job's
Reservation, and the Plans that the recipe runs are the choice.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from placement.jobs.launch_checks import recipe_problem
from placement.models import StoredPlan
from placement.planner.launch.recipes import checked_settings
from placement.planner.values.errors import LaunchInvalid
from placement.planner.values.plan import Plan
from placement.plans.replanned import plans_on, save_again
from placement.rules.job_refusals import StrategyNotRunnable
from reservations.models import User
from reservations.rules.errors import NotFound
from reservations.web.rate_limits import check_rate
from telemetry.protocol.coded_error import CodedError
from telemetry.protocol.sentences import joined, sentence

PLANS_PER_MINUTE = 60


@dataclass(frozen=True)
class RecipeLaunch:
    """A recipe that is to follow a saved Plan in a Reservation."""

    user: User
    plan_id: int
    reservation_id: int
    recipe: str
    settings: Mapping[str, object]
    node: str = ""
    """The node that was named; empty: any."""

    def plan(self) -> StoredPlan:
        """Return the saved Plan. Raises NotFound."""
        row = StoredPlan.objects.filter(pk=self.plan_id, owner=self.user).first()
        if row is None:
            what = sentence("plan #{plan_id} of yours", plan_id=self.plan_id)
            raise NotFound(what=what)
        return row


def runnable_plans(launch: RecipeLaunch, now: datetime) -> list[Plan]:
    """Return the Plans of the same question that the recipe runs, best first.

    They are for the Gpus of the Reservation. Do not call it inside a transaction.

    Raises:
        CodedError: the Plan, the Reservation or a setting cannot be used.
    """
    check_rate("plan", user_pk=launch.user.pk, per_minute=PLANS_PER_MINUTE, now=now)
    kept = launch.plan()
    settings = checked_settings(launch.recipe, launch.settings)
    return [
        one
        for one in plans_on(kept, reservation_id=launch.reservation_id, now=now)
        if launch.node in ("", one.node)
        and not recipe_problem(launch.recipe, settings, one.to_json(), kept.spec)
    ]


def with_next_plan(
    refusal: StrategyNotRunnable, launch: RecipeLaunch, now: datetime
) -> StrategyNotRunnable:
    """Return a refusal that names the next best Plan, if there is one."""
    try:
        plans = runnable_plans(launch, now)
    except CodedError:
        return refusal
    others = [one for one in plans if one.strategy != refusal.strategy]
    if not others:
        return refusal
    first = others[0]
    return replace(refusal, next_strategy=first.strategy, next_title=first.title)


def plan_by_strategy(launch: RecipeLaunch, strategy: str, now: datetime) -> StoredPlan:
    """Save and return the best Plan of a strategy for a launch.

    The saved Plan itself, if it has this strategy.

    Raises:
        CodedError: the Plan, the Reservation or a setting cannot be used.
        LaunchInvalid: no Plan of this strategy fits, or the recipe cannot run it.
    """
    kept = launch.plan()
    if kept.plan.get("strategy") == strategy:
        return kept
    plans = runnable_plans(launch, now)
    chosen = next((one for one in plans if one.strategy == strategy), None)
    if chosen is None:
        there = dict.fromkeys(one.strategy for one in plans)
        raise LaunchInvalid({"strategy": _none_fits(strategy, list(there))})
    return save_again(kept, chosen, now)


def _none_fits(strategy: str, there: list[str]) -> str:
    if not there:
        return sentence("the recipe can run no plan on the GPUs of this reservation")
    return sentence(
        "the recipe can run no plan of strategy {strategy} on the GPUs of this "
        "reservation. Choose one of: {there}",
        strategy=strategy[:40],
        there=joined(there, ", "),
    )


def launch_of(user: User, wanted: Mapping[str, Any]) -> RecipeLaunch:
    """Return what the arguments of ``jobs.launch`` say about the recipe and its Plan.

    Raises:
        LaunchInvalid: they name no Plan.
    """
    if wanted.get("plan_id") is None:
        raise LaunchInvalid({"strategy": sentence("needs a plan: make one first")})
    return RecipeLaunch(
        user=user,
        plan_id=wanted["plan_id"],
        reservation_id=wanted["reservation_id"],
        recipe=wanted["recipe"],
        settings=wanted["recipe_settings"],
        node=wanted["node"],
    )
