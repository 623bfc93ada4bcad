"""Plans whose frozen weights have 4 or 8 bits, and where a recipe runs them."""

from dataclasses import replace

import pytest

from placement.planner.launch.execution import (
    NotRunnable,
    execution_of_own,
    execution_of_pretrained,
    why_not,
)
from placement.planner.launch.recipes import runs_by_plan
from placement.planner.model.adaptation import adapted
from placement.planner.model.well_known import well_known_spec
from placement.planner.values.plan import Plan
from tests.placement.agent.runtime.test_recipes import plan_for

pytestmark = pytest.mark.pure
LORA = {"seq": 512, "lora_rank": 8}


def quantized(strategy, gpus=2, form="nf4"):
    plan = Plan.from_json(plan_for(strategy, gpus))
    return replace(plan, launch=plan.launch | {"weights": form})


@pytest.mark.parametrize(
    ("strategy", "gpus", "form"),
    [("single", 1, "nf4"), ("ddp", 2, "int8"), ("zero1", 2, "nf4")],
)
def test_one_gpu_and_whole_copies_run_below_adapters(strategy, gpus, form):
    plan = quantized(strategy, gpus, form)
    assert runs_by_plan(plan.to_json())
    assert execution_of_pretrained(plan, LORA).weights == form
    for own in ({"seq": 512}, LORA | {"lora_rank": 0}):
        with pytest.raises(NotRunnable, match="set a LoRA rank"):
            execution_of_pretrained(plan, own)
    with pytest.raises(NotRunnable, match="those of the job are not"):
        execution_of_pretrained(plan, LORA | {"weights": "full"})
    with pytest.raises(NotRunnable, match="those of the job are not"):
        execution_of_own(plan)


@pytest.mark.parametrize("strategy", ["zero2", "fsdp", "tensor", "pipeline"])
def test_weights_that_ranks_share_are_refused(strategy):
    whole = "all weights on each GPU"
    assert whole in why_not(quantized(strategy).to_json())
    plan = Plan.from_json(plan_for(strategy, 2))
    with pytest.raises(NotRunnable, match=whole):
        execution_of_pretrained(plan, LORA | {"weights": "nf4"})


def test_a_job_may_quantize_what_the_plan_does_not():
    plan = Plan.from_json(plan_for("ddp", 2))
    assert execution_of_pretrained(plan, LORA).weights == "full"
    assert execution_of_pretrained(plan, LORA | {"weights": "nf4"}).weights == "nf4"


def test_a_model_that_was_asked_for_in_4_bits_is_run_so():
    plan = Plan.from_json(plan_for("ddp", 2))
    spec = adapted(well_known_spec("llama-3.1-8b"), weights="nf4", lora_rank=8)
    settings = {"seq": 512, "lora_rank": 0, "weights": "auto"}
    made = execution_of_pretrained(plan, settings, spec.to_json())
    assert made.weights == "nf4"
    without = adapted(well_known_spec("llama-3.1-8b"), weights="nf4")
    with pytest.raises(NotRunnable, match="set a LoRA rank"):
        execution_of_pretrained(plan, settings, without.to_json())
