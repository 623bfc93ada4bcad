"""The choice of a gap for a backfill Job: which one, how long, when to leave. Pure.

"Backfill" as in EASY (Lifka, "The ANL/IBM SP Scheduling System", 1995): a Job that fits
into unused time may run at once if it delays no other Job. EASY relies on the Job's
estimate of its length. Here no estimate is needed: the Job is stopped, with its grace
period, when the gap ends or its Gpus are booked, and it resumes from its checkpoint in
the next gap.

Cost: one sort of the free Gpus for each Job considered.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from enum import StrEnum
from itertools import groupby

from placement.rules.job_refusals import JobRefusal
from reservations.rules.calendar import CalendarGpu
from reservations.rules.gaps import OpenGpu
from reservations.rules.window import unix
from telemetry.protocol.sentences import counted, joined, sentence
from telemetry.protocol.units import GIB_BYTES, format_duration

SETTLE_SECONDS = 10
"""Seconds between the latest KILL of a Job and the end of its gap."""
MOST_LIVE = 10
"""Most waiting or running Jobs in gaps of one person."""


class GapState(StrEnum):
    """State of a Job that runs in gaps."""

    QUEUED = "queued"  # waits for a gap, before the first and between two
    RUNNING = "running"  # holds a gap; the stretch in it is a separate Job
    STOPPING = "stopping"  # it was stopped: its last stretch is about to end
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"  # ended by a user, or its time was used up

    @property
    def label(self) -> str:
        """Return the word on screen."""
        return _LABELS[self]

    @classmethod
    def live(cls) -> frozenset[GapState]:
        """Return the states in which it waits for Gpus or holds some."""
        return frozenset({cls.QUEUED, cls.RUNNING, cls.STOPPING})


_LABELS = {
    GapState.QUEUED: sentence("queued"),
    GapState.RUNNING: sentence("running"),
    GapState.STOPPING: sentence("stopping"),
    GapState.DONE: sentence("done"),
    GapState.FAILED: sentence("failed"),
    GapState.STOPPED: sentence("stopped"),
}
_ENDS = frozenset({GapState.DONE, GapState.FAILED, GapState.STOPPED})

NEXT: dict[GapState, frozenset[GapState]] = {
    GapState.QUEUED: frozenset({GapState.RUNNING, GapState.STOPPED, GapState.FAILED}),
    GapState.RUNNING: frozenset({GapState.QUEUED, GapState.STOPPING}) | _ENDS,
    GapState.STOPPING: _ENDS,
    GapState.DONE: frozenset(),
    GapState.FAILED: frozenset(),
    GapState.STOPPED: frozenset(),
}


@dataclass(eq=False)
class TooManyBackfills(JobRefusal):
    """The person has as many jobs in gaps as the limit."""

    code = "too-many-gap-jobs"
    title = sentence("Too many jobs in gaps")
    live: int
    most: int

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence(
            "You have {live} jobs that run in gaps. The limit is {most}. Stop one, "
            "or wait until one has ended.",
            live=self.live,
            most=self.most,
        )


@dataclass(eq=False)
class GapJobOver(JobRefusal):
    """The job in gaps was stopped at the moment in which its gap was found."""

    code = "gap-job-over"
    title = sentence("The job has ended")
    row: int

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence("job in gaps #{row} no longer waits", row=self.row)


@dataclass(frozen=True, slots=True)
class GapRequirements:
    """A Job's requirements of a gap."""

    count: int
    shortest_seconds: int
    min_memory_bytes: int = 0
    gpu_class: str = ""
    """"": any."""
    uuids: frozenset[str] = frozenset()
    """Exactly the Gpus of its Plan; empty: any."""
    node: str = ""
    """The node of its checkpoint; "": any."""

    def is_suitable(self, gpu: CalendarGpu, uuid: str) -> bool:
        """Return whether a Gpu is good enough, ignoring its present holder."""
        return (
            gpu.bookable
            and gpu.memory_total_bytes >= self.min_memory_bytes
            and self.gpu_class in ("", gpu.gpu_class)
            and self.node in ("", gpu.node)
            and (not self.uuids or uuid in self.uuids)
        )

    def words(self) -> str:
        """Return the request as text for people."""
        if self.uuids:
            return sentence("the GPUs of its plan")
        parts = [counted("{n} GPU", "{n} GPUs", self.count)]
        if self.min_memory_bytes:
            parts.append(
                sentence(
                    "of {min_memory} GiB or more",
                    min_memory=f"{self.min_memory_bytes / GIB_BYTES:g}",
                )
            )
        if self.gpu_class:
            parts.append(sentence("of class {gpu_class}", gpu_class=self.gpu_class))
        if self.node:
            parts.append(sentence("on {node}", node=self.node))
        elif self.count > 1:
            parts.append(sentence("on one node"))
        return joined(parts)


@dataclass(frozen=True, slots=True)
class Gap:
    """Gpus of one node that are free until an instant."""

    gpu_ids: tuple[int, ...]
    node: str
    until: datetime


def best_gap(
    free: Iterable[OpenGpu], wants: GapRequirements, *, now: datetime, until: datetime
) -> Gap | None:
    """Return the gap to take: the longest, then the lightest Gpus; None if none fits.

    Args:
        until: the latest wanted or allowed end.
    """
    found: list[tuple[tuple[int, int, str, str], Gap]] = []
    for (node, gpu_class), group in _groups(free, wants):
        # Those that are free longest, and the first of these.
        chosen = sorted(group, key=lambda one: (-unix(one.until), one.gpu.index))
        chosen = chosen[: wants.count]
        if len(chosen) < wants.count:
            continue
        over = min([until, *(one.until for one in chosen)])
        if over - now < timedelta(seconds=wants.shortest_seconds):
            continue
        gap = Gap(tuple(one.gpu.pk for one in chosen), node, over)
        weight = sum(one.gpu.weight for one in chosen)
        found.append(((-unix(over), weight, node, gpu_class), gap))
    return min(found, key=lambda pair: pair[0])[1] if found else None


def _groups(
    free: Iterable[OpenGpu], wants: GapRequirements
) -> Iterable[tuple[tuple[str, str], list[OpenGpu]]]:
    """Yield the suitable Gpus by node and class; a Plan's Gpus by node alone."""

    def key(one: OpenGpu) -> tuple[str, str]:
        return one.gpu.node, "" if wants.uuids else one.gpu.gpu_class

    good = sorted(
        (one for one in free if wants.is_suitable(one.gpu, one.uuid)), key=key
    )
    for name, group in groupby(good, key=key):
        yield name, list(group)


def why_waits(free: Sequence[OpenGpu], wants: GapRequirements, *, now: datetime) -> str:
    """Return in a sentence why no gap fits now."""
    good = [one for one in free if wants.is_suitable(one.gpu, one.uuid)]
    if not good:
        return sentence(
            "waits for a gap: it needs {words}, and none is free now",
            words=wants.words(),
        )
    groups = [len(group) for _name, group in _groups(good, wants)]
    if max(groups) < wants.count:
        return counted(
            "waits for a gap: it needs {words}, and {n} is free at the same time now",
            "waits for a gap: it needs {words}, and {n} are free at the same time now",
            max(groups),
            words=wants.words(),
        )
    longest = max(unix(one.until) for one in good) - unix(now)
    return sentence(
        "waits for a longer gap: the GPUs that are free now stay free for {longest} "
        "at most, and it needs {shortest} with the time to leave",
        longest=format_duration(longest),
        shortest=format_duration(wants.shortest_seconds),
    )


def needed_seconds(
    shortest_seconds: int, grace_seconds: float, left_seconds: int | None
) -> int:
    """Return the shortest useful gap, with the time for leaving it.

    Args:
        left_seconds: remaining seconds of the requested total; None: until the Job
            ends.
    """
    shortest = shortest_seconds
    if left_seconds is not None:
        shortest = min(shortest, left_seconds)
    return shortest + leave_seconds(grace_seconds)


def leave_seconds(grace_seconds: float) -> int:
    """Return how long before its end a gap is left: TERM, the grace period, KILL."""
    return int(grace_seconds) + SETTLE_SECONDS


def must_leave(end: datetime, now: datetime, grace_seconds: float) -> bool:
    """Return whether TERM is due, so that the Gpus are free when the gap ends."""
    return (end - now).total_seconds() <= leave_seconds(grace_seconds)


def remaining_seconds(total_seconds: int | None, used_seconds: int) -> int | None:
    """Return the seconds left of the requested total; None: no total is set."""
    return None if total_seconds is None else max(0, total_seconds - used_seconds)


@dataclass(frozen=True, slots=True)
class GapRequest:
    """One Job that waits for a gap: the values that decide its position."""

    pk: int
    member_pk: int
    asked_at: datetime


def in_order(rows: Iterable[GapRequest], ranks: Mapping[int, int]) -> list[int]:
    """Sort by Fair Tree rank, then age, then id, as the waitlist does.

    Args:
        ranks: by Membership; the highest is served first.
    """
    ordered = sorted(
        rows, key=lambda one: (-ranks.get(one.member_pk, 0), one.asked_at, one.pk)
    )
    return [one.pk for one in ordered]


def fits_some_node(
    gpus: Iterable[tuple[CalendarGpu, str]],
    wants: GapRequirements,
    barred: Collection[int],
) -> bool:
    """Return whether a node could hold it if all of its Gpus were free."""
    found = [
        OpenGpu(gpu, uuid, datetime.max.replace(tzinfo=UTC))
        for gpu, uuid in gpus
        if gpu.pool_pk not in barred
    ]
    return any(len(group) >= wants.count for _name, group in _groups(found, wants))
