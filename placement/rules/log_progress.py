"""The progress of a program from its output: done of a total.

It reads a JSON line ({"step": 3, "total": 10}), pairs (``step=3 steps=10``), words with
a slash (``step 3/10``, ``Epoch [3/10]``) and the bars of tqdm (`` 30%|### | 3/10
[00:02<00:05, 1.3it/s]``). An explicit statement takes precedence over a bar, because
programs also draw bars for parts of the work. Every pattern is linear in the line, and
lines are bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from placement.rules.log_text import LONGEST_NUMBER_LINE, numbers_of

TOTALS = ("total", "steps", "total_steps", "max_steps", "num_steps")
"""Names of the last step. The first one in a line counts."""
MOST = 1e15
LEAST_SECONDS = 3.0
"""Shortest time over which a pace is measured."""

_OF_WORD = re.compile(
    r"\b(?:step|iter|iteration|epoch|batch)s?[ :=]{0,3}[\[(]?"
    r"([0-9]{1,15}) ?(?:/|of) ?([0-9]{1,15})\b",
    re.IGNORECASE,
)
_BAR = re.compile(r"[0-9]{1,3}%\|[^|]{0,400}\| ?([0-9]{1,15})/([0-9]{1,15}) \[")


@dataclass(frozen=True, slots=True)
class ProgressCount:
    """Done of a total, in the unit of the program; 0 <= done <= total."""

    done: float
    total: float

    @property
    def ratio(self) -> float:
        """Return the part that is done, 0 to 1."""
        return self.done / self.total


@dataclass(frozen=True, slots=True)
class ProgressReading:
    """A count at an instant (Unix seconds), and the start of that count."""

    told: ProgressCount
    at: float
    first_done: float
    first_at: float

    @property
    def left_seconds(self) -> float | None:
        """Return the time until the total at the pace so far; None if it is not known
        yet.
        """
        spent, gone = self.at - self.first_at, self.told.done - self.first_done
        if spent < LEAST_SECONDS or gone <= 0:
            return None
        return (self.told.total - self.told.done) * spent / gone


def read_progress(lines: Iterable[str]) -> ProgressCount | None:
    """Return the progress in the last lines of a log; None if there is none.

    >>> read_progress(["step=3 steps=10 loss=2.1", " 50%|##   | 1/2 [00:01<00:01]"])
    ProgressCount(done=3.0, total=10.0)
    >>> read_progress(["Epoch [2/8] begins"])
    ProgressCount(done=2.0, total=8.0)
    """
    bar: ProgressCount | None = None
    for line in reversed(list(lines)):
        for text in reversed(line.rsplit("\r", 8)):
            if len(text) > LONGEST_NUMBER_LINE:
                continue
            said = _progress_in_text(text)
            if said is not None:
                return said
            bar = bar or _by_bar(text)
    return bar


def _progress_in_text(text: str) -> ProgressCount | None:
    numbers = numbers_of(text)
    if numbers and "step" in numbers:
        total = next((numbers[name] for name in TOTALS if name in numbers), None)
        if total is not None:
            return _progress_count(numbers["step"], total)
    found = None if "%|" in text else _OF_WORD.search(text)
    return _progress_count(float(found[1]), float(found[2])) if found else None


def _by_bar(text: str) -> ProgressCount | None:
    found = _BAR.search(text)
    return _progress_count(float(found[1]), float(found[2])) if found else None


def _progress_count(done: float, total: float) -> ProgressCount | None:
    if not (0 <= done <= MOST and 0 < total <= MOST):
        return None
    return ProgressCount(min(done, total), total)


def followed(
    before: ProgressReading | None, told: ProgressCount, at: float
) -> ProgressReading:
    """Return the state after one more reading. A new count resets the pace."""
    same = (
        before is not None
        and before.told.total == told.total
        and before.told.done <= told.done
    )
    if before is None or not same:
        return ProgressReading(told, at, told.done, at)
    return ProgressReading(told, at, before.first_done, before.first_at)
