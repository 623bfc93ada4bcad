"""Plans keep their promises, order does not matter, more room does no harm.

By any objective.
"""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.planner.search.memory_savings import PlanLimits
from placement.planner.search.plan_validation import plan_problems
from placement.planner.search.planner import plan
from placement.planner.values.objective import (
    OBJECTIVES,
    SAME_RATIO,
    noticed_cost,
    noticed_seconds,
    rank_key,
)
from placement.planner.values.workload import Workload
from tests.placement.planner.made import GIB
from tests.placement.planner.small import LINKS, cards, model, offers_of

pytestmark = pytest.mark.pure


@settings(max_examples=20, deadline=None)
@given(
    cards,
    st.sampled_from(LINKS),
    st.sampled_from(OBJECTIVES),
    st.integers(1, 6),
    st.sampled_from(["train", "train", "infer"]),
)
def test_every_plan_for_every_objective_keeps_its_promises(
    drawn, links, objective, blocks, task
):
    offers = offers_of(drawn, links)
    offers = [
        replace(one, weight=1 + one.index % 2, compute_processes=one.index % 3)
        for one in offers
    ]
    workload = Workload(task=task, batch=6, sequence_length=256)
    found = plan(model(blocks), workload, offers, objective=objective)

    for one in found.plans:
        assert plan_problems(one, offers, model(blocks)) == []
    keys = [rank_key(one, objective) for one in found.plans]
    assert keys == sorted(keys)
    assert found == plan(model(blocks), workload, offers[::-1], objective=objective)


@settings(max_examples=20, deadline=None)
@given(
    cards,
    st.sampled_from(LINKS),
    st.integers(1, 6),
    st.integers(0, 3),
    st.sampled_from([0.1, 0.4, 2.0]),
    st.sampled_from(["fastest", "fewest", "cheapest", None]),
)
def test_more_room_never_makes_the_best_plan_worse(
    drawn, links, blocks, which, more, objective
):
    """Remedies that change numbers are excluded: they may be faster, and are not used
    if they are not needed.
    """
    offers = offers_of(drawn, links)
    which %= len(offers)
    wider = list(offers)
    wider[which] = replace(
        offers[which],
        free_bytes=offers[which].free_bytes + int(more * GIB),
        used_bytes=offers[which].used_bytes - int(more * GIB),
    )
    workload = Workload(batch=8, sequence_length=512)
    limits = PlanLimits(small_optimizer=False, quantization=False)
    before, after = (
        plan(model(blocks), workload, gpus, limits=limits, objective=objective).best
        for gpus in (offers, wider)
    )

    if before is None:
        return
    assert after is not None
    if objective is None:
        gives_up, product = concessions(after)
        gave_up, least = concessions(before)
        # Plans within a tenth are equal, and the simpler one is first.
        assert gives_up < gave_up or (
            gives_up == gave_up and product <= SAME_RATIO * least * (1 + 1e-9)
        )
    else:
        assert value(after, objective) <= value(before, objective)


def concessions(one):
    """Return what counts before time x cost, and time x cost."""
    product = noticed_seconds(one) * noticed_cost(one)
    return rank_key(one)[:5], product


def value(one, objective):
    """Return the value of an objective."""
    told = {
        "fastest": one.step_seconds,
        "fewest": len(one.shards),
        "cheapest": one.quota_gpu_seconds,
    }
    return (one.fit == "tight", round(told[objective], 9))
