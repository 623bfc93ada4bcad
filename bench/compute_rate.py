"""The compute rate of step times beside published and measured ones.

    python -m bench.compute_rate [--data DIR]

Published: the 92 MPT runs of mpt_fits.json (MosaicML, llm-foundry,
scripts/train/benchmarking: FSDP, flash attention). Measured: blocks of transformers'
Llama and GPT-2 on one H200 (bf16, eager torch 2.11, transformers 5.17, November 2026),
as the difference between models of 2n and of n layers, and whole steps with AdamW and
their memory.
"""

import argparse
import math
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from bench.estimate import SHARED, load
from bench.published import mpt_case
from placement.planner.memory.estimate import estimate, rank_costs
from placement.planner.model.families.config_json import parse_config
from placement.planner.model.sharding import Sharding
from placement.planner.model.spec import ModelSpec
from placement.planner.search.link_bandwidth import NVLINK, SlowestLink
from placement.planner.search.step_time import (
    data_parallel_time,
    efficiency_ratio,
    flops_per_second,
    layer_flops,
    product_sizes,
    work_of,
)
from placement.planner.values.gpu_list import offers_from_list
from placement.planner.values.workload import Workload
from telemetry.protocol.gpu_cards import card_of

CARDS = {
    "a100_40gb": "NVIDIA A100-SXM4-40GB",
    "a100_80gb": "NVIDIA A100-SXM4-80GB",
    "h100_80gb": "NVIDIA H100 80GB HBM3",
}
LINKS = {"a100": SlowestLink(NVLINK, 200e9), "h100": SlowestLink(NVLINK, 300e9)}
OLD_RATIO = 0.40
"""The rate without roofline that was assumed before: tokens / (tokens + 150) of it."""
Block = tuple[str, int, int, int, bool, float]
BLOCKS: tuple[Block, ...] = (
    # Family, width, sequences, their tokens, recomputation, milliseconds of a block.
    ("llama", 1024, 1, 2048, False, 2.870),
    ("llama", 1024, 4, 2048, False, 3.975),
    ("llama", 2048, 1, 2048, False, 4.625),
    ("llama", 2048, 4, 2048, False, 8.450),
    ("llama", 4096, 1, 2048, False, 6.850),
    ("llama", 4096, 4, 2048, False, 26.635),
    ("llama", 4096, 4, 2048, True, 34.225),
    ("llama", 4096, 1, 16384, False, 65.825),
    ("llama", 8192, 1, 2048, False, 23.295),
    ("llama", 8192, 4, 2048, False, 93.350),
    ("llama", 12288, 1, 2048, False, 48.950),
    ("gpt2", 1024, 1, 2048, False, 1.365),
    ("gpt2", 1024, 4, 2048, False, 2.725),
    ("gpt2", 2048, 1, 2048, False, 2.045),
    ("gpt2", 2048, 4, 2048, False, 6.700),
    ("gpt2", 4096, 1, 2048, False, 5.255),
    ("gpt2", 4096, 4, 2048, False, 20.260),
    ("gpt2", 8192, 1, 2048, False, 17.365),
    ("gpt2", 8192, 4, 2048, False, 71.230),
)
Step = tuple[str, int, int, int, int, bool, int, int]
STEPS: tuple[Step, ...] = (
    # Family, width, layers, sequences, their tokens, recomputation, most bytes that
    # torch allocated, bytes of the card that were taken afterwards.
    ("llama", 2048, 16, 4, 2048, False, 25621428224, 27368685568),
    ("gpt2", 1024, 24, 8, 1024, False, 16965432320, 18172674048),
    ("llama", 4096, 16, 2, 2048, True, 45640655872, 47111274496),
    ("gpt2", 2048, 16, 4, 2048, True, 9088640000, 13410041856),
)


def net(family: str, width: int, layers: int, length: int) -> ModelSpec:
    """Return the model that was measured."""
    sizes: dict[str, Any] = {
        "n_embd": width,
        "n_head": width // 64,
        "n_layer": layers,
        "n_positions": length,
    }
    if family == "llama":
        sizes = {
            "hidden_size": width,
            "intermediate_size": 4 * width,
            "num_attention_heads": width // 128,
            "num_hidden_layers": layers,
            "max_position_embeddings": length,
        }
    return parse_config({"model_type": family, "vocab_size": 32000, **sizes})


def workload(batch: int, length: int, *, recomputed: bool) -> Workload:
    """Return the setting of the measured runs."""
    return Workload(
        batch=batch,
        sequence_length=length,
        precision="bf16",
        checkpointing="full" if recomputed else "none",
    )


def rate(card: str, spec: ModelSpec, asked: Workload) -> float:
    """Return a card's operations per second before the microbatch counts."""
    offers = offers_from_list([{"name": card, "free_bytes": 1}])
    return flops_per_second(offers[0], asked, product_sizes(spec).width)


def mpt_ratios(row: dict[str, Any]) -> tuple[float, float, float]:
    """Return (ours, the old rule) over the measured seconds, and the part of the peak
    that was reached.
    """
    spec, asked, sharding = mpt_case(row)
    given, card = row["config"], CARDS[row["config"]["gpu"]]
    costs = rank_costs(spec, asked, sharding)
    tokens = float(given["micro_batch"] * given["seq"])
    work = work_of(costs, asked, tokens=tokens, fetched=True, sizes=product_sizes(spec))
    time = data_parallel_time(
        work,
        asked,
        busy=asked.accumulation * work.flops / rate(card, spec, asked),
        degree=given["gpus"],
        link=LINKS[given["gpu"][:4]],
        strategy=sharding.strategy,
    )
    runs = given["grad_accum"]
    measured = runs * tokens / row["expected"]["tokens_per_s_per_gpu"]
    flops = runs * sum(layer_flops(cost, asked) for cost in costs)
    known = card_of(card)
    assert known is not None
    peak = known.half_flops
    old = flops / (peak * OLD_RATIO * tokens / (tokens + 150))
    return time.total_seconds / measured, old / measured, flops / measured / peak


def mean_error(ratios: list[float]) -> float:
    """Return the mean factor by which ratios differ from 1, minus 1."""
    return math.exp(statistics.mean(abs(math.log(one)) for one in ratios)) - 1


def published(folder: Path) -> None:
    """Print MPT's runs by card and model."""
    kinds = defaultdict(list)
    for row in load("mpt_fits.json", folder):
        kinds[row["config"]["gpu"][:4], row["model"]].append(mpt_ratios(row))
    print("| runs | rows | reached, % of the peak | ours / measured | the old rule |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for (card, name), rows in sorted(kinds.items()):
        ours, old, reached = (statistics.median(one) for one in zip(*rows, strict=True))
        print(
            f"| {name}, {card} | {len(rows)} | {100 * reached:.0f} | {ours:.2f} | "
            f"{old:.2f} |"
        )
    every = [one for rows in kinds.values() for one in rows]
    for place, name in enumerate(("ours", "the old rule")):
        print(f"{name}: {mean_error([one[place] for one in every]):.1%} in the mean")


def measured() -> None:
    """Print the blocks and steps of the H200."""
    card = "NVIDIA H200"
    known = card_of(card)
    assert known is not None
    print("\n| block | sequences | ms | % of the peak | ours / measured |")
    print("| --- | ---: | ---: | ---: | ---: |")
    ratios = []
    for family, width, batch, length, recomputed, milliseconds in BLOCKS:
        spec = net(family, width, 2, length)
        asked = workload(batch, length, recomputed=recomputed)
        flops = layer_flops(rank_costs(spec, asked, Sharding())[1], asked)
        part = efficiency_ratio(batch * length, product_sizes(spec))
        ratios.append(1000 * flops / (rate(card, spec, asked) * part) / milliseconds)
        again = ", recomputed" if recomputed else ""
        print(
            f"| {family} {width}{again} | {batch} x {length} | {milliseconds:.2f} | "
            f"{100_000 * flops / milliseconds / known.half_flops:.0f} | "
            f"{ratios[-1]:.2f} |"
        )
    print(f"{mean_error(ratios):.1%} in the mean")
    print(
        "\n| step | allocated GB | estimate | the card showed GB | low, likely, high |"
    )
    print("| --- | ---: | ---: | ---: | ---: |")
    for family, width, layers, batch, length, recomputed, most, shown in STEPS:
        made = estimate(
            net(family, width, layers, length),
            workload(batch, length, recomputed=recomputed),
        )
        interval = (made.low_bytes, made.likely_bytes, made.high_bytes)
        told = ", ".join(f"{one / 1e9:.1f}" for one in interval)
        again = ", recomputed" if recomputed else ""
        print(
            f"| {family} {width} x {layers}{again}, {batch} x {length} | "
            f"{most / 1e9:.2f} | {made.peak_bytes / most - 1:+.1%} | {shown / 1e9:.2f} "
            f"| {told} |"
        )


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=SHARED)
    published(parser.parse_args().data)
    measured()


if __name__ == "__main__":
    main()
