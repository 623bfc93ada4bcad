"""The requested batch is the batch that is run. Another one is a choice."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.planner.model.well_known import well_known_spec
from placement.planner.search.memory_savings import (
    PlanLimits,
    accumulations,
    divisors,
)
from placement.planner.search.planner import even_batches, plan
from placement.planner.values.workload import Workload
from tests.placement.planner.made import make_offers

pytestmark = pytest.mark.pure


def run(one):
    """Sequences of one step: microbatch x microbatches x copies."""
    runs = max(one.launch["microbatches"], one.workload.accumulation)
    return one.launch["microbatch"] * runs * one.launch["data_degree"]


@settings(max_examples=10, deadline=None)
@given(
    st.sampled_from([1, 2, 3, 7, 10, 16, 23, 24, 60]),
    st.integers(1, 7),
    st.booleans(),
    st.sampled_from(["gpt2", "llama-3.2-1b"]),
)
def test_every_plan_runs_the_batch_that_was_asked_for(batch, gpus, nvlink, name):
    offers = make_offers(*[23] * gpus, link_group="nv" if nvlink else "")
    asked = Workload(batch=batch, sequence_length=256)
    found = plan(
        well_known_spec(name), asked, offers, limits=PlanLimits(beaten_too=True)
    )

    assert found.plans
    for one in found.plans:
        assert (one.workload.batch, run(one)) == (batch, batch), one.title


def test_sixteen_stays_sixteen_on_three_gpus():
    found = plan(well_known_spec("gpt2-xl"), Workload(batch=16), make_offers(*[23] * 3))

    assert run(found.best) == 16
    assert found.batch_choices == (15, 18)
    assert any(
        note.startswith("A batch of 16 divides evenly over 2 of the 3 GPUs only.")
        and "A batch of 15 or 18 would divide evenly over all" in note
        for note in found.notes
    )


def test_a_batch_that_goes_round_no_gpus_is_kept_and_another_is_offered():
    found = plan(well_known_spec("gpt2"), Workload(batch=7), make_offers(*[23] * 4))

    assert all(one.workload.batch == run(one) == 7 for one in found.plans)
    assert found.batch_choices == (4, 8)
    assert any(
        "A batch of 4 or 8 would divide evenly over all of them" in note
        for note in found.notes
    )
    lost = next(one for one in found.refusals if one.strategy == "ddp")
    assert lost.reason == ("A batch of 7 cannot be shared out evenly over 2 to 4 GPUs.")


@pytest.mark.parametrize(
    ("batch", "gpus", "choices"),
    [
        (7, 4, (4, 8)),
        (16, 3, (15, 18)),
        (64, 24, (48, 72)),
        (3, 8, (8,)),
        (8, 8, ()),
        (5, 1, ()),
        (22, 8, (16, 24)),
    ],
)
def test_the_nearest_batches_are_those_of_all_gpus(batch, gpus, choices):
    assert even_batches(Workload(batch=batch), gpus) == choices


def test_pieces_of_the_batch_are_equal():
    limits = PlanLimits()

    assert accumulations(Workload(batch=12), 1, limits) == [1, 2, 4, 12]
    assert accumulations(Workload(batch=10, accumulation=4), 1, limits) == [5, 10]
    assert divisors(36) == (1, 2, 3, 4, 6, 9, 12, 18, 36)
