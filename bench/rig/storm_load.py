"""A storm of driver faults, and its effect on the Gpus.

The driver is the simulated one of the tests, which reads its file again whenever it
changes. Every fault names the Gpus that it affects. The others are *healthy*, and the
storm keeps the longest time that any of them went without a good reading. The time
until an affected one is read again counts separately, as its recovery.
"""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

GPUS = 8
EVERY = frozenset(range(GPUS))
GARBAGE = (
    "util = 255",
    "temp = 4294967295",
    "power = 4294967",
    "clock_sm = 4294967295",
    "mem_used = 900GiB",
    "fan = 4294967295",
    "pcie_gen = 255",
)
UNSUPPORTED = ("util", "mem", "temp", "power", "clocks", "procs", "fields", "pstate")


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault."""

    name: str
    lines: tuple[str, ...] = ()
    """Lines of the driver's file, after the calm ones."""
    touches: frozenset[int] = frozenset()
    """Slots that are not healthy during the fault."""
    reload: bool = False
    """Whether it begins and ends with a reload of the driver."""
    lasting: bool = False
    """Whether the Gpus stay faulty until the next reload."""
    seconds: float = 3.0
    gpus: int = GPUS


def _on(slot: int, *lines: str) -> tuple[str, ...]:
    return (f"[gpu {slot}]", *lines)


FAULTS = (
    Fault("hang", _on(0, "delay.util = forever"), frozenset({0}), lasting=True),
    Fault("reload while one hangs", (), EVERY, reload=True, seconds=6.0),
    Fault("64 Gpus", (), EVERY, reload=True, gpus=64, seconds=4.5),
    Fault("lost", _on(0, "lost = yes"), frozenset({0})),
    Fault(
        "unsupported, garbage",
        (
            *_on(1, *(f"fail.{call} = NOT_SUPPORTED" for call in UNSUPPORTED)),
            *_on(2, *GARBAGE),
        ),
        frozenset({1, 2}),
    ),
    Fault(
        "names that are not UTF-8",
        _on(1, r"name = NVIDIA caf\xE9", r"serial = \xFF\xFE"),
        EVERY,
        reload=True,
        seconds=4.0,
    ),
    Fault(
        "pids that vanish and come again, Xid events",
        _on(1, *(f"xid = {code}" for code in range(1, 40))),
    ),
    Fault(
        "lists that grow, calls that fail now and then",
        (
            *_on(0, "process_race = yes"),
            *_on(1, "fail.all = UNKNOWN prob:0.3"),
            *_on(2, "fail.procs = UNKNOWN prob:0.5", "fail.util = TIMEOUT prob:0.5"),
        ),
        frozenset({0, 1, 2}),
    ),
    Fault("slow calls", _on(0, "delay.power = 1500ms"), frozenset({0})),
    Fault("0 Gpus", (), EVERY, reload=True, gpus=0, seconds=4.0),
    Fault(
        "driver unloaded",
        ("[global]", "driver = unloaded"),
        EVERY,
        reload=True,
        seconds=4.0,
    ),
    Fault(
        "a start that takes its time",
        ("[global]", "delay.init = 2s"),
        EVERY,
        reload=True,
        seconds=5.0,
    ),
)


class Crowd:
    """Processes that come and go, and one whose pid is used again."""

    def __init__(self) -> None:
        self._alive: list[subprocess.Popen[bytes]] = []
        self._gone: list[int] = []

    def shuffle(self) -> None:
        """End the oldest and start a new one."""
        self._alive.append(
            subprocess.Popen(["sh", "-c", "sleep 0.4; exec sleep 60"], close_fds=True)
        )
        if len(self._alive) > 3:
            oldest = self._alive.pop(0)
            oldest.kill()
            oldest.wait()
            self._gone = [*self._gone, oldest.pid][-3:]

    def lines(self) -> Iterator[str]:
        """Yield every process on every Gpu, including the dead ones."""
        yield "[gpu *]"
        for process in self._alive:
            yield f"proc = pid:{process.pid} mem:2GiB sm:20"
        for pid in self._gone:
            yield f"proc = pid:{pid} mem:1GiB sm:1"
        yield "proc = pid:gone mem:na"

    def close(self) -> None:
        """End all processes."""
        for process in self._alive:
            process.kill()
            process.wait()


@dataclass(slots=True)
class Healthy:
    """The Gpus that should be read at present, and whether they are."""

    seen_at: dict[int, float] = field(default_factory=dict)
    """Slot -> when its last good reading came, monotonic seconds."""
    touched: set[int] = field(default_factory=set)
    lasting: set[int] = field(default_factory=set)
    recovering: dict[int, float] = field(default_factory=dict)
    """Slot -> since when it should be healthy again."""
    worst_gap: tuple[float, str] = (0.0, "")
    """Longest time without a good reading of a healthy Gpu, and the fault."""
    worst_recovery: tuple[float, str] = (0.0, "")
    fault: str = "calm"
    fault_reloads: bool = False
    well: dict[int, float] = field(default_factory=dict)
    """Slot -> when the first good reading of a recovering one came."""

    def begin(self, fault: Fault, now: float) -> None:
        """Begin a fault. The previous one is over."""
        if fault.reload or self.fault_reloads:
            self.lasting.clear()
        over = self.touched - fault.touches - self.lasting
        self.recovering = {
            slot: self.recovering.get(slot, now)
            for slot in (over | self.recovering.keys()) - fault.touches
        }
        if fault.lasting:
            self.lasting |= fault.touches
        self.touched = set(fault.touches) | self.lasting
        self.well.clear()
        self.fault, self.fault_reloads = fault.name, fault.reload

    def saw(self, slot: int, now: float, *, good: bool) -> None:
        """Record a reading of a Gpu.

        A Gpu is healthy again after two good readings, because the first may be from
        before the fault.
        """
        if good:
            self.seen_at[slot] = now
        since = self.recovering.get(slot)
        if since is None or slot in self.touched:
            return
        if not good:
            self.well.pop(slot, None)
        elif slot not in self.well:
            self.well[slot] = now
        else:
            seconds = self.well.pop(slot) - since
            del self.recovering[slot]
            self.worst_recovery = max(self.worst_recovery, (seconds, self.fault))

    def look(self, now: float) -> None:
        """Check how long ago each healthy Gpu was read."""
        for slot in EVERY - self.touched - self.recovering.keys():
            gap = now - self.seen_at.get(slot, now)
            self.worst_gap = max(self.worst_gap, (gap, self.fault))


class Storm:
    """Changes the driver's file. `write` stores it."""

    def __init__(self, write: Callable[[str], None], *, seed: int = 1) -> None:
        self._write = write
        self._crowd = Crowd()
        self._generation = 0
        self._random = random.Random(seed)
        self.healthy = Healthy()
        self.rounds = 0

    def calm(self) -> None:
        """End all faults, after a reload that ends the lasting ones."""
        self._begin(Fault("calm", (), EVERY, reload=True))

    def round(
        self, look: Callable[[], None], *, shuffled: bool = False
    ) -> Iterator[Fault]:
        """Run every fault once, each for its time. `look` is called often meanwhile."""
        faults = list(FAULTS)
        if shuffled:
            self._random.shuffle(faults)
        for fault in faults:
            self._begin(fault)
            self._last(fault.seconds, look)
            yield fault
        self.rounds += 1

    def settle(self, seconds: float, look: Callable[[], None]) -> None:
        """Stay calm for a while."""
        self.calm()
        self.healthy.begin(Fault("calm"), time.monotonic())
        self._last(seconds, look)

    def wait_until_all_are_well(self, seconds: float, look: Callable[[], None]) -> None:
        """Stay calm until every Gpu is read again, at most so many seconds."""
        ends_at = time.monotonic() + seconds
        while self.healthy.recovering.keys() & EVERY and time.monotonic() < ends_at:
            self._last(0.4, look)

    def close(self) -> None:
        """End the processes of the storm."""
        self._crowd.close()

    def _last(self, seconds: float, look: Callable[[], None]) -> None:
        ends_at = time.monotonic() + seconds
        while (now := time.monotonic()) < ends_at:
            look()
            self.healthy.look(now)
            time.sleep(0.2)

    def _begin(self, fault: Fault) -> None:
        if fault.reload or self.healthy.fault_reloads:
            self._generation += 1
        self._crowd.shuffle()
        self.healthy.begin(fault, time.monotonic())
        self._write(self._text(fault))

    def _text(self, fault: Fault) -> str:
        lines = [
            "node = storm",
            f"gpus = {fault.gpus}",
            f"driver_generation = {self._generation}",
            f"stale_error = {self._random.choice(('UNKNOWN', 'UNINITIALIZED'))}",
            "[gpu *]",
            "model = a100",
            "util = sine(5,95,7)",
            *self._crowd.lines(),
            *fault.lines,
        ]
        return "\n".join(lines) + "\n"


def rss_kib(pid: int) -> int:
    """Return a process's memory in RAM; 0 if it is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next(
        (int(x.split()[1]) for x in text.splitlines() if x.startswith("VmRSS:")), 0
    )
