"""Bars of memory and of time: numbers only, drawn as SVG by `_bar.html`.

Every bar is ``WIDTH`` wide. Its x and width are in these units.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext, gettext_lazy

from placement.planner.memory.estimate import Estimate
from placement.planner.values.gpu_availability import GpuOffer
from placement.planner.values.humanize import gib, ranges_told, seconds
from placement.planner.values.plan import Plan, Shard
from telemetry.web.translation import translated

WIDTH = 1000
THIN = 8
USED = ("used", gettext_lazy("in use now"))
SLACK = ("slack", gettext_lazy("allocator slack"))
COMPONENTS = (
    ("parameters", gettext_lazy("parameters")),
    ("gradients", gettext_lazy("gradients")),
    ("optimizer", gettext_lazy("optimizer states")),
    ("activations", gettext_lazy("activations")),
    ("logits", gettext_lazy("logits")),
    ("kv_cache", gettext_lazy("KV cache")),
    ("transients", gettext_lazy("transients")),
    ("buckets", gettext_lazy("buckets")),
    ("between_stages", gettext_lazy("between stages")),
    ("context", gettext_lazy("CUDA context and workspace")),
)
WORDS: dict[str, Any] = dict((USED, *COMPONENTS, SLACK))
"""Component to its name, which is translated when it is shown."""


@dataclass(frozen=True)
class BarPart:
    """One part of a bar."""

    key: str
    words: str
    x: float
    width: float

    @property
    def thin(self) -> bool:
        """Whether it is too narrow for a gap beside it."""
        return self.width < THIN


@dataclass(frozen=True)
class Bar:
    """One Gpu's memory, or one step's time."""

    label: str
    name: str
    note: str
    pieces: tuple[BarPart, ...]
    words: str
    off: str = ""
    """Why the rest may not be used: booked, or closed. Drawn hatched."""


def pieces_of(
    sizes: Sequence[tuple[str, str, float]], total: float
) -> tuple[BarPart, ...]:
    """Place (key, words, size) side by side on a bar of the size ``total``."""
    pieces, x = [], 0.0
    for key, words, size in sizes:
        if size <= 0 or total <= 0:
            continue
        width = min(WIDTH - x, WIDTH * size / total)
        pieces.append(BarPart(key, words, round(x, 2), round(width, 2)))
        x += width
    return tuple(pieces)


def shard_bar(shard: Shard, plan: Plan) -> Bar:
    """Return the bar of one Gpu of a Plan: the used memory and each component."""
    sizes = [_sized_segment(*USED, shard.used_bytes)]
    sizes += _components(shard.components, shard.likely_bytes)
    return Bar(
        label=shard.gpu_label,
        name=shard.gpu_name,
        note=_part(shard, plan),
        pieces=pieces_of(sizes, shard.total_bytes),
        words=gettext("needs %(need)s of %(free)s free")
        % {"need": gib(shard.likely_bytes), "free": gib(shard.free_bytes)}
        if shard.headroom_bytes >= 0
        else gettext("needs %(need)s, %(free)s free")
        % {"need": gib(shard.likely_bytes), "free": gib(shard.free_bytes)},
    )


def _part(shard: Shard, plan: Plan) -> str:
    """Return the part of the model on a Gpu. "": all of it."""
    said = []
    if shard.pieces != ((0, plan.layer_count),):
        runs = translated(ranges_told(shard.pieces))
        said.append(gettext("layers %(runs)s") % {"runs": runs})
    if int(plan.launch.get("tensor_degree") or 1) > 1:
        said.append(
            gettext("1/%(count)s of each") % {"count": plan.launch["tensor_degree"]}
        )
    if shard.share_ratio is not None:
        said.append(
            gettext("%(percent)s %% of the optimizer")
            % {"percent": f"{100 * shard.share_ratio:.0f}"}
        )
    return ", ".join(said)


def offer_bar(offer: GpuOffer, booked: str) -> Bar:
    """Return the bar of an offered Gpu. Reasons that begin with ``booked`` are
    bookings.
    """
    words = gettext("%(free)s free of %(total)s") % {
        "free": gib(offer.free_bytes),
        "total": gib(offer.memory_total_bytes),
    }
    return Bar(
        label=offer.label,
        name=offer.gpu_class,
        note="",
        pieces=pieces_of(
            [_sized_segment(*USED, offer.used_bytes)], offer.memory_total_bytes
        ),
        words=words if offer.usable else (offer.reason or gettext("no free memory")),
        off="" if offer.usable else _unusable_kind(offer.reason, booked),
    )


def _unusable_kind(reason: str, booked: str) -> str:
    return "booked" if reason.startswith(booked) else "closed"


def estimate_bar(one: Estimate) -> Bar:
    """Return the components at the peak as a bar with the width of the upper bound."""
    sizes = _components(one.components, one.likely_bytes)
    return Bar(
        gettext("One GPU"),
        "",
        "",
        pieces_of(sizes, one.high_bytes),
        gib(one.likely_bytes),
    )


def time_bar(plan: Plan) -> Bar:
    """Return the bar of one step's time: compute, communication, waiting."""
    sizes = [
        (key, f"{words} {seconds(size)}", size)
        for key, words, size in (
            ("compute", gettext("compute"), plan.compute_seconds),
            ("sending", gettext("sending"), plan.communication_seconds),
            ("waiting", gettext("waiting (bubble)"), plan.bubble_seconds),
        )
    ]
    total = sum(size for _, _, size in sizes)
    return Bar(
        gettext("One step"), "", "", pieces_of(sizes, total), seconds(plan.step_seconds)
    )


def _components(components: Mapping[str, int], likely_bytes: int) -> list:
    sizes = [
        _sized_segment(key, words, components.get(key, 0)) for key, words in COMPONENTS
    ]
    known = dict(COMPONENTS)
    sizes += [
        _sized_segment(key, key.replace("_", " "), size)
        for key, size in components.items()
        if key not in known
    ]
    slack = likely_bytes - sum(components.values())
    return [*sizes, _sized_segment(*SLACK, max(0, slack))]


def _sized_segment(key: str, words: object, size_bytes: int) -> tuple[str, str, float]:
    return key, f"{words}: {gib(size_bytes)}", float(size_bytes)
