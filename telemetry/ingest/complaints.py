"""Log once a minute which invalid messages nodes send."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable

MOST_KEYS = 1000


class Complaints:
    """Counts complaints by key, and logs one line per key and minute with count and
    reason.

    A node that floods the site with garbage must not flood the log as well.
    """

    def __init__(
        self,
        logger: logging.Logger,
        *,
        every_seconds: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._logger = logger
        self._every_seconds = every_seconds
        self._clock = clock
        self._said_at: dict[str, float] = {}
        self._unsaid: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        """All complaints since the start, by key."""

    def add(self, key: str, why: object) -> bool:
        """Count a complaint and log it at most once a minute. Return whether it was
        logged."""
        with self._lock:
            if key not in self.counts and len(self.counts) >= MOST_KEYS:
                key = "others"
            self.counts[key] += 1
            self._unsaid[key] += 1
            at = self._clock()
            if at - self._said_at.get(key, float("-inf")) < self._every_seconds:
                return False
            self._said_at[key] = at
            times = self._unsaid.pop(key)
        # Texts of machines and servers may have several lines.
        words = " ".join(str(why).split())[:300]
        self._logger.warning("%s: %s (%d times)", key, words, times)
        return True
