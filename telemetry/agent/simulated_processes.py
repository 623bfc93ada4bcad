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
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from telemetry.proc_stat import read_stat
from telemetry.protocol.errors import (
    ClaimRefused,
    MessageRefused,
    SimulatedOutOfMemory,
)
from telemetry.protocol.fields import Fields, load_object
from telemetry.protocol.hardware import MOST_GPUS, MOST_MEMORY_BYTES, UUID_LENGTH
from telemetry.protocol.sample import COMMAND_LENGTH, MOST_JOB, MOST_PID, USER_LENGTH

MOST_TICKS = 2**63


@dataclass(frozen=True, slots=True)
class SimulatedClaim:
    """The use that one real process makes of simulated Gpus."""

    pid: int
    start_ticks: int
    """Field 22 of /proc/<pid>/stat: with the pid, the process's identity."""
    gpus: tuple[str, ...]
    """UUIDs."""
    memory_bytes: int
    """On each of the Gpus."""
    util_pct: float
    user: str | None = None
    command: str = ""
    job: int | None = None

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
        fields = load_object(path.read_bytes())
        gpus = fields.words("gpus", most=MOST_GPUS, longest=UUID_LENGTH)
        return cls(
            pid=fields.whole("pid", most=MOST_PID, least=1),
            start_ticks=fields.whole("start_ticks", most=MOST_TICKS),
            gpus=gpus or (fields.text("gpu", most=UUID_LENGTH),),
            memory_bytes=fields.whole("memory_bytes", most=MOST_MEMORY_BYTES),
            util_pct=fields.number("util_pct", most=100.0),
            user=fields.text_or_none("user", most=USER_LENGTH),
            command=fields.text_or_none("command", most=COMMAND_LENGTH) or "",
            job=_job(fields),
        )


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
        draft.write_text(json.dumps(asdict(claim)), encoding="utf-8")
        draft.replace(path)
    return path


def drop_claim(state_dir: Path, node: str, *, pid: int) -> None:
    """Remove a process's claim, if it has one."""
    (claims_dir(state_dir, node) / f"{pid}.json").unlink(missing_ok=True)


def _job(fields: Fields) -> int | None:
    return fields.whole_or_none("job", most=MOST_JOB)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
