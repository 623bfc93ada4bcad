"""Send messages from the sampling child to its stream without ever delaying sampling.

A separate thread sends. The sampler only leaves the newest messages for it. While the
broker is away Samples are dropped and counted, never kept: gaps stay gaps. Once a
second the same thread reads which Gpus have an open page.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from telemetry.protocol.back_off import BackOff
from telemetry.protocol.broker_keys import RAW, WATCHED

STREAM_ENTRIES = 3900
"""Slightly more than one hour at 1 Hz, rosters and troubles included (approximate)."""
QUEUE_MOST = 6
"""Number of messages that may wait: a roster, a trouble and the last Samples."""
BACK_OFF_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0)
TIMEOUT_SECONDS = 2.0
WATCHED_EVERY_SECONDS = 0.9
WATCHED_REFUSED_SECONDS = 60.0
"""Time after which a broker is queried again that did not let the node read these
keys.
"""


_Message = tuple[bytes, "Callable[[], object] | None"]


def stream_name(node: str) -> str:
    """Return the name of a node's raw stream. The name decides which node a message is
    from."""
    return RAW + node


class Sender:
    """Appends messages to the node's raw stream. Messages that cannot be sent are
    dropped."""

    def __init__(self, url: str, node: str) -> None:
        self._client = redis.Redis.from_url(
            url,
            socket_timeout=TIMEOUT_SECONDS,
            socket_connect_timeout=TIMEOUT_SECONDS,
            retry=Retry(NoBackoff(), 0),
        )
        self._stream = stream_name(node)
        self._waiting: deque[_Message] = deque()
        self._followed: tuple[str, ...] = ()
        self._look_at = float("-inf")
        self.watched: frozenset[str] = frozenset()
        """UUIDs of the followed Gpus that have an open page."""
        self._changed = threading.Condition()
        self._closing = False
        self.sent = 0
        self.dropped = 0
        self.why = ""
        """Why the last message could not be sent; "" if it was sent."""
        self._thread = threading.Thread(target=self._run, name="sender", daemon=True)
        self._thread.start()

    @property
    def connected(self) -> bool:
        """Whether the last message was sent."""
        return not self.why

    def follow_gpus(self, uuids: Iterable[str]) -> None:
        """Set the Gpus for which `watched` is kept."""
        self._followed = tuple(uuids)

    def put(self, message: bytes, *, lost: Callable[[], object] | None = None) -> None:
        """Queue a message. If too many wait, the oldest one is dropped.

        `lost` is called, on any thread, if this message could not be sent.
        """
        with self._changed:
            self._waiting.append((message, lost))
            while len(self._waiting) > QUEUE_MOST:
                self._drop(self._waiting.popleft())
            self._changed.notify()

    def close(self, *, within_seconds: float) -> bool:
        """Send the queued messages. Return whether they were sent in time."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(within_seconds)
        return not self._thread.is_alive() and not self._waiting

    def _run(self) -> None:
        back_off = BackOff(BACK_OFF_SECONDS)
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
                    {"m": message[0]},
                    maxlen=STREAM_ENTRIES,
                    approximate=True,
                )
            except (redis.RedisError, OSError) as error:
                self._drop(message)
                self.why = f"{type(error).__name__}: {error}"
                if self._closing:
                    return
                time.sleep(back_off.failed())
            else:
                self.sent += 1
                self.why = ""
                back_off.succeeded()
                self._read_watched()

    def _drop(self, message: _Message) -> None:
        self.dropped += 1
        if message[1] is not None:
            message[1]()

    def _read_watched(self) -> None:
        """Read which Gpus have an open page. Without an answer, none has."""
        now, uuids = time.monotonic(), self._followed
        if now < self._look_at or not uuids:
            return
        self._look_at = now + WATCHED_EVERY_SECONDS
        try:
            found = self._client.mget([WATCHED + uuid for uuid in uuids])
        except redis.ResponseError:
            # The node's user may not read these keys (an older deploy/acl.sh).
            self._look_at = now + WATCHED_REFUSED_SECONDS
            self.watched = frozenset()
        except (redis.RedisError, OSError):
            self.watched = frozenset()
        else:
            pairs = zip(uuids, found, strict=True)  # type: ignore[arg-type]
            self.watched = frozenset(uuid for uuid, value in pairs if value)
