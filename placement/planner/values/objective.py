"""The objective by which Plans are ranked.

Without an objective: docs/design/placement.md#time-and-cost. With one, it comes first
and the default order decides between equals. A Plan whose step is absurd comes last. A
tight Plan (one that may run out of memory) never comes before a comfortable one. Every
key ends with the Gpus' names, so the order does not depend on the order in which the
Gpus are listed.

soonest            when its Gpus are free together
fastest            seconds a step
fewest             Gpus
least_disturbance  computing processes of others on its Gpus, then how busy those are
cheapest           quota that a step costs, in weighted GPU-seconds
"""

import math
from collections.abc import Iterable
from typing import Literal, get_args

from placement.planner.values.plan import Plan
from placement.planner.values.strategies import STRATEGIES
from placement.planner.values.workload import Workload
from telemetry.protocol.sentences import sentence

Objective = Literal["soonest", "fastest", "fewest", "least_disturbance", "cheapest"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
OBJECTIVE_WORDS: dict[str, str] = {
    "": sentence("recommended"),
    "soonest": sentence("soonest start"),
    "fastest": sentence("fastest"),
    "fewest": sentence("fewest GPUs"),
    "least_disturbance": sentence("least disturbance of others"),
    "cheapest": sentence("cheapest in quota"),
}
"""Names of the objectives on screen."""

SAME_RATIO = 1.1
"""Times, costs, and products of both that differ by less are equal, because the seconds
are priors.
"""
SHORT_STEP_SECONDS = 0.05
"""In a shorter step the time to load data dominates, which is not estimated, so that
more Gpus are no gain.
"""
Key = tuple[object, ...]


def is_recommendable(one: Plan, asked: Workload) -> bool:
    """Return whether a Plan can be the answer without a warning.

    Its step is sensible. It keeps memory free on every Gpu, is not tight, and moves
    nothing to the memory of the host or to a drive unless that was requested.
    """
    if (
        one.absurd
        or one.fit == "tight"
        or any(shard.headroom_bytes < 0 for shard in one.shards)
    ):
        return False
    return asked.offload != "none" or not offloads(one)


def offloads(one: Plan) -> bool:
    """Return whether a Plan keeps state outside its Gpus."""
    return bool(one.launch["offload_optimizer"]) or one.workload.offload != "none"


def rank_key(one: Plan, objective: Objective | None = None) -> Key:
    """Return the sort key of Plans, best first."""
    absurd, tight, *others = _before_figures(one)
    return (
        absurd,
        tight,
        *_objective_key(one, objective),
        *others,
        _time_times_cost(one),
        *_after_figures(one),
    )


def ranked(plans: Iterable[Plan], objective: Objective | None = None) -> list[Plan]:
    """Return Plans, best first.

    With an objective they are sorted by `rank_key`. Without one, a Plan comes first if
    none with the same concessions has a product of time and cost that is smaller by
    more than `SAME_RATIO`. Products are compared with the least of those Plans, so that
    two that hardly differ never lie on two sides of a rounding. Plans that take at most
    `SAME_RATIO` times as long and as much as the fastest one on equally many Gpus count
    as that one, so that the simplest of them comes first.
    """
    found = list(plans)
    if objective:
        return sorted(found, key=lambda one: rank_key(one, objective))
    least: dict[Key, float] = {}
    fastest: dict[Key, Plan] = {}
    for one in found:
        before, product = _before_figures(one), _product(one)
        least[before] = min(product, least.get(before, product))
        group = (before, len(one.shards))
        known = fastest.get(group, one)
        fastest[group] = min(known, one, key=_seconds_and_cost)

    def key(one: Plan) -> Key:
        before = _before_figures(one)
        quick = fastest[before, len(one.shards)]
        near = all(
            mine <= SAME_RATIO * theirs
            for mine, theirs in zip(
                _seconds_and_cost(one), _seconds_and_cost(quick), strict=True
            )
        )
        product = min(_product(one), _product(quick)) if near else _product(one)
        return (*before, _steps_above(product, least[before]), *_after_figures(one))

    return sorted(found, key=key)


def _steps_above(product: float, least: float) -> int:
    """Return by how many times SAME_RATIO a product is larger than the least one."""
    if least <= 0:
        return int(product > 0)
    return math.floor(math.log(product / least) / math.log(SAME_RATIO) + 1e-9)


def step_cost(one: Plan) -> float:
    """Return the cost of a step: weighted GPU-seconds, or GPU-seconds if all Gpus are
    free of charge.
    """
    return one.quota_gpu_seconds or one.gpu_seconds


def concession(one: Plan) -> int:
    """Return what a Plan gives up to fit, 0 (nothing) to 3.

    1: Adam's state in 8 bits. 2: frozen weights in fewer bits. 3: state outside of the
    Gpus.
    """
    if offloads(one):
        return 3
    if one.launch.get("weights", "full") != "full":
        return 2
    return int(one.workload.optimizer == "adam8bit")


def _objective_key(one: Plan, objective: Objective | None) -> Key:
    if objective == "soonest":
        return (one.wait_seconds,)
    if objective == "fastest":
        return (one.step_seconds,)
    if objective == "fewest":
        return (len(one.shards),)
    if objective == "least_disturbance":
        return (one.disturbance, len(one.shards))
    if objective == "cheapest":
        return (one.quota_gpu_seconds,)
    return ()


def _before_figures(one: Plan) -> Key:
    """Return what counts before time and cost: sense, memory that is sure, concessions,
    clean Gpus.
    """
    return (
        bool(one.absurd),
        one.fit == "tight",
        concession(one),
        one.disturbance > 0,
        one.troubled > 0,
    )


def _after_figures(one: Plan) -> Key:
    """Return the order between equals: torch's own engine, the order of strategies, one
    node, fewer Gpus, faster.
    """
    return (
        one.launch["engine"] != "torch",
        STRATEGIES[one.strategy].place(fast_links=one.launch["fast_links"]),
        one.spans_nodes,
        len(one.shards),
        one.workload.checkpointing == "full",
        one.step_seconds,
        one.nodes or (one.node,),
        one.gpu_uuids,
    )


def noticed_seconds(one: Plan, objective: Objective | None = None) -> float:
    """Return the seconds of a step by which Plans are compared.

    Without an objective, a step shorter than `SHORT_STEP_SECONDS` counts as that long,
    and every optimizer counts as a fused one, because one keyword makes it fused.
    """
    if objective:
        return one.step_seconds
    return max(one.step_seconds - one.fused_saves_seconds, SHORT_STEP_SECONDS)


def noticed_cost(one: Plan, objective: Objective | None = None) -> float:
    """Return the cost of a step of `noticed_seconds`."""
    if not one.step_seconds:
        return 0.0
    return step_cost(one) * noticed_seconds(one, objective) / one.step_seconds


def _time_times_cost(one: Plan) -> int:
    """Return seconds x cost of a step, rounded to SAME_RATIO, so that near values are
    equal.
    """
    product = _product(one)
    return round(math.log(product, SAME_RATIO)) if product > 0 else 0


def _seconds_and_cost(one: Plan) -> tuple[float, float]:
    return noticed_seconds(one), noticed_cost(one)


def _product(one: Plan) -> float:
    return noticed_seconds(one) * noticed_cost(one)
