"""Facts and log chunks: each handled once, in the order its node sent them."""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from django.db import InterfaceError, OperationalError, close_old_connections
from django.utils import timezone
from redis import Redis, RedisError, ResponseError

from telemetry.ingest.bounds import Misuse
from telemetry.ingest.complaints import Complaints

GROUP = "ingest"
CONSUMER = "ingest"
"""One name for all ingests. Only the lease's holder reads, so it finds the messages
that its predecessor took and did not finish."""
READ_COUNT = 25
"""Messages of one node that are handled before the next node's."""
FUTURE_MILLISECONDS = 60_000
"""A node chose the id of an entry that is further ahead of the server's clock. No entry
with an id of the server could follow it, so the stream is started again."""
WAIT_SECONDS = 1.0
WRONG_TYPE_PAUSE_SECONDS = 0.05
STREAM_MAXLEN = 10_000
MESSAGE_MOST_BYTES = 512 * 1024

Handler = Callable[[str, dict[str, Any], datetime], object]
"""(node's name, message, now) -> a result that is ignored."""

logger = logging.getLogger(__name__)


class GroupReader:
    """Passes every message of one kind of stream to a handler, then acknowledges it.

    A message that is invalid, or on which the handler fails, is logged and
    acknowledged, so that it never blocks the others. If the database is away, the
    message and those after it stay.
    """

    def __init__(
        self,
        redis: Redis,
        *,
        prefix: str,
        handler: Handler,
        complaints: Complaints,
        on_misuse: Callable[[Misuse], object] = lambda _misuse: None,
    ) -> None:
        self._redis = redis
        self.prefix = prefix
        self._handler = handler
        self._complaints = complaints
        self._on_misuse = on_misuse
        self._groups: set[str] = set()
        self._unfinished = True
        """Whether there may be messages that were taken but not acknowledged."""
        self.handled = 0

    def run(
        self,
        stop: threading.Event,
        may_read: Callable[[], bool],
        nodes: Callable[[], Iterable[str]],
    ) -> None:
        """Handle messages until `stop`."""
        while not stop.is_set():
            if not may_read():
                self._unfinished = True
                stop.wait(0.2)
                continue
            try:
                if not self.handle_messages(list(nodes()), block_seconds=0.5):
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

    def handle_messages(self, nodes: list[str], *, block_seconds: float) -> int:
        """Handle the messages that are there, waiting so long for the first one. Return
        how many."""
        if not nodes:
            threading.Event().wait(block_seconds)
            return 0
        keys = [self.prefix + node for node in nodes]
        self._make_groups(keys)
        messages = 0
        for key, part in self._read_streams(keys, block_seconds):
            messages += len(part)
            for entry_id, fields in part:
                # An entry that was trimmed while it waited has no fields.
                payload = (fields or {}).get(b"m", b"")
                self._handle(key, payload)
                self._redis.xack(key, GROUP, entry_id)
                if len(payload) > MESSAGE_MOST_BYTES:
                    self._redis.xdel(key, entry_id)
                self.handled += 1
            if part and self._of_the_future(part[-1][0]):
                self._drop(key, "it had an entry of the future")
        if not messages:
            self._unfinished = False
        return messages

    def _read_streams(
        self, keys: list[str], block_seconds: float
    ) -> list[tuple[str, Any]]:
        """Return entries by stream, waiting so long for the first one. A bad stream
        affects no other."""
        try:
            answer: Any = self._redis.xreadgroup(
                GROUP,
                CONSUMER,
                dict.fromkeys(keys, self._first_id),
                count=READ_COUNT,
                block=None if self._unfinished else max(1, int(block_seconds * 1000)),
            )
        except ResponseError:
            answer = self._read_each(keys)
            if not answer:
                # A node that makes such keys in a loop must not keep this process busy.
                threading.Event().wait(WRONG_TYPE_PAUSE_SECONDS)
        return [(key.decode(), part) for key, part in answer or []]

    @property
    def _first_id(self) -> str:
        return "0" if self._unfinished else ">"

    def _read_each(self, keys: list[str]) -> list[Any]:
        """Read each stream separately, after a read of all was refused."""
        with self._redis.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.xreadgroup(
                    GROUP, CONSUMER, {key: self._first_id}, count=READ_COUNT
                )
            answers = pipe.execute(raise_on_error=False)
        found: list[Any] = []
        for key, answer in zip(keys, answers, strict=True):
            if isinstance(answer, ResponseError) and "NOGROUP" in str(answer):
                # The stream was deleted meanwhile. The next step makes the group again.
                self._groups.discard(key)
            elif isinstance(answer, ResponseError):
                self._drop(key, answer)
            elif isinstance(answer, Exception):
                raise answer
            else:
                found += answer or []
        return found

    def _drop(self, key: str, why: object) -> None:
        """Start a stream again, because the key under its name cannot be read."""
        self._redis.unlink(key)
        self._groups.discard(key)
        node = key.removeprefix(self.prefix)
        self._on_misuse(Misuse(node, f"{key} was deleted: {why}"))

    def _of_the_future(self, entry_id: bytes) -> bool:
        milliseconds = int(entry_id.partition(b"-")[0])
        if milliseconds < time.time() * 1000:
            return False
        # The id is ahead of our clock. Only the server's clock shows whether it is in
        # the future.
        seconds, _microseconds = self._redis.time()  # type: ignore[misc]
        return milliseconds > seconds * 1000 + FUTURE_MILLISECONDS

    def trim(self, nodes: Iterable[str]) -> None:
        """Trim the streams of nodes that do not trim them themselves."""
        with self._redis.pipeline(transaction=False) as pipe:
            for node in nodes:
                pipe.xtrim(self.prefix + node, maxlen=STREAM_MAXLEN, approximate=True)
            pipe.execute(raise_on_error=False)

    def _make_groups(self, keys: list[str]) -> None:
        for key in set(keys) - self._groups:
            try:
                self._redis.xgroup_create(key, GROUP, id="0", mkstream=True)
            except ResponseError as error:
                if "WRONGTYPE" in str(error):
                    self._drop(key, error)
                    continue
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
            # Once a minute, because a node that can send one such message can send
            # thousands.
            if self._complaints.add(key, f"{type(error).__name__}: {error}"):
                logger.exception("a message of %s could not be handled", key)
