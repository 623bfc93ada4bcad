"""Figures of a served model for its page: counts, latencies, predicted and actual."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from placement.protocol.serving_times import Timing, quantile

MOST_KEPT = 1000
MOST_POINTS = 60
KEPT_SECONDS = 300.0
"""Percentiles are of the last five minutes."""


@dataclass(slots=True)
class Counts:
    """Of one model, or of all."""

    in_time: int = 0
    late: int = 0
    """Admitted, and answered after the deadline."""
    dropped: int = 0
    """Admitted, and dropped because it could no longer be in time."""
    refused: int = 0
    """Refused at once, because it would have been late."""
    full: int = 0
    wrong: int = 0
    """Tensors that the model does not accept."""
    failed: int = 0
    runs: int = 0
    rows: int = 0
    _done: deque[tuple[float, float, float]] = field(
        default_factory=lambda: deque(maxlen=MOST_KEPT)
    )

    def record_run(self, rows: int) -> None:
        """Count a run with this many rows."""
        self.runs += 1
        self.rows += rows

    def done(
        self, now: float, *, predicted_seconds: float, seconds: float, in_time: bool
    ) -> None:
        """Count an answered request. Seconds since its arrival."""
        self.in_time += in_time
        self.late += not in_time
        self._done.append((now, predicted_seconds, seconds))

    def to_json(self, now: float) -> dict[str, Any]:
        """Return counts and percentiles, in milliseconds."""
        recent = [one for one in self._done if one[0] > now - KEPT_SECONDS]
        told: dict[str, Any] = {
            name: getattr(self, name)
            for name in (
                *("in_time", "late", "dropped", "refused", "full"),
                *("wrong", "failed", "runs", "rows"),
            )
        }
        told["latency_ms"] = _percentiles([seconds for _, _, seconds in recent])
        told["error_ms"] = _percentiles(
            [abs(seconds - predicted) for _, predicted, seconds in recent]
        )
        told["points"] = [
            [_ms(predicted), _ms(seconds)]
            for _, predicted, seconds in recent[-MOST_POINTS:]
        ]
        return told


def profile_json(timing: Timing) -> list[dict[str, Any]]:
    """The measured runs, one row per batch size."""
    return [
        {
            "batch": size,
            "runs": len(runs),
            "median_ms": _ms(quantile(runs, 0.5)),
            "p99_ms": _ms(quantile(runs, 0.99)),
            "predicted_ms": _ms(timing.predicted_seconds(size)),
        }
        for size, runs in timing.profile.items()
    ]


def _percentiles(values: list[float]) -> Mapping[str, float] | None:
    if not values:
        return None
    parts = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    return {name: _ms(quantile(values, part)) for name, part in parts.items()}


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
