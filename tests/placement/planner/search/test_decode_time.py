"""Inference plans: time per token, the cache's layout, fewer bits, slow links."""

import json

import pytest

from placement.planner.memory.estimate import estimate
from placement.planner.model.well_known import well_known_spec
from placement.planner.search.decode_time import MEMORY_RATIO
from placement.planner.search.memory_savings import PlanLimits
from placement.planner.search.planner import plan
from placement.planner.values.plan import Plan
from placement.planner.values.workload import Workload
from tests.placement.planner.made import make_offer, make_offers

pytestmark = pytest.mark.pure

LLAMA = well_known_spec("llama-3-8b")
ASKED = Workload(task="infer", batch=1, precision="bf16", sequence_length=512)
H100 = {"name": "NVIDIA H100 80GB HBM3", "total_gib": 80, "free_gib": 79}


def best(spec, workload=ASKED, **card):
    return plan(spec, workload, [make_offer(**{**H100, **card})]).best


def test_a_token_reads_all_weights_and_the_cache_once():
    made = best(LLAMA)
    table = 128256 * 4096
    weights = 2 * (LLAMA.parameter_count - table)
    cache = 32 * 2 * 8 * 128 * 2 * 512

    expected = (weights + cache) / (3352e9 * MEMORY_RATIO)
    assert made.decode_seconds == pytest.approx(expected, rel=1e-3)
    assert made.decode_tokens_per_second == pytest.approx(1 / expected, rel=1e-3)
    assert any("Each further token takes" in text for text in made.why)
    assert Plan.from_json(json.loads(json.dumps(made.to_json()))) == made


def test_a_batch_reads_the_weights_once_for_all():
    one, many = best(LLAMA), best(LLAMA, ASKED.replace(batch=32))

    assert many.decode_seconds < 1.5 * one.decode_seconds
    assert many.decode_tokens_per_second > 20 * one.decode_tokens_per_second


def test_a_mixture_reads_the_experts_that_are_taken():
    spec = well_known_spec("gpt-oss-20b")
    one, many = best(spec), best(spec, ASKED.replace(batch=64))

    # 3.6 of its 20.9 billion parameters are active, the table's among them.
    active = (one.decode_seconds * 3352e9 * MEMORY_RATIO) / 2
    assert 3.0e9 < active < 3.8e9
    assert many.decode_seconds > 4 * one.decode_seconds


def test_models_that_generate_nothing_have_no_decode_time():
    assert best(well_known_spec("bert-base")).decode_seconds == 0
    train = plan(well_known_spec("gpt2"), Workload(), make_offers(23)).best
    assert train.decode_seconds == 0
    assert not any("Each further token" in text for text in train.why)


def test_latent_attention_caches_one_latent_for_all_heads():
    spec = well_known_spec("deepseek-v3")
    made = estimate(spec, ASKED.replace(sequence_length=4096))

    # 70,272 bytes a token: arXiv:2505.09343, table 1.
    assert made.components["kv_cache"] == 70_272 * 4096


def test_fewer_bits_come_before_weights_in_the_hosts_memory():
    made = plan(LLAMA, ASKED, make_offers(12)).best
    assert made.launch["weights"] == "int8"
    assert made.workload.offload == "none"
    host = plan(LLAMA, ASKED, make_offers(12), limits=PlanLimits(quantization=False))
    assert host.best.workload.offload_parameters
    # Every token then waits for PCIe.
    assert host.best.decode_seconds > 20 * made.decode_seconds


def test_layers_are_cut_over_slow_links_to_infer_but_not_to_train():
    offers = make_offers(23, 23)
    only = PlanLimits(strategies=("tensor",))
    slow = plan(LLAMA, ASKED, offers, limits=only).best
    joined = make_offers(23, 23, link_group="nv")
    fast = plan(LLAMA, ASKED, joined, limits=only).best

    assert any("joined by PCIe" in text for text in slow.why)
    assert slow.step_seconds > fast.step_seconds
    assert slow.decode_seconds > fast.decode_seconds
    train = plan(LLAMA, Workload(precision="bf16"), offers, limits=only)
    assert not train.plans
    assert "needs fast links" in train.refusals[0].reason
