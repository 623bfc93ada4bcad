"""gpt-oss, and mixtures of families that the planner does not know."""

import pytest

from placement.planner.memory.estimate import estimate
from placement.planner.memory.layer_costs import layer_costs
from placement.planner.model.families.config_json import parse_config
from placement.planner.model.files.tensor_inventory import (
    TensorInfo,
    spec_from_inventory,
)
from placement.planner.model.spec import ModelSpec
from placement.planner.model.well_known import as_published, well_known_spec
from placement.planner.sandbox.config_build import routed_ratio
from placement.planner.symbolic.followed_model import adapted_and_followed
from placement.planner.values.workload import Workload

pytestmark = pytest.mark.pure

TINY = {
    "model_type": "gpt_oss",
    "num_hidden_layers": 2,
    "hidden_size": 512,
    "intermediate_size": 512,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 4000,
    "sliding_window": 128,
    "tie_word_embeddings": False,
}
PUBLISHED = {
    "num_hidden_layers": 24,
    "num_local_experts": 32,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
    "model_type": "gpt_oss",
}


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("gpt-oss-20b", 20_914_757_184), ("gpt-oss-120b", 116_829_156_672)],
)
def test_all_parameters_are_counted(name, parameters):
    assert well_known_spec(name).parameter_count == parameters


def test_a_token_takes_four_of_32_experts():
    made = estimate(well_known_spec("gpt-oss-20b"), Workload())

    assert made.phase_bytes["backward"] == pytest.approx(353e9, rel=0.01)
    assert not made.activations_are_a_guess
    (block,) = {
        cost.forward_flops
        for cost in layer_costs(
            well_known_spec("gpt-oss-20b"), Workload(batch=1), microbatch=1
        )
        if cost.kind == "block"
    }
    # Two products of each of 4 experts, the attention's four, the router, the scores.
    experts = 4 * 3 * 2880 * 2880
    rest = 2 * 2880 * 64 * 64 + 2 * 2880 * 8 * 64 + 32 * 2880
    assert block == pytest.approx(
        2 * 512 * (experts + rest) + 4 * 512**2 * 4096, rel=0.01
    )


@pytest.mark.parametrize(
    ("changes", "symbolic", "within"),
    [
        ({"precision": "bf16"}, 246.9e6, 0.03),
        ({}, 437.4e6, 0.035),
        (
            {"precision": "fp32", "accelerator": "cpu", "attention": "eager"},
            423.3e6,
            0.002,
        ),
    ],
)
def test_its_own_code_needs_as_much(changes, symbolic, within):
    made = estimate(parse_config(TINY), Workload(batch=2, **changes))

    assert made.peak_bytes == pytest.approx(symbolic, rel=within)


def test_the_published_files_keep_the_experts_in_mxfp4():
    spec = parse_config(PUBLISHED | {"quantization_config": {"quant_method": "mxfp4"}})

    # 13,761,300,984 bytes in the safetensors files of openai/gpt-oss-20b.
    assert spec.stored_bytes == pytest.approx(13.76e9, rel=0.002)
    assert spec.parameter_count == 20_914_757_184
    assert "MXFP4" in " ".join(spec.notes)


def mixture(ratio: float) -> ModelSpec:
    """A block of eight stacked experts of a family that nobody knows."""
    tensors = [
        TensorInfo("layers.0.attention.weight", (64, 64), "fp32"),
        TensorInfo("layers.0.experts.gate_up_proj", (8, 64, 256), "fp32"),
        TensorInfo("layers.0.experts.down_proj", (8, 128, 64), "fp32"),
    ]
    spec = spec_from_inventory(tensors, name="x", source="config.json")
    return ModelSpec.from_json({**spec.to_json(), "routed_ratio": ratio})


def test_unknown_mixtures_count_the_experts_that_a_token_takes():
    workload = Workload(batch=1, sequence_length=10, precision="fp32")

    def cost(ratio):
        (only,) = layer_costs(mixture(ratio), workload, microbatch=1)
        return only.kept_bytes / 40, only.forward_flops / 20

    experts = 8 * (64 + 256 + 128 + 64), 8 * (64 * 256 + 128 * 64)
    assert cost(1.0) == (128 + experts[0], 64 * 64 + experts[1])
    assert cost(0.25) == (128 + experts[0] / 4, 64 * 64 + experts[1] / 4)


@pytest.mark.parametrize(
    ("config", "ratio"),
    [
        ({"num_local_experts": 16, "num_experts_per_tok": 1}, 1 / 16),
        ({"text_config": {"num_experts": 8, "num_experts_per_tok": 2}}, 1 / 4),
        ({"num_experts": 8}, 1.0),
        ({"num_experts": True, "num_experts_per_tok": "2"}, 1.0),
        ({}, 1.0),
    ],
)
def test_a_config_says_how_many_experts_a_token_takes(config, ratio):
    assert routed_ratio(config) == ratio


def test_by_name_it_is_served_from_its_published_files_and_trained_in_16_bits():
    named = well_known_spec("gpt-oss-20b")
    assert as_published(named, trains=True) is named
    served = as_published(named, trains=False)
    assert served.is_quantized and served.parameter_count == named.parameter_count
    # The files have 13.76 GB (openai/gpt-oss-20b).
    assert served.stored_bytes == pytest.approx(13_761_300_984, rel=0.001)
    assert "MXFP4" in served.notes[-1]
    asked = Workload(task="infer", batch=1, sequence_length=4096)
    assert adapted_and_followed(named, None, asked).is_quantized
    other = well_known_spec("gpt2")
    assert as_published(other, trains=False) is other
