"""Llama 4's text model: every token passes through all experts of a block."""

import pytest

from placement.planner.memory.estimate import estimate
from placement.planner.memory.layer_costs import layer_costs
from placement.planner.model.families.config_json import parse_config
from placement.planner.model.well_known import well_known_spec
from placement.planner.values.errors import SpecInvalid
from placement.planner.values.workload import Workload

pytestmark = pytest.mark.pure

TINY = {
    "model_type": "llama4_text",
    "hidden_size": 256,
    "intermediate_size": 192,
    "intermediate_size_mlp": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 2000,
    "num_local_experts": 4,
    "interleave_moe_layer_step": 2,
}


def test_all_parameters_are_counted():
    # Llama4ForCausalLM of transformers 5.23 on meta. Published: 109 B with the image
    # encoder, and 400 B.
    assert well_known_spec("llama-4-scout").parameter_count == 107_769_861_120
    assert well_known_spec("llama-4-maverick").parameter_count == 400_711_848_960


def test_published_files_hold_the_text_model_in_a_part():
    whole = {
        "model_type": "llama4",
        "architectures": ["Llama4ForConditionalGeneration"],
        "torch_dtype": "bfloat16",
        "text_config": {"model_type": "llama4_text", "no_rope_layers": []},
        "vision_config": {"hidden_size": 1408},
    }
    spec = parse_config(whole)

    assert spec.parameter_count == 107_769_861_120
    assert (spec.family, spec.dtype) == ("llama4_text", "bf16")
    assert "The image encoder is not." in spec.notes[0]
    # A dtype of null leaves that of the whole model.
    whole["text_config"]["torch_dtype"] = None
    assert parse_config(whole).dtype == "bf16"
    # Without `text_config` all fields have their defaults, which are those of Scout.
    del whole["text_config"]
    assert parse_config(whole).layers == spec.layers


def test_three_blocks_of_four_keep_a_chunk_of_tokens():
    spec = well_known_spec("llama-4-scout")
    asked = Workload(task="infer", precision="bf16", batch=1, sequence_length=32768)
    kept = [cost.cache_bytes for cost in layer_costs(spec, asked, microbatch=1)]

    token = 2 * 8 * 128 * 2
    assert sum(kept) == token * (36 * 8192 + 12 * 32768)


@pytest.mark.parametrize(
    ("changes", "symbolic"),
    [
        ({}, 79_651_644),
        ({"precision": "bf16"}, 45_059_324),
        ({"precision": "fp32"}, 80_528_188),
    ],
)
def test_its_own_code_needs_as_much(changes, symbolic):
    asked = {"precision": "autocast_bf16", "accelerator": "cpu", "batch": 2}
    made = estimate(
        parse_config(TINY), Workload(sequence_length=128, **asked | changes)
    )

    assert made.peak_bytes == pytest.approx(symbolic, rel=0.01)
    assert not made.activations_are_a_guess


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"model_type": "llama4", "text_config": [1]}, "text_config"),
        ({**TINY, "moe_layers": [1, "2"]}, "moe_layers"),
        ({**TINY, "no_rope_layers": [1, 0]}, "no_rope_layers"),
        ({**TINY, "no_rope_layers": 7}, "no_rope_layers"),
        ({**TINY, "no_rope_layer_interval": 0}, "no_rope_layer_interval"),
        ({**TINY, "interleave_moe_layer_step": 0}, "interleave_moe_layer_step"),
        ({**TINY, "num_experts_per_tok": 9}, "num_experts_per_tok"),
        ({**TINY, "attention_chunk_size": -1}, "attention_chunk_size"),
    ],
)
def test_a_bad_field_is_named(config, field):
    with pytest.raises(SpecInvalid) as caught:
        parse_config(config)

    assert field in caught.value.fields
