"""The compute rate beside published and measured ones."""

from dataclasses import replace
from statistics import median

import pytest

from placement.planner.memory.estimate import rank_costs
from placement.planner.model.families.config_json import parse_config
from placement.planner.model.sharding import Sharding
from placement.planner.model.well_known import well_known_spec
from placement.planner.search.step_time import (
    efficiency_ratio,
    flops_per_second,
    layer_flops,
    product_sizes,
)
from placement.planner.values.workload import Workload
from tests.placement.planner.made import make_offer

pytestmark = pytest.mark.pure

A100 = "NVIDIA A100-SXM4-80GB"
H100 = "NVIDIA H100 80GB HBM3"
H200 = "NVIDIA H200"


def part_of_peak(name, spec, tokens):
    offer = replace(make_offer(), name=name)
    offer = replace(offer, peak_flops=offer.card.half_flops)
    sizes = product_sizes(spec)
    rate = flops_per_second(offer, Workload(precision="bf16"), sizes.width)
    return rate * efficiency_ratio(tokens, sizes) / offer.peak_flops


def block(family, width):
    heads = width // (64 if family == "gpt2" else 128)
    if family == "gpt2":
        sizes = {"n_embd": width, "n_head": heads, "n_layer": 2}
    else:
        sizes = {
            "hidden_size": width,
            "intermediate_size": 4 * width,
            "num_attention_heads": heads,
            "num_hidden_layers": 2,
        }
    return parse_config({"model_type": family, "vocab_size": 32000, **sizes})


MEASURED = [
    # Blocks on an H200, forward and backward in bf16, eager torch 2.11 (November 2026):
    # family, width, sequences of 2,048 tokens, milliseconds of a block.
    ("llama", 2048, 4, 8.45),
    ("llama", 4096, 1, 6.85),
    ("llama", 4096, 4, 26.64),
    ("llama", 8192, 1, 23.30),
    ("llama", 8192, 4, 93.35),
    ("llama", 12288, 1, 48.95),
    ("gpt2", 2048, 4, 6.70),
    ("gpt2", 4096, 1, 5.26),
    ("gpt2", 4096, 4, 20.26),
    ("gpt2", 8192, 1, 17.37),
    ("gpt2", 8192, 4, 71.23),
]


def test_blocks_take_about_as_long_as_on_an_h200():
    ratios = []
    for family, width, batch, milliseconds in MEASURED:
        spec = block(family, width)
        asked = Workload(batch=batch, sequence_length=2048, precision="bf16")
        flops = layer_flops(rank_costs(spec, asked, Sharding())[1], asked)
        rate = 989e12 * part_of_peak(H200, spec, batch * 2048)
        ratios.append(flops / rate * 1000 / milliseconds)

    assert min(ratios) > 0.8 and max(ratios) < 1.2, ratios
    assert median(ratios) == pytest.approx(1, abs=0.1)


PUBLISHED = [
    # MosaicML, llm-foundry, scripts/train/benchmarking: card, width, tokens of a
    # microbatch, and the part of the peak (HFU) that FSDP on 8 GPUs reached.
    (A100, 768, 65536, 0.445),
    (A100, 1024, 65536, 0.516),
    (A100, 2048, 28672, 0.599),
    (A100, 4096, 65536, 0.731),
    (A100, 5120, 40960, 0.768),
    (A100, 7168, 6144, 0.737),
    (H100, 2560, 20480, 0.462),
    (H100, 4096, 65536, 0.539),
    (H100, 7168, 6144, 0.508),
]


def test_wide_models_reach_more_of_the_peak_as_published_runs_did():
    ratios = [
        part_of_peak(card, block("llama", width), tokens) / reached
        for card, width, tokens, reached in PUBLISHED
    ]

    assert min(ratios) > 0.8 and max(ratios) < 1.25, ratios


def test_experts_with_few_rows_or_narrow_ones_are_slower():
    dense, mixture = well_known_spec("llama-3-70b"), well_known_spec("deepseek-v3")
    assert product_sizes(dense).routed == 0
    sizes = product_sizes(mixture)
    # 256 experts of width 2,048, of which a token uses 8.
    assert sizes.crowd == 32 and 0.5 < sizes.routed < 0.9

    alone = efficiency_ratio(4096, sizes)
    assert alone < efficiency_ratio(4096, replace(sizes, routed=0.0))
    assert alone < efficiency_ratio(4096, sizes, expert_degree=32)
    assert efficiency_ratio(4096, sizes, 8, 32) < efficiency_ratio(4096, sizes, 1, 32)
