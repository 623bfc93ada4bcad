"""A guess of activations is scaled to the need of the model's own code."""

import pytest

from placement.planner.memory.estimate import estimate, rank_costs
from placement.planner.model.files.tensor_inventory import (
    TensorInfo,
    spec_from_inventory,
)
from placement.planner.model.sharding import ONE_RANK
from placement.planner.model.spec import ModelSpec
from placement.planner.model.well_known import well_known_spec
from placement.planner.search.planner import plan
from placement.planner.symbolic.child_process import SymbolicFailed
from placement.planner.symbolic.followed_model import followed
from placement.planner.values.workload import Workload
from tests.placement.planner.made import make_offer

pytestmark = pytest.mark.pure

WORKLOAD = Workload(batch=4, precision="bf16")
MODEL = {"config": {"model_type": "unheard-of"}}


def unknown():
    """Return a model of four matrices with unknown use."""
    tensors = [
        TensorInfo(f"layers.{number}.weight", (512, 512), "fp32") for number in range(4)
    ]
    return spec_from_inventory(tensors, name="x", source="config.json")


def told(ratio):
    """Return a function that follows a Case: so many times the guessed peak."""
    peak = int(ratio * estimate(unknown(), WORKLOAD).peak_bytes)
    return lambda case: {"peak_bytes": peak, "batch": case.input["batch"]}


@pytest.mark.parametrize("ratio", [0.5, 1.3, 8.0])
def test_plans_use_the_symbolic_peak_where_it_differs(ratio):
    spec = followed(unknown(), MODEL, WORKLOAD, follow=told(ratio))
    guessed = estimate(unknown(), WORKLOAD).peak_bytes

    assert estimate(spec, WORKLOAD).peak_bytes == pytest.approx(
        ratio * guessed, rel=1e-3
    )
    assert not spec.activations_are_a_guess
    assert "the model's own code needs" in spec.notes[-1]
    assert ModelSpec.from_json(spec.to_json()).activation_ratio == spec.activation_ratio
    found = plan(spec, WORKLOAD, [make_offer()])
    assert any("symbolic estimate" in note for note in found.notes)
    assert not any("are a guess" in note for note in found.notes)


def test_operations_are_those_of_the_code():
    """A convolution with strides takes fewer than one product for each token."""
    guessed = sum(
        one.forward_flops for one in rank_costs(unknown(), WORKLOAD, ONE_RANK)
    )
    peak = estimate(unknown(), WORKLOAD).peak_bytes

    spec = followed(
        unknown(),
        MODEL,
        WORKLOAD,
        follow=lambda _: {"peak_bytes": peak, "forward_flops": guessed / 64},
    )
    counted = sum(one.forward_flops for one in rank_costs(spec, WORKLOAD, ONE_RANK))
    assert counted == pytest.approx(guessed / 64)
    assert spec.activations_are_a_guess
    assert ModelSpec.from_json(spec.to_json()) == spec


def test_within_a_tenth_nothing_changes():
    assert followed(unknown(), MODEL, WORKLOAD, follow=told(1.09)) == unknown()


def test_a_family_that_is_known_is_not_followed():
    spec = well_known_spec("gpt2")
    assert followed(spec, MODEL, WORKLOAD, follow=told(9.0)) is spec


def test_what_cannot_be_followed_stays_a_guess_and_says_why():
    def fails(_case):
        raise SymbolicFailed("too-slow", "it took more than 60 s")

    spec = followed(unknown(), MODEL, WORKLOAD, follow=fails)
    assert spec.activations_are_a_guess
    assert "it took more than 60 s" in spec.notes[-1]


@pytest.mark.parametrize(
    "change",
    [
        {"offload": "cpu", "optimizer_loop": "forloop"},
        {"precision": "megatron_bf16"},
        {"checkpointing": "selective"},
        {"loss": "fused"},
    ],
)
def test_the_activations_of_what_has_no_symbolic_form_are_those_of_another(change):
    asked = WORKLOAD.replace(**change)
    seen = []

    def follow(case):
        seen.append(case)
        return told(4.0)(case)

    spec = followed(unknown(), MODEL, asked, follow=follow)
    assert seen[0].precision == "bf16" and not seen[0].checkpointing
    assert spec.activation_ratio > 1


def test_a_model_that_takes_too_long_is_followed_with_short_sequences():
    lengths = []

    def follow(case):
        lengths.append(case.input["seq"])
        if lengths[-1] > 256:
            raise SymbolicFailed("too-slow", "it took more than 30 s")
        short = WORKLOAD.replace(sequence_length=256)
        return {"peak_bytes": 3 * estimate(unknown(), short).peak_bytes}

    asked = WORKLOAD.replace(sequence_length=4096)
    spec = followed(unknown(), MODEL, asked, follow=follow)
    assert lengths == [4096, 256]
    assert spec.activation_ratio > 1 and not spec.activations_are_a_guess
