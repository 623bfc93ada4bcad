"""The alert rules about the bookings of a GPU.

See docs/design/telemetry.md#findings. ``reservations.presence.gpu_findings`` makes the
facts of each reading and checks every rule whose condition is about ``GpuUse``. Rules
about idleness use the same thresholds as the release of bookings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from telemetry.protocol.sentences import sentence
from telemetry.rules.alert_rules import AlertRule, Severity, declare


@dataclass(frozen=True, slots=True)
class GpuUse:
    """Facts of one reading of a GPU and of the calendar."""

    booked: bool
    """Whether a reservation runs now."""
    came: bool = False
    """Whether the holder checked in or runs a process."""
    anybody: bool = False
    """Whether there is a process."""
    works: bool | None = None
    """Whether the GPU computes. None: its utilization is unknown."""
    strangers: bool = False
    """Processes of people who may not use it now, except the last holder's."""
    late: bool = False
    """Processes of the last holder, after the end and its grace."""
    memory_bytes: int = 0
    least_memory_bytes: int = 0
    """Memory without a process above this is an alert."""
    people: Callable[[], Mapping[str, Any]] = dict
    """Returns the strangers' users and processes as an alert stores them."""
    late_people: Callable[[], Mapping[str, Any]] = dict
    """Returns the last holder and the processes that remained, in that form."""


NO_SHOW = declare(
    AlertRule(
        "no-show",
        sentence("booking not used"),
        sentence("The booking has started, but nothing runs and nobody checked in."),
        Severity.INFO,
        condition=lambda use: use.booked and not use.came and not use.anybody,
        facts=GpuUse,
        after_seconds=lambda policy: policy.no_show_seconds,
    )
)
IDLE_HOG = declare(
    AlertRule(
        "idle hog",
        sentence("booked but idle"),
        sentence("The GPU is booked, but almost no work runs."),
        Severity.INFO,
        # An unknown utilization is not idleness.
        condition=lambda use: use.booked and use.came and use.works is False,
        facts=GpuUse,
        after_seconds=lambda policy: policy.idle_seconds,
    )
)
INTRUDER = declare(
    AlertRule(
        "intruder",
        sentence("someone else’s process"),
        sentence("A process runs here that is not the holder’s."),
        Severity.WARNING,
        condition=lambda use: use.booked and use.strangers,
        facts=GpuUse,
        after_seconds=lambda policy: policy.judge.intruder_after_seconds,
        detail=lambda use: use.people(),
    )
)
ZOMBIE_MEMORY = declare(
    AlertRule(
        "zombie memory",
        sentence("leftover memory"),
        sentence("Memory is in use, but no process uses it."),
        Severity.WARNING,
        condition=lambda use: (
            not use.booked
            and not use.anybody
            and use.memory_bytes >= use.least_memory_bytes
        ),
        facts=GpuUse,
        after_seconds=lambda policy: policy.judge.zombie_after_seconds,
        detail=lambda use: {"memory_bytes": use.memory_bytes},
    )
)
OVERRUN = declare(
    AlertRule(
        "overrun",
        sentence("still running after the booking"),
        sentence("A process of the last holder still runs after the booking ended."),
        Severity.WARNING,
        condition=lambda use: not use.booked and use.late,
        facts=GpuUse,
        after_seconds=lambda policy: policy.judge.overrun_after_seconds,
        detail=lambda use: use.late_people(),
    )
)
SQUATTER = declare(
    AlertRule(
        "squatter",
        sentence("in use without a booking"),
        sentence("A process runs on this GPU, but it is not booked."),
        Severity.INFO,
        condition=lambda use: not use.booked and use.strangers,
        facts=GpuUse,
        after_seconds=lambda policy: policy.judge.squatter_after_seconds,
        detail=lambda use: use.people(),
    )
)
IDLE_WARNING = declare(
    AlertRule(
        "idle warning",
        sentence("released soon"),
        sentence("The booking is released soon unless it is used or kept."),
        Severity.INFO,
        found_in="reservations.presence.idle_release.warn_or_release",
    )
)
BROKEN_WITH_BOOKINGS = declare(
    AlertRule(
        "broken with bookings",
        sentence("broken GPU with bookings"),
        sentence("This GPU is broken and has bookings."),
        Severity.CRITICAL,
        found_in="gpuportal.alerts.broken_gpus.judge_broken",
        told_once=True,
        shown_to_bookers=True,
    )
)
