"""The values of a station: models, waiting requests, answers."""

import asyncio
import resource
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from placement.agent.serving.deadline_scheduler import AdmissionVerdict
from placement.agent.serving.model_counts import Counts, profile_json
from placement.agent.serving.onnx_engine import (
    Engine,
    EngineError,
    LoadedModel,
    ModelOverLimit,
)
from placement.agent.serving.queue_simulation import QueuedRequest, ScheduledModel
from placement.agent.serving.tensors import InferenceRequest
from placement.protocol.call_refusal import CallRefused

QUEUE_SHOWN_RATIO = 0.05
"""A smaller part of the needed time is not mentioned."""


@dataclass(slots=True)
class HostedModel:
    """A model of the station, loaded or not."""

    name: str
    path: Path
    memory_bytes: int
    most_batch: int
    deadline_ms: float
    state: str = "loading"
    note: str = ""
    model: LoadedModel | None = None
    counts: Counts = field(default_factory=Counts)

    @property
    def ready(self) -> bool:
        """Whether requests for it are accepted."""
        return self.state == "ready"

    def to_json(
        self, placed: ScheduledModel | None, *, loaded: bool, now: float
    ) -> dict[str, Any]:
        """Return its state and counters for its page. ``placed``: it was measured."""
        batches = bool(self.model and self.model.batches)
        return {
            "name": self.name,
            "state": self.state,
            "loaded": loaded,
            "note": self.note,
            "memory_bytes": self.memory_bytes,
            "deadline_ms": self.deadline_ms,
            "batches": batches,
            "most_batch": placed.most_rows if placed else self.most_batch,
            "load_seconds": round(placed.timing.load_seconds, 4) if placed else None,
            "profile": profile_json(placed.timing) if placed else [],
            **self.counts.to_json(now),
        }


@dataclass(slots=True)
class AdmittedRequest:
    """A request that was admitted."""

    request: QueuedRequest
    asked: InferenceRequest
    kept: HostedModel
    within_ms: float
    """The remaining deadline, from its arrival."""
    answer: "asyncio.Future[InferenceResult]"
    predicted_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class InferenceResult:
    """One request's part of a run."""

    results: dict[str, Any]
    run_seconds: float
    ended_at: float
    batch: int
    """Rows of the run."""


@dataclass(frozen=True, slots=True)
class AnsweredRequest:
    """Results, and the times of the request (milliseconds since its arrival)."""

    results: dict[str, Any]
    predicted_ms: float
    actual_ms: float
    run_ms: float
    batch: int
    in_time: bool


def shared_run(
    engine: Engine, model: LoadedModel | None, waiting: Sequence[AdmittedRequest]
) -> list[dict[str, Any] | EngineError]:
    """Run several requests as one. Each gets its own rows.

    If the shared run fails, each runs alone, so that invalid inputs fail only their own
    request.

    Raises:
        ModelOverLimit: a run took longer than the model may.
    """
    if model is None:
        return [EngineError("it is not loaded")] * len(waiting)
    if len(waiting) > 1:
        feeds = {
            one.name: np.concatenate([w.asked.inputs[one.name] for w in waiting])
            for one in model.inputs
        }
        try:
            return _parts(engine.run(model, feeds), [w.request.rows for w in waiting])
        except ModelOverLimit:
            raise
        except EngineError:
            pass  # alone, below: the one that is wrong is told so
    answers: list[dict[str, Any] | EngineError] = []
    for one in waiting:
        try:
            answers.append(engine.run(model, one.asked.inputs))
        except ModelOverLimit:
            raise
        except EngineError as error:
            answers.append(error)
    return answers


def _parts(
    whole: dict[str, Any], rows: Sequence[int]
) -> list[dict[str, Any] | EngineError]:
    ends = np.cumsum(rows)[:-1]
    split = {name: np.split(value, ends) for name, value in whole.items()}
    return [
        {name: pieces[index] for name, pieces in split.items()}
        for index in range(len(rows))
    ]


def turned_away(
    waiting: AdmittedRequest, verdict: AdmissionVerdict, way_ms: float, run_ms: float
) -> CallRefused:
    """Count a request that is refused. Return the refusal.

    Args:
        waiting: with ``predicted_ms``, from its arrival to its end at the model.
        verdict: not ``IN``.
        way_ms: of its deadline for the network, both ways.
        run_ms: of ``predicted_ms`` for the model itself. The rest is the queue.
    """
    full, counts = verdict is AdmissionVerdict.FULL, waiting.kept.counts
    counts.full += full
    counts.refused += not full
    needed_ms = way_ms + waiting.predicted_ms
    parts = {
        "network": way_ms,
        "queue": max(0.0, waiting.predicted_ms - run_ms),
        "model": min(run_ms, waiting.predicted_ms),
    }
    if parts["queue"] < QUEUE_SHOWN_RATIO * needed_ms:
        # A thread switch is too short to be separated from the model's time.
        parts["model"] += parts.pop("queue")
    told = ", ".join(f"{name} {_figure(ms)} ms" for name, ms in parts.items())
    deadline = f"The deadline of {waiting.within_ms + way_ms:g} ms cannot be met"
    why = f"Too many requests are waiting. {deadline}" if full else deadline
    return CallRefused(
        "full" if full else "deadline",
        f"{why}: about {_figure(needed_ms)} ms are needed ({told}).",
        predicted_ms=round(needed_ms, 3),
    )


def _figure(ms: float) -> str:
    """Return milliseconds, with as many decimals as matter.

    >>> _figure(120.4), _figure(3.21), _figure(0.0123)
    ('120', '3.2', '0.01')
    """
    if ms >= 10:
        return f"{ms:.0f}"
    return f"{ms:.1f}" if ms >= 1 else f"{max(ms, 0.01):.2f}"


def resident_bytes() -> int:
    """Return the resident memory of this process (proc(5), statm)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()
