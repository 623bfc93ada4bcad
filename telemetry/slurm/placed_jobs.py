"""Jobs that have nodes of Slurm, or had some, as squeue prints them by `FORMAT`."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from telemetry.slurm.host_list import HostListInvalid, read_hosts
from telemetry.slurm.slurm_output import MOST_BYTES, SlurmOutputInvalid

FORMAT = "%A|%T|%u|%v|%N"
"""Number, state, Unix user, reservation and nodes (squeue(1))."""
RUNNING = frozenset({"RUNNING", "SUSPENDED", "COMPLETING"})
_NOT_BEGUN = frozenset({"PENDING", "CONFIGURING"})
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PlacedJob:
    """A job that has begun. It may have ended."""

    job_id: int
    runs: bool
    user: str
    """The Unix user, or the number of one that has no name here."""
    reservation: str
    """The reservation to which it counts; "": to none."""
    nodes: tuple[str, ...]


def read_placed_jobs(output: bytes) -> list[PlacedJob]:
    """Read what ``squeue`` printed by `FORMAT`. Jobs that have not begun, or were
    cancelled before, are left out, and so are lines that are not by the format.

    Raises:
        SlurmOutputInvalid: the output is too long.

    >>> read_placed_jobs(b"banner\\n7|FAILED|ada|r|gp1\\n8|PENDING|ada|r|\\n")
    [PlacedJob(job_id=7, runs=False, user='ada', reservation='r', nodes=('gp1',))]
    """
    if len(output) > MOST_BYTES:
        raise SlurmOutputInvalid(f"more than {MOST_BYTES // 2**20} MiB of output")
    found = []
    for line in output.decode("utf-8", "replace").splitlines():
        words = [word.strip() for word in line.split("|")]
        if len(words) != 5 or not words[0].isdecimal() or words[1] in _NOT_BEGUN:
            continue
        if nodes := _hosts(words[4]):
            job_id, state, user, reservation = int(words[0][:15]), *words[1:4]
            name = "" if reservation == "(null)" else reservation
            found.append(PlacedJob(job_id, state in RUNNING, user, name, nodes))
    return found


def _hosts(text: str) -> tuple[str, ...]:
    try:
        return read_hosts(text)
    except HostListInvalid as error:
        log.warning("the nodes of a job of Slurm are not readable: %s", error)
        return ()
