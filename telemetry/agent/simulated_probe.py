"""The probe of a node without Gpus: simulated Gpus, with real processes on them.

For `make run` without a driver. `<state_dir>/<node>.json` lists the Gpus and the
scripted processes on them. It is read again when it changes:

    {"gpus": [roster entry and "lost": bool], "fast_links": [[uuid, uuid]],
     "actors": [{"gpu", "from", "until" (or null), "user", "uid", "command",
                 "memory_bytes", "util_pct", "wobble_pct", "pid", "job"}]}

Real processes use the Gpus through claims (see `simulated_processes.py`), which the job
runner writes with `write_claim` and removes with `drop_claim`.

Scripted processes have pids above every pid that Linux gives (`SCRIPTED_PIDS`), so a
command to stop one can never hit a real process.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from telemetry import paths
from telemetry.agent import simulation
from telemetry.agent.optional_packages import installed
from telemetry.agent.process_owners import ProcessOwners, boot_id
from telemetry.agent.simulated_processes import (
    SimulatedClaim,
    SimulatedMemory,
    claims_dir,
    drop_claim,
    read_claims,
    store_claim,
)
from telemetry.agent.simulation import SimulatedProcess
from telemetry.proc_stat import read_stat
from telemetry.protocol.errors import MessageRefused, ProbeUnavailable
from telemetry.protocol.hardware import (
    MOST_GPUS,
    Backend,
    GpuInfo,
    GpuUuid,
    HostCapacity,
    Isolation,
    Link,
    MemoryBytes,
    NodeInfo,
    NotIsolated,
    Pairs,
    links_of,
    uuids_of,
)
from telemetry.protocol.message import Instant, read_as
from telemetry.protocol.reading import CommandLine, JobNumber, LoginName, Uid
from telemetry.protocol.sample import (
    COMMAND_LENGTH,
    SCRIPTED_PIDS,
    GpuAnswer,
    GpuReading,
    NodeSample,
    ProcessReading,
    XidEvent,
    largest,
)

__all__ = ["SimulatedProbe", "claims_dir", "drop_claim", "write_claim"]

MOST_ACTORS = 5_000
HEAT_SECONDS = 300.0
"""A process that ended this long ago no longer warms its Gpu."""
CLAIM_WOBBLE_PCT = 4.0
SharePct = Annotated[float, Meta(ge=0, le=100)]


class Actor(Struct, frozen=True):
    """A scripted process on one Gpu."""

    gpu: GpuUuid
    pid: Annotated[int, Meta(ge=1, lt=SCRIPTED_PIDS)]
    """Above every pid that Linux can give."""
    memory_bytes: MemoryBytes
    util_pct: SharePct
    from_at: Instant = field(name="from")
    until_at: Instant | None = field(name="until", default=None)
    wobble_pct: SharePct | None = None
    uid: Uid | None = None
    user: LoginName | None = None
    command: CommandLine = ""
    job: JobNumber | None = None

    @property
    def load(self) -> SimulatedProcess:
        """Return the process as the simulation uses it."""
        return SimulatedProcess(
            gpu=self.gpu,
            pid=SCRIPTED_PIDS + self.pid,
            memory_bytes=self.memory_bytes,
            util_pct=self.util_pct,
            wobble_pct=self.wobble_pct or 0.0,
            from_at=self.from_at,
            until_at=self.until_at,
            uid=self.uid,
            user=self.user,
            command=self.command,
            job=self.job,
        )


class ScriptFile(Struct, frozen=True):
    """A node's file."""

    gpus: Annotated[tuple[GpuInfo, ...], Meta(min_length=1, max_length=MOST_GPUS)]
    fast_links: Pairs = ()
    host: HostCapacity | None = None
    """None: as much memory and disk as a machine with such Gpus has."""
    actors: Annotated[tuple[Actor, ...], Meta(max_length=MOST_ACTORS)] = ()


class Script(NamedTuple):
    """The content of the node's file."""

    gpus: tuple[GpuInfo, ...]
    links: tuple[Link, ...]
    actors: tuple[SimulatedProcess, ...]
    host: HostCapacity


def read_script(path: Path) -> Script:
    """Read a node's file. Raises OSError, or MessageRefused for its content."""
    file = read_as(ScriptFile, path.read_bytes(), most_bytes=2**24)
    links = links_of(file.fast_links, (), uuids_of(file.gpus))
    host = file.host or simulation.host_capacity(file.gpus)
    return Script(file.gpus, links, tuple(actor.load for actor in file.actors), host)


def write_claim(
    state_dir: Path,
    node: str,
    *,
    pid: int,
    gpu: str | Sequence[str],
    memory_bytes: int,
    util_pct: float,
    user: str | None = None,
    command: str = "",
    job: int | None = None,
) -> Path:
    """Let a real process use one or several simulated Gpus.

    Raises SimulatedOutOfMemory if a Gpu has less than `memory_bytes` left, and
    ClaimRefused for a Gpu or a process that does not exist.
    """
    script = read_script(state_dir / f"{node}.json")
    now = time.time()
    rooms = {}
    for info in script.gpus:
        here = [x for x in script.actors if x.gpu == info.uuid and x.present(now)]
        taken = simulation.used_bytes(info, here) + simulation.reserved_bytes(info)
        total_bytes = info.memory_total_bytes
        rooms[info.uuid] = SimulatedMemory(total_bytes - taken, total_bytes)
    stat = read_stat(pid)
    claim = SimulatedClaim(
        pid=pid,
        start_ticks=stat.start_ticks if stat else 0,
        gpus=(gpu,) if isinstance(gpu, str) else tuple(gpu),
        memory_bytes=memory_bytes,
        util_pct=util_pct,
        user=user,
        command=command[:COMMAND_LENGTH],
        job=job,
    )
    return store_claim(state_dir, node, claim, rooms=rooms)


class SimulatedProbe:
    """Reads simulated Gpus, with the interface of NvmlProbe."""

    backend = Backend.SIMULATED
    unnamed: tuple[int, ...] = ()
    stale = False
    """No driver can be reloaded here."""
    urgent = stuck = False
    refused = ""

    def __init__(
        self,
        state_dir: Path,
        node: str,
        *,
        node_dir: Path | None = None,
        isolation: Isolation = Isolation.NONE,
        not_isolated: NotIsolated = NotIsolated.UNKNOWN,
        seed: str = "1",
    ) -> None:
        self._state_dir = state_dir
        self._path = state_dir / f"{node}.json"
        self._node = node
        self._isolation, self._not_isolated = isolation, not_isolated
        self._seed = f"{seed}/{node}"
        self._owners = ProcessOwners(node_dir)
        self._mtime_ns = -1
        self._script = Script((), (), (), HostCapacity())
        self._loads: dict[str, list[SimulatedProcess]] = {}
        self._energy: dict[str, tuple[float, float]] = {}
        self._at = 0.0
        self._seq = 0
        self.info = NodeInfo(node=node, backend=self.backend, gpus=())

    @property
    def uuids(self) -> tuple[str, ...]:
        """Every Gpu of the script."""
        return tuple(gpu.uuid for gpu in self._script.gpus)

    def open(self) -> NodeInfo:
        """Read the script. Raises ProbeUnavailable with one clear line."""
        try:
            self._use_script(read_script(self._path), self._path.stat().st_mtime_ns)
        except FileNotFoundError as error:
            why = f"no file {self._path} that says which Gpus {self._node} has"
            raise ProbeUnavailable(backend="simulated", why=why) from error
        except (OSError, MessageRefused) as error:
            why = f"{self._path}: {error}"
            raise ProbeUnavailable(backend="simulated", why=why) from error
        return self.info

    def close(self) -> None:
        """Do nothing: nothing is held open."""

    def reopen(self) -> None:
        """Do nothing: no driver can be reloaded."""

    def watch(self, uuids: frozenset[str]) -> None:
        """Do nothing: simulated Gpus have no link rates."""

    def take_xids(self, uuid: str) -> tuple[XidEvent, ...]:
        """Return no events: there is no driver."""
        return ()

    def begin(self, at: float) -> None:
        """Prepare a Sample; called once before its Gpus are read. `at`: Unix
        seconds."""
        self._at = at
        self._owners.refresh(time.monotonic())
        self._reread()
        loads: dict[str, list[SimulatedProcess]] = {uuid: [] for uuid in self.uuids}
        for actor in self._script.actors:
            gone = actor.until_at is not None and at - actor.until_at > HEAT_SECONDS
            if actor.gpu in loads and not gone and actor.from_at <= at:
                loads[actor.gpu].append(actor)
        for claim in read_claims(self._state_dir, self._node):
            for gpu in claim.gpus:
                if gpu in loads:
                    loads[gpu].append(self._load_of(claim, gpu))
        self._loads = loads

    def read(self, at: float) -> NodeSample:
        """Return one Sample of all Gpus. `at`: Unix seconds."""
        started = time.perf_counter()
        self.begin(at)
        gpus = tuple(self.read_gpu(uuid) for uuid in self.uuids)
        self._seq += 1
        return NodeSample(
            node=self._node,
            at=at,
            gpus=gpus,
            seq=self._seq,
            load1=os.getloadavg()[0],
            took_seconds=time.perf_counter() - started,
        )

    def answered_at(self, uuid: str) -> float:
        """Return now: a file answers at once."""
        del uuid
        return time.monotonic()

    def read_gpu(self, uuid: str) -> GpuReading:
        """Read one Gpu at the instant given to `begin`."""
        info = next(gpu for gpu in self._script.gpus if gpu.uuid == uuid)
        if info.lost:
            return GpuReading(uuid=uuid, state=GpuAnswer.LOST)
        loads = self._loads.get(uuid, [])
        reading = simulation.reading(info, loads, at=self._at, seed=self._seed)
        processes = [
            ProcessReading(
                pid=load.pid,
                uid=load.uid,
                user=load.user,
                command=load.command,
                memory_bytes=load.memory_bytes,
                sm_pct=round(load.pct(self._at, self._seed)),
                started_at=load.from_at,
                job=load.job,
            )
            for load in loads
            if load.present(self._at)
        ]
        return replace(
            reading,
            processes=largest(processes),
            energy_joules=self._joules(uuid, reading.power_watts or 0.0),
        )

    def _joules(self, uuid: str, watts: float) -> float:
        """Return the energy since this probe was opened, integrated from power."""
        joules, last_at = self._energy.get(uuid, (0.0, self._at))
        joules += watts * min(max(self._at - last_at, 0.0), 60.0)
        self._energy[uuid] = (joules, self._at)
        return round(joules, 1)

    def _load_of(self, claim: SimulatedClaim, gpu: str) -> SimulatedProcess:
        owner = self._owners.owner(claim.pid)
        return SimulatedProcess(
            gpu=gpu,
            pid=claim.pid,
            memory_bytes=claim.memory_bytes,
            util_pct=claim.util_pct,
            wobble_pct=min(CLAIM_WOBBLE_PCT, claim.util_pct / 4),
            from_at=owner.started_at or 0.0,
            uid=owner.uid,
            user=claim.user or owner.user,
            command=claim.command or owner.command,
            job=claim.job if claim.job is not None else owner.job,
        )

    def _reread(self) -> None:
        """Take over the script if its file changed. An invalid file changes nothing."""
        try:
            mtime_ns = self._path.stat().st_mtime_ns
            if mtime_ns != self._mtime_ns:
                self._mtime_ns = mtime_ns
                self._use_script(read_script(self._path), mtime_ns)
        except (OSError, MessageRefused) as error:
            print(f"simulated: keeping the old script: {error}", file=sys.stderr)

    def _use_script(self, script: Script, mtime_ns: int) -> None:
        self._script, self._mtime_ns = script, mtime_ns
        self.info = NodeInfo(
            node=self._node,
            backend=self.backend,
            gpus=script.gpus,
            links=script.links,
            driver_version="simulated",
            boot_id=boot_id(),
            isolation=self._isolation,
            not_isolated=self._not_isolated,
            extras=installed(),
            host=script.host,
            release=paths.release(),
        )
