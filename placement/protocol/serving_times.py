"""The run times of a served model: measured at load, then updated by each run.

There are two figures: the mean of the recent runs, because the times of consecutive
runs add up to that many means, and the 95th percentile, for a single run. The ratio of
slow runs to usual ones is taken over all batch sizes together, because one slow run of
a rare size would count for too long. Times are seconds of one monotonic clock that the
caller reads.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

RECENT = 50
"""Number of runs of one batch size from which a prediction is made."""
RECENT_SECONDS = 30.0
"""Older runs are ignored. A machine that was slow may be fast again, and without
admitted requests nothing would show it.
"""
FEWEST = 5
PREDICTED_QUANTILE = 0.95


HEARD = 100
HEARD_SECONDS = 5.0
FRESH_SECONDS = 0.05
"""Seconds for which a reported figure is valid."""


class ServingError(Exception):
    """The calling code passed an invalid value. It is never caused by a person's
    request.
    """


def quantile(values: Iterable[float], part: float) -> float:
    """Return the nearest-rank quantile. Raises ValueError without values.

    >>> quantile([4.0, 1.0, 3.0, 2.0], 0.5)
    2.0
    """
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    rank = max(1, -int(-part * len(ordered) // 1))
    return ordered[min(rank, len(ordered)) - 1]


class Timing:
    """The run times of one model by batch size, measured at load and then updated.

    ``profile``: batch size -> seconds of single runs, none empty.
    """

    def __init__(
        self, profile: Mapping[int, Sequence[float]], *, load_seconds: float
    ) -> None:
        if not profile or not all(profile.values()):
            raise ServingError("a profile needs a run of at least one batch size")
        self.profile = {size: tuple(profile[size]) for size in sorted(profile)}
        self.load_seconds = load_seconds
        self.most_rows = max(self.profile)
        """The largest batch size that was measured."""
        self._recent: dict[int, deque[tuple[float, float]]] = {
            size: deque(maxlen=RECENT) for size in self.profile
        }
        self._size_of = [
            next(size for size in self.profile if size >= rows)
            for rows in range(self.most_rows + 1)
        ]
        self._last: deque[tuple[float, int, float]] = deque(maxlen=RECENT)
        """The runs of all sizes: (when, size, seconds)."""
        self._means = {size: _mean(runs) for size, runs in self.profile.items()}
        self._typical = dict(self._means)
        self._slow = self._slow_ratio()

    def size_of(self, rows: int) -> int:
        """Return the measured batch size that is used for so many rows."""
        return self._size_of[min(rows, self.most_rows)]

    def typical_seconds(self, rows: int) -> float:
        """Return the mean time of a run."""
        return self._typical[self.size_of(rows)]

    def predicted_seconds(self, rows: int) -> float:
        """Return the time that 19 of 20 runs do not exceed, but at least the mean."""
        return self._typical[self.size_of(rows)] * self._slow

    def rows_within(self, seconds: float) -> int:
        """Return the largest measured batch that usually takes no longer; 0 if none."""
        fit = (size for size, usual in self._typical.items() if usual <= seconds)
        return max(fit, default=0)

    def record_run(self, rows: int, seconds: float, now: float) -> None:
        """Record a run."""
        size = self.size_of(rows)
        self._recent[size].append((now, seconds))
        self._last.append((now, size, seconds))
        self.forget(now, size)

    def forget(self, now: float, size: int | None = None) -> None:
        """Drop old runs, so that only recent runs predict."""
        for one in self.profile if size is None else (size,):
            recent = self._recent[one]
            while recent and recent[0][0] < now - RECENT_SECONDS:
                recent.popleft()
            runs = [seconds for _, seconds in recent]
            if len(runs) < FEWEST:
                runs += self.profile[one]
            self._means[one] = _mean(runs)
        while self._last and self._last[0][0] < now - RECENT_SECONDS:
            self._last.popleft()
        self._typical = self._bounded()
        self._slow = self._slow_ratio()

    def _bounded(self) -> dict[int, float]:
        """Bound a run's time by that of a recent run with more rows.

        Small batches are rare under load, so one slow run of theirs would count for too
        long.
        """
        known, most = {}, float("inf")
        for size in reversed(self.profile):
            known[size] = min(self._means[size], most)
            if len(self._recent[size]) >= FEWEST:
                most = known[size]
        return known

    def _slow_ratio(self) -> float:
        """Return how many usual runs a slow one takes (19 of 20 are faster), at least
        1.
        """
        means = self._means
        ratios = [seconds / means[size] for _, size, seconds in self._last]
        if len(ratios) < FEWEST:
            ratios += [
                seconds / _mean(runs)
                for runs in self.profile.values()
                for seconds in runs
            ]
        return max(1.0, quantile(ratios, PREDICTED_QUANTILE))


def _mean(runs: Sequence[float]) -> float:
    return sum(runs) / len(runs)


class Lag:
    """The delay of answers from the end of their run to the waiting caller."""

    def __init__(self) -> None:
        self._heard: deque[tuple[float, float]] = deque(maxlen=HEARD)
        self._known, self._known_at = 0.0, float("-inf")

    def heard(self, seconds: float, now: float) -> None:
        """Record the delay of one answer."""
        self._heard.append((now, seconds))

    def seconds(self, now: float) -> float:
        """Return the 95th percentile of recent answers; 0.0 without answers."""
        if now - self._known_at > FRESH_SECONDS:
            late = [one for at, one in self._heard if at > now - HEARD_SECONDS]
            self._known = quantile(late, PREDICTED_QUANTILE) if late else 0.0
            self._known_at = now
        return self._known
