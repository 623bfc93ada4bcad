"""Estimates against measured steps, and against properties that always hold."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.estimate import TESTS, load
from placement.planner.memory.estimate import CONTEXT_BYTES, WORKSPACE_BYTES, estimate
from placement.planner.model.families.config_json import parse_config
from placement.planner.model.files.tensor_inventory import (
    TensorInfo,
    spec_from_inventory,
)
from placement.planner.model.sharding import Sharding
from placement.planner.model.well_known import well_known_spec
from placement.planner.reference.memory_cases import closed_case
from placement.planner.values.workload import CHOICES, Workload
from tests.placement.planner.made import tiny

pytestmark = pytest.mark.pure

# Peaks of small models, measured with a storage tracker on torch 2.13 + transformers
# 5.23, batch 2 x 128 tokens, AdamW: family, config, workload, bytes.
SMALL = {
    "hidden_size": 256,
    "num_attention_heads": 8,
    "intermediate_size": 704,
    "num_hidden_layers": 4,
    "vocab_size": 8000,
    "max_position_embeddings": 512,
}
GROUPED = {**SMALL, "num_key_value_heads": 4}
MORE = [
    ("opt", {**SMALL, "ffn_dim": 1024}, {}, 103_905_560),
    (
        "bloom",
        {**SMALL, "n_head": 8, "n_layer": 4},
        {"attention": "eager"},
        108_853_468,
    ),
    ("llama", GROUPED, {"attention": "eager"}, 136_190_244),
    ("llama", GROUPED, {"precision": "bf16"}, 78_979_812),
    ("llama", GROUPED, {"precision": "autocast_bf16"}, 134_027_556),
    ("mixtral", {**GROUPED, "num_local_experts": 4}, {}, 233_020_700),
    ("qwen3", {**GROUPED, "head_dim": 64}, {}, 149_942_724),
    ("gemma", {**GROUPED, "head_dim": 64}, {}, 119_029_156),
    ("gemma2", {**GROUPED, "head_dim": 64}, {"attention": "eager"}, 141_909_444),
    ("phi", GROUPED, {}, 121_971_772),
    ("gpt_neox", SMALL, {}, 121_969_904),
    ("gpt_neox", SMALL, {"precision": "autocast_bf16"}, 121_969_904),
    ("falcon", {**SMALL, "ffn_hidden_size": 1024}, {"attention": "math"}, 100_870_452),
    ("bert", SMALL, {"precision": "bf16", "attention": "math"}, 63_919_276),
    ("roberta", SMALL, {"attention": "math"}, 112_101_424),
    (
        "t5",
        {
            "d_model": 256,
            "d_kv": 32,
            "d_ff": 1024,
            "num_layers": 4,
            "num_heads": 8,
            "vocab_size": 8000,
        },
        {"attention": "math"},
        236_753_260,
    ),
]


@pytest.mark.parametrize(("family", "config", "changes", "measured"), MORE)
def test_every_family_is_within_two_percent(family, config, changes, measured):
    base = {"precision": "fp32", "optimizer_loop": "forloop", "accelerator": "cpu"}
    workload = Workload(batch=2, sequence_length=128, **{**base, **changes})
    spec = parse_config({"model_type": family, **config})

    assert estimate(spec, workload).peak_bytes == pytest.approx(measured, rel=0.02)


def test_deepspeeds_default_bucket_explains_the_two_gigabytes():
    cases = {case["id"]: case for case in load("distributed_cpu.json", TESTS)}
    measured = cases["dist-ds2_def_fp32"]

    peak = closed_case(measured)["peak_bytes"]
    small = closed_case({**measured, "bucket_elements": 500_000})["peak_bytes"]

    assert peak == pytest.approx(measured["peak_bytes_per_rank"][0], rel=0.01)
    assert small < peak / 5


@pytest.mark.parametrize(
    ("strategy", "degree", "gigabytes"),
    [("zero1", 64, 31.4), ("zero1", 16, 35.6), ("fsdp", 64, 1.88), ("fsdp", 16, 7.5)],
)
def test_states_follow_table_one_of_the_zero_paper(strategy, degree, gigabytes):
    """arXiv:1910.02054 Table 1, 7.5 B parameters, mixed fp16 Adam."""
    tensors = [TensorInfo(f"h.{i}.w", (1000, 7500), "fp16") for i in range(1000)]
    spec = spec_from_inventory(tensors, name="7.5B", source="onnx")
    workload = Workload(precision="mixed_fp16", batch=degree)

    made = estimate(spec, workload, Sharding(strategy=strategy, data_degree=degree))

    assert made.state_bytes / 1e9 == pytest.approx(gigabytes, rel=0.01)


@pytest.mark.parametrize(
    ("precision", "optimizer", "per_parameter"),
    [
        ("fp32", "sgd", 8),
        ("fp32", "momentum", 12),
        ("fp32", "adamw", 16),
        ("bf16", "adamw", 8),
        ("autocast_bf16", "adam", 16),
        ("mixed_fp16", "adamw", 16),
        ("fp32", "adam8bit", 10),
        ("megatron_bf16", "adam", 18),
        ("autocast_fp16", "sgd", 8),
    ],
)
def test_states_per_parameter_are_those_of_the_table(
    precision, optimizer, per_parameter
):
    spec = well_known_spec("llama-3-8b")
    made = estimate(spec, Workload(precision=precision, optimizer=optimizer))

    ratio = made.state_bytes / spec.parameter_count
    assert ratio == pytest.approx(per_parameter, rel=0.005)


def test_adafactor_keeps_almost_nothing():
    spec = well_known_spec("llama-3-8b")
    small = estimate(spec, Workload(optimizer="adafactor")).optimizer_bytes

    assert small < 0.01 * estimate(spec, Workload(optimizer="adam")).optimizer_bytes


def test_the_foreach_optimizer_needs_room_for_all_parameters():
    spec = well_known_spec("llama-3-8b")
    few = Workload(batch=1, sequence_length=16)

    loop = estimate(spec, few.replace(optimizer_loop="fused")).phase_bytes["optimizer"]
    foreach = estimate(spec, few).phase_bytes["optimizer"]

    assert foreach - loop == 4 * spec.parameter_count


def test_the_interval_holds_context_workspace_and_slack():
    made = estimate(tiny(), Workload())

    assert made.low_bytes == made.peak_bytes + CONTEXT_BYTES + WORKSPACE_BYTES
    assert made.low_bytes < made.likely_bytes < made.high_bytes


def test_a_cpu_has_no_context():
    made = estimate(tiny(), Workload(accelerator="cpu"))

    assert made.low_bytes == made.likely_bytes == made.high_bytes == made.peak_bytes


def test_generation_keeps_keys_and_values_of_every_token():
    workload = Workload(
        task="infer", batch=2, sequence_length=1000, precision="bf16", accelerator="cpu"
    )
    made = estimate(well_known_spec("llama-3-8b"), workload)

    assert made.components["kv_cache"] == 2 * 1000 * 131_072
    assert made.gradient_bytes == made.optimizer_bytes == 0


def test_an_unknown_model_says_that_activations_are_a_guess():
    tensors = [TensorInfo("h.0.w", (64, 64), "fp32")]
    spec = spec_from_inventory(tensors, name="m", source="safetensors")
    made = estimate(spec, Workload())

    assert made.activations_are_a_guess
    assert any("guess" in note for note in made.notes)
    assert made.parameter_bytes == 4 * 64 * 64


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero2", "zero3", "fsdp"])
def test_sharing_more_never_needs_more(strategy):
    spec = well_known_spec("llama-3.2-1b")
    workload = Workload(batch=64, sequence_length=256)

    needs = [
        estimate(
            spec, workload, Sharding(strategy=strategy, data_degree=degree)
        ).peak_bytes
        for degree in (2, 4, 8)
    ]

    assert needs == sorted(needs, reverse=True)


workloads = st.builds(
    Workload,
    batch=st.integers(1, 16),
    sequence_length=st.sampled_from([1, 17, 128, 512]),
    precision=st.sampled_from(
        ["fp32", "bf16", "fp16", "autocast_bf16", "mixed_fp16", "autocast_fp16"]
    ),
    optimizer=st.sampled_from(CHOICES["optimizer"]),
    checkpointing=st.sampled_from(["none", "selective", "full"]),
    attention=st.sampled_from(["eager", "math", "flash"]),
    loss=st.sampled_from(["plain", "fused"]),
    optimizer_loop=st.sampled_from(["foreach", "forloop", "fused"]),
)
models = st.sampled_from(
    [
        {"model_type": "gpt2", "n_layer": 3},
        {"model_type": "llama", **GROUPED},
        {"model_type": "mixtral", **GROUPED, "num_local_experts": 4},
        {"model_type": "t5", "num_layers": 2},
        {"model_type": "bert", "num_hidden_layers": 2},
        {"model_type": "vit", "num_hidden_layers": 2},
        {"model_type": "gemma2", **GROUPED, "head_dim": 64},
        {"model_type": "gpt_neox", **SMALL},
    ]
)


@settings(max_examples=60, deadline=None)
@given(models, workloads, st.sampled_from([1, 2, 4]))
def test_components_add_up_and_nothing_is_negative(config, workload, degree):
    spec = parse_config(config)
    kinds = ["single"]
    if degree > 1:
        kinds = ["ddp", "zero1", "zero2", "zero3", "fsdp"]
    for kind in kinds:
        made = estimate(spec, workload, Sharding(strategy=kind, data_degree=degree))
        assert sum(made.components.values()) == made.low_bytes
        assert min(made.components.values()) >= 0
        assert made.peak_bytes >= made.parameter_bytes
        assert made.peak_bytes == max(made.phase_bytes.values())


@settings(max_examples=30, deadline=None)
@given(models, workloads)
def test_a_larger_batch_never_needs_less(config, workload):
    spec = parse_config(config)
    more = workload.replace(batch=workload.batch + 1)

    assert estimate(spec, more).peak_bytes >= estimate(spec, workload).peak_bytes


@settings(max_examples=30, deadline=None)
@given(models, workloads)
def test_recomputing_never_keeps_more(config, workload):
    spec = parse_config(config)

    def kept(checkpointing):
        made = estimate(spec, workload.replace(checkpointing=checkpointing))
        return sum(layer.activation_bytes for layer in made.layers)

    assert kept("full") <= min(kept("selective"), kept("none"))
    if workload.sequence_length >= 128:
        assert kept("selective") <= kept("none")
