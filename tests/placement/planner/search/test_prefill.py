"""Prompts that are read piece by piece: memory, plans and advice."""

import pytest

from placement.planner.memory.estimate import estimate
from placement.planner.model.families.config_json import parse_config
from placement.planner.model.well_known import well_known_spec
from placement.planner.search.fit_suggestions import ladder
from placement.planner.search.memory_savings import PREFILL_TOKENS, PlanLimits
from placement.planner.search.planner import plan
from placement.planner.values.errors import WorkloadInvalid
from placement.planner.values.workload import Workload
from tests.placement.planner.made import GIB, make_offer

pytestmark = pytest.mark.pure
PROMPTS = Workload(task="infer", batch=4, sequence_length=32768, precision="bf16")
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


def test_the_time_of_a_call_and_of_a_token_is_that_of_the_whole_prompt():
    spec = well_known_spec("llama-3-8b")
    plans = [
        plan(spec, PROMPTS.replace(batch=1, prefill_tokens=tokens), [a100()]).best
        for tokens in (0, 2048)
    ]
    whole, chunked = (one for one in plans if one is not None)
    assert chunked.step_seconds == pytest.approx(whole.step_seconds)
    assert chunked.decode_seconds == pytest.approx(whole.decode_seconds)


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
