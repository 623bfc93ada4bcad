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
    failed_seconds: float = 0.0
    """Of failed requests, since their arrival."""
    answered_seconds: float = 0.0
    """Of answered requests, since their arrival."""
    queue_seconds: float = 0.0
    """Of answered requests, without their runs."""
    last_at: float = 0.0
    """Unix time of the last run; 0: none."""
    _batches: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Rows of a run -> runs and their seconds."""
    _done: deque[tuple[float, float, float]] = field(
        default_factory=lambda: deque(maxlen=MOST_KEPT)
    )

    def record_run(self, rows: int, seconds: float, *, at: float) -> None:
        """Count a run with this many rows. ``at``: Unix time of its end."""
        self.runs += 1
        self.rows += rows
        self.last_at = at
        runs, before = self._batches.get(rows, (0, 0.0))
        self._batches[rows] = (runs + 1, before + seconds)

    def done(
        self,
        now: float,
        *,
        predicted_seconds: float,
        seconds: float,
        run_seconds: float,
        in_time: bool,
    ) -> None:
        """Count an answered request.

        Args:
            now: by the station's clock.
            predicted_seconds: since its arrival, as predicted.
            seconds: since its arrival.
            run_seconds: of its run.
            in_time: whether it met its deadline.
        """
        self.answered_seconds += seconds
        self.queue_seconds += max(0.0, seconds - run_seconds)
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

    def statistics_json(self) -> dict[str, Any]:
        """Return the statistics extension of the Open Inference Protocol.

        The times of copying inputs and outputs are not measured apart, so they count 0
        (docs.nvidia.com "Statistics Extension").
        """
        answered = self.in_time + self.late
        run_seconds = sum(seconds for _, seconds in self._batches.values())
        nothing = _duration(0, 0.0)
        return {
            "last_inference": int(self.last_at * 1000),
            "inference_count": self.rows,
            "execution_count": self.runs,
            "inference_stats": {
                "success": _duration(answered, self.answered_seconds),
                "fail": _duration(self.failed, self.failed_seconds),
                "queue": _duration(answered, self.queue_seconds),
                "compute_input": nothing,
                "compute_infer": _duration(self.runs, run_seconds),
                "compute_output": nothing,
            },
            "batch_stats": [
                {
                    "batch_size": rows,
                    "compute_input": nothing,
                    "compute_infer": _duration(runs, seconds),
                    "compute_output": nothing,
                }
                for rows, (runs, seconds) in sorted(self._batches.items())
            ],
        }


def _duration(count: int, seconds: float) -> dict[str, int]:
    return {"count": count, "ns": round(seconds * 1e9)}


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
