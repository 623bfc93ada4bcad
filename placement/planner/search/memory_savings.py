"""Changes that make a model fit, cheapest first.

Order of docs/design/placement.md#order-of-choice: a fused optimizer step (free), the
batch in pieces (free but for smaller matrix products), activations recomputed (a third
more time), 8-bit Adam (other numbers), then the optimizer and the weights in the node's
memory (slow) or, if that memory is too small, on its drive (slower), last weights in 8
or 4 bits (other numbers; inference and LoRA only). Inference reads its prompts piece by
piece first, and uses fewer bits before the node's memory, from which the weights would
be read for every token. Each change has the bytes that it saves.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import isqrt
from typing import Literal

from placement.planner.values.gpu_availability import GpuOffer
from placement.planner.values.humanize import gib, listed
from placement.planner.values.workload import Workload
from telemetry.protocol.sentences import sentence

Weights = Literal["full", "int8", "nf4"]
PREFILL_TOKENS = 2048
"""Prompt tokens that are read together if memory is short: vLLM's default
(`max_num_batched_tokens`).
"""
OFFLOAD_PLACES = ("cpu", "nvme")
"""Where state goes from a Gpu, the faster place first."""
STEPPED_BY_HOST = ("momentum", "adam", "adamw", "adafactor")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanLimits:
    """The changes that the planner may make. Every remedy may be forbidden."""

    max_gpus: int | None = None
    fused_optimizer: bool = True
    accumulation: bool = True
    checkpointing: bool = True
    small_optimizer: bool = True
    offload: bool = True
    quantization: bool = True
    offload_memory_bytes: int | None = None
    """The most of a node's memory for offloading; None: all that is free."""
    strategies: tuple[str, ...] = ()
    """Only these strategies; empty: all."""
    beaten_too: bool = False
    """Plans that another one beats in time and in cost are shown too. They always are
    if `strategies` are named.
    """


@dataclass(frozen=True, slots=True)
class Setting:
    """A workload with remedies applied, and the form of its frozen weights."""

    workload: Workload
    weights: Weights = "full"

    @property
    def offload(self) -> bool:
        """Return whether anything is kept off the Gpu."""
        return self.workload.offload != "none"

    @property
    def severity(self) -> tuple[bool, bool, bool, bool, int]:
        """Return a sort key for ranking: the most harmful remedy first."""
        changes = (self.weights != "full", self.offload)
        worse, bad = changes if self.workload.trains else changes[::-1]
        return (
            worse,
            bad,
            self.workload.optimizer == "adam8bit" or self.workload.prefill_tokens > 0,
            self.workload.checkpointing == "full",
            self.workload.accumulation,
        )


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """Whether a setting fits; if not, the Gpu that lacks memory and its missing
    bytes.
    """

    fits: bool
    missing_bytes: int = 0
    gpu: GpuOffer | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedRemedies:
    """The remedies that make sense for this model and this strategy."""

    limits: PlanLimits
    quantizable: bool = False
    """Inference, or training that keeps the large weights frozen."""
    host_fits: Callable[[Workload], bool] | None = None
    """Whether a node may have room for what is offloaded; None: no offload."""
    parameters: bool = False
    """Weights may be offloaded too."""
    chunks: bool = False
    """Prompts can be read piece by piece."""


def stages(workload: Workload, freedom: AllowedRemedies) -> Iterator[Setting]:
    """Yield settings without their accumulation, mildest first."""
    limits = freedom.limits
    yield Setting(workload)
    recomputed = workload
    if workload.trains:
        adam = workload.optimizer in ("adam", "adamw")
        if limits.fused_optimizer and adam and workload.optimizer_loop == "foreach":
            recomputed = recomputed.replace(optimizer_loop="fused")
            yield Setting(recomputed)
        if limits.checkpointing and workload.checkpointing != "full":
            recomputed = recomputed.replace(checkpointing="full")
            yield Setting(recomputed)
        eight = workload.precision not in ("bf16", "megatron_bf16")
        if limits.small_optimizer and adam and eight:
            yield Setting(recomputed.replace(optimizer="adam8bit"))
    elif freedom.chunks and limits.accumulation and not workload.prefill_tokens:
        recomputed = workload.replace(prefill_tokens=PREFILL_TOKENS)
        yield Setting(recomputed)
    if workload.trains:
        yield from _offloads(recomputed, freedom)
    if freedom.quantizable and limits.quantization:
        yield Setting(recomputed, "int8")
        yield Setting(recomputed, "nf4")
    if not workload.trains:
        # Weights that are read from the host for every token are the last resort.
        yield from _offloads(recomputed, freedom)


def _offloads(workload: Workload, freedom: AllowedRemedies) -> Iterator[Setting]:
    """Yield offloads: to the node's memory if it is large enough, otherwise to its
    drive.
    """
    fits = freedom.host_fits
    if fits is None or not freedom.limits.offload or workload.offload != "none":
        return
    kinds = []
    if workload.trains and workload.optimizer in STEPPED_BY_HOST:
        kinds.append(False)
    if freedom.parameters:
        kinds.append(True)
    for parameters in kinds:
        for place in OFFLOAD_PLACES:
            moved = workload.replace(offload=place, offload_parameters=parameters)
            if fits(moved):
                yield Setting(moved)
                break


@lru_cache(maxsize=4096)
def divisors(number: int) -> tuple[int, ...]:
    """Return the divisors of a number, the smallest first.

    >>> divisors(12)
    (1, 2, 3, 4, 6, 12)
    """
    small = [n for n in range(1, isqrt(number) + 1) if not number % n]
    large = [number // n for n in reversed(small) if n * n != number]
    return (*small, *large)


def accumulations(workload: Workload, replicas: int, limits: PlanLimits) -> list[int]:
    """Return numbers of equal microbatches from the requested one up to one sequence
    each.
    """
    most = -(-workload.batch // replicas)
    asked = min(workload.accumulation, most)
    if not workload.trains or not limits.accumulation:
        return [asked]
    whole = [count for count in divisors(most) if count >= asked]
    counts = whole[:1]
    for count in whole:
        if count >= 2 * counts[-1] or count == most != counts[-1]:
            counts.append(count)
    return counts


@lru_cache(maxsize=4096)
def in_runs(stage: Setting, count: int) -> Setting:
    """Return a setting whose batch is run in so many pieces."""
    if stage.workload.accumulation == count:
        return stage
    return replace(stage, workload=stage.workload.replace(accumulation=count))


def search(
    workload: Workload,
    replicas: int,
    freedom: AllowedRemedies,
    fit: Callable[[Setting], MemoryFit],
) -> tuple[Setting | None, MemoryFit]:
    """Return the mildest setting that fits, or None and the best possible one."""
    nearest: MemoryFit | None = None
    for stage in stages(workload, freedom):
        counts = accumulations(stage.workload, replicas, freedom.limits)
        settings = [in_runs(stage, count) for count in counts]
        found = fit(settings[-1])
        if not found.fits:
            if nearest is None or found.missing_bytes < nearest.missing_bytes:
                nearest = found
            continue
        setting = _fewest_pieces(settings, fit)
        return lighter(workload, setting, lambda s: fit(s).fits), MemoryFit(True)
    return None, nearest or MemoryFit(False)


def as_mild(
    workload: Workload,
    mildest: Setting,
    replicas: int,
    freedom: AllowedRemedies,
    fit: Callable[[Setting], MemoryFit],
) -> list[Setting]:
    """Return every setting that fits and is as mild as the mildest one.

    It neither slows the step to save memory elsewhere nor changes numbers more than the
    mildest setting that fits.
    """
    found = [mildest]
    for stage in stages(workload, freedom):
        if stage.severity[:3] <= mildest.severity[:3]:
            counts = accumulations(stage.workload, replicas, freedom.limits)
            made = [in_runs(stage, count) for count in counts]
            found += [setting for setting in made if fit(setting).fits]
    return found


def _fewest_pieces(
    settings: Sequence[Setting], fit: Callable[[Setting], MemoryFit]
) -> Setting:
    """Return the first setting that fits. The last one does.

    Between the first (which may hold no gradients while it computes) and the last, more
    pieces never need more.
    """
    if fit(settings[0]).fits:
        return settings[0]
    low, high = 1, len(settings) - 1
    while low < high:
        middle = (low + high) // 2
        if fit(settings[middle]).fits:
            high = middle
        else:
            low = middle + 1
    return settings[high]


def lighter(
    asked: Workload, setting: Setting, fits: Callable[[Setting], bool]
) -> Setting:
    """Return the setting without remedies that later ones made needless, the harshest
    first.
    """
    for name in ("optimizer", "checkpointing", "optimizer_loop", "prefill_tokens"):
        wanted = getattr(asked, name)
        if getattr(setting.workload, name) != wanted:
            plain = replace(
                setting, workload=setting.workload.replace(**{name: wanted})
            )
            setting = plain if fits(plain) else setting
    return setting


def explain(
    asked: Workload, setting: Setting, need_bytes: Callable[[Setting], float]
) -> tuple[str, ...]:
    """Return each change to the requested workload and the bytes it saves per GPU."""
    at = Setting(asked)
    sentences = []
    for words, following in _steps(asked, setting):
        before, after = need_bytes(at), need_bytes(following)
        sentences.append(
            sentence(
                "{words} (need per GPU {before} to {after})",
                words=words,
                before=gib(before),
                after=gib(after),
            )
        )
        at = following
    return tuple(sentences)


def _steps(asked: Workload, setting: Setting) -> list[tuple[str, Setting]]:
    """Return one changed field after another, in the order in which they are tried."""
    steps: list[tuple[str, Setting]] = []
    at = asked
    chosen = setting.workload
    changes = (
        (
            "optimizer_loop",
            sentence("use the fused optimizer step, which needs no temporaries"),
        ),
        (
            "accumulation",
            sentence(
                "run the batch in {accumulation} pieces (accumulation)",
                accumulation=chosen.accumulation,
            ),
        ),
        (
            "checkpointing",
            sentence(
                "recompute attention's scores in backward (selective checkpointing)"
            )
            if chosen.checkpointing == "selective"
            else sentence("recompute activations in backward (checkpointing)"),
        ),
        ("optimizer", sentence("keep Adam's state in 8 bits")),
        (
            "prefill_tokens",
            sentence(
                "read the prompts {tokens} tokens at a time (chunked prefill)",
                tokens=f"{chosen.prefill_tokens:,}",
            ),
        ),
    )
    for name, words in changes:
        if getattr(chosen, name) != getattr(asked, name):
            at = at.replace(**{name: getattr(chosen, name)})
            steps.append((words, Setting(at)))
    if chosen.offload != asked.offload:
        at = at.replace(
            offload=chosen.offload, offload_parameters=chosen.offload_parameters
        )
        steps.append((_kept_away(chosen), Setting(at)))
    if setting.weights != "full":
        bits = {"int8": 8, "nf4": 4}[setting.weights]
        words = sentence(
            "keep frozen weights in {bits} bits ({weights})",
            bits=bits,
            weights=setting.weights,
        )
        steps.append((words, Setting(at, setting.weights)))
    return steps


def _kept_away(chosen: Workload) -> str:
    """Return which states an offload keeps, and where."""
    in_memory = chosen.offload == "cpu"
    if chosen.trains and chosen.offload_parameters:
        return (
            sentence("keep the optimizer and the weights in the node's memory (slow)")
            if in_memory
            else sentence("keep the optimizer and the weights on its drive (slow)")
        )
    if chosen.trains:
        return (
            sentence("keep the optimizer in the node's memory (slow)")
            if in_memory
            else sentence("keep the optimizer on its drive (slow)")
        )
    return (
        sentence("keep the weights in the node's memory (slow)")
        if in_memory
        else sentence("keep the weights on its drive (slow)")
    )


Ask = tuple[str, Workload]


def smaller_asks(workload: Workload, fixed_length: bool) -> list[list[Ask]]:
    """Return changes of the request itself: lists of shorter, fewer, halved.

    Within a list each change requests less than the one before it.
    """
    lengths: list[Ask] = []
    batches: list[Ask] = []
    length = 0 if fixed_length else workload.sequence_length // 2
    while length >= 16:
        words = sentence(
            "a sequence length of {length} instead of {sequence_length}",
            length=length,
            sequence_length=workload.sequence_length,
        )
        lengths.append((words, workload.replace(sequence_length=length)))
        length //= 2
    batch = 0 if workload.trains else workload.batch // 2
    while batch >= 1:
        words = sentence(
            "a batch of {batch} instead of {asked}", batch=batch, asked=workload.batch
        )
        batches.append((words, workload.replace(batch=batch)))
        batch //= 2
    ladders = [lengths, batches]
    if workload.trains and workload.precision in ("fp32", "autocast_bf16"):
        ladders.append(
            [(sentence("pure bf16 weights"), workload.replace(precision="bf16"))]
        )
    return [ladder for ladder in ladders if ladder]


def allowed_again(limits: PlanLimits) -> list[tuple[str, PlanLimits]]:
    """Return remedies that were forbidden, mildest first, each added to those before
    it.
    """
    words = {
        "fused_optimizer": sentence("the fused optimizer step"),
        "accumulation": sentence("accumulation allowed"),
        "checkpointing": sentence("checkpointing allowed"),
        "small_optimizer": sentence("8-bit Adam allowed"),
        "offload": sentence("offload allowed"),
        "quantization": sentence("weights in 8 or 4 bits allowed"),
    }
    ladder = []
    said: list[str] = []
    for name, text in words.items():
        if not getattr(limits, name):
            limits = replace(limits, **{name: True})  # type: ignore[arg-type]
            said.append(text)
            ladder.append((listed(said), limits))
    return ladder


def first_or_none(
    ladders: Sequence[Sequence[Ask]], fits: Callable[[Workload], bool]
) -> str:
    """Return the smallest change that fits, in words; empty if none does.

    If a list's last change does not fit, none of it does.
    """
    for ladder in ladders:
        if fits(ladder[-1][1]):
            return next(words for words, workload in ladder if fits(workload))
    return ""
