"""Read many Gpus at once, any of which may never answer.

A call into a hung driver cannot be cancelled from a thread. So a few worker threads
read the Gpus. If a thread stays in one Gpu too long, another thread takes over the
remaining ones. A Gpu whose calls do not return is *hung* until the stuck call returns,
which may take minutes or forever. Meanwhile the other Gpus are read as usual. At most
one thread per Gpu is stuck.
"""

from __future__ import annotations

import math
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from telemetry.protocol.sample import GpuAnswer, GpuReading

GPUS_PER_LANE = 8
"""Eight Gpus, read one after the other, take about 70 ms of NVML calls."""
SLOW_SECONDS = 0.25
"""After this time in one Gpu another thread takes over the remaining ones."""
HUNG_SECONDS = 2.0
"""After this time without an answer a Gpu is reported as hung."""
POLL_SECONDS = 0.05


class _Desk:
    """Passes work to the lanes and readings back, with one wake-up each way.

    Under its lock a Gpu is offered, in a lane, or read. So none is read twice for one
    Sample.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._work: deque[str] = deque()
        self._done: dict[str, GpuReading] = {}
        self._waited_for: set[str] = set()
        self._all_done = threading.Event()
        self._closed = False

    def offer_work(self, uuids: Sequence[str], lanes: int) -> None:
        """Offer the work of one Sample and wake so many lanes."""
        with self._changed:
            self._waited_for = set(uuids)
            self._all_done.clear()
            self._work.extend(uuids)
            self._changed.notify(min(lanes, len(uuids)))

    def next_gpu(self, lane: Lane) -> str | None:
        """Wait for the next Gpu that a lane reads and return it. None: there will be
        no more.
        """
        with self._changed:
            while not self._work and not self._closed:
                self._changed.wait()
            if self._closed:
                return None
            uuid = self._work.popleft()
            lane.busy = (uuid, time.monotonic())
            return uuid

    def close(self) -> None:
        """End the lanes."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def store_reading(self, reading: GpuReading, lane: Lane) -> None:
        """Store the reading of a Gpu from the lane that was in it."""
        with self._changed:
            lane.busy = None
            self._done[reading.uuid] = reading
            self._waited_for.discard(reading.uuid)
            if not self._waited_for:
                self._all_done.set()

    def wait(self, timeout_seconds: float) -> bool:
        """Wait for the awaited readings. Return whether all came within the time."""
        return self._all_done.wait(timeout_seconds)

    def give_up(self, uuids: Iterable[str]) -> None:
        """Stop waiting for these Gpus."""
        with self._changed:
            self._waited_for.difference_update(uuids)
            if not self._waited_for:
                self._all_done.set()

    def collect(
        self, lanes: Iterable[Lane] = ()
    ) -> tuple[dict[str, GpuReading], set[str]]:
        """Return all readings since the last call, and the Gpus in which lanes are.

        Work that was not begun is withdrawn.
        """
        with self._changed:
            self._work.clear()
            done, self._done = self._done, {}
            return done, {busy[0] for lane in lanes if (busy := lane.busy)}


class Lane(threading.Thread):
    """One worker thread. It takes work from the desk until it is replaced."""

    def __init__(
        self,
        read: Callable[[str], GpuReading],
        desk: _Desk,
        answered_at: Callable[[str], float],
    ) -> None:
        super().__init__(name="lane", daemon=True)
        self._read = read
        self._answered_at = answered_at
        self._desk = desk
        self.busy: tuple[str, float] | None = None
        """The UUID that is being read, and since when (monotonic seconds)."""
        self.replaced = False
        """True if another thread replaced this one, which then stops after the present
        Gpu."""

    def run(self) -> None:
        """Read Gpu after Gpu until another thread takes over."""
        while not self.replaced:
            uuid = self._desk.next_gpu(self)
            if uuid is None:
                return
            try:
                reading = self._read(uuid)
            except Exception:
                # A probe does not raise. If one does, only this Gpu is affected.
                traceback.print_exc()
                reading = GpuReading(uuid=uuid, state=GpuAnswer.ERROR)
            self._desk.store_reading(reading, self)

    def stuck_in(self, now: float, longer_than: float) -> str | None:
        """Return the UUID that it has been reading for longer than so many seconds."""
        busy = self.busy
        return busy[0] if busy and now - busy[1] > longer_than else None

    def hung_in(self, now: float, longer_than: float) -> str | None:
        """Return the UUID that it reads if that Gpu answered no call for so many
        seconds."""
        uuid = self.stuck_in(now, longer_than)
        if uuid is None or now - self._answered_at(uuid) <= longer_than:
            return None
        return uuid


class Lanes:
    """The worker threads, and the Gpus in which they are stuck."""

    def __init__(
        self,
        read: Callable[[str], GpuReading],
        *,
        hung_seconds: float = HUNG_SECONDS,
        answered_at: Callable[[str], float] = lambda _uuid: float("-inf"),
    ) -> None:
        """Make a pool without threads.

        Args:
            answered_at: when a Gpu last returned from a call (monotonic seconds).
        """
        self._read = read
        self._hung_seconds = hung_seconds
        self._answered_at = answered_at
        self._left_at: dict[str, float] = {}
        """When each Gpu was last read. The one that waits longest is first."""
        self._desk = _Desk()
        self._lanes: list[Lane] = []
        self._stuck: list[Lane] = []

    @property
    def stuck(self) -> bool:
        """Whether a thread is in a Gpu that does not answer in time."""
        return any(lane.busy for lane in self._stuck)

    def read(
        self, uuids: Sequence[str], *, within_seconds: float
    ) -> dict[str, GpuReading]:
        """Return the readings of all Gpus that answer within the time.

        Hung Gpus are reported as hung. A Gpu that is only late is left out. Its reading
        counts for the next Sample, at most one interval later.
        """
        ends_at = time.monotonic() + within_seconds
        self._stuck = [lane for lane in self._stuck if lane.busy]
        found, inside = self._desk.collect([*self._stuck, *self._lanes])
        self._staff(math.ceil(len(uuids) / GPUS_PER_LANE))
        work = [uuid for uuid in uuids if uuid not in inside and uuid not in found]
        work.sort(key=lambda uuid: self._left_at.get(uuid, float("-inf")))
        self._desk.offer_work(work, len(self._lanes))
        while (left := ends_at - time.monotonic()) > 0:
            if not work or self._desk.wait(min(left, POLL_SECONDS)):
                break
            self._replace_slow()
            self._desk.give_up(self.hung())
        found |= self._desk.collect()[0]
        # Gpus that were read in the same round keep their order.
        self._left_at.update(dict.fromkeys(found, ends_at))
        for uuid in self.hung():
            found.setdefault(uuid, GpuReading(uuid=uuid, state=GpuAnswer.HUNG))
        return {uuid: found[uuid] for uuid in uuids if uuid in found}

    def close(self) -> None:
        """End the threads. A stuck thread ends when its call returns."""
        self._desk.close()

    def hung(self) -> set[str]:
        """Return the Gpus in which a thread has been stuck for too long."""
        now = time.monotonic()
        threads = [*self._stuck, *self._lanes]
        inside = (lane.hung_in(now, self._hung_seconds) for lane in threads)
        return {uuid for uuid in inside if uuid}

    def _staff(self, count: int) -> None:
        """Start as many threads as the Gpus need."""
        while len(self._lanes) < count:
            lane = Lane(self._read, self._desk, self._answered_at)
            lane.start()
            self._lanes.append(lane)

    def _replace_slow(self) -> None:
        """Replace threads that stay too long in one Gpu."""
        now = time.monotonic()
        slow = [lane for lane in self._lanes if lane.stuck_in(now, SLOW_SECONDS)]
        for lane in slow:
            lane.replaced = True
            self._lanes.remove(lane)
            self._stuck.append(lane)
        self._staff(len(self._lanes) + len(slow))
