"""Query on a separate thread how the Gpus of a machine are connected.

16 Gpus have 120 pairs, with up to two calls each. On a slow bus that takes half a
minute, during which the Gpus are sampled as usual.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from telemetry.agent.probe import machine
from telemetry.agent.probe.gpu_probe import NvmlGpu
from telemetry.protocol.hardware import Link

STUCK_SECONDS = 5.0


class TopologyQuery:
    """Queries the driver about every pair of these cards."""

    def __init__(self, cards: Iterable[NvmlGpu]) -> None:
        self._links: list[Link] = []
        self._over = threading.Event()
        self._closed = False
        self._asked_at = time.monotonic()
        self._thread = threading.Thread(
            target=self._run, args=(tuple(cards),), name="topology", daemon=True
        )
        self._thread.start()

    @property
    def stuck(self) -> bool:
        """Whether the call for one pair has not returned for long."""
        waits_seconds = time.monotonic() - self._asked_at
        return self._thread.is_alive() and waits_seconds > STUCK_SECONDS

    def wait(self, seconds: float) -> tuple[Link, ...] | None:
        """Return the links between the Gpus; None if they are not known in time."""
        if not self._over.wait(seconds) or self._closed:
            return None
        return tuple(self._links)

    def close(self) -> None:
        """Stop the queries. Returns once the thread has left the driver."""
        self._closed = True
        self._thread.join(STUCK_SECONDS)

    def _run(self, cards: tuple[NvmlGpu, ...]) -> None:
        for link in machine.links(cards):
            if self._closed:
                return
            self._asked_at = time.monotonic()
            if link is not None:
                self._links.append(link)
        self._over.set()
