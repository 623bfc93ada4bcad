"""What a station deals in: models that were taken, requests that wait, answers."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from placement.domain.serving import Request
from placement.serving.counts import Counts
from placement.serving.engine import Engine, EngineError, Loaded
from placement.serving.tensors import Asked


class TurnedAway(Exception):
    """A request that is not served: why, and when it would have been done."""

    def __init__(self, code: str, why: str, *, predicted_ms: float | None) -> None:
        self.code, self.why, self.predicted_ms = code, why, predicted_ms
        super().__init__(why)


@dataclass(slots=True)
class Kept:
    """A model that was taken, loaded just now or not."""

    name: str
    path: Path
    memory_bytes: int
    most_batch: int
    deadline_ms: float
    state: str = "loading"
    note: str = ""
    model: Loaded | None = None
    counts: Counts = field(default_factory=Counts)

    @property
    def ready(self) -> bool:
        """Whether requests for it are taken."""
        return self.state == "ready"


@dataclass(slots=True)
class Waiting:
    """A request that was let in."""

    request: Request
    asked: Asked
    kept: Kept
    predicted_seconds: float
    answer: "asyncio.Future[Answered]"


@dataclass(frozen=True, slots=True)
class Answered:
    """Results, and how it went (milliseconds since the request came)."""

    results: dict[str, Any]
    predicted_ms: float
    actual_ms: float
    run_ms: float
    batch: int
    in_time: bool


def shared_run(
    engine: Engine, model: Loaded | None, waiting: Sequence[Waiting]
) -> list[dict[str, Any] | EngineError]:
    """Run several requests as one; each gets its own rows back.

    Where the shared run fails each runs alone: nobody pays for another's inputs.
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
        except EngineError:
            pass  # alone, below: the one that is wrong is told so
    answers: list[dict[str, Any] | EngineError] = []
    for one in waiting:
        try:
            answers.append(engine.run(model, one.asked.inputs))
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


def resident_bytes() -> int:
    """Memory of this process, as the kernel counts it."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096
