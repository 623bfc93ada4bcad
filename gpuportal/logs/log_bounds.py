"""Limit each kind of log line to some lines a minute, so that nobody can flood a log.

All logs of the portal's processes pass it, those of uvicorn and Celery included.
"""

import logging
import threading
import time
from collections.abc import Callable

PER_MINUTE = 20
"""Most lines a minute of one logger, level and text (without its arguments)."""
MOST_KINDS = 1000
TRACEBACKS_PER_MINUTE = 1
"""Lines of a kind are counted over this time."""

_Kind = tuple[str, int, str, str]
"""Logger, level, text before its arguments, name of the exception."""


class RepeatFilter(logging.Filter):
    """Lets the first lines of a kind through each minute and drops the others.

    Messages of a node or requests of a visitor may be refused a thousand times a
    second. The first line of the next minute gives the number of dropped ones. The
    first line of a kind has its traceback. The others name the exception in the line.
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
        self._counts: dict[_Kind, int] = {}
        self._left_out: dict[_Kind, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether this line is written."""
        error = record.exc_info[1] if record.exc_info else None
        kind = (
            *(record.name, record.levelno, str(record.msg)[:200]),
            type(error).__name__ if error is not None else "",
        )
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
            count = self._counts[kind]
            left_out = self._left_out.pop(kind, 0)
        if error is not None and count > TRACEBACKS_PER_MINUTE:
            said = f"{kind[-1]}: {error}".partition("\n")[0]
            record.msg = f"{record.getMessage().strip()}: {said} (traceback above)"
            record.args = None
            record.exc_info = record.exc_text = None
        if left_out:
            record.msg = f"{record.msg} ({left_out} more in the minute before)"
        return True
