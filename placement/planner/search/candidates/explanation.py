"""The texts of a Plan: its tightest part, its notes, its launch; and those of a
Refusal.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from placement.planner.memory.estimate import Estimate
from placement.planner.model.sharding import Sharding
from placement.planner.search.decode_time import DecodeTime
from placement.planner.search.link_bandwidth import joined_by_fast_links
from placement.planner.search.memory_savings import Setting
from placement.planner.values.calibration import StepCorrection
from placement.planner.values.gpu_availability import GpuOffer
from placement.planner.values.humanize import gib, seconds
from placement.planner.values.plan import MOST_NAMED, RejectedStrategy, Shard
from placement.planner.values.strategies import STRATEGIES, TITLES
from placement.planner.values.workload import Workload
from telemetry.protocol.sentences import counted, sentence

WORDS = {
    "parameters": "weights",
    "optimizer": sentence("optimizer state"),
    "kv_cache": sentence("the KV cache"),
    "transients": sentence("temporary buffers"),
    "buckets": sentence("communication buckets"),
    "between_stages": sentence("buffers between stages"),
    "context": sentence("the CUDA context"),
}
"""Names of components in a sentence. Others keep their names."""
LEAST_PASSES_RATIO = 0.01
"""Part of a step from which the passes over memory are named."""


def bound_by(shards: Sequence[Shard]) -> str:
    """Return what leaves the least room: "activations of stage 2 (lab-a:1)"."""
    fullest = max(
        shards, key=lambda s: (s.likely_bytes / max(1, s.free_bytes), -s.rank)
    )
    component = max(
        fullest.components, key=lambda name: fullest.components[name], default=""
    )
    words = WORDS.get(component, component.replace("_", " "))
    staged = any(shard.stage for shard in shards)
    if staged:
        words = sentence("{part} of stage {stage}", part=words, stage=fullest.stage + 1)
    return sentence(
        "{part} ({gpu_label}): {components} of {likely} needed, {free} free",
        part=words,
        gpu_label=fullest.gpu_label,
        components=gib(fullest.components[component]),
        likely=gib(fullest.likely_bytes),
        free=gib(fullest.free_bytes),
    )


def notes_of(
    setting: Setting,
    offers: Sequence[GpuOffer],
    made: Iterable[Estimate],
    *,
    comfortable: bool,
) -> tuple[str, ...]:
    """Notes that the user should read before starting the Plan."""
    notes = [note for one in made for note in one.notes]
    if not comfortable:
        notes.append(
            sentence(
                "Tight: it fits only if the allocator wastes nothing. Out of memory "
                "is possible."
            )
        )
    notes += [
        f"{offer.label}: {trouble}." for offer in offers for trouble in offer.health
    ]
    nodes = list(dict.fromkeys(offer.node for offer in offers))
    if len(nodes) > MOST_NAMED:
        notes.append(
            sentence(
                "It spans {count} nodes, {first} to {last}: a job starts a launcher on "
                "each of them, which meet at the first.",
                count=len(nodes),
                first=nodes[0],
                last=nodes[-1],
            )
        )
    elif len(nodes) > 1:
        notes.append(
            sentence(
                "It spans {nodes}: a job starts a launcher on each of them, which "
                "meet at the first.",
                nodes=", ".join(nodes),
            )
        )
    if setting.weights != "full" and setting.workload.trains:
        notes.append(
            sentence("Only the trainable parameters are stepped in full precision.")
        )
    return tuple(dict.fromkeys(notes))


def decode_words(
    decode: DecodeTime | None, workload: Workload, prefill_seconds: float
) -> tuple[str, ...]:
    """Return the time of the prompt, and of each token after it, in words."""
    if decode is None:
        return ()
    loop: tuple[str, ...] = ()
    if decode.loop_seconds > decode.seconds:
        loop = (
            sentence(
                "That is the limit of the memory, which engines such as vLLM approach. "
                "In transformers' own loop Python starts each kernel, which took about "
                "{loop} a token for as many blocks on an H200.",
                loop=seconds(decode.loop_seconds),
            ),
        )
    return (
        sentence(
            "Reading {batch} prompts of {length} tokens takes {prefill}. Each further "
            "token takes {decode}: {rate} tokens a second for the batch, {each} for "
            "one sequence.",
            batch=workload.batch,
            length=workload.sequence_length,
            prefill=seconds(prefill_seconds),
            decode=seconds(decode.seconds),
            rate=f"{decode.tokens_per_second:,.3g}",
            each=f"{1 / decode.seconds:,.3g}",
        ),
        *loop,
    )


def pass_notes(passes: float, saves: float, step_seconds: float) -> tuple[str, ...]:
    """Return which part of a step's time is not arithmetic, in words.

    Args:
        passes: seconds of the slowest rank (`memory_passes`).
        saves: seconds by which a fused optimizer would be faster.
        step_seconds: of the Plan.
    """
    if passes < LEAST_PASSES_RATIO * step_seconds:
        return ()
    fused = sentence(
        "A fused optimizer (fused=True in torch) would save {saves} of it.",
        saves=seconds(saves),
    )
    return (
        sentence(
            "The optimizer, the loss and copies pass over the GPU's memory. They take "
            "about {passes} of a step.",
            passes=seconds(passes),
        ),
        *([fused] if saves >= LEAST_PASSES_RATIO * step_seconds else []),
    )


def learned_notes(step: StepCorrection, shards: Sequence[Shard]) -> tuple[str, ...]:
    """Return the corrections by the site's measured error, in words."""
    notes = []
    if step.ratio != 1:
        notes.append(
            sentence(
                "Step time as measured here: {ratio} times what arithmetic says "
                "({runs}).",
                ratio=f"{step.ratio:.2f}",
                runs=counted("{n} run", "{n} runs", step.runs),
            )
        )
    moved = [shard for shard in shards if shard.prior_likely_bytes]
    if moved:
        most = max(moved, key=lambda one: one.likely_bytes)
        notes.append(
            sentence(
                "Memory as measured here: likely {likely} instead of {prior_likely} "
                "on {gpu_label}.",
                likely=gib(most.likely_bytes),
                prior_likely=gib(most.prior_likely_bytes),
                gpu_label=most.gpu_label,
            )
        )
    return tuple(notes)


def launch_of(
    strategy: str,
    setting: Setting,
    seats: Sequence[tuple[GpuOffer, Sharding]],
    extra: dict[str, Any],
) -> dict[str, Any]:
    """Return the values that a runner needs to start it; see planner.py for the
    keys.
    """
    workload = setting.workload
    offers = [offer for offer, _ in seats]
    first = seats[0][1]
    engine: str = STRATEGIES[strategy].engine
    if workload.offload == "nvme":
        engine = "deepspeed"
    elif first.engine == "megatron":
        engine = "megatron"
    uuids = [offer.uuid for offer in offers]
    width = first.tensor_degree
    return {
        "engine": engine,
        "strategy": strategy,
        "nproc": len(seats),
        "gpu_uuids": uuids,
        "nodes": list(dict.fromkeys(offer.node for offer in offers)),
        "fast_links": joined_by_fast_links(offers),
        "task": workload.task,
        "batch": workload.batch,
        "sequence_length": workload.sequence_length,
        "accumulation": workload.accumulation,
        "precision": workload.precision,
        "optimizer": workload.optimizer,
        "optimizer_loop": workload.optimizer_loop,
        "checkpointing": workload.checkpointing,
        "attention": workload.attention,
        "offload_optimizer": setting.offload and workload.trains,
        "offload": workload.offload,
        "offload_parameters": workload.offload_parameters,
        "weights": setting.weights,
        "prefill_tokens": workload.prefill_tokens,
        "tensor_degree": width,
        "pipeline_degree": first.pipeline_degree,
        "data_degree": first.data_degree,
        "context_degree": first.context_degree,
        "expert_degree": first.expert_degree,
        "shard_degree": first.shard_degree if first.stage else 1,
        "zero_stage": first.stage,
        "sequence_parallel": first.sequence_parallel,
        "schedule": first.pipeline_schedule if first.is_staged else "",
        "virtual_stages": first.virtual_stages,
        "microbatches": first.microbatches,
        "rank_grid": [uuids[i : i + width] for i in range(0, len(uuids), width)],
        **extra,
    }


def refusal(
    strategy: str,
    reason: str,
    *,
    code: str = "not-applicable",
    gpu: GpuOffer | None = None,
    missing_bytes: int = 0,
    cheapest_change: str = "",
) -> RejectedStrategy:
    """A Refusal in few words."""
    return RejectedStrategy(
        strategy=strategy,
        title=TITLES[strategy],
        code=code,
        reason=reason,
        gpu_label=gpu.label if gpu else "",
        gpu_uuid=gpu.uuid if gpu else "",
        missing_bytes=missing_bytes,
        cheapest_change=cheapest_change,
    )


@dataclass(frozen=True, slots=True)
class StrategyUnfit:
    """There is no room for a strategy.

    `tell` finds the missing bytes. It takes as long as a search, so it is called only
    if nothing else helps.
    """

    tell: Callable[[], RejectedStrategy]


def too_small(
    strategy: str, gpu: GpuOffer | None, missing_bytes: int, change: str
) -> RejectedStrategy:
    """The Refusal of a strategy whose smallest Gpu lacks memory."""
    if gpu is None:
        reason = sentence("This node has too few GPUs for it.")
    else:
        need = gpu.free_bytes + missing_bytes
        reason = sentence(
            "{gpu} has {free} free, but {need} are needed even with every way to "
            "save memory: {missing} are missing.",
            gpu=gpu.label,
            free=gib(gpu.free_bytes),
            need=gib(need),
            missing=gib(missing_bytes),
        )
    return refusal(
        strategy,
        reason,
        code="too-small",
        gpu=gpu,
        missing_bytes=missing_bytes,
        cheapest_change=change,
    )
