"""How long a served model's runs take: measured at load, then as it goes.

Two figures: the mean of the runs of late, because the times of runs one after another
add up to so many means; and what 19 of 20 runs did not exceed, for the one that is
asked about. Times are seconds of one monotonic clock that the caller reads.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

RECENT = 50
"""Runs of one batch size that a prediction is made of."""
RECENT_SECONDS = 30.0
"""Older runs count for nothing: a machine that was slow may be quick again, and one
that nobody is let into would never show it."""
FEWEST = 5
PREDICTED_QUANTILE = 0.95


class ServingError(Exception):
    """What the caller asked for cannot be; never a person's request."""


def quantile(values: Iterable[float], part: float) -> float:
    """The nearest-rank quantile. Raises ValueError for no values.

    >>> quantile([4.0, 1.0, 3.0, 2.0], 0.5)
    2.0
    """
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    rank = max(1, -int(-part * len(ordered) // 1))
    return ordered[min(rank, len(ordered)) - 1]


class Timing:
    """How long one model's runs take, by batch size; measured at load, then as it goes.

    ``profile``: batch size -> seconds of single runs, none empty.
    """

    def __init__(
        self, profile: Mapping[int, Sequence[float]], *, load_seconds: float
    ) -> None:
        if not profile or not all(profile.values()):
            raise ServingError("a profile needs a run of at least one batch size")
        self.profile = {size: tuple(profile[size]) for size in sorted(profile)}
        self.load_seconds = load_seconds
        self._recent: dict[int, deque[tuple[float, float]]] = {
            size: deque(maxlen=RECENT) for size in self.profile
        }
        self._known: dict[int, tuple[float, float]] = {}

    @property
    def most_rows(self) -> int:
        """The largest batch that was measured."""
        return max(self.profile)

    def size_of(self, rows: int) -> int:
        """The measured batch size that stands for so many rows."""
        return next((size for size in self.profile if size >= rows), self.most_rows)

    def typical_seconds(self, rows: int) -> float:
        """What a run takes in the mean."""
        return self._figures(rows)[0]

    def predicted_seconds(self, rows: int) -> float:
        """What a run takes, 19 times of 20 not more; never under the mean."""
        return self._figures(rows)[1]

    def _figures(self, rows: int) -> tuple[float, float]:
        size = self.size_of(rows)
        if size not in self._known:
            self._known[size] = _figures(self.profile[size])
        return self._known[size]

    def ran(self, rows: int, seconds: float, now: float) -> None:
        """Remember a run."""
        size = self.size_of(rows)
        self._recent[size].append((now, seconds))
        self.forget(now, size)

    def forget(self, now: float, size: int | None = None) -> None:
        """Predict anew from the runs of late."""
        for one in self.profile if size is None else (size,):
            recent = self._recent[one]
            while recent and recent[0][0] < now - RECENT_SECONDS:
                recent.popleft()
            runs = [seconds for _, seconds in recent]
            if len(runs) < FEWEST:
                runs += self.profile[one]
            self._known[one] = _figures(runs)


def _figures(runs: Sequence[float]) -> tuple[float, float]:
    mean = sum(runs) / len(runs)
    return mean, max(mean, quantile(runs, PREDICTED_QUANTILE))
