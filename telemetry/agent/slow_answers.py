"""Run queries that may take seconds, without ever delaying a Sample.

A directory of users or a container engine may be slow or dead. Each kind of query has
its own thread. An answer that comes too late is used the next time.
"""

from __future__ import annotations

import queue
import threading
import traceback
from collections.abc import Callable, Hashable
from typing import Generic, NamedTuple, TypeVar

WAIT_SECONDS = 0.05
KEPT_SECONDS = 600.0
MOST_KEPT = 4096

Key = TypeVar("Key", bound=Hashable)


class SlowAnswer(NamedTuple):
    """The answer to a query, if there is one by now."""

    known: bool
    value: str | None = None
    """None: there is no answer or, if not `known`, none yet."""


PENDING = SlowAnswer(known=False)


class SlowAnswers(Generic[Key]):
    """Keeps answers for ten minutes and runs only one query at a time for each key.

    `ask` runs on the thread and must return in the end. An exception is a bug of `ask`
    and counts as no answer.
    """

    def __init__(
        self,
        ask: Callable[[Key], str | None],
        *,
        name: str,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        self._ask = ask
        self._name = name
        self._wait_seconds = wait_seconds
        self._found: dict[Key, str | None] = {}
        self._asked: dict[Key, threading.Event] = {}
        self._forget_at = 0.0
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[Key] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._slow = False
        """Whether the last wait gave no answer. Then nobody waits until an answer
        comes."""

    def get(self, key: Key) -> SlowAnswer:
        """Return the answer for a key, if known. The first call waits a moment."""
        if key in self._found:
            return SlowAnswer(known=True, value=self._found[key])
        with self._lock:
            done = self._asked.get(key)
            first = done is None
            if done is None:
                if len(self._asked) >= MOST_KEPT:
                    return PENDING
                done = self._asked[key] = threading.Event()
                self._queue.put(key)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=self._name, daemon=True
                )
                self._thread.start()
        if first and not self._slow:
            self._slow = not done.wait(self._wait_seconds)
        if key in self._found:
            return SlowAnswer(known=True, value=self._found[key])
        return PENDING

    def refresh(self, at: float) -> None:
        """Forget everything from time to time, because accounts are made and
        renamed."""
        if at < self._forget_at:
            return
        self._forget_at = at + KEPT_SECONDS
        with self._lock:
            self._found = {}
            # Pending questions are kept. Otherwise they would pile up at a dead server.
            self._asked = {k: x for k, x in self._asked.items() if not x.is_set()}

    def forget(self, key: Key) -> None:
        """Forget one answer, so that the next call asks again."""
        with self._lock:
            self._found.pop(key, None)
            self._asked.pop(key, None)

    def _run(self) -> None:
        while True:
            key = self._queue.get()
            try:
                value = self._ask(key)
            except Exception:
                traceback.print_exc()  # a bug of `ask`: the thread goes on
                value = None
            self._slow = False
            with self._lock:
                done = self._asked.get(key)
                if done is not None:
                    self._found[key] = value
                    done.set()
