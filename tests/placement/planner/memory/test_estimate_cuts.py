"""Estimates of ranks: stages, tensor shares, experts, offload, adapters, caches."""

import pytest

from placement.planner.memory.estimate import estimate
from placement.planner.model.adaptation import with_lora, with_quantized
from placement.planner.model.families.config_json import parse_config
from placement.planner.model.sharding import Sharding
from placement.planner.model.well_known import well_known_spec
from placement.planner.values.errors import WorkloadInvalid
from placement.planner.values.workload import Workload

pytestmark = pytest.mark.pure

CUTS = [
    ({"tensor_degree": 3}, "tensor_degree"),
    ({"tensor_degree": 0}, "tensor_degree"),
    ({"strategy": "magic"}, "strategy"),
    ({"zero_stage": 1}, "zero_stage"),
    ({"sequence_parallel": True}, "sequence_parallel"),
    ({"virtual_stages": 2}, "virtual_stages"),
    ({"strategy": "hybrid", "zero_stage": 3, "pipeline_degree": 2}, "zero_stage"),
    ({"expert_degree": 2, "data_degree": 3}, "expert_degree"),
    ({"expert_degree": 2, "data_degree": 2}, "expert_degree"),
    ({"last_layer": 99}, "last_layer"),
    ({"chunks": ((5, 5),)}, "chunks"),
    ({"share_ratio": 2.0}, "share_ratio"),
    ({"bucket_elements": 0}, "bucket_elements"),
]


@pytest.mark.parametrize(("changes", "field"), CUTS)
def test_a_cut_that_cannot_be_is_refused_by_field(changes, field):
    spec = well_known_spec("llama-3.2-1b")

    with pytest.raises(WorkloadInvalid) as caught:
        estimate(spec, Workload(), Sharding(**changes))

    assert field in caught.value.fields


def test_ranks_of_a_hybrid_hold_the_model_once_per_replica():
    spec = well_known_spec("llama-3-8b")
    workload = Workload(batch=32, precision="bf16")
    cut = 17
    stages = [
        Sharding(
            strategy="hybrid",
            tensor_degree=4,
            data_degree=2,
            zero_stage=1,
            pipeline_degree=2,
            microbatches=4,
            first_layer=first,
            last_layer=last,
            in_flight=flight,
        )
        for first, last, flight in ((0, cut, 2), (cut, 34, 1))
    ]

    held = 4 * sum(estimate(spec, workload, stage).parameter_bytes for stage in stages)

    assert held == pytest.approx(2 * spec.parameter_count, rel=0.001)


def test_sequence_parallelism_needs_less_than_tensor_parallelism_alone():
    spec = well_known_spec("llama-3-8b")
    workload = Workload(batch=2, sequence_length=4096, precision="bf16")
    alone = Sharding(strategy="tensor", tensor_degree=4)
    both = Sharding(strategy="tensor", tensor_degree=4, sequence_parallel=True)

    def kept(sharding):
        made = estimate(spec, workload, sharding)
        return sum(layer.activation_bytes for layer in made.layers)

    assert kept(both) < 0.7 * kept(alone)


def test_interleaving_keeps_more_than_plain_stages_and_gpipe_keeps_all():
    spec = well_known_spec("gpt2")
    workload = Workload(batch=16, precision="bf16")
    base = {"pipeline_degree": 2, "microbatches": 8, "strategy": "pipeline"}
    plain = Sharding(**base, last_layer=7, in_flight=2)
    gpipe = Sharding(
        **{**base, "strategy": "gpipe"},
        pipeline_schedule="gpipe",
        last_layer=7,
        in_flight=8,
    )
    turns = Sharding(
        **base,
        pipeline_schedule="interleaved",
        virtual_stages=2,
        chunks=((0, 4), (7, 10)),
        last_layer=10,
        in_flight=5,
    )

    kept = [
        estimate(spec, workload, one).phase_bytes["forward"]
        for one in (plain, turns, gpipe)
    ]

    assert kept == sorted(kept)


def test_offload_moves_states_away_and_keeps_the_running_layer():
    spec = well_known_spec("llama-3-8b")
    workload = Workload(batch=1, sequence_length=128, precision="bf16")

    here = estimate(spec, workload)
    step = estimate(spec, workload.replace(offload="cpu"))
    all_of_it = estimate(
        spec, workload.replace(offload="nvme", offload_parameters=True)
    )

    assert step.optimizer_bytes == all_of_it.optimizer_bytes == 0
    assert step.parameter_bytes == here.parameter_bytes
    assert all_of_it.parameter_bytes == 0
    assert all_of_it.peak_bytes < 0.2 * here.peak_bytes


def test_adapters_keep_frozen_weights_without_gradients():
    spec = well_known_spec("llama-3.2-1b")
    workload = Workload(batch=2, sequence_length=512, precision="bf16")
    adapted = with_lora(spec, rank=8)
    packed = with_lora(with_quantized(spec, "nf4"), rank=8)

    whole, lora, qlora = (estimate(one, workload) for one in (spec, adapted, packed))

    extra = adapted.parameter_count - spec.parameter_count
    assert lora.gradient_bytes == 4 * extra
    assert lora.parameter_bytes == whole.parameter_bytes + 4 * extra
    assert qlora.parameter_bytes < 0.6 * lora.parameter_bytes
    assert qlora.peak_bytes < lora.peak_bytes < whole.peak_bytes


def test_a_paged_cache_comes_in_whole_blocks():
    spec = well_known_spec("llama-3-8b")
    workload = Workload(task="infer", batch=2, sequence_length=1000, precision="bf16")

    paged = estimate(spec, workload.replace(kv_block_tokens=16)).components["kv_cache"]

    assert paged == 2 * 1008 * 131_072


def test_a_decoder_of_another_length_costs_by_its_own():
    spec = parse_config({"model_type": "t5", "num_layers": 2})
    workload = Workload(batch=4, sequence_length=512, precision="fp32")

    short = estimate(spec, workload.replace(target_length=32)).peak_bytes

    assert short < estimate(spec, workload.replace(target_length=512)).peak_bytes
    assert estimate(spec, workload).peak_bytes == (
        estimate(spec, workload.replace(target_length=512)).peak_bytes
    )


def test_stages_of_a_pipeline_hold_all_parameters_and_the_tied_table_twice():
    spec = well_known_spec("gpt2")
    cut = 6
    workload = Workload(batch=8, precision="fp32")
    stages = [
        Sharding(strategy="pipeline", last_layer=cut, in_flight=2, microbatches=4),
        Sharding(strategy="pipeline", first_layer=cut, microbatches=4),
    ]

    held = sum(estimate(spec, workload, stage).parameter_bytes for stage in stages)

    assert held == 4 * (spec.parameter_count + 50257 * 768)


def test_autocast_copies_only_trainable_weights_to_infer():
    whole = well_known_spec("llama-3-8b")
    packed = with_quantized(whole, "nf4")
    workload = Workload(task="infer", batch=1)
    plain = workload.replace(precision="fp32")
    head = 128256 * 4096
    blocks = 2 * sum(
        part.matrix_parameters for one in whole.layers[1:-1] for part in one.parts
    )
    copied = {}
    for name, spec in (("whole", whole), ("packed", packed)):
        autocast = estimate(spec, workload).parameter_bytes
        copied[name] = autocast - estimate(spec, plain).parameter_bytes

    assert copied == {"whole": blocks + 2 * head, "packed": 2 * head}
    adapters = estimate(with_lora(whole, rank=8), workload).parameter_bytes
    kept = estimate(with_lora(whole, rank=8), plain).parameter_bytes
    assert adapters - kept < 2 * 8 * 2**20, "the frozen weights are cast in each call"


def test_autocast_copies_a_tied_head_to_infer():
    spec = well_known_spec("gpt2")
    workload = Workload(task="infer", batch=1, sequence_length=8)
    head = spec.layers[-1].tied_parameters
    bytes_of = {
        how: estimate(spec, workload.replace(precision=how)).parameter_bytes
        for how in ("fp32", "autocast_bf16")
    }

    copied = bytes_of["autocast_bf16"] - bytes_of["fp32"]
    blocks = [part for one in spec.layers[1:] for part in one.parts]
    assert copied == 2 * (head + sum(one.matrix_parameters for one in blocks))


def test_a_frozen_weight_is_cast_for_a_moment_to_infer():
    spec = with_lora(well_known_spec("gpt2"), rank=8, targets=["c_attn"])
    workload = Workload(task="infer", batch=1, sequence_length=1)
    one = estimate(spec, workload)
    table = spec.layers[-1].tied_parameters

    moment = one.peak_bytes - one.parameter_bytes
    assert 2 * table < moment < 2.2 * table, "the largest is the head's: the table"


def test_packed_weights_are_not_kept_unpacked_for_backward():
    packed = with_lora(with_quantized(well_known_spec("llama-3-8b"), "nf4"), rank=8)
    workload = Workload(batch=1, sequence_length=64)
    activations = estimate(packed, workload).components["activations"]

    assert activations < 4 * 2**30, "bf16 copies of 7e9 weights would take 14 GB"
