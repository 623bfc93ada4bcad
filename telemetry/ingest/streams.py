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
"""One name for all: only the lease's holder reads, and so finds what its
predecessor took and did not finish."""
READ_COUNT = 25
"""Messages of one node that are handled before it is another one's turn."""
FUTURE_MILLISECONDS = 60_000
"""An entry further ahead of the server's clock was given its id by the node. No
entry with an id of the server's could follow it: the stream is begun again."""
WAIT_SECONDS = 1.0
WRONG_TYPE_PAUSE_SECONDS = 0.05
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
        on_misuse: Callable[[Misuse], object] = lambda _misuse: None,
    ) -> None:
        self._redis = redis
        self.prefix = prefix
        self._handler = handler
        self._complaints = complaints
        self._on_misuse = on_misuse
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
        messages = 0
        for key, part in self._taken(keys, block_seconds):
            messages += len(part)
            for entry_id, fields in part:
                # An entry that was trimmed away while it waited has no fields.
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

    def _taken(self, keys: list[str], block_seconds: float) -> list[tuple[str, Any]]:
        """Entries by stream, waiting so long for the first; one bad stream costs
        no other."""
        try:
            answer: Any = self._redis.xreadgroup(
                GROUP,
                CONSUMER,
                dict.fromkeys(keys, self._from),
                count=READ_COUNT,
                block=None if self._unfinished else max(1, int(block_seconds * 1000)),
            )
        except ResponseError:
            answer = self._each(keys)
            if not answer:
                # Who makes such keys in a loop must not keep this one busy.
                threading.Event().wait(WRONG_TYPE_PAUSE_SECONDS)
        return [(key.decode(), part) for key, part in answer or []]

    @property
    def _from(self) -> str:
        return "0" if self._unfinished else ">"

    def _each(self, keys: list[str]) -> list[Any]:
        """The same, asked for each stream by itself, after one of them was refused."""
        with self._redis.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.xreadgroup(GROUP, CONSUMER, {key: self._from}, count=READ_COUNT)
            answers = pipe.execute(raise_on_error=False)
        found: list[Any] = []
        for key, answer in zip(keys, answers, strict=True):
            if isinstance(answer, ResponseError) and "NOGROUP" in str(answer):
                # Deleted under our feet; the group is made again at the next step.
                self._groups.discard(key)
            elif isinstance(answer, ResponseError):
                self._drop(key, answer)
            elif isinstance(answer, Exception):
                raise answer
            else:
                found += answer or []
        return found

    def _drop(self, key: str, why: object) -> None:
        """Begin a stream again: what is under its name cannot be read."""
        self._redis.unlink(key)
        self._groups.discard(key)
        node = key.removeprefix(self.prefix)
        self._on_misuse(Misuse(node, f"{key} was deleted: {why}"))

    def _of_the_future(self, entry_id: bytes) -> bool:
        milliseconds = int(entry_id.partition(b"-")[0])
        if milliseconds < time.time() * 1000:
            return False
        # Ahead of our clock: only the server's own says whether it is of the future.
        seconds, _microseconds = self._redis.time()  # type: ignore[misc]
        return milliseconds > seconds * 1000 + FUTURE_MILLISECONDS

    def trim(self, nodes: Iterable[str]) -> None:
        """Bound the streams of nodes that do not bound them themselves."""
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
            # Once a minute: whoever finds one such message can send thousands.
            if self._complaints.add(key, f"{type(error).__name__}: {error}"):
                logger.exception("a message of %s could not be handled", key)
