"""Reading many Gpus at once, when any one of them may never answer.

A call into a hung driver cannot be cancelled from a thread. So the Gpus are
read by a few worker threads, and a thread that stays in one Gpu too long loses
its place: another thread takes over the rest. Where no call comes back any more the
Gpu is *hung* until the stuck one does, which it may do after minutes or never. The
others are read meanwhile as if nothing had happened. At most one thread per Gpu is
stuck.
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
"""Eight Gpus take some 70 ms one after the other, by NVML's own latencies."""
SLOW_SECONDS = 0.25
"""After this long in one Gpu another thread takes over the rest."""
HUNG_SECONDS = 2.0
"""After this long without an answer from one Gpu it is told as hung."""
POLL_SECONDS = 0.05


class _Desk:
    """Where the lanes take work and leave readings: one wake-up each way."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._work: deque[str] = deque()
        self._done: dict[str, GpuReading] = {}
        self._waited_for: set[str] = set()
        self._all_done = threading.Event()
        self._closed = False

    def give_out(self, uuids: Sequence[str], lanes: int) -> None:
        """Lay out the work of one Sample and wake so many lanes."""
        with self._changed:
            self._waited_for = set(uuids)
            self._all_done.clear()
            self._work.extend(uuids)
            self._changed.notify(min(lanes, len(uuids)))

    def take(self) -> str | None:
        """Next Gpu to read; waits for one. None: there will be no more."""
        with self._changed:
            while not self._work and not self._closed:
                self._changed.wait()
            return None if self._closed else self._work.popleft()

    def close(self) -> None:
        """Send the lanes home."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def leave(self, reading: GpuReading) -> None:
        """A Gpu has been read."""
        with self._changed:
            self._done[reading.uuid] = reading
            self._waited_for.discard(reading.uuid)
            if not self._waited_for:
                self._all_done.set()

    def wait(self, timeout_seconds: float) -> bool:
        """Whether everything that is waited for came within the time."""
        return self._all_done.wait(timeout_seconds)

    def give_up(self, uuids: Iterable[str]) -> None:
        """Wait for these no longer."""
        with self._changed:
            self._waited_for.difference_update(uuids)
            if not self._waited_for:
                self._all_done.set()

    def collect(self) -> dict[str, GpuReading]:
        """All readings left since the last time; work not begun is taken back."""
        with self._changed:
            self._work.clear()
            done, self._done = self._done, {}
            return done


class Lane(threading.Thread):
    """One worker thread: takes work from the desk until it is replaced."""

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
        """UUID that is being read, and since when (monotonic seconds)."""
        self.replaced = False
        """Another thread has taken its place: stop after the present Gpu."""

    def run(self) -> None:
        """Read Gpu after Gpu, until somebody else took over."""
        while not self.replaced:
            uuid = self._desk.take()
            if uuid is None:
                return
            self.busy = (uuid, time.monotonic())
            try:
                reading = self._read(uuid)
            except Exception:
                # A probe does not raise; if one does, it costs this Gpu alone.
                traceback.print_exc()
                reading = GpuReading(uuid=uuid, state=GpuAnswer.ERROR)
            self.busy = None
            self._desk.leave(reading)

    def stuck_in(self, now: float, longer_than: float) -> str | None:
        """UUID that it has been reading for longer than so many seconds."""
        busy = self.busy
        return busy[0] if busy and now - busy[1] > longer_than else None

    def hung_in(self, now: float, longer_than: float) -> str | None:
        """The same, where the Gpu has not answered a single call for so long."""
        uuid = self.stuck_in(now, longer_than)
        if uuid is None or now - self._answered_at(uuid) <= longer_than:
            return None
        return uuid


class Lanes:
    """The worker threads, and which Gpus they are stuck in."""

    def __init__(
        self,
        read: Callable[[str], GpuReading],
        *,
        hung_seconds: float = HUNG_SECONDS,
        answered_at: Callable[[str], float] = lambda _uuid: float("-inf"),
    ) -> None:
        """Begin without threads.

        Args:
            answered_at: when a Gpu came back from a call last (monotonic seconds).
        """
        self._read = read
        self._hung_seconds = hung_seconds
        self._answered_at = answered_at
        self._left_at: dict[str, float] = {}
        """When each Gpu was read last: who waits longest is first."""
        self._desk = _Desk()
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
        it then says is taken for the next Sample, at most one interval later.
        """
        ends_at = time.monotonic() + within_seconds
        self._stuck = [lane for lane in self._stuck if lane.busy]
        threads = [*self._stuck, *self._lanes]
        inside = {busy[0] for lane in threads if (busy := lane.busy)}
        found = self._desk.collect()
        self._staff(math.ceil(len(uuids) / GPUS_PER_LANE))
        work = [uuid for uuid in uuids if uuid not in inside and uuid not in found]
        work.sort(key=lambda uuid: self._left_at.get(uuid, float("-inf")))
        self._desk.give_out(work, len(self._lanes))
        while (left := ends_at - time.monotonic()) > 0:
            if not work or self._desk.wait(min(left, POLL_SECONDS)):
                break
            self._replace_slow()
            self._desk.give_up(self.hung())
        found |= self._desk.collect()
        # All that came in one round are alike: then their order stays as it is.
        self._left_at.update(dict.fromkeys(found, ends_at))
        for uuid in self.hung():
            found.setdefault(uuid, GpuReading(uuid=uuid, state=GpuAnswer.HUNG))
        return {uuid: found[uuid] for uuid in uuids if uuid in found}

    def close(self) -> None:
        """End the threads; one that is stuck ends when its Gpu lets it go."""
        self._desk.close()

    def hung(self) -> set[str]:
        """Gpus in which a thread has been stuck for too long."""
        now = time.monotonic()
        threads = [*self._stuck, *self._lanes]
        inside = (lane.hung_in(now, self._hung_seconds) for lane in threads)
        return {uuid for uuid in inside if uuid}

    def _staff(self, count: int) -> None:
        """Have as many threads as the Gpus need."""
        while len(self._lanes) < count:
            lane = Lane(self._read, self._desk, self._answered_at)
            lane.start()
            self._lanes.append(lane)

    def _replace_slow(self) -> None:
        """A thread that stays too long in one Gpu loses its place to a new one."""
        now = time.monotonic()
        slow = [lane for lane in self._lanes if lane.stuck_in(now, SLOW_SECONDS)]
        for lane in slow:
            lane.replaced = True
            self._lanes.remove(lane)
            self._stuck.append(lane)
        self._staff(len(self._lanes) + len(slow))
