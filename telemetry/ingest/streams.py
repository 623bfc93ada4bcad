"""Facts and log chunks: each handled once, in the order its node sent them."""

import json
import logging
import threading
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from django.db import InterfaceError, OperationalError, close_old_connections
from django.utils import timezone
from redis import Redis, RedisError, ResponseError

from telemetry.ingest.complaints import Complaints

GROUP = "ingest"
CONSUMER = "ingest"
"""One name for all: only the lease's holder reads, and so finds what its
predecessor took and did not finish."""
READ_COUNT = 100
WAIT_SECONDS = 1.0
STREAM_MAXLEN = 10_000
MESSAGE_MOST_BYTES = 512 * 1024

Handler = Callable[[str, dict[str, Any], datetime], object]
"""(node's name, message, now); what it returns is its own affair."""

logger = logging.getLogger(__name__)


class GroupReader:
    """Hands every message of one kind of stream to a handler, then acknowledges.

    A message that cannot be read, or that the handler fails on, is logged and
    done with: one bad message never blocks the rest. A database that is away is
    no fault of the message: it stays, and so does what came after it.
    """

    def __init__(
        self,
        redis: Redis,
        *,
        prefix: str,
        handler: Handler,
        complaints: Complaints,
    ) -> None:
        self._redis = redis
        self.prefix = prefix
        self._handler = handler
        self._complaints = complaints
        self._groups: set[str] = set()
        self._unfinished = True
        """Whether messages may be there that were taken and not acknowledged."""
        self.handled = 0

    def run(
        self,
        stop: threading.Event,
        may_read: Callable[[], bool],
        nodes: Callable[[], Iterable[str]],
    ) -> None:
        """Handle messages until told to stop."""
        while not stop.is_set():
            if not may_read():
                self._unfinished = True
                stop.wait(0.2)
                continue
            try:
                if not self.step(list(nodes()), block_seconds=0.5):
                    close_old_connections()
            except RedisError as error:
                self._groups.clear()
                self._unfinished = True
                self._complaints.add(f"reading {self.prefix}*", error)
                stop.wait(WAIT_SECONDS)
            except (OperationalError, InterfaceError) as error:
                self._unfinished = True
                self._complaints.add(f"handling {self.prefix}*", error)
                close_old_connections()
                stop.wait(WAIT_SECONDS)
        close_old_connections()

    def step(self, nodes: list[str], *, block_seconds: float) -> int:
        """Handle what is there, waiting so long for the first; how many."""
        if not nodes:
            threading.Event().wait(block_seconds)
            return 0
        keys = [self.prefix + node for node in nodes]
        self._make_groups(keys)
        taken = self._redis.xreadgroup(
            GROUP,
            CONSUMER,
            dict.fromkeys(keys, "0" if self._unfinished else ">"),
            count=READ_COUNT,
            block=None if self._unfinished else max(1, int(block_seconds * 1000)),
        )
        messages = [(key, entry) for key, part in taken or [] for entry in part]  # type: ignore[union-attr]
        for key, (entry_id, fields) in messages:
            # An entry that was trimmed away while it waited has no fields.
            self._handle(key.decode(), (fields or {}).get(b"m", b""))
            self._redis.xack(key, GROUP, entry_id)
            if len((fields or {}).get(b"m", b"")) > MESSAGE_MOST_BYTES:
                self._redis.xdel(key, entry_id)
            self.handled += 1
        if not messages:
            self._unfinished = False
        return len(messages)

    def trim(self, nodes: Iterable[str]) -> None:
        """Bound the streams of nodes that do not bound them themselves."""
        with self._redis.pipeline(transaction=False) as pipe:
            for node in nodes:
                pipe.xtrim(self.prefix + node, maxlen=STREAM_MAXLEN, approximate=True)
            pipe.execute()

    def _make_groups(self, keys: list[str]) -> None:
        for key in set(keys) - self._groups:
            try:
                self._redis.xgroup_create(key, GROUP, id="0", mkstream=True)
            except ResponseError as error:
                if "BUSYGROUP" not in str(error):
                    raise
            self._groups.add(key)

    def _handle(self, key: str, payload: bytes) -> None:
        node = key.removeprefix(self.prefix)
        try:
            if len(payload) > MESSAGE_MOST_BYTES:
                raise ValueError(f"{len(payload)} bytes, at most {MESSAGE_MOST_BYTES}")
            message = json.loads(payload)
            if not isinstance(message, dict):
                raise ValueError("not an object")
        except (ValueError, RecursionError) as error:
            self._complaints.add(key, f"message refused: {error}")
            return
        try:
            self._handler(node, message, timezone.now())
        except (OperationalError, InterfaceError, RedisError):
            raise
        except Exception as error:
            # Once a minute: whoever finds one such message can send thousands.
            if self._complaints.add(key, f"{type(error).__name__}: {error}"):
                logger.exception("a message of %s could not be handled", key)
