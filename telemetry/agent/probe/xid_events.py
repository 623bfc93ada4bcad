"""Read Xid events from NVML's event set on a separate thread.

Once a second the thread takes the events that are ready, with a wait of 0 ms. A thread
that slept inside the driver would block a shutdown. A call that hangs does not delay
the sampler, and `stuck` reports it.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

import pynvml as nvml

from telemetry.agent.probe.gpu_probe import NvmlGpu
from telemetry.agent.probe.nvml_call import name_text, quiet
from telemetry.protocol.sample import MOST_XID, MOST_XIDS, XidEvent

MOST_WAITING = 256
"""Unsent events kept per Gpu. Beyond that the oldest are dropped."""
MOST_A_ROUND = 256
STUCK_SECONDS = 2.0


class XidWatch:
    """Registers the Gpus at the start. A driver without event support yields no
    events."""

    def __init__(
        self, cards: Iterable[NvmlGpu], *, clock: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self._by_handle: dict[int, str] = {}
        self._waiting: dict[str, deque[XidEvent]] = {}
        self._set = quiet(nvml.nvmlEventSetCreate)
        self._go = threading.Event()
        self._over = False
        self._busy_since: float | None = None
        self._thread: threading.Thread | None = None
        if self._set is not None:
            self._register(cards)

    def _register(self, cards: Iterable[NvmlGpu]) -> None:
        kind = nvml.nvmlEventTypeXidCriticalError
        for card in cards:
            if card.handle is None or card.info.mig_parent:
                continue
            try:
                nvml.nvmlDeviceRegisterEvents(card.handle, kind, self._set)
            except nvml.NVMLError:
                continue  # a card without events (NOT_SUPPORTED), or lost
            self._by_handle[_address(card.handle)] = card.info.uuid
            self._waiting[card.info.uuid] = deque(maxlen=MOST_WAITING)

    @property
    def stuck(self) -> bool:
        """Return whether the thread is inside a call that does not return."""
        since = self._busy_since
        return since is not None and time.monotonic() - since > STUCK_SECONDS

    def poll(self) -> None:
        """Let the thread look for events now. Does not wait."""
        if not self._waiting:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="xids", daemon=True)
            self._thread.start()
        self._go.set()

    def take_events(self, uuid: str) -> tuple[XidEvent, ...]:
        """Return the oldest unsent events of a Gpu, as many as a sample may carry."""
        waiting = self._waiting.get(uuid)
        if not waiting:
            return ()
        return tuple(waiting.popleft() for _ in range(min(len(waiting), MOST_XIDS)))

    def close(self) -> None:
        """End the thread and free the event set, unless it is stuck in the driver."""
        self._over = True
        self._go.set()
        if self._thread is not None:
            self._thread.join(STUCK_SECONDS)
            if self._thread.is_alive():
                return
        if self._set is not None:
            quiet(nvml.nvmlEventSetFree, self._set)
            self._set = None

    def _run(self) -> None:
        while True:
            self._go.wait()
            self._go.clear()
            if self._over:
                return
            self._busy_since = time.monotonic()
            for _ in range(MOST_A_ROUND):
                if not self._take_one():
                    break
            self._busy_since = None

    def _take_one(self) -> bool:
        """Read one event. Return whether there may be another."""
        data = quiet(nvml.nvmlEventSetWait_v2, self._set, 0)
        if data is None:  # TIMEOUT: nothing is there
            return False
        # A Gpu that fell off the bus no longer returns its UUID, so compare handles.
        uuid = self._by_handle.get(_address(data.device))
        uuid = uuid or name_text(nvml.nvmlDeviceGetUUID, data.device)
        waiting = self._waiting.get(uuid or "")
        if waiting is not None and 0 < data.eventData <= MOST_XID:
            waiting.append(XidEvent(code=data.eventData, at=self._clock()))
        return True


def _address(handle: object) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0  # type: ignore[arg-type]
