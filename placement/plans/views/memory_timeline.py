"""Memory over one training step as stacked areas, and the peak of each phase.

The peaks of the phases are computed (placement.planner.memory.estimate). Between them
the areas follow the layers: forward keeps each layer's activations, backward frees them
from the last layer on and adds gradients, and the optimizer's step has only states.
Time runs by layers, a backward twice as long as a forward.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from django.utils.translation import gettext_lazy

from placement.planner.memory.estimate import Estimate
from placement.planner.values.humanize import gib
from placement.planner.values.workload import Workload

WIDTH, HEIGHT = 1000, 240
SHARE = {"forward": 1.0, "backward": 2.0, "optimizer": 0.6}
WORDS = {
    "forward": gettext_lazy("Forward"),
    "backward": gettext_lazy("Backward"),
    "optimizer": gettext_lazy("Optimizer step"),
}
TICKS = 4
BANDS = ("parameters", "optimizer", "gradients", "activations")


@dataclass(frozen=True)
class Area:
    """One component over the step, as the points of a polygon."""

    key: str
    points: str


@dataclass(frozen=True)
class PhaseSpan:
    """One phase on the time axis, and its computed peak."""

    key: str
    words: str
    x: float
    end: float
    y: float
    peak: str
    is_peak: bool


@dataclass(frozen=True)
class Timeline:
    """The data of `_plan_timeline.html`."""

    areas: tuple[Area, ...]
    spans: tuple[PhaseSpan, ...]
    ticks: tuple[tuple[float, float, str], ...]
    """(y, its part of the height from above in %, words)."""
    words: str


def timeline(one: Estimate, workload: Workload) -> Timeline | None:
    """Return the chart of one step. None: there is nothing to draw."""
    phases = [name for name in SHARE if one.phase_bytes.get(name)]
    top = max(one.phase_bytes.values(), default=0)
    if not phases or top <= 0:
        return None
    total = sum(SHARE[name] for name in phases)
    spans, x = [], 0.0
    for name in phases:
        width = WIDTH * SHARE[name] / total
        size = one.phase_bytes[name]
        spans.append(
            PhaseSpan(
                name,
                str(WORDS[name]),
                round(x, 1),
                round(x + width, 1),
                _y_position(size, top),
                gib(size),
                name == one.peak_phase,
            )
        )
        x += width
    moments = [m for span in spans for m in _layer_moments(one, workload, span)]
    return Timeline(
        areas=_areas(moments, top, {s.key: one.phase_bytes[s.key] for s in spans}),
        spans=tuple(spans),
        ticks=tuple(
            (
                _y_position(top * n / TICKS, top),
                100 - 100 * n / TICKS,
                gib(top * n / TICKS),
            )
            for n in range(TICKS + 1)
        ),
        words=", ".join(f"{s.words} {s.peak}" for s in spans),
    )


Moment = tuple[float, str, tuple[float, ...]]
"""(x, phase, bytes by band)."""


def _layer_moments(one: Estimate, workload: Workload, span: PhaseSpan) -> list[Moment]:
    """Return the memory at the edges of each layer's part of a phase."""
    states = (one.parameter_bytes, one.optimizer_bytes)
    kept = workload.accumulation > 1 or workload.keeps_gradients
    before = one.gradient_bytes if kept and workload.trains else 0
    whole = sum(layer.activation_bytes for layer in one.layers)
    if span.key == "optimizer":
        after = (*states, float(one.gradient_bytes), 0.0)
        return [(span.x, span.key, after), (span.end, span.key, after)]
    layers = list(one.layers)
    backward = span.key == "backward"
    alive, grads = (float(whole) if backward else 0.0), float(before)
    found: list[Moment] = [(span.x, span.key, (*states, grads, alive))]
    for number, layer in enumerate(reversed(layers) if backward else layers, 1):
        alive += -layer.activation_bytes if backward else layer.activation_bytes
        if backward and not kept:
            grads += layer.gradient_bytes
        x = span.x + (span.end - span.x) * number / len(layers)
        found.append((x, span.key, (*states, grads, max(0.0, alive))))
    return found


def _areas(
    moments: Sequence[Moment], top: int, peaks: dict[str, int]
) -> tuple[Area, ...]:
    """Return the bands from below, limited to their phase's computed peak."""
    floors = [0.0] * len(moments)
    areas = []
    for band, key in enumerate(BANDS):
        roofs = [
            min(floor + sizes[band], float(peaks[phase]))
            for floor, (_, phase, sizes) in zip(floors, moments, strict=True)
        ]
        if any(roof > floor for roof, floor in zip(roofs, floors, strict=True)):
            upper = [
                f"{m[0]:.1f},{_y_position(r, top)}"
                for m, r in zip(moments, roofs, strict=True)
            ]
            lower = [
                f"{m[0]:.1f},{_y_position(f, top)}"
                for m, f in zip(moments, floors, strict=True)
            ]
            areas.append(Area(key, " ".join([*upper, *reversed(lower)])))
        floors = roofs
    return tuple(areas)


def _y_position(size: float, top: float) -> float:
    return round(HEIGHT * (1 - min(1.0, size / top)), 1)
