"""Prompts that are read piece by piece: memory, plans and advice."""

import pytest

from placement.planner.memory.estimate import estimate
from placement.planner.model.families.config_json import parse_config
from placement.planner.model.well_known import well_known_spec
from placement.planner.search.fit_suggestions import ladder
from placement.planner.search.memory_savings import PREFILL_TOKENS, PlanLimits
from placement.planner.search.planner import plan
from placement.planner.values.errors import WorkloadInvalid
from placement.planner.values.gpu_availability import peak_flops_of
from placement.planner.values.workload import Workload
from telemetry.protocol.gpu_cards import card_of
from tests.placement.planner.made import GIB, make_offer

pytestmark = pytest.mark.pure
PROMPTS = Workload(task="infer", batch=4, sequence_length=32768, precision="bf16")
ROBERTA = {"model_type": "roberta", "max_position_embeddings": 514}
GPT_OSS = {
    "model_type": "gpt_oss",
    "num_hidden_layers": 36,
    "num_local_experts": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
    "quantization_config": {
        "quant_method": "mxfp4",
        "modules_to_not_convert": [
            "model.layers.*.self_attn",
            "model.layers.*.mlp.router",
            "model.embed_tokens",
            "lm_head",
        ],
    },
}


def test_a_chunk_needs_what_prompts_of_its_length_need_and_the_whole_cache():
    spec = well_known_spec("llama-3-8b")
    chunked = estimate(spec, PROMPTS.replace(prefill_tokens=2048))
    short = estimate(spec, PROMPTS.replace(batch=1, sequence_length=2048))
    whole = estimate(spec, PROMPTS)

    cache = 2 * 32 * 8 * 128 * 2 * 4 * 32768
    assert chunked.components["kv_cache"] == whole.components["kv_cache"] == cache
    rows = chunked.components["transients"]
    assert rows == pytest.approx(short.components["transients"], rel=0.01)
    assert rows < whole.components["transients"] / 60


def test_a_chunk_of_eager_attention_sees_the_keys_of_its_whole_prompt():
    spec = well_known_spec("llama-2-7b")
    eager = PROMPTS.replace(batch=1, sequence_length=8192, attention="eager")
    chunked = estimate(spec, eager.replace(prefill_tokens=2048))
    scores = 32 * 2048 * 8192 * 2
    assert chunked.components["transients"] > 2 * scores
    assert chunked.peak_bytes < estimate(spec, eager).peak_bytes


def test_a_chunk_as_long_as_the_prompts_changes_nothing():
    spec = well_known_spec("gpt2")
    asked = PROMPTS.replace(sequence_length=512)
    same = asked.replace(prefill_tokens=2048)
    assert estimate(spec, same) == estimate(spec, asked)


def test_only_inference_reads_prompts():
    with pytest.raises(WorkloadInvalid, match="prefill_tokens"):
        Workload(prefill_tokens=2048)


@pytest.mark.parametrize("name", ["NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"])
def test_every_piece_of_a_prompt_reads_all_weights(name):
    spec = well_known_spec("llama-3-8b")
    card = a100(name=name, peak_flops=peak_flops_of(name))
    plans = [
        plan(spec, PROMPTS.replace(batch=1, prefill_tokens=tokens), [card]).best
        for tokens in (0, 2048, 1)
    ]
    whole, chunked, single = (one for one in plans if one is not None)
    assert 1 < chunked.step_seconds / whole.step_seconds < 1.15
    assert chunked.decode_seconds == pytest.approx(whole.decode_seconds)
    blocks = 2 * sum(layer.parameters for layer in spec.layers[1:-1])
    reading = 32768 * blocks / card_of(name).memory_bytes_per_second
    assert single.step_seconds > reading


@pytest.mark.parametrize("name", ["bert-base", "vit-base", "t5-small"])
def test_a_model_that_reads_in_one_piece_has_no_pieces(name):
    asked = Workload(task="infer", sequence_length=512, prefill_tokens=64)
    for answer in (
        lambda spec: estimate(spec, asked),
        lambda spec: plan(spec, asked, [a100()]),
    ):
        with pytest.raises(WorkloadInvalid, match="piece by piece"):
            answer(well_known_spec(name))


def test_a_sequence_beyond_learned_positions_is_refused_with_their_number():
    asked = Workload(sequence_length=1025)
    with pytest.raises(WorkloadInvalid, match="positions for 1,024 tokens, not"):
        plan(well_known_spec("gpt2"), asked, [a100()])
    with pytest.raises(WorkloadInvalid, match="positions for 512 tokens, not"):
        estimate(parse_config(ROBERTA), asked)
    estimate(well_known_spec("gpt2"), asked.replace(sequence_length=1024))
    estimate(well_known_spec("vit-base"), asked)
    estimate(well_known_spec("t5-small"), asked)


def test_rotary_positions_beyond_those_of_the_config_are_a_note():
    spec = well_known_spec("llama-2-7b")
    notes = estimate(spec, Workload(batch=1, sequence_length=8192)).notes
    assert "configured for 4,096 positions" in notes[0]
    assert not estimate(spec, Workload(batch=1, sequence_length=4096)).notes


def a100(**changes):
    """An idle card of 80 GB."""
    card = {"name": "NVIDIA A100-SXM4-80GB", "total_gib": 80, "free_gib": 79}
    return make_offer(**card | {"peak_flops": 312e12} | changes)


def test_gpt_oss_120b_runs_on_one_card_of_80_gb_as_its_model_card_says():
    found = plan(
        parse_config(GPT_OSS),
        PROMPTS.replace(batch=1, sequence_length=8192),
        [a100(name="NVIDIA H100 80GB HBM3")],
    )
    assert found.best is not None and not found.best.absurd
    assert found.best.workload.prefill_tokens == PREFILL_TOKENS
    assert found.best.workload.offload == "none"
    assert any("chunked prefill" in words for words in found.best.remedies)


def test_weights_stay_as_they_are_if_shorter_pieces_are_enough():
    spec = well_known_spec("llama-3-8b")
    free = estimate(spec, PROMPTS.replace(prefill_tokens=2048)).likely_bytes / GIB
    best = plan(spec, PROMPTS, [a100(free_gib=free + 0.1)]).best
    assert best is not None
    assert best.launch["weights"] == "full"
    assert best.launch["prefill_tokens"] == PREFILL_TOKENS
    roomy = plan(spec, PROMPTS, [a100()]).best
    assert roomy is not None and roomy.launch["prefill_tokens"] == 0


def test_the_remedies_of_a_model_begin_with_it():
    first, *_ = ladder(well_known_spec("llama-3-8b"), PROMPTS, a100(free_gib=20)).rungs
    assert "chunked prefill" in first.words and not first.changes_question


def test_4_bits_are_advised_only_where_they_are_enough():
    spec = well_known_spec("llama-3-70b")
    asked = Workload(task="infer", batch=1, precision="bf16")
    forbidden = PlanLimits(quantization=False)
    advised = plan(spec, asked, [a100()], limits=forbidden).advice
    assert "4 bits" in advised
    small = plan(spec, asked, [make_offer()], limits=forbidden).advice
    assert "sensibly" in small and "4 bits" not in small
    tried = plan(spec, asked, [make_offer()]).advice
    assert "4 bits" not in tried
