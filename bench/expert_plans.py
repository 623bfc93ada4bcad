"""The planner's first plan beside published configurations and expert answers.

python -m bench.expert_plans

Published rows: Narayanan et al., arXiv:2104.04473, Table 1 (seconds from its TFLOP/s
per GPU and its equation 3; full recomputation); Korthikanti et al., arXiv:2205.05198,
Table 5 (the column "present work"). The answers to the questions are those of textbooks
and model cards, or arithmetic: 16 bytes a parameter for mixed precision.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from placement.planner.model.families.config_json import parse_config
from placement.planner.model.spec import ModelSpec
from placement.planner.model.well_known import well_known_spec
from placement.planner.search.planner import plan
from placement.planner.values.gpu_availability import GpuOffer
from placement.planner.values.gpu_list import offers_from_list
from placement.planner.values.plan import Plan, PlanSet
from placement.planner.values.workload import Workload
from telemetry.protocol.gpu_cards import card_of
from telemetry.protocol.sentences import counted


@dataclass(frozen=True)
class Published:
    """One configuration of a paper: a GPT of so many heads, width and layers."""

    name: str
    heads: int
    hidden: int
    layers: int
    gpus: int
    batch: int
    degrees: str
    seconds: float


def weak_scaling(
    tflops: float, gpus: int, batch: int, hidden: int, layers: int
) -> float:
    """Return seconds per step: 96 B s l h^2 (1 + s/6h + V/16lh) operations at a
    rate.
    """
    length, vocab = 2048, 51200
    flops = 96 * batch * length * layers * hidden**2
    flops *= 1 + length / (6 * hidden) + vocab / (16 * layers * hidden)
    return flops / (tflops * 1e12 * gpus)


def published() -> Iterator[Published]:
    """Yield rows of at most 1,024 GPUs, the limit of one request."""
    rows = (
        ("1.7B", 24, 2304, 24, 32, 512, "t1 p1 d32", 137),
        ("3.6B", 32, 3072, 30, 64, 512, "t2 p1 d32", 138),
        ("7.5B", 32, 4096, 36, 128, 512, "t4 p1 d32", 142),
        ("18.4B", 48, 6144, 40, 256, 1024, "t8 p1 d32", 135),
        ("39.1B", 64, 8192, 48, 512, 1536, "t8 p2 d32", 138),
        ("76.1B", 80, 10240, 60, 1024, 1792, "t8 p4 d32", 140),
    )
    for name, heads, hidden, layers, gpus, batch, degrees, tflops in rows:
        seconds = weak_scaling(tflops, gpus, batch, hidden, layers)
        yield Published(name, heads, hidden, layers, gpus, batch, degrees, seconds)
    yield Published("22B", 64, 6144, 48, 8, 4, "t8 p1 d1", 1.10)
    yield Published("175B", 96, 12288, 96, 64, 64, "t8 p8 d1", 13.75)
    yield Published("530B", 128, 20480, 105, 280, 280, "t8 p35 d1", 37.83)
    yield Published("1T", 160, 25600, 128, 512, 512, "t8 p64 d1", 71.49)


def gpt(row: Published) -> ModelSpec:
    """Return a GPT-2 of a paper's size, with its vocabulary."""
    return parse_config(
        {
            "model_type": "gpt2",
            "n_embd": row.hidden,
            "n_head": row.heads,
            "n_layer": row.layers,
            "n_positions": 2048,
            "vocab_size": 51200,
            # One operator, as Megatron's fused kernel; GPT-2's own form is six.
            "activation_function": "gelu_pytorch_tanh",
        }
    )


def gpus(
    count: int, name: str, giga: int, *, each: int = 8, nvlink: bool = True
) -> list[GpuOffer]:
    """Return nodes of so many GPUs. With NVLink the network is 200 GB/s a node,
    otherwise 12.
    """
    return offers_from_list(
        [
            {
                "name": name,
                "free_bytes": giga * 10**9,
                "node": f"n{number // each:03}",
                "link_group": f"nv{number // each}" if nvlink else "",
                "network_bytes_per_second": 200e9 if nvlink else 12e9,
            }
            for number in range(count)
        ]
    )


H100 = ("NVIDIA H100 80GB HBM3", 80)
A100 = ("NVIDIA A100-SXM4-80GB", 80)
WHOLE_A100 = ("NVIDIA A100-SXM4-80GB", 85)
"""With the 79.2 GiB that CUDA reports, as the published runs had them."""
L40S = ("NVIDIA L40S", 48)
R3090 = ("NVIDIA GeForce RTX 3090", 24)
Question = tuple[str, str, int, int, str, int, tuple[str, int], bool, str]
QUESTIONS: tuple[Question, ...] = (
    ("gpt2", "train", 8, 512, "autocast_bf16", 1, R3090, False, "1 GPU"),
    ("gpt2", "train", 32, 1024, "autocast_bf16", 4, R3090, False, "DDP on 2 to 4"),
    ("gpt2", "train", 480, 1024, "autocast_bf16", 8, A100, True, "DDP on 8 (nanoGPT)"),
    ("gpt2-xl", "train", 16, 1024, "autocast_bf16", 2, A100, True, "DDP or FSDP on 2"),
    (
        "gpt2-xl",
        "train",
        32,
        1024,
        "autocast_bf16",
        4,
        R3090,
        False,
        "pipeline or FSDP on 4",
    ),
    ("bert-base", "train", 256, 128, "autocast_bf16", 8, A100, True, "DDP on 8"),
    ("llama-3.2-1b", "train", 64, 2048, "bf16", 4, A100, True, "DDP on 4"),
    (
        "llama-3.2-1b",
        "train",
        16,
        1024,
        "autocast_bf16",
        2,
        R3090,
        False,
        "ZeRO or pipeline on 2",
    ),
    (
        "llama-3-8b",
        "train",
        8,
        512,
        "autocast_bf16",
        1,
        R3090,
        False,
        "LoRA; full needs offload",
    ),
    ("llama-3-8b", "train", 16, 2048, "bf16", 1, A100, True, "1 GPU, recomputation"),
    ("llama-3-8b", "train", 16, 2048, "mixed_fp16", 4, A100, True, "FSDP on 4"),
    ("llama-3-8b", "train", 64, 4096, "mixed_fp16", 8, H100, True, "FSDP on 8"),
    ("llama-3-8b", "train", 64, 4096, "mixed_fp16", 64, H100, True, "all 64"),
    (
        "llama-3-8b",
        "train",
        64,
        2048,
        "mixed_fp16",
        8,
        L40S,
        False,
        "FSDP or pipeline on 8",
    ),
    (
        "llama-3-8b",
        "train",
        16,
        131072,
        "bf16",
        64,
        H100,
        True,
        "context parallel on 64",
    ),
    ("mistral-7b", "train", 32, 2048, "mixed_fp16", 8, A100, True, "FSDP on 8"),
    (
        "llama-3-70b",
        "train",
        16,
        2048,
        "bf16",
        4,
        A100,
        False,
        "FSDP + offload on 4, or LoRA",
    ),
    (
        "llama-3-70b",
        "train",
        64,
        4096,
        "mixed_fp16",
        16,
        H100,
        True,
        "TP + FSDP on 16, tight",
    ),
    (
        "llama-3-70b",
        "train",
        128,
        4096,
        "mixed_fp16",
        64,
        H100,
        True,
        "TP 8, rest sharded, all 64",
    ),
    (
        "llama-3-70b",
        "train",
        1024,
        4096,
        "megatron_bf16",
        1024,
        H100,
        True,
        "TP 8, PP, DP on 1,024",
    ),
    (
        "llama-3.1-405b",
        "train",
        64,
        4096,
        "bf16",
        64,
        H100,
        True,
        "does not fit well: offload or more",
    ),
    (
        "llama-3.1-405b",
        "train",
        512,
        4096,
        "mixed_fp16",
        512,
        H100,
        True,
        "TP 8, PP 16, DP (Llama 3)",
    ),
    ("llama-3.1-405b", "train", 16, 4096, "mixed_fp16", 2, A100, True, "not sensible"),
    (
        "mixtral-8x7b",
        "train",
        64,
        4096,
        "mixed_fp16",
        16,
        H100,
        True,
        "EP or TP, all 16",
    ),
    (
        "mixtral-8x7b",
        "train",
        512,
        4096,
        "mixed_fp16",
        128,
        H100,
        True,
        "EP + DP on 128",
    ),
    ("gpt2", "infer", 1, 512, "bf16", 1, R3090, False, "1 GPU"),
    ("llama-3-8b", "infer", 8, 2048, "bf16", 1, R3090, False, "1 GPU"),
    ("llama-3-70b", "infer", 8, 2048, "bf16", 4, A100, True, "TP on 4"),
    ("llama-3-70b", "infer", 1, 2048, "bf16", 4, A100, False, "stages on 2 to 4"),
    ("mixtral-8x7b", "infer", 8, 2048, "bf16", 2, A100, True, "TP on 2"),
)


V100 = ("Tesla V100-SXM2-32GB", 32)
T4 = ("Tesla T4", 16)
L4 = ("NVIDIA L4", 24)
R4090 = ("NVIDIA GeForce RTX 4090", 24)
H200 = ("NVIDIA H200", 141)
MI300X = ("AMD Instinct MI300X", 192)
DEEPSEEK = "PP 16, EP 64, ZeRO-1 (arXiv:2412.19437)"
OTHERS: tuple[Question, ...] = (
    ("bert-large", "train", 64, 512, "autocast_fp16", 8, V100, True, "DDP on 8"),
    ("gpt2-medium", "train", 64, 1024, "autocast_fp16", 4, T4, False, "DDP on 4"),
    (
        "llama-3-8b",
        "train",
        32,
        8192,
        "autocast_bf16",
        8,
        R4090,
        False,
        "FSDP, recomputation, offload; or LoRA",
    ),
    ("llama-3-8b", "train", 128, 4096, "mixed_fp16", 16, L4, False, "FSDP on 16, slow"),
    (
        "qwen2.5-32b",
        "train",
        64,
        4096,
        "mixed_fp16",
        16,
        H200,
        True,
        "TP + FSDP, or FSDP on 16",
    ),
    ("llama-3-70b", "train", 64, 4096, "bf16", 32, MI300X, True, "FSDP or TP on 32"),
    (
        "llama-3-70b",
        "train",
        256,
        8192,
        "megatron_bf16",
        256,
        H100,
        True,
        "TP 4 to 8, PP, DP",
    ),
    (
        "mixtral-8x22b",
        "train",
        256,
        4096,
        "megatron_bf16",
        128,
        H100,
        True,
        "EP 8, TP, PP, DP on 128",
    ),
    ("deepseek-v3", "train", 960, 4096, "megatron_bf16", 1024, H100, True, DEEPSEEK),
    ("llama-3.1-405b", "infer", 16, 8192, "bf16", 8, H200, True, "TP on 8"),
)
"""Models and clusters that nothing was changed for before they were asked."""


def degrees(one: Plan) -> str:
    """Return "t8 p2 v3 d4 e4", without degrees of 1 (v: pieces on each rank)."""
    keys = (
        ("t", "tensor_degree"),
        ("c", "context_degree"),
        ("p", "pipeline_degree"),
        ("v", "virtual_stages"),
        ("d", "data_degree"),
        ("e", "expert_degree"),
    )
    told = [f"{key}{one.launch[name]}" for key, name in keys if one.launch[name] > 1]
    return " ".join([one.strategy, *told])


def memory_gb(one: Plan) -> float:
    """Return the likely memory of the rank that needs the most."""
    return max(shard.likely_bytes for shard in one.shards) / 1e9


def answer(found: PlanSet) -> str:
    """Return the first plan in a few words, or the advice that is shown before it."""
    best = found.best
    if best is None:
        return found.advice or "nothing fits"
    where = f"{degrees(best)}, {counted('{n} GPU', '{n} GPUs', len(best.shards))}"
    if best.workload.offload != "none":
        where += ", offload"
    if best.fit == "tight":
        where += ", tight"
    return f"({found.advice}) {where}" if found.advice else where


def timed(
    spec: ModelSpec, asked: Workload, offers: Sequence[GpuOffer]
) -> tuple[PlanSet, float]:
    """Return plans, and the CPU seconds that they took."""
    start = time.process_time()
    return plan(spec, asked, offers), time.process_time() - start


def main() -> None:
    """Print the tables in Markdown."""
    print(
        "| model | GPUs | batch | published | s | our first plan | s | GB | search s |"
    )
    print("| --- | ---: | ---: | --- | ---: | --- | ---: | ---: | ---: |")
    for row in published():
        asked = Workload(
            batch=row.batch, sequence_length=2048, precision="megatron_bf16"
        )
        found, spent = timed(gpt(row), asked, gpus(row.gpus, *WHOLE_A100))
        best = found.best
        told = f"{best.step_seconds:.2f} | {memory_gb(best):.0f}" if best else "– | –"
        print(
            f"| {row.name} | {row.gpus} | {row.batch} | {row.degrees} | "
            f"{row.seconds:.2f} | {answer(found)} | {told} | {spent:.2f} |"
        )
    for questions in (QUESTIONS, OTHERS):
        print_answers(questions)


def print_answers(questions: Sequence[Question]) -> None:
    """Print the first plan for each question. Old cards get efficient attention."""
    print("\n| question | first plan | s | GB | expert |")
    print("| --- | --- | ---: | ---: | --- |")
    for name, task, batch, length, precision, count, card, nvlink, expert in questions:
        known = card_of(card[0])
        flash = known is not None and known.has_flash_attention
        asked = Workload(
            task=task,  # type: ignore[arg-type]
            batch=batch,
            sequence_length=length,
            precision=precision,  # type: ignore[arg-type]
            attention="flash" if flash else "efficient",
        )
        offers = gpus(count, *card, nvlink=nvlink)
        found, _ = timed(well_known_spec(name), asked, offers)
        best = found.best
        told = f"{best.step_seconds:.3g} | {memory_gb(best):.0f}" if best else "– | –"
        links = ", NVLink" if nvlink else ""
        print(
            f"| {name}, {task} {batch} x {length} {precision}, {count} x {card[0]}"
            f"{links} | {answer(found)} | {told} | {expert} |"
        )


if __name__ == "__main__":
    main()
