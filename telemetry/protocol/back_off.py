"""Growing pauses between attempts at something that fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def pause_after(pauses_seconds: Sequence[float], failures: int) -> float:
    """Return the seconds to wait after so many failures in a row, 1 or more.

    The last pause stays.

    >>> [pause_after((60, 300), n) for n in (1, 2, 3)]
    [60, 300, 300]
    """
    return pauses_seconds[min(max(failures, 1), len(pauses_seconds)) - 1]


class BackOff:
    """The pause before the next attempt. It counts failures and reads no clock.

    >>> pauses = BackOff((0.5, 1.0, 2.0))
    >>> [pauses.failed() for _ in range(4)]
    [0.5, 1.0, 2.0, 2.0]
    >>> pauses.succeeded()
    >>> pauses.failed()
    0.5
    """

    __slots__ = ("_between", "_jitter", "_pauses_seconds", "failures", "pause_seconds")

    def __init__(
        self,
        pauses_seconds: Sequence[float],
        *,
        jitter: tuple[float, float] = (1.0, 1.0),
        between: Callable[[float, float], float] = max,
    ) -> None:
        """Begin without a failure.

        Args:
            pauses_seconds: after the first failure, the second, and so on. The last one
                is repeated.
            jitter: smallest and largest factor of a pause, so that many processes do
                not come back at one instant.
            between: draws a number between the two, such as ``random.uniform``.
        """
        self._pauses_seconds = tuple(pauses_seconds)
        self._jitter = jitter
        self._between = between
        self.failures = 0
        """Number of failures in a row."""
        self.pause_seconds = 0.0
        """The pause after the last failure; 0 without a failure."""

    def failed(self) -> float:
        """Count a failure. Return the seconds to wait before the next attempt."""
        self.failures += 1
        pause_seconds = pause_after(self._pauses_seconds, self.failures)
        self.pause_seconds = pause_seconds * self._between(*self._jitter)
        return self.pause_seconds

    def succeeded(self) -> None:
        """Forget the failures."""
        self.failures = 0
        self.pause_seconds = 0.0
