"""Jamba: one block of eight attends, the others have a Mamba mixer."""

import pytest

from placement.planner.memory.estimate import estimate
from placement.planner.memory.layer_costs import layer_costs
from placement.planner.model.families.config_json import parse_config
from placement.planner.model.sharding import Sharding
from placement.planner.model.well_known import well_known_spec
from placement.planner.values.errors import SpecInvalid, WorkloadInvalid
from placement.planner.values.workload import Workload

pytestmark = pytest.mark.pure

TINY = {
    "model_type": "jamba",
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 2000,
    "num_experts": 4,
}


def test_all_parameters_are_counted():
    # JambaForCausalLM of transformers 5.23 on meta. Published: 52 B.
    assert well_known_spec("jamba-v0.1").parameter_count == 51_570_323_328


@pytest.mark.parametrize(
    ("changes", "symbolic"),
    [
        ({}, 109_730_020),
        ({"precision": "bf16"}, 86_684_116),
        ({"precision": "fp32"}, 104_909_156),
    ],
)
def test_its_own_code_needs_as_much(changes, symbolic):
    asked = {"precision": "autocast_bf16", "accelerator": "cpu", "batch": 2}
    made = estimate(parse_config(TINY), Workload(sequence_length=64, **asked | changes))

    assert made.peak_bytes == pytest.approx(symbolic, rel=0.012)
    assert not made.activations_are_a_guess


def test_a_mixer_keeps_a_state_of_fixed_size():
    spec = well_known_spec("jamba-v0.1")
    asked = Workload(task="infer", precision="bf16", batch=1, sequence_length=4096)
    kept = [cost.cache_bytes for cost in layer_costs(spec, asked, microbatch=1)]

    attention = 4 * 4096 * 2 * 8 * 128 * 2
    assert sum(kept) == attention + 28 * 8192 * (16 * 4 + 4 * 2)
    assert not spec.reads_in_chunks
    assert "mamba-ssm" in spec.notes[0]


def test_its_operations_grow_with_the_length():
    def operations(length):
        asked = Workload(batch=1, sequence_length=length)
        costs = layer_costs(parse_config(TINY), asked, microbatch=1)
        return [cost.forward_flops for cost in costs if cost.kind == "block"]

    short, long = operations(64), operations(128)
    assert [later == 2 * once for once, later in zip(short, long, strict=True)] == [
        number != 4 for number in range(8)
    ]


def test_its_positions_have_no_table():
    config = parse_config({**TINY, "max_position_embeddings": 64})

    assert estimate(config, Workload(sequence_length=128)).peak_bytes


def test_its_layers_are_not_cut():
    with pytest.raises(WorkloadInvalid, match="Mamba mixers are not cut"):
        estimate(
            parse_config(TINY),
            Workload(),
            Sharding(strategy="tensor", tensor_degree=2),
        )


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"attn_layer_offset": 8}, "attn_layer_offset"),
        ({"expert_layer_period": 0}, "expert_layer_period"),
        ({"mamba_dt_rank": "large"}, "mamba_dt_rank"),
        ({"mamba_d_state": 0}, "mamba_d_state"),
        ({"mamba_expand": -2}, "mamba_expand"),
        ({"mamba_proj_bias": "no"}, "mamba_proj_bias"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok"),
    ],
)
def test_a_bad_field_is_named(changes, field):
    with pytest.raises(SpecInvalid) as caught:
        parse_config({**TINY, **changes})

    assert field in caught.value.fields
