"""Real processes on simulated Gpus: one file per process in a folder.

A job's shim writes the file at the start of the job and removes it at the end.
Meanwhile the simulated probe shows the process on its Gpus. The claim ends with the
process, identified by pid and start time.

`<state_dir>/<node>.claims/<pid>.json`:

    {"pid", "start_ticks", "gpus": [uuid], "memory_bytes" (on each of them),
     "util_pct", "user", "command", "job"}

A file with `"gpu": uuid` in place of `gpus` is read too.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct
from msgspec.structs import force_setattr

from telemetry.proc_stat import read_stat
from telemetry.protocol.codec import Malformed, encode
from telemetry.protocol.errors import (
    ClaimRefused,
    MessageRefused,
    SimulatedOutOfMemory,
)
from telemetry.protocol.hardware import MOST_GPUS, GpuUuid, MemoryBytes
from telemetry.protocol.message import read_as
from telemetry.protocol.reading import CommandLine, Count, JobNumber, LoginName, Pid


class SimulatedClaim(Struct, frozen=True, omit_defaults=True):
    """The use that one real process makes of simulated Gpus."""

    pid: Pid
    start_ticks: Count
    """Field 22 of /proc/<pid>/stat: with the pid, the process's identity."""
    memory_bytes: MemoryBytes
    """On each of the Gpus."""
    util_pct: Annotated[float, Meta(ge=0, le=100)]
    gpus: Annotated[tuple[GpuUuid, ...], Meta(max_length=MOST_GPUS)] = ()
    gpu: GpuUuid | None = None
    """In place of `gpus`, where there is one."""
    user: LoginName | None = None
    command: CommandLine = ""
    job: JobNumber | None = None

    def __post_init__(self) -> None:
        if not self.gpus:
            if self.gpu is None:
                raise Malformed("gpus", "is missing")
            force_setattr(self, "gpus", (self.gpu,))

    @property
    def alive(self) -> bool:
        """Whether exactly this process still runs."""
        stat = read_stat(self.pid)
        return (
            stat is not None and stat.start_ticks == self.start_ticks and not stat.dead
        )

    @classmethod
    def from_file(cls, path: Path) -> SimulatedClaim:
        """Read a claim. Raises OSError, or MessageRefused for its content."""
        return read_as(cls, path.read_bytes())


class SimulatedMemory(NamedTuple):
    """Memory of one simulated Gpu."""

    claimable_bytes: int
    """Memory for all claims together, without the driver's and the script's share."""
    total_bytes: int


def claims_dir(state_dir: Path, node: str) -> Path:
    """The folder of a node's claims."""
    return state_dir / f"{node}.claims"


def read_claims(state_dir: Path, node: str) -> list[SimulatedClaim]:
    """Return the claims of processes that still run. Files of other processes are
    removed."""
    claims = []
    for path in sorted(claims_dir(state_dir, node).glob("*.json")):
        try:
            claim = SimulatedClaim.from_file(path)
        except FileNotFoundError:
            continue  # removed at this moment
        except (OSError, MessageRefused):
            path.unlink(missing_ok=True)
            continue
        if claim.alive:
            claims.append(claim)
        else:
            path.unlink(missing_ok=True)
    return claims


def free_bytes(
    gpu: str,
    claimable_bytes: int,
    claims: Sequence[SimulatedClaim],
    *,
    besides_pid: int = 0,
) -> int:
    """Return the unclaimed memory of a Gpu. The claim of one process is not counted."""
    return claimable_bytes - sum(
        claim.memory_bytes
        for claim in claims
        if gpu in claim.gpus and claim.pid != besides_pid
    )


def store_claim(
    state_dir: Path,
    node: str,
    claim: SimulatedClaim,
    *,
    rooms: Mapping[str, SimulatedMemory],
) -> Path:
    """Write a claim if there is room for it, and return its file.

    Raises SimulatedOutOfMemory, or ClaimRefused for an unknown Gpu or a process that
    does not run. Two concurrent claims cannot both get the last byte.
    """
    folder = claims_dir(state_dir, node)
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        if not claim.alive:
            raise ClaimRefused(gpu=claim.gpus[0], why=f"no process {claim.pid}")
        others = read_claims(state_dir, node)
        for gpu in claim.gpus:
            room = rooms.get(gpu)
            if room is None:
                raise ClaimRefused(gpu=gpu, why=f"not a simulated Gpu of {node}")
            left = free_bytes(gpu, room.claimable_bytes, others, besides_pid=claim.pid)
            if claim.memory_bytes > left:
                raise SimulatedOutOfMemory(
                    gpu=gpu,
                    asked_bytes=claim.memory_bytes,
                    free_bytes=max(left, 0),
                    total_bytes=room.total_bytes,
                )
        path = folder / f"{claim.pid}.json"
        draft = folder / f".{claim.pid}.{os.getpid()}.tmp"
        draft.write_bytes(encode(claim))
        draft.replace(path)
    return path


def drop_claim(state_dir: Path, node: str, *, pid: int) -> None:
    """Remove a process's claim, if it has one."""
    (claims_dir(state_dir, node) / f"{pid}.json").unlink(missing_ok=True)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
