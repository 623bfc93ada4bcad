"""Nodes, jobs and reservations from the answers of Slurm 22.05 to 25.x."""

import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from telemetry.slurm.gres import GresCount, gpus_in, read_gres
from telemetry.slurm.host_list import HostListInvalid, read_hosts
from telemetry.slurm.slurm_output import (
    MOST_BYTES,
    MOST_SECONDS,
    SlurmOutputInvalid,
    is_infinite,
    number_of,
    read_records,
    text_of,
    time_of,
    words_of,
)

log = logging.getLogger(__name__)
HOLDING = frozenset(
    {"RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "STAGE_OUT", "RESIZING"}
)
"""States of a job that has its GPUs."""


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """One node as Slurm reports it."""

    name: str
    states: frozenset[str]
    """In upper case: the state and its flags."""
    gpus: tuple[GresCount, ...]
    """What the node has."""
    used: tuple[GresCount, ...] = ()
    """What jobs have of it, those included that Slurm hides from us."""
    reason: str = ""
    cpus: int | None = None


@dataclass(frozen=True, slots=True)
class JobShare:
    """The GPUs that a job has on one node."""

    node: str
    gpus: tuple[GresCount, ...]


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A job that has its GPUs now. Times are Unix seconds."""

    job_id: int
    user: str
    """The Unix user, or the number of one that has no name here."""
    account: str
    end: int | None
    """None: it has no time limit."""
    shares: tuple[JobShare, ...]
    reservation: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class SlurmReservation:
    """An advance reservation. Times are Unix seconds."""

    name: str
    start: int
    end: int
    nodes: tuple[str, ...]
    users: tuple[str, ...] = ()
    flags: frozenset[str] = frozenset()
    tres: str = ""
    """What it holds on all its nodes: ``cpu=4,gres/gpu:a100=2``."""
    purge_seconds: int = 0
    """It ends if no job ran in it for so long (PURGE_COMP); 0: it does not."""


def read_nodes(output: bytes) -> list[SlurmNode]:
    """Read what ``scontrol show nodes --json`` or Slurm 22.05's ``sinfo --json``
    printed.

    Raises:
        SlurmOutputInvalid: the output cannot be read, or names no node.
    """
    records = read_records(output, "nodes")
    nodes = [_node(one) for one in records if text_of(one, "name")]
    if not nodes:
        raise SlurmOutputInvalid("Slurm lists no node")
    return nodes


def read_jobs(output: bytes) -> list[SlurmJob]:
    """Read what ``squeue --json`` printed: the jobs that have GPUs now.

    Raises:
        SlurmOutputInvalid: the output cannot be read, or reports an error.
    """
    return [
        job
        for one in read_records(output, "jobs")
        if HOLDING & words_of(one, "job_state")
        and (job := _job(one)) is not None
        and job.shares
    ]


def read_reservations(output: bytes) -> list[SlurmReservation]:
    """Read what ``scontrol show reservations --json`` printed.

    Raises:
        SlurmOutputInvalid: the output cannot be read, or reports an error.
    """
    records = read_records(output, "reservations")
    return [one for record in records if (one := _reservation(record)) is not None]


_FIELD = re.compile(r"(?:^|\s)([A-Za-z]+)=")


def read_reservation_lines(output: bytes) -> list[SlurmReservation]:
    """Read what ``scontrol --oneliner show reservations`` printed with
    ``SLURM_TIME_FORMAT=%s``. Slurm before 23.02 prints no JSON of reservations.

    A reservation without valid times is left out.

    Raises:
        SlurmOutputInvalid: the output is too long.
    """
    if len(output) > MOST_BYTES:
        raise SlurmOutputInvalid(f"more than {MOST_BYTES // 2**20} MiB of output")
    found = []
    for line in output.decode("utf-8", errors="replace").splitlines():
        if not line.startswith("ReservationName="):
            continue
        names = list(_FIELD.finditer(line))
        stops = [*(match.start() for match in names[1:]), len(line)]
        fields = {
            match[1]: _known(line[match.end() : stop].strip())
            for match, stop in zip(names, stops, strict=True)
        }
        start, end = fields.get("StartTime", ""), fields.get("EndTime", "")
        if not (start.isdecimal() and end.isdecimal()):
            name = fields["ReservationName"][:60]
            log.warning("reservation %s of Slurm has no time in seconds", name)
            continue
        found.append(
            SlurmReservation(
                name=fields["ReservationName"],
                start=min(int(start[:15]), MOST_SECONDS),
                end=min(int(end[:15]), MOST_SECONDS),
                nodes=_hosts(fields.get("Nodes", "")),
                users=_users(fields.get("Users", "")),
                flags=words_of(fields, "Flags"),
                tres=fields.get("TRES", ""),
                purge_seconds=_purge_seconds(fields.get("Flags", "")),
            )
        )
    return found


def _node(record: Mapping[str, Any]) -> SlurmNode:
    return SlurmNode(
        name=text_of(record, "name"),
        states=words_of(record, "state", "state_flags"),
        gpus=gpus_in(read_gres(text_of(record, "gres"))),
        used=gpus_in(read_gres(text_of(record, "gres_used"))),
        reason=" ".join(text_of(record, "reason").split()),
        cpus=number_of(record, "cpus"),
    )


def _job(record: Mapping[str, Any]) -> SlurmJob | None:
    number, user_id = number_of(record, "job_id"), number_of(record, "user_id")
    if number is None:
        return None
    # Slurm 22.05 prints null for no limit, and an end in a year.
    unlimited = (
        record.get("time_limit", 0) is None
        or is_infinite(record, "time_limit")
        or is_infinite(record, "end_time")
    )
    return SlurmJob(
        job_id=number,
        user=text_of(record, "user_name") or ("" if user_id is None else str(user_id)),
        account=text_of(record, "account"),
        end=None if unlimited else time_of(record, "end_time"),
        shares=tuple(_shares(record)),
        reservation=text_of(record, "resv_name"),
        name=text_of(record, "name"),
    )


def _shares(record: Mapping[str, Any]) -> Iterator[JobShare]:
    """Join the nodes of a job with its GPUs: ``gres_detail`` has one entry for each
    node, in the order of the nodes."""
    details = record.get("gres_detail")
    if not isinstance(details, list):
        return
    names = _allocated(record.get("job_resources")) or _hosts(text_of(record, "nodes"))
    for name, detail in zip(names, details, strict=False):
        gpus = gpus_in(read_gres(detail)) if isinstance(detail, str) else ()
        if gpus:
            yield JobShare(name, gpus)


def _allocated(resources: Any) -> tuple[str, ...]:
    """Return the names of a job's nodes. Slurm 24.05 renamed the fields."""
    if not isinstance(resources, dict):
        return ()
    nodes = resources.get("nodes")
    newer = nodes.get("allocation") if isinstance(nodes, dict) else None
    found = newer or resources.get("allocated_nodes")
    parts = found if isinstance(found, list) else []
    return tuple(
        name
        for one in parts
        if isinstance(one, dict) and (name := text_of(one, "nodename", "name"))
    )


def _reservation(record: Mapping[str, Any]) -> SlurmReservation | None:
    name, start = text_of(record, "name"), time_of(record, "start_time")
    flags = words_of(record, "flags")
    if not name or start is None:
        return None
    return SlurmReservation(
        name=name,
        start=start,
        end=time_of(record, "end_time") or MOST_SECONDS,
        nodes=_hosts(text_of(record, "node_list")),
        users=_users(text_of(record, "users")),
        flags=flags,
        tres=text_of(record, "tres"),
        # The time stays when the flag has gone (26.05).
        purge_seconds=(
            _purge_number(record.get("purge_completed")) if _PURGES in flags else 0
        ),
    )


_PURGES = "PURGE_COMP"
_PURGE = re.compile(r"PURGE_COMP=(?:(\d{1,4})-)?(\d{1,2}):(\d{2}):(\d{2})")


def _purge_seconds(flags: str) -> int:
    """Read the time of the flag PURGE_COMP: ``00:15:00`` or ``1-00:15:00``."""
    match = _PURGE.search(flags)
    if match is None:
        return 0
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _purge_number(record: Any) -> int:
    """Read the time of ``purge_completed``, which JSON has beside the flags."""
    if not isinstance(record, dict):
        return 0
    return time_of(record, "time") or 0


def _hosts(text: str) -> tuple[str, ...]:
    try:
        return read_hosts(text)
    except HostListInvalid as error:
        # One odd row must not hide the rest of the cluster.
        log.warning("a list of hosts of Slurm is not readable: %s", error)
        return ()


def _users(text: str) -> tuple[str, ...]:
    return tuple(name for part in text.split(",") if (name := part.strip()))


def _known(value: str) -> str:
    return "" if value in ("(null)", "N/A") else value
