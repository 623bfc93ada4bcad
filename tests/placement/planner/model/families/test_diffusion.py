"""Configurations of diffusers: exact parameters, and operations of one image."""

import pytest

from placement.planner.memory.estimate import rank_costs
from placement.planner.model.adaptation import adapted
from placement.planner.model.families.diffusion import parse_diffusers
from placement.planner.model.sharding import ONE_RANK
from placement.planner.model.spec import ModelSpec
from placement.planner.values.errors import SpecInvalid
from placement.planner.values.workload import Workload

pytestmark = pytest.mark.pure

SDXL = {
    "_class_name": "UNet2DConditionModel",
    "sample_size": 128,
    "block_out_channels": [320, 640, 1280],
    "down_block_types": ["DownBlock2D", *["CrossAttnDownBlock2D"] * 2],
    "up_block_types": [*["CrossAttnUpBlock2D"] * 2, "UpBlock2D"],
    "cross_attention_dim": 2048,
    "transformer_layers_per_block": [1, 2, 10],
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "projection_class_embeddings_input_dim": 2816,
}
SD3 = {
    "_class_name": "SD3Transformer2DModel",
    "num_layers": 24,
    "num_attention_heads": 24,
    "caption_projection_dim": 1536,
}


@pytest.mark.parametrize(
    ("config", "parameters", "tera_operations"),
    [
        (SDXL, 2_567_463_684, 6.0),
        (
            {"_class_name": "UNet2DConditionModel", "cross_attention_dim": 768},
            859_520_964,
            0.68,
        ),
        (SD3, 2_028_328_000, 6.1),
        (
            SD3
            | {
                "num_layers": 38,
                "num_attention_heads": 38,
                "caption_projection_dim": 2432,
                "qk_norm": "rms_norm",
            },
            8_056_627_520,
            24.0,
        ),
        (
            SD3 | {"qk_norm": "rms_norm", "dual_attention_layers": list(range(13))},
            2_243_171_520,
            7.1,
        ),
        (
            {"_class_name": "FluxTransformer2DModel", "guidance_embeds": True},
            11_901_408_320,
            59.8,
        ),
        # DiT-XL/2 at 256 x 256. The paper counts 118.6 G of multiplications.
        (
            {"_class_name": "DiTTransformer2DModel", "out_channels": 8},
            749_826_464,
            0.23,
        ),
    ],
)
def test_parameters_are_those_of_diffusers(config, parameters, tera_operations):
    """Counted with diffusers 0.42's classes on meta. Operations are those of one image,
    forward, without attention's scores. Whatever the sequence length, they stay.
    """
    spec = parse_diffusers(config)
    assert spec.parameter_count == parameters
    for length in (16, 512):
        asked = Workload(task="infer", batch=1, sequence_length=length)
        costs = rank_costs(spec, asked, ONE_RANK)
        done = sum(one.forward_flops for one in costs)
        assert done / 1e12 == pytest.approx(tera_operations, rel=0.05)
    assert ModelSpec.from_json(spec.to_json()) == spec


def test_an_adapter_keeps_what_its_layer_sees():
    """SDXL with LoRA fits on a card of 24 GB (diffusers' own example does)."""
    spec = parse_diffusers(SDXL)
    plain, more = (
        sum(part.edges for layer in one.layers for part in layer.parts)
        for one in (spec, adapted(spec, lora_rank=16))
    )
    assert more < 3 * plain


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"_class_name": "AutoencoderKL"}, "_class_name"),
        ({"_class_name": "Transformer2DModel", "norm_type": "layer_norm"}, "norm_type"),
        ({"_class_name": ["UNet2DConditionModel"]}, "_class_name"),
        ({"block_out_channels": 320}, "block_out_channels"),
        ({"block_out_channels": [320, 0, 1280]}, "block_out_channels"),
        ({"block_out_channels": [320, 640]}, "down_block_types"),
        ({"down_block_types": ["AttnDownBlock2D"] * 3}, "down_block_types"),
        ({"transformer_layers_per_block": [[1, 2], 2, 10]}, "transformer_layers_per"),
        ({"cross_attention_dim": [2048, 2048]}, "cross_attention_dim"),
        ({"layers_per_block": 0}, "layers_per_block"),
        ({"projection_class_embeddings_input_dim": None}, "projection_class"),
        ({"sample_size": 10**30}, "sample_size"),
    ],
)
def test_a_wrong_field_is_named(change, field):
    with pytest.raises(SpecInvalid) as refused:
        parse_diffusers(SDXL | change)
    assert any(name.startswith(field) for name in refused.value.fields)
