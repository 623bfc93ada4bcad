"""From the sampling child to its stream, without ever holding the sampling up.

A thread of its own sends; the sampler only leaves the newest messages. While
the broker is away Samples are dropped and counted, never kept: a hole is a hole.
"""

from __future__ import annotations

import threading
import time
from collections import deque

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

STREAM_ENTRIES = 3700
"""An hour at 1 Hz, and a little (approximate trimming)."""
QUEUE_MOST = 4
"""Messages that may wait: a roster and the last Samples."""
BACK_OFF_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0)
TIMEOUT_SECONDS = 2.0


def stream_name(node: str) -> str:
    """Name of a node's raw stream: what it is called is what it speaks for."""
    return f"raw.{node}"


class Sender:
    """Appends messages to the node's raw stream; drops what cannot be sent."""

    def __init__(self, url: str, node: str) -> None:
        self._client = redis.Redis.from_url(
            url,
            socket_timeout=TIMEOUT_SECONDS,
            socket_connect_timeout=TIMEOUT_SECONDS,
            retry=Retry(NoBackoff(), 0),
        )
        self._stream = stream_name(node)
        self._waiting: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self.sent = 0
        self.dropped = 0
        self.why = ""
        """Why the last message could not be sent; "" while all is well."""
        self._thread = threading.Thread(target=self._run, name="sender", daemon=True)
        self._thread.start()

    @property
    def connected(self) -> bool:
        """Whether the last message went through."""
        return not self.why

    def put(self, message: bytes) -> None:
        """Leave a message; the oldest one is dropped when too many wait."""
        with self._changed:
            self._waiting.append(message)
            while len(self._waiting) > QUEUE_MOST:
                self._waiting.popleft()
                self.dropped += 1
            self._changed.notify()

    def close(self, *, within_seconds: float) -> bool:
        """Send what waits, if it can be sent in time; says whether it was."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(within_seconds)
        return not self._thread.is_alive() and not self._waiting

    def _run(self) -> None:
        failures = 0
        while True:
            with self._changed:
                while not self._waiting and not self._closing:
                    self._changed.wait()
                if not self._waiting:
                    return
                message = self._waiting.popleft()
            try:
                self._client.xadd(
                    self._stream,
                    {"m": message},
                    maxlen=STREAM_ENTRIES,
                    approximate=True,
                )
            except (redis.RedisError, OSError) as error:
                self.dropped += 1
                self.why = f"{type(error).__name__}: {error}"
                if self._closing:
                    return
                pause = BACK_OFF_SECONDS[min(failures, len(BACK_OFF_SECONDS) - 1)]
                failures += 1
                time.sleep(pause)
            else:
                self.sent += 1
                self.why = ""
                failures = 0
