"""A log that nobody can flood from outside: the same kind of line so often a minute."""

import logging
import threading
import time
from collections.abc import Callable

PER_MINUTE = 20
"""Lines of one logger, level and text (before its arguments are put in)."""
MOST_KINDS = 1000


class Repeats(logging.Filter):
    """Lets the first lines of a kind through each minute and leaves out the rest.

    What a node sends, or a visitor asks, may be refused a thousand times a second; the
    first of the next minute says how many were left out.
    """

    def __init__(
        self,
        per_minute: int = PER_MINUTE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._per_minute = per_minute
        self._clock = clock
        self._lock = threading.Lock()
        self._minute = 0
        self._counts: dict[tuple[str, int, str], int] = {}
        self._left_out: dict[tuple[str, int, str], int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether this line is written."""
        kind = (record.name, record.levelno, str(record.msg)[:200])
        with self._lock:
            minute = int(self._clock() // 60)
            if minute != self._minute:
                self._minute, before = minute, self._counts
                self._counts = {}
                self._left_out = {
                    key: count - self._per_minute
                    for key, count in before.items()
                    if count > self._per_minute
                }
            if kind not in self._counts and len(self._counts) >= MOST_KINDS:
                return False
            self._counts[kind] = self._counts.get(kind, 0) + 1
            if self._counts[kind] > self._per_minute:
                return False
            left_out = self._left_out.pop(kind, 0)
        if left_out:
            record.msg = f"{record.msg} ({left_out} more in the minute before)"
        return True
