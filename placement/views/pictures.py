"""The pictures of a Plan: each Gpu's memory as a bar. Numbers only, drawn as SVG.

Bars are ``WIDTH`` wide whatever the Gpu's size; x and width are in those units.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from placement.domain.estimate import Estimate
from placement.domain.offer import GpuOffer
from placement.domain.plan import Plan, Shard
from placement.domain.recipes import RUNNABLE_STRATEGIES
from placement.domain.words import gib, seconds

WIDTH = 1000
COMPONENTS = (
    ("parameters", "parameters"),
    ("gradients", "gradients"),
    ("optimizer", "optimizer states"),
    ("activations", "activations"),
    ("logits", "logits"),
    ("kv_cache", "KV cache"),
    ("transients", "transients"),
    ("buckets", "buckets"),
    ("context", "CUDA context and workspace"),
)
WORDS = dict(COMPONENTS)
MOST_CARDS = 6
MENTION_GAIN = 1.15
"""How much faster another Plan must be to stand in the verdict."""


@dataclass(frozen=True)
class Piece:
    """One part of a bar."""

    key: str
    words: str
    x: float
    width: float


@dataclass(frozen=True)
class Bar:
    """One Gpu's memory: what is used, what the Plan adds, what stays free."""

    label: str
    name: str
    note: str
    pieces: tuple[Piece, ...]
    words: str
    hatched: bool = False
    """Nothing of it may be used."""


@dataclass(frozen=True)
class Card:
    """One Plan as the page shows it."""

    plan: Plan
    key: str
    bars: tuple[Bar, ...]
    step: str
    parts: tuple[tuple[str, str], ...]
    headroom: str
    own_reservation: int | None
    runs_with_recipe: bool


def plan_key(plan: Plan) -> str:
    """Return what names a Plan within its PlanSet."""
    return f"{plan.strategy}|{','.join(plan.gpu_uuids)}"


def cards(plans: Sequence[Plan], own: Mapping[str, int]) -> list[Card]:
    """Return the Plans to show: the best of each strategy first, then others."""
    best: dict[str, Plan] = {}
    for plan in plans:
        best.setdefault(plan.strategy, plan)
    chosen = list(best.values())[:MOST_CARDS]
    return [_card(plan, own) for plan in sorted(chosen, key=plans.index)]


def _card(plan: Plan, own: Mapping[str, int]) -> Card:
    held = {own.get(uuid) for uuid in plan.gpu_uuids}
    parts = [("compute", seconds(plan.compute_seconds))]
    if plan.communication_seconds > 0:
        parts.append(("sending", seconds(plan.communication_seconds)))
    if plan.bubble_seconds > 0:
        parts.append(("waiting (bubble)", seconds(plan.bubble_seconds)))
    tightest = min(plan.shards, key=lambda shard: shard.headroom_bytes)
    return Card(
        plan=plan,
        key=plan_key(plan),
        bars=tuple(_shard_bar(shard, plan) for shard in plan.shards),
        step=seconds(plan.step_seconds),
        parts=tuple(parts),
        headroom=f"{gib(tightest.headroom_bytes)} on {tightest.gpu_label}",
        own_reservation=held.pop() if len(held) == 1 else None,
        runs_with_recipe=plan.strategy in RUNNABLE_STRATEGIES,
    )


def _shard_bar(shard: Shard, plan: Plan) -> Bar:
    sizes = [("used", "used by others", shard.used_bytes)]
    sizes += [(key, words, shard.components.get(key, 0)) for key, words in COMPONENTS]
    sizes += [
        (key, key, size) for key, size in shard.components.items() if key not in WORDS
    ]
    slack = shard.likely_bytes - sum(shard.components.values())
    sizes.append(("slack", "allocator slack", max(0, slack)))
    layers = ""
    if plan.strategy in ("pipeline", "gpipe"):
        layers = f"layers {shard.first_layer} to {shard.last_layer - 1}"
    elif shard.share_ratio is not None:
        layers = f"{100 * shard.share_ratio:.0f} % of the optimizer"
    return Bar(
        label=shard.gpu_label,
        name=shard.gpu_name,
        note=layers,
        pieces=_pieces(sizes, shard.total_bytes),
        words=f"{gib(shard.likely_bytes)} of {gib(shard.free_bytes)} free",
    )


def offer_bars(offers: Sequence[GpuOffer]) -> list[Bar]:
    """Return every Gpu as it was offered: used, booked, free."""
    return [
        Bar(
            label=offer.label,
            name=offer.gpu_class,
            note=offer.reason,
            pieces=_pieces(
                [("used", "used by others", offer.used_bytes)],
                offer.memory_total_bytes,
            ),
            words=(
                f"{gib(offer.free_bytes)} free of {gib(offer.memory_total_bytes)}"
                if offer.usable
                else f"not usable: {offer.reason or 'no free memory'}"
            ),
            hatched=not offer.usable,
        )
        for offer in offers
    ]


def estimate_rows(estimate: Estimate) -> list[dict[str, object]]:
    """Return the components at the peak, largest first, with their share."""
    total = max(1, sum(estimate.components.values()))
    return [
        {
            "key": key,
            "words": WORDS.get(key, key.replace("_", " ")),
            "bytes": size,
            "pct": 100 * size / total,
        }
        for key, size in sorted(estimate.components.items(), key=lambda kv: -kv[1])
        if size > 0
    ]


def estimate_bar(estimate: Estimate) -> Bar:
    """Return the components at the peak as one bar as wide as the high end."""
    sizes = [(key, words, estimate.components.get(key, 0)) for key, words in COMPONENTS]
    slack = estimate.likely_bytes - sum(estimate.components.values())
    sizes.append(("slack", "allocator slack", max(0, slack)))
    return Bar(
        "", "", "", _pieces(sizes, estimate.high_bytes), gib(estimate.likely_bytes)
    )


def _pieces(
    sizes: Sequence[tuple[str, str, int]], total_bytes: int
) -> tuple[Piece, ...]:
    pieces, x = [], 0.0
    for key, words, size in sizes:
        if size <= 0 or total_bytes <= 0:
            continue
        width = min(WIDTH - x, WIDTH * size / total_bytes)
        pieces.append(Piece(key, f"{words}: {gib(size)}", round(x, 2), round(width, 2)))
        x += width
    return tuple(pieces)


def verdict(plans: Sequence[Plan]) -> str:
    """Return the answer in one sentence."""
    if not plans:
        return "It does not fit on the GPUs that are free. Below is what is missing."
    best = plans[0]
    count = len(best.shards)
    where = (
        f"one {best.shards[0].gpu_name} ({best.shards[0].gpu_label})"
        if count == 1
        else f"{count} GPUs of {best.node}"
    )
    said = [f"Fits on {where}, about {seconds(best.step_seconds)} a step."]
    if best.fit == "tight":
        said.append("It is tight: only the least possible need fits.")
    said += [f"{text[0].upper()}{text[1:]}." for text in best.remedies]
    faster = min(plans, key=lambda plan: plan.step_seconds)
    gain = best.step_seconds / faster.step_seconds if faster.step_seconds else 1
    if gain >= MENTION_GAIN:
        on = f"{len(faster.shards)} of {faster.node}"
        said.append(f"{gain:.1f} times faster on {on} ({faster.title}).")
    return " ".join(said)
