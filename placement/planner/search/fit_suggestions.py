"""Remedies that make a model fit on one Gpu, in order, with the bytes that each saves.

The order is that of memory_savings.py: from remedies that cost nothing to those that
change the request. Each is applied after the ones before it, so that the list can be
followed from the top. A remedy that saves nothing after those is left out. Needs are
the likely ones.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from placement.planner.memory.estimate import context_of, estimate
from placement.planner.model.spec import ModelSpec
from placement.planner.search.memory_savings import (
    PREFILL_TOKENS,
    STEPPED_BY_HOST,
    Setting,
)
from placement.planner.search.planner import quantizer_of
from placement.planner.values.errors import SpecInvalid, WorkloadInvalid
from placement.planner.values.gpu_availability import GpuOffer
from placement.planner.values.workload import Workload
from telemetry.protocol.sentences import sentence

SHORTEST = 16
"""Shortest proposed sequence."""


@dataclass(frozen=True, slots=True)
class Rung:
    """One remedy in addition to those before it."""

    words: str
    saves_bytes: int
    need_bytes: int
    """The likely need with this remedy and all before it."""
    fits: bool
    changes_question: bool
    """It changes the request: a shorter sequence, a smaller batch."""


@dataclass(frozen=True, slots=True)
class Ladder:
    """The steps from the requested workload to one that fits the emptiest Gpu."""

    gpu: GpuOffer
    need_bytes: int
    rungs: tuple[Rung, ...]

    @property
    def fits_as_asked(self) -> bool:
        """Return whether nothing has to be changed."""
        return self.need_bytes <= self.gpu.free_bytes

    @property
    def fits(self) -> bool:
        """Return whether some remedy on the list is enough."""
        return self.fits_as_asked or any(rung.fits for rung in self.rungs)

    @property
    def missing_bytes(self) -> int:
        """Return the bytes that are missing after the last remedy; 0 if it fits."""
        least = self.rungs[-1].need_bytes if self.rungs else self.need_bytes
        return max(0, least - self.gpu.free_bytes)


Step = tuple[str, Setting, bool]


def ladder(spec: ModelSpec, workload: Workload, gpu: GpuOffer) -> Ladder:
    """Add remedies until it fits or none is left. About ten Estimates.

    Raises:
        WorkloadInvalid: the model cannot be run this way at all.
    """
    quantize = quantizer_of(spec, workload)

    def need(setting: Setting) -> int:
        model = quantize(spec, setting.weights) if quantize else spec
        made = estimate(model, setting.workload, context_bytes=context_of(gpu.card))
        return made.likely_bytes

    first = at = need(Setting(workload))
    rungs: list[Rung] = []
    for words, setting, changes in _steps(spec, workload, quantize is not None):
        if at <= gpu.free_bytes:
            break
        try:
            after = need(setting)
        except (WorkloadInvalid, SpecInvalid):
            continue
        if after < at:
            rungs.append(
                Rung(words, at - after, after, after <= gpu.free_bytes, changes)
            )
            at = after
    return Ladder(gpu, first, tuple(rungs))


def _steps(spec: ModelSpec, asked: Workload, quantizable: bool) -> Iterator[Step]:
    at = Setting(asked)
    remedies: list[tuple[str, Callable[[Setting], Setting]]] = [
        (words, _on_workload(change)) for words, change in _remedies(asked)
    ]
    # The last remedy keeps the weights in the node's memory, from which inference would
    # read them for every token. So fewer bits come first.
    place = len(remedies) if asked.trains else len(remedies) - 1
    remedies[place:place] = _fewer_bits() if quantizable else []
    for words, change in remedies:
        changed = change(at)
        if changed != at:
            at = changed
            yield words, at, False
    if asked.trains and asked.precision in ("fp32", "autocast_bf16", "mixed_fp16"):
        at = replace(at, workload=at.workload.replace(precision="bf16"))
        yield (
            sentence("train in pure bf16: weights and optimizer state in 16 bits"),
            at,
            True,
        )
    if not asked.trains:
        while at.workload.batch > 1:
            at = replace(at, workload=at.workload.replace(batch=at.workload.batch // 2))
            yield sentence("a batch of {batch}", batch=at.workload.batch), at, True
    shape = spec.shape
    fixed = bool(spec.sample_tokens if shape is None else shape.image_tokens)
    while not fixed and at.workload.sequence_length // 2 >= SHORTEST:
        length = at.workload.sequence_length // 2
        at = replace(at, workload=at.workload.replace(sequence_length=length))
        yield sentence("a sequence length of {length}", length=length), at, True


def _on_workload(
    change: Callable[[Workload], Workload | None],
) -> Callable[[Setting], Setting]:
    """Return a remedy that changes the workload of a Setting, if it applies."""
    return lambda at: replace(at, workload=change(at.workload) or at.workload)


def _fewer_bits() -> list[tuple[str, Callable[[Setting], Setting]]]:
    """Return the remedies that keep weights in 8 and in 4 bits."""
    return [
        (
            sentence("keep the frozen weights in 8 bits (int8)"),
            lambda at: replace(at, weights="int8"),
        ),
        (
            sentence("keep the frozen weights in 4 bits (nf4)"),
            lambda at: replace(at, weights="nf4"),
        ),
    ]


Change = Callable[[Workload], Workload | None]


def _remedies(asked: Workload) -> list[tuple[str, Change]]:
    """Return (label, changed Workload), or None if the remedy does not apply."""
    adam = asked.optimizer in ("adam", "adamw")
    steps = asked.trains and asked.optimizer in STEPPED_BY_HOST
    eight = adam and asked.precision not in ("bf16", "megatron_bf16")

    def eight_bits(at: Workload) -> Workload | None:
        if not (asked.trains and eight and at.offload == "none"):
            return None
        return at.replace(optimizer="adam8bit")

    def offload(at: Workload) -> Workload | None:
        if not steps or at.offload != "none":
            return None
        # The host runs the requested optimizer. It has no 8-bit Adam.
        return at.replace(optimizer=asked.optimizer, offload="cpu")

    def offload_all(at: Workload) -> Workload | None:
        if at.offload != "none" or not at.trains:
            where = at.offload if at.offload != "none" else "cpu"
            return at.replace(offload=where, offload_parameters=True)
        return None

    pieces = sentence(
        "run the batch in {batch} pieces of one (accumulation)", batch=asked.batch
    )
    return [
        (
            sentence("use the flash kernel for attention"),
            lambda at: at.replace(attention="flash"),
        ),
        (
            sentence(
                "read the prompts {tokens} tokens at a time (chunked prefill)",
                tokens=f"{PREFILL_TOKENS:,}",
            ),
            lambda at: None if at.trains else at.replace(prefill_tokens=PREFILL_TOKENS),
        ),
        (
            sentence("use the fused optimizer step, which needs no temporaries"),
            lambda at: (
                at.replace(optimizer_loop="fused") if at.trains and adam else None
            ),
        ),
        (pieces, lambda at: at.replace(accumulation=at.batch) if at.trains else None),
        (
            sentence("recompute activations in backward (full checkpointing)"),
            lambda at: at.replace(checkpointing="full") if at.trains else None,
        ),
        (sentence("keep Adam's state in 8 bits"), eight_bits),
        (sentence("keep the optimizer in the node's memory (slow)"), offload),
        (sentence("keep the weights there too (slower)"), offload_all),
    ]
