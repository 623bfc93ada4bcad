"""The last configuration or metadata of an identity provider, in memory."""

import math
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
KEPT_SECONDS = 600.0
"""How long an answer is used before it is read again."""
PAUSE_SECONDS = 5.0
"""After a failure, how long the provider is not asked again. So an absent provider
does not keep threads busy."""


class ProviderAway(Exception):
    """The provider did not answer."""


class ProviderAnswerInvalid(Exception):
    """The provider answered with something that cannot be used."""


class KeptAnswer(Generic[T]):
    """An answer that the threads of a process share."""

    def __init__(
        self,
        read: Callable[[], T],
        *,
        longest_seconds: float = math.inf,
        still_valid: Callable[[T], bool] = lambda _answer: True,
    ) -> None:
        """Keep what ``read`` returns.

        Args:
            longest_seconds: how long an answer is used while the provider is away.
            still_valid: whether an answer may be used now. It is asked each time.
        """
        self._read = read
        self._longest_seconds, self._still_valid = longest_seconds, still_valid
        self._lock = threading.Lock()
        self._stored: tuple[T, float] | None = None
        """With monotonic seconds."""
        self._failed_at = -PAUSE_SECONDS
        self._failure: ProviderAway | ProviderAnswerInvalid | None = None

    def get(self) -> T:
        """Return the answer, from the last ten minutes if possible.

        An older one is used while the provider does not answer, as long as it is valid
        and not too old.

        Raises:
            ProviderAway, ProviderAnswerInvalid.
        """
        stored = self._usable()
        if stored is not None and _is_fresh(stored[1]):
            return stored[0]
        # While one thread asks again, the others go on with what is stored.
        if not self._lock.acquire(blocking=stored is None):
            assert stored is not None
            return stored[0]
        try:
            stored = self._usable()
            if stored is not None and _is_fresh(stored[1]):
                return stored[0]
            paused = time.monotonic() - self._failed_at < PAUSE_SECONDS
            if self._failure is not None and paused:
                if stored is not None:
                    return stored[0]
                raise self._failure
            try:
                answer = self._read()
            except (ProviderAway, ProviderAnswerInvalid) as error:
                self._failure, self._failed_at = error, time.monotonic()
                if stored is None:
                    raise
                return stored[0]
            self._failure = None
            self._stored = answer, time.monotonic()
            return answer
        finally:
            self._lock.release()

    def _usable(self) -> tuple[T, float] | None:
        stored = self._stored
        if stored is None or time.monotonic() - stored[1] >= self._longest_seconds:
            return None
        return stored if self._still_valid(stored[0]) else None


def _is_fresh(read_at: float) -> bool:
    return time.monotonic() - read_at < KEPT_SECONDS
