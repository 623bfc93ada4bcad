"""Reading many Gpus at once, when any one of them may never answer.

A call into a hung driver cannot be cancelled from a thread. So the Gpus are
read by a few worker threads, and a thread that stays in one Gpu too long loses
its place: another thread takes over the rest, and the Gpu is *hung* until the
stuck call comes back, which it may do after minutes or never. The others are
read meanwhile as if nothing had happened. At most one thread per Gpu is stuck.
"""

from __future__ import annotations

import math
import queue
import threading
import time
import traceback
from collections.abc import Callable, Sequence

from telemetry.domain.sample import GpuReading, Health

GPUS_PER_LANE = 8
"""Eight Gpus take some 70 ms one after the other, by NVML's own latencies."""
SLOW_SECONDS = 0.25
"""After this long in one Gpu another thread takes over the rest."""
HUNG_SECONDS = 2.0
"""After this long in one Gpu it is told as hung."""
POLL_SECONDS = 0.05


class Lane(threading.Thread):
    """One worker thread: takes UUIDs from the work queue until it is replaced."""

    def __init__(
        self,
        read: Callable[[str], GpuReading],
        work: queue.SimpleQueue[str],
        done: queue.SimpleQueue[GpuReading],
    ) -> None:
        super().__init__(name="lane", daemon=True)
        self._read = read
        self._work = work
        self._done = done
        self.busy: tuple[str, float] | None = None
        """UUID that is being read, and since when (monotonic seconds)."""
        self.replaced = False
        """Another thread has taken its place: stop after the present Gpu."""

    def run(self) -> None:
        """Read Gpu after Gpu, until somebody else took over."""
        while not self.replaced:
            uuid = self._work.get()
            self.busy = (uuid, time.monotonic())
            try:
                reading = self._read(uuid)
            except Exception:
                # A probe does not raise; if one does, it costs this Gpu alone.
                traceback.print_exc()
                reading = GpuReading(uuid=uuid, state=Health.ERROR)
            self.busy = None
            self._done.put(reading)

    def stuck_in(self, now: float, longer_than: float) -> str | None:
        """UUID that it has been reading for longer than so many seconds."""
        busy = self.busy
        return busy[0] if busy and now - busy[1] > longer_than else None


class Lanes:
    """The worker threads, and which Gpus they are stuck in."""

    def __init__(
        self, read: Callable[[str], GpuReading], *, hung_seconds: float = HUNG_SECONDS
    ) -> None:
        self._read = read
        self._hung_seconds = hung_seconds
        self._work: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[GpuReading] = queue.SimpleQueue()
        self._lanes: list[Lane] = []
        self._stuck: list[Lane] = []

    @property
    def stuck(self) -> bool:
        """Whether some thread is inside a Gpu that does not answer in time."""
        return any(lane.busy for lane in self._stuck)

    def read(
        self, uuids: Sequence[str], *, within_seconds: float
    ) -> dict[str, GpuReading]:
        """Readings of all Gpus that answer within the time.

        Hung Gpus are told as hung; one that is merely late is left out, and what
        it then says is taken for the next Sample.
        """
        ends_at = time.monotonic() + within_seconds
        found = self._late_readings(uuids)
        inside = {lane.busy[0] for lane in [*self._stuck, *self._lanes] if lane.busy}
        waiting = set(uuids) - inside - set(found)
        for uuid in uuids:
            if uuid in waiting:
                self._work.put(uuid)
        self._staff(math.ceil(len(uuids) / GPUS_PER_LANE))
        while waiting and (left := ends_at - time.monotonic()) > 0:
            try:
                reading = self._done.get(timeout=min(left, POLL_SECONDS))
            except queue.Empty:
                self._replace_slow()
                waiting -= self.hung()
                continue
            found[reading.uuid] = reading
            waiting.discard(reading.uuid)
        self._take_back_work()
        for uuid in self.hung():
            found.setdefault(uuid, GpuReading(uuid=uuid, state=Health.HUNG))
        return {uuid: found[uuid] for uuid in uuids if uuid in found}

    def hung(self) -> set[str]:
        """Gpus in which a thread has been stuck for too long."""
        now = time.monotonic()
        threads = [*self._stuck, *self._lanes]
        inside = (lane.stuck_in(now, self._hung_seconds) for lane in threads)
        return {uuid for uuid in inside if uuid}

    def _staff(self, count: int) -> None:
        """Have as many threads as the Gpus need."""
        self._lanes = [lane for lane in self._lanes if lane.is_alive()]
        while len(self._lanes) < count:
            lane = Lane(self._read, self._work, self._done)
            lane.start()
            self._lanes.append(lane)

    def _replace_slow(self) -> None:
        now = time.monotonic()
        slow = [lane for lane in self._lanes if lane.stuck_in(now, SLOW_SECONDS)]
        for lane in slow:
            lane.replaced = True
            self._lanes.remove(lane)
            self._stuck.append(lane)
        self._staff(len(self._lanes) + len(slow))

    def _take_back_work(self) -> None:
        """What nobody has begun is not begun after the Sample is over."""
        try:
            while True:
                self._work.get_nowait()
        except queue.Empty:
            return

    def _late_readings(self, uuids: Sequence[str]) -> dict[str, GpuReading]:
        """What came after the last Sample was over; at most one interval old."""
        self._stuck = [lane for lane in self._stuck if lane.busy]
        late: dict[str, GpuReading] = {}
        try:
            while True:
                reading = self._done.get_nowait()
                late[reading.uuid] = reading
        except queue.Empty:
            return {uuid: late[uuid] for uuid in uuids if uuid in late}
