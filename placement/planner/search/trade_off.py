"""Plans by time and by cost: those that another Plan beats, and the trade of each.

See docs/design/placement.md#time-and-cost. The cost of a step is its weighted
GPU-seconds. All Plans of one request do the same work, so costs of steps are
comparable.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from placement.planner.values.humanize import listed, seconds
from placement.planner.values.objective import (
    SAME_RATIO,
    Objective,
    concession,
    noticed_cost,
    noticed_seconds,
    step_cost,
)
from placement.planner.values.objective import (
    ranked as in_order,
)
from placement.planner.values.plan import Plan, RejectedStrategy
from telemetry.protocol.sentences import counted, sentence

NEAR_RATIO = SAME_RATIO
"""A time or a cost at most this many times as large counts as equal, because all are
priors.
"""
EQUAL_RATIO = 1e-9
"""Relative difference below which figures that were computed twice are the same."""


@dataclass(frozen=True, slots=True)
class TradeOff:
    """Plans that no other one beats, best first, and those that were rejected."""

    plans: list[Plan]
    beaten: list[RejectedStrategy]


def trade_off(ranked: Sequence[Plan], objective: Objective | None = None) -> TradeOff:
    """Return the Plans that no Plan ranked before them makes needless, in their order.

    A Plan that is ranked later takes the place of those that it beats in both figures
    on screen. Plans that may run out of memory are left out if a Plan without
    concessions is sure to fit. Cost: the square of the number of Plans.

    Args:
        ranked: in the order of objective.py's `ranked` for the same objective. By it no
            Plan beats one that is ranked before it by more than `NEAR_RATIO`, so that
            no kept Plan beats another kept one.
        objective: other criteria besides time and cost.
    """
    kept: list[Plan] = []
    beaten: list[RejectedStrategy] = []
    sure = next((one for one in ranked if _is_sure(one)), None)
    for one in ranked:
        better = [other for other in kept if makes_needless(other, one, objective)]
        if one.fit == "tight" and sure is not None:
            beaten.append(_lost(one, sure))
        elif better:
            beaten.append(_lost(one, better[0]))
        else:
            worse = [place for place, k in enumerate(kept) if _beats(one, k, objective)]
            beaten += [_lost(kept[place], one) for place in worse]
            kept.insert(worse[0] if worse else len(kept), one)
            kept = [k for k in kept if not _beats(one, k, objective)]
    if objective:
        # The objective's own figure may rank a Plan behind one that it stands before.
        kept = in_order(kept, objective)
    return TradeOff(kept, beaten)


def _beats(one: Plan, other: Plan, objective: Objective | None) -> bool:
    """Return whether a Plan is faster and cheaper by the figures on screen, and gives
    up no more. If its step counts as longer than it is, it may be ranked second.
    """
    return (
        one.step_seconds < other.step_seconds
        and step_cost(one) < step_cost(other)
        and makes_needless(one, other, objective)
    )


def with_consistent_sense(plans: Sequence[Plan]) -> list[Plan]:
    """Return the Plans. One that is as fast and as cheap as a sensible one is sensible.

    A faster card waits for a larger part of a shorter step.
    """
    sensible = [one for one in plans if not one.absurd]
    return [
        replace(one, absurd="")
        if one.absurd and any(_is_no_worse(one, other) for other in sensible)
        else one
        for one in plans
    ]


def makes_needless(one: Plan, other: Plan, objective: Objective | None = None) -> bool:
    """Return whether a Plan makes another one needless.

    It must be about as fast and as cheap or better, and give up no more: memory that is
    sure, numbers, undisturbed processes of others, health, an early start, and for the
    objective of the fewest Gpus their number.

    A Plan that is no slower and no dearer by the figures on screen makes the other one
    needless even if its step is so short that it counts as longer.
    """
    mine, theirs = _qualities(one), _qualities(other)
    if objective == "fewest":
        mine, theirs = (*mine, len(one.shards)), (*theirs, len(other.shards))
    if any(a > b for a, b in zip(mine, theirs, strict=True)):
        return False
    # A Plan on fewer GPUs is needless only if it really is no cheaper and no faster.
    fewer = len(other.shards) < len(one.shards)
    near = 1 + EQUAL_RATIO if fewer else NEAR_RATIO
    by_what_is_noticed = noticed_seconds(one, objective) <= near * noticed_seconds(
        other, objective
    ) and noticed_cost(one, objective) <= near * noticed_cost(other, objective)
    return by_what_is_noticed or _is_no_worse(one, other)


def _is_no_worse(one: Plan, other: Plan) -> bool:
    """Return whether a Plan is no slower and no dearer by the figures on screen."""
    return one.step_seconds <= other.step_seconds and step_cost(one) <= step_cost(other)


def with_trades(plans: Sequence[Plan]) -> tuple[Plan, ...]:
    """Return the Plans, each with its time and cost beside those of the first one.

    The first one is compared with the cheapest other Plan.
    """
    if len(plans) < 2:
        return tuple(plans)
    first, *others = plans
    cheapest = min(others, key=lambda one: (step_cost(one), one.step_seconds))
    return (
        replace(first, trade=trade_told(first, cheapest)),
        *(replace(one, trade=trade_told(one, first)) for one in others),
    )


def trade_told(one: Plan, other: Plan) -> str:
    """Return "4 GPUs: 2.3 times faster than 1 GPU, 1.10 times the GPU-hours.".

    "" if a time or a cost is not known.
    """
    costs = step_cost(one), step_cost(other)
    if min(*costs, one.step_seconds, other.step_seconds) <= 0:
        return ""
    ratio = other.step_seconds / one.step_seconds
    weighted = any(
        abs(plan.quota_gpu_seconds - plan.gpu_seconds) > EQUAL_RATIO * plan.gpu_seconds
        for plan in (one, other)
    )
    mine, theirs = _names(one, other)
    values = {
        "gpus": mine,
        "ratio": f"{max(ratio, 1 / ratio):.3g}",
        "cost": f"{costs[0] / costs[1]:.2f}",
        "others": theirs,
    }
    if weighted and ratio >= 1:
        return sentence(
            "{gpus}: {ratio} times faster than {others}, {cost} times the credits.",
            **values,
        )
    if weighted:
        return sentence(
            "{gpus}: {ratio} times slower than {others}, {cost} times the credits.",
            **values,
        )
    if ratio >= 1:
        return sentence(
            "{gpus}: {ratio} times faster than {others}, {cost} times the GPU-hours.",
            **values,
        )
    return sentence(
        "{gpus}: {ratio} times slower than {others}, {cost} times the GPU-hours.",
        **values,
    )


def _names(one: Plan, other: Plan) -> tuple[str, str]:
    """Return what two Plans differ in: their Gpus' number, their title, or their
    Gpus.
    """
    if len(one.shards) != len(other.shards):
        return (
            counted("{n} GPU", "{n} GPUs", len(one.shards)),
            counted("{n} GPU", "{n} GPUs", len(other.shards)),
        )
    if one.title != other.title:
        return one.title, other.title
    return (
        listed(shard.gpu_label for shard in one.shards),
        listed(shard.gpu_label for shard in other.shards),
    )


def _is_sure(one: Plan) -> bool:
    return not one.absurd and one.fit != "tight" and not concession(one)


def _qualities(one: Plan) -> tuple[float, ...]:
    """Return the qualities that a Plan may give up besides time and cost; less is
    better.
    """
    return (
        one.fit == "tight",
        concession(one),
        one.disturbance > 0,
        one.troubled > 0,
        one.wait_seconds,
    )


def _lost(one: Plan, better: Plan) -> RejectedStrategy:
    """Return why a Plan that fits is not shown."""
    values = {
        "title": better.title,
        "gpus": counted("{n} GPU", "{n} GPUs", len(better.shards)),
        "step": seconds(better.step_seconds),
        "cost": f"{better.gpu_seconds:,.3g}",
        "mine": seconds(one.step_seconds),
        "my_cost": f"{one.gpu_seconds:,.3g}",
    }
    if one.fit == "tight" and better.fit != "tight":
        reason = sentence(
            "It may run out of memory. {title} ({gpus}) is sure to fit and takes "
            "{step} and {cost} GPU-seconds a step; this one would take {mine} and "
            "{my_cost}.",
            **values,
        )
    elif (
        one.step_seconds < better.step_seconds and one.gpu_seconds < better.gpu_seconds
    ):
        reason = sentence(
            "It takes {mine} and {my_cost} GPU-seconds a step, and {title} ({gpus}) "
            "takes {step} and {cost}. Estimates that differ by less than 10 % count as "
            "equal, and {title} comes first in the order of choice.",
            **values,
        )
    else:
        reason = sentence(
            "{title} ({gpus}) takes {step} and {cost} GPU-seconds a step; this one "
            "would take {mine} and {my_cost}.",
            **values,
        )
    return RejectedStrategy(
        strategy=one.strategy, title=one.title, code="not-better", reason=reason
    )
