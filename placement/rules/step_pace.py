"""The measured seconds and throughput of a step, from the log.

The first steps are slow (kernels are chosen, caches filled, data read for the first
time), so they are left out: docs/design/placement.md#time leaves out the first 20. A
run of fewer than 80 steps leaves out its first quarter. The median of the rest is used,
because writing a checkpoint or a busy neighbour would shift a mean.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

WARM_UP_STEPS = 20
LEAST_ROWS = 3
"""Fewest readings after the warm-up for a median."""
MOST_MARKS = 60

STEP_SECONDS = (
    "step_seconds",
    "step_time",
    "step_time_s",
    "seconds_per_step",
    "sec_per_step",
    "time_per_step",
    "iter_time",
    "s/it",
)
STEP_MILLISECONDS = ("step_time_ms", "step_ms", "ms_per_step", "ms/step", "iter_ms")
STEPS_A_SECOND = (
    "it/s",
    "steps/s",
    "steps_per_s",
    "steps_per_second",
    "train_steps_per_second",
    "iterations_per_second",
)
UNITS_A_SECOND = (
    "tokens_per_s",
    "tokens_per_sec",
    "tokens_per_second",
    "tokens/s",
    "tokens/sec",
    "tok/s",
    "tok_per_s",
    "samples_per_s",
    "samples_per_second",
    "samples/s",
    "train_samples_per_second",
    "images_per_s",
    "images_per_second",
    "images/s",
    "items_per_s",
)
"""Names under which programs log their speed, in lower case."""

Row = Mapping[str, float]
Mark = tuple[float, float]
"""(Unix seconds, step), as read from the log."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Time and throughput of a Job's steps after the warm-up; None: not in its log."""

    step_seconds: float | None = None
    units_per_second: float | None = None
    steps: int = 0
    """Number of steps after the warm-up."""
    source: str = ""
    """log: the job printed it; clock: computed from the times at which steps were
    read.
    """


def pace_of(rows: Sequence[Row], marks: Sequence[Mark] = ()) -> Pace:
    """Return the pace from a log, or else from the times at which its steps were read.

    >>> pace_of([{"step": n, "step_seconds": 9 if n < 2 else 2} for n in range(9)])
    Pace(step_seconds=2.0, units_per_second=None, steps=6, source='log')
    """
    rows = [row for row in rows if "step" in row]
    steady = [
        row for row in rows if row["step"] > _last_warm_up_step(r["step"] for r in rows)
    ]
    units = [one for row in steady if (one := _first(row, UNITS_A_SECOND))]
    told = [one for row in steady if (one := step_seconds_of(row))]
    speed = median(units) if len(units) >= LEAST_ROWS else None
    if len(told) >= LEAST_ROWS:
        begun = _last_warm_up_step(row["step"] for row in rows)
        last = max(row["step"] for row in steady)
        return Pace(float(median(told)), speed, int(last - begun), "log")
    timed, steps = _timed(marks)
    if timed is not None:
        return Pace(timed, speed, steps, "clock")
    return Pace(units_per_second=speed)


def step_seconds_of(row: Row) -> float | None:
    """Return the seconds of one step from one line, under any of the known names."""
    if (told := _first(row, STEP_SECONDS)) is not None:
        return told
    if (told := _first(row, STEP_MILLISECONDS)) is not None:
        return told / 1000
    if (told := _first(row, STEPS_A_SECOND)) is not None:
        return 1 / told
    return None


def marked(marks: Sequence[Mark], mark: Mark) -> list[Mark]:
    """Return the marks with one more. Too many are thinned to every second one.

    A step lower than the last (the Job was restarted) starts a new list.

    >>> marked([(0.0, 1.0)], (5.0, 1.0)), marked([(0.0, 9.0)], (5.0, 1.0))
    ([(0.0, 1.0)], [(5.0, 1.0)])
    """
    kept = list(marks)
    if kept and mark[1] == kept[-1][1]:
        return kept
    if kept and mark[1] < kept[-1][1]:
        return [mark]
    kept.append(mark)
    return kept[::2] if len(kept) > MOST_MARKS else kept


def _timed(marks: Sequence[Mark]) -> tuple[float | None, int]:
    begun = _last_warm_up_step(step for _, step in marks)
    steady = [mark for mark in marks if mark[1] >= begun]
    paces = [
        (b[0] - a[0]) / (b[1] - a[1])
        for a, b in pairwise(steady)
        if b[1] > a[1] and b[0] > a[0]
    ]
    if len(paces) < LEAST_ROWS:
        return None, 0
    return float(median(paces)), int(steady[-1][1] - steady[0][1])


def _last_warm_up_step(steps: Iterable[float]) -> float:
    """Return the last step of the warm-up."""
    seen = list(steps)
    if not seen:
        return 0.0
    first, last = min(seen), max(seen)
    return first + min(WARM_UP_STEPS, (last - first) // 4)


def _first(row: Row, names: Sequence[str]) -> float | None:
    return next((row[name] for name in names if row.get(name, 0) > 0), None)
