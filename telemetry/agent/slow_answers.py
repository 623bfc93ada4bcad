"""Questions that may take seconds, asked without ever stopping a Sample.

A directory of users or a container engine may be slow or dead. Each kind of
question has a thread of its own; who waited in vain is told the next time.
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
    """What is known by now."""

    known: bool
    value: str | None = None
    """None: there is no answer, or (not `known`) there is none yet."""


PENDING = SlowAnswer(known=False)


class SlowAnswers(Generic[Key]):
    """Keeps answers for ten minutes and asks for each key once at a time.

    `ask` runs on the thread and must end by itself; what it raises is a bug
    of `ask` and counts as "no answer".
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
        """Whether the last wait was in vain: then none waits until it answers."""

    def get(self, key: Key) -> SlowAnswer:
        """What is known of a key; waits a moment the first time."""
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
        """Forget everything now and then: accounts are made and renamed."""
        if at < self._forget_at:
            return
        self._forget_at = at + KEPT_SECONDS
        with self._lock:
            self._found = {}
            # Questions on their way stay, or a dead server would gather a queue.
            self._asked = {k: x for k, x in self._asked.items() if not x.is_set()}

    def forget(self, key: Key) -> None:
        """Ask again the next time."""
        with self._lock:
            self._found.pop(key, None)
            self._asked.pop(key, None)

    def _run(self) -> None:
        while True:
            key = self._queue.get()
            try:
                value = self._ask(key)
            except Exception:
                traceback.print_exc()  # a bug: it costs this answer, not the thread
                value = None
            self._slow = False
            with self._lock:
                done = self._asked.get(key)
                if done is not None:
                    self._found[key] = value
                    done.set()
