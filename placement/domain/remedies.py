"""What may be changed to make a model fit, cheapest first.

Order of PLACEMENT.md section 3: a fused optimizer step (free), the batch in pieces
(free but for smaller matrix products), activations recomputed (a third more time),
8-bit Adam (other numbers), last the optimizer in the node's memory (slow). Each remedy
says what it buys.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from placement.domain.offer import GpuOffer
from placement.domain.words import gib
from placement.domain.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the planner may do. Every remedy may be forbidden."""

    max_gpus: int | None = None
    fused_optimizer: bool = True
    accumulation: bool = True
    checkpointing: bool = True
    small_optimizer: bool = True
    offload: bool = True


@dataclass(frozen=True, slots=True)
class Setting:
    """A workload as it would be run."""

    workload: Workload
    offload: bool = False

    @property
    def severity(self) -> tuple[bool, bool, bool, int]:
        """For ranking: what hurts most, first."""
        return (
            self.offload,
            self.workload.optimizer == "adam8bit",
            self.workload.checkpointing == "full",
            self.workload.accumulation,
        )


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether a setting fits; if not, which Gpu lacks how much."""

    fits: bool
    missing_bytes: int = 0
    gpu: GpuOffer | None = None


def stages(workload: Workload, limits: Limits) -> Iterator[Setting]:
    """Settings without their accumulation, mildest first."""
    yield Setting(workload)
    if not workload.trains:
        return
    adam = workload.optimizer in ("adam", "adamw")
    if limits.fused_optimizer and adam and workload.optimizer_loop == "foreach":
        workload = workload.but(optimizer_loop="fused")
        yield Setting(workload)
    recomputed = workload
    if limits.checkpointing and workload.checkpointing != "full":
        recomputed = workload.but(checkpointing="full")
        yield Setting(recomputed)
    if limits.small_optimizer and adam and workload.precision != "bf16":
        yield Setting(recomputed.but(optimizer="adam8bit"))
    if limits.offload and workload.optimizer not in ("sgd", "adam8bit"):
        yield Setting(recomputed, offload=True)


def accumulations(workload: Workload, replicas: int, limits: Limits) -> list[int]:
    """Numbers of microbatches from the asked one up to one sequence each."""
    most = -(-workload.batch // replicas)
    counts = [min(workload.accumulation, most)]
    if not workload.trains or not limits.accumulation:
        return counts
    while counts[-1] < most:
        counts.append(min(most, counts[-1] * 2))
    return counts


def search(
    workload: Workload,
    replicas: int,
    limits: Limits,
    fit: Callable[[Setting], Fit],
) -> tuple[Setting | None, Fit]:
    """The mildest setting that fits, or None and the best that could be done."""
    nearest: Fit | None = None
    for stage in stages(workload, limits):
        counts = accumulations(stage.workload, replicas, limits)
        settings = [
            Setting(stage.workload.but(accumulation=count), stage.offload)
            for count in counts
        ]
        found = fit(settings[-1])
        if not found.fits:
            if nearest is None or found.missing_bytes < nearest.missing_bytes:
                nearest = found
            continue
        for setting in settings:
            if setting is settings[-1] or fit(setting).fits:
                return _lighter(workload, setting, fit), Fit(True)
    return None, nearest or Fit(False)


def _lighter(
    asked: Workload, setting: Setting, fit: Callable[[Setting], Fit]
) -> Setting:
    """The same without recomputation, if a later remedy made that needless."""
    workload = setting.workload
    if workload.checkpointing == asked.checkpointing:
        return setting
    plain = Setting(workload.but(checkpointing=asked.checkpointing), setting.offload)
    return plain if fit(plain).fits else setting


def explain(
    asked: Workload, setting: Setting, need_bytes: Callable[[Setting], float]
) -> tuple[str, ...]:
    """Each change from what was asked, and the bytes that it buys per GPU."""
    at = Setting(asked)
    sentences = []
    for words, following in _steps(asked, setting):
        before, after = need_bytes(at), need_bytes(following)
        saved = f"need per GPU {gib(before)} to {gib(after)}"
        sentences.append(f"{words} ({saved})")
        at = following
    return tuple(sentences)


def _steps(asked: Workload, setting: Setting) -> list[tuple[str, Setting]]:
    """One changed field after another, in the order they are worth trying."""
    steps = []
    at = asked
    chosen = setting.workload
    if chosen.optimizer_loop != asked.optimizer_loop:
        at = at.but(optimizer_loop=chosen.optimizer_loop)
        words = "use the fused optimizer step, which needs no temporaries"
        steps.append((words, Setting(at)))
    if chosen.accumulation != asked.accumulation:
        at = at.but(accumulation=chosen.accumulation)
        words = f"run the batch in {chosen.accumulation} pieces (accumulation)"
        steps.append((words, Setting(at)))
    if chosen.checkpointing != asked.checkpointing:
        at = at.but(checkpointing=chosen.checkpointing)
        words = "recompute activations in backward (checkpointing)"
        steps.append((words, Setting(at)))
    if chosen.optimizer != asked.optimizer:
        at = at.but(optimizer=chosen.optimizer)
        steps.append(("keep Adam's state in 8 bits", Setting(at)))
    if setting.offload:
        words = "keep the optimizer in the node's memory (slow)"
        steps.append((words, Setting(at, True)))
    return steps


def smaller_asks(
    workload: Workload, fixed_length: bool
) -> list[list[tuple[str, Workload]]]:
    """Changes of the question itself: ladders of shorter, fewer, halved.

    Within a ladder each change asks for less than the one before it.
    """
    lengths, batches = [], []
    length = 0 if fixed_length else workload.sequence_length // 2
    while length >= 16:
        words = f"a sequence length of {length} instead of {workload.sequence_length}"
        lengths.append((words, workload.but(sequence_length=length)))
        length //= 2
    batch = 0 if workload.trains else workload.batch // 2
    while batch >= 1:
        words = f"a batch of {batch} instead of {workload.batch}"
        batches.append((words, workload.but(batch=batch)))
        batch //= 2
    ladders = [lengths, batches]
    if workload.trains and workload.precision in ("fp32", "autocast_bf16"):
        ladders.append([("pure bf16 weights", workload.but(precision="bf16"))])
    return [ladder for ladder in ladders if ladder]


def first_or_none(
    ladders: Sequence[Sequence[tuple[str, Workload]]], fits: Callable[[Workload], bool]
) -> str:
    """The smallest change that fits, in words; empty if none does.

    Where a ladder's last change does not fit, none of it does.
    """
    for ladder in ladders:
        if fits(ladder[-1][1]):
            return next(words for words, workload in ladder if fits(workload))
    return ""
