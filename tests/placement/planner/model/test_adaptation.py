"""Adapters and quantized weights: counted to the byte, refused with the reason."""

import json

import pytest

from placement.planner.model.adaptation import (
    adapted,
    target_names,
    usual_targets,
    with_lora,
    with_quantized,
)
from placement.planner.model.families.config_json import parse_config
from placement.planner.model.files.tensor_inventory import (
    TensorInfo,
    spec_from_inventory,
)
from placement.planner.model.quantized_weights import (
    INT8,
    NF4,
    Scheme,
    quantized,
    weight_bytes,
)
from placement.planner.model.spec import ModelSpec
from placement.planner.model.well_known import WELL_KNOWN, well_known_spec
from placement.planner.values.errors import SpecInvalid

pytestmark = pytest.mark.pure
LLAMA = well_known_spec("llama-3-8b")


def parts_of(spec, component):
    return [
        part
        for layer in spec.layers
        for part in layer.parts
        if part.component == component
    ]


def test_llama_8b_with_rank_16_trains_what_the_paper_counts():
    adapted = with_lora(LLAMA, rank=16)

    per_block = 16 * (4096 + 4096) + 16 * (4096 + 1024)
    assert adapted.trainable_count == 32 * per_block
    assert adapted.parameter_count == LLAMA.parameter_count + 32 * per_block
    assert len(parts_of(adapted, "adapter")) == 32
    assert parts_of(adapted, "adapter")[0].tensors == 4
    assert parts_of(adapted, "adapter")[0].stored_bytes == 4 * per_block
    assert adapted.shape.lora_rank == 16
    assert adapted.shape.lora_targets == ("q_proj", "v_proj")


def test_everything_but_the_adapters_is_frozen():
    adapted = with_lora(LLAMA, rank=4, targets=["all-linear"])

    frozen = {
        part.component for la in adapted.layers for part in la.parts if part.frozen
    }
    assert frozen == {"embedding", "attention", "mlp", "norm", "head"}
    assert "lm_head" not in adapted.shape.lora_targets
    assert not [p for p in adapted.layers[-1].parts if p.component == "adapter"]


def test_names_are_the_familys_own():
    assert target_names(well_known_spec("gpt2")) == ("c_attn", "c_fc", "c_proj")
    with pytest.raises(SpecInvalid, match="c_attn, c_fc, c_proj"):
        with_lora(well_known_spec("gpt2"), rank=8)


@pytest.mark.parametrize("rank", [0, -1, 2**20, 2.5, True, None])
def test_a_rank_that_is_none_is_refused(rank):
    with pytest.raises(SpecInvalid) as caught:
        with_lora(LLAMA, rank=rank)

    assert caught.value.field == "lora_rank"


def test_no_targets_and_adapters_twice_are_refused():
    with pytest.raises(SpecInvalid, match="none named"):
        with_lora(LLAMA, rank=4, targets=[])
    with pytest.raises(SpecInvalid, match="already"):
        with_lora(with_lora(LLAMA, rank=4), rank=4)


def test_adapters_on_stacked_experts_are_refused_but_not_on_attention():
    deepseek = well_known_spec("deepseek-v3")

    assert with_lora(deepseek, rank=4, targets=["q_b_proj"]).trainable_count > 0
    with pytest.raises(SpecInvalid, match="stacked experts"):
        with_lora(deepseek, rank=4, targets=["gate_proj"])


def test_adapters_that_peft_refuses_on_mamba_are_refused_and_left_out():
    mamba = parse_config({"model_type": "mamba2"})

    assert usual_targets(mamba) == ("in_proj",)
    assert with_lora(mamba, rank=4, targets=["in_proj"]).trainable_count > 0
    for targets in (["out_proj"], ["all-linear"]):
        with pytest.raises(SpecInvalid, match="PEFT refuses adapters there"):
            with_lora(mamba, rank=4, targets=targets)


def test_eight_bits_take_a_byte_and_four_a_row():
    spec = with_quantized(LLAMA, "int8")

    linear = sum(
        (one.outputs * one.inputs + 4 * one.outputs) * one.copies
        for layer in LLAMA.layers[1:-1]
        for part in layer.parts
        for one in part.linears
    )
    packed = [p for la in spec.layers for p in la.parts if p.weight_bits]
    assert sum(part.stored_bytes for part in packed) == linear
    assert {part.weight_bits for part in packed} == {8.0}
    assert spec.parameter_count == LLAMA.parameter_count


def test_four_bits_with_quantized_constants_take_about_four_and_an_eighth():
    spec = with_quantized(LLAMA, "nf4")

    packed = [p for la in spec.layers for p in la.parts if p.weight_bits]
    elements = sum(part.parameters for part in packed)
    bits = 8 * sum(part.stored_bytes for part in packed) / elements
    assert bits == pytest.approx(4.127, abs=0.002)
    plain = weight_bytes(Scheme("bitsandbytes_4bit"), 4096, 4096)
    assert 8 * plain / 4096**2 == pytest.approx(4.5, abs=0.001)
    assert weight_bytes(NF4, 4096, 4096) < plain < weight_bytes(INT8, 4096, 4096)


def test_biases_norms_tables_and_the_head_stay_as_they_are():
    gpt2 = well_known_spec("gpt2")
    spec = with_quantized(gpt2, "int8")

    trained = sum(
        part.parameters for la in spec.layers for part in la.parts if not part.frozen
    )
    weights = 12 * (2304 + 768 + 3072 + 3072) * 768
    assert trained == spec.trainable_count == gpt2.parameter_count - weights
    tensors = sum(part.tensors for la in spec.layers for part in la.parts)
    assert tensors == gpt2.tensor_count
    edges = sum(part.edges for la in spec.layers for part in la.parts)
    assert edges == sum(part.edges for la in gpt2.layers for part in la.parts)


def test_qlora_is_both():
    spec = with_lora(with_quantized(LLAMA, "nf4"), rank=64, targets=["all-linear"])

    assert spec.is_quantized
    assert spec.trainable_count == sum(p.parameters for p in parts_of(spec, "adapter"))


def test_experts_in_one_tensor_stay_whole_and_a_note_says_so():
    spec = with_quantized(well_known_spec("mixtral-8x7b"), "nf4")

    assert any("experts" in note for note in spec.notes)
    assert spec.stored_bytes > 80e9


def test_fp8_experts_are_quantized_with_scales_for_each():
    config = dict(WELL_KNOWN["deepseek-v3"].config) | {
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}
    }
    spec = parse_config(config)

    assert 671e9 < spec.stored_bytes < 700e9


def test_twice_quantized_and_unknown_layers_are_refused():
    with pytest.raises(SpecInvalid, match="already"):
        with_quantized(with_quantized(LLAMA, "int8"), "nf4")
    bare = spec_from_inventory(
        [TensorInfo("h.0.w", (4, 4), "fp32")], name="m", source="onnx"
    )
    with pytest.raises(SpecInvalid, match="layers are known"):
        with_quantized(bare, "int8")
    with pytest.raises(SpecInvalid, match="must be int8 or nf4"):
        with_quantized(LLAMA, "int3")


@pytest.mark.parametrize(
    ("given", "bits"),
    [
        ({"load_in_8bit": True}, 8.0),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4.5),
        (
            {
                "load_in_4bit": True,
                "bnb_4bit_use_double_quant": True,
                "bnb_4bit_quant_type": "nf4",
            },
            4.127,
        ),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, 4.16),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 8.0),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 128}, 4.156),
        ({"quant_method": "fp8"}, 8.0),
    ],
)
def test_quantization_config_is_honoured(given, bits):
    config = dict(WELL_KNOWN["llama-3-8b"].config) | {"quantization_config": given}
    packed = [
        p for la in parse_config(config).layers for p in la.parts if p.weight_bits
    ]

    size = sum(part.stored_bytes for part in packed)
    assert 8 * size / sum(part.parameters for part in packed) == pytest.approx(
        bits, abs=0.02
    )


def test_layers_that_are_skipped_stay_whole():
    scheme = Scheme("bitsandbytes_8bit", bits=8, skip=("down_proj",))
    spec = quantized(LLAMA, scheme)

    whole = [p for p in parts_of(spec, "mlp") if p.weight_bits is None]
    assert {p.parameters for p in whole} == {4096 * 14336}
    assert {p.largest for p in whole} == {4096 * 14336}


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ("4bit", "quantization_config"),
        ({}, "quantization_config.quant_method"),
        ({"quant_method": "hqq"}, "quantization_config.quant_method"),
        ({"quant_method": 7}, "quantization_config.quant_method"),
        ({"quant_method": "gptq", "bits": 5}, "quantization_config.bits"),
        ({"quant_method": "gptq", "group_size": 0}, "quantization_config.group_size"),
        (
            {"quant_method": "fp8", "weight_block_size": [128, 64]},
            "quantization_config.weight_block_size",
        ),
        ({"quant_method": "bitsandbytes"}, "quantization_config.load_in_4bit"),
        (
            {"load_in_4bit": True, "llm_int8_skip_modules": "lm_head"},
            "quantization_config.llm_int8_skip_modules",
        ),
    ],
)
def test_a_bad_quantization_config_names_its_field(given, field):
    with pytest.raises(SpecInvalid) as caught:
        parse_config({"model_type": "llama", "quantization_config": given})

    assert caught.value.field == field


@pytest.mark.parametrize("name", WELL_KNOWN)
def test_every_known_language_model_has_usual_targets(name):
    spec = well_known_spec(name)
    assert adapted(spec, lora_rank=4).shape.lora_targets == usual_targets(spec)
    assert not {"gate_proj", "up_proj"} & set(usual_targets(spec)) or (
        spec.shape.experts == 0
    )


def test_an_adapted_and_quantized_model_survives_json():
    spec = with_lora(
        with_quantized(well_known_spec("gpt2"), "nf4"), rank=4, targets=["c_attn"]
    )

    text = json.dumps(spec.to_json())
    assert ModelSpec.from_json(json.loads(text)) == spec


def test_defaults_are_left_out_of_json():
    stored = well_known_spec("llama-2-7b").to_json()

    part = stored["layers"][1]["parts"][-1]
    assert not {"frozen", "weight_bits", "linears"} & set(part)
    assert "lora_rank" not in stored["shape"]
