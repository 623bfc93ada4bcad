"""Measures of a replay: waits, use, and fairness.

Jain's index (Jain, Chiu, Hawe, DEC-TR-301, 1984) of service over entitlement, by
windows of 24 h of the trace's span, then averaged. Entitlement is the max-min share of
each Membership's demand (queued and running Gpus) at every instant: ``flat`` over all
of them, ``tree`` over groups and then over the members of each. Unserved is the part of
all entitlement (tree) that was not served in its window.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from reservations.reports.replay.engine import ReplayedRun

DAY_SECONDS = 86_400
HOUR_SECONDS = 3600
SHORT_SECONDS = 60
"""Bounded slowdown counts shorter jobs as this long (Feitelson et al., 1997)."""
LEAST_JOBS = 5
"""A user with fewer jobs has no meaningful mean."""
LEAST_ENTITLED_GPU_SECONDS = 900
"""A user with less entitlement in a day had too little demand to share."""

Member = tuple[str, str]
"""Group and user."""
Name = TypeVar("Name", str, Member)


@dataclass(frozen=True, slots=True)
class Measures:
    """Hours, ratios and an index. Field names are those of the command."""

    jobs: int
    wait_mean_hours: float
    wait_p50_hours: float
    wait_p99_hours: float
    bounded_slowdown: float
    utilization: float
    """Part of the Gpu-seconds of the trace's span that was used."""
    jain_flat: float
    jain_tree: float
    unserved_entitlement: float
    """Part of the entitlement by groups that was not served within its day; 0 to 1."""
    worst_user_wait_hours: float


def measure(runs: Sequence[ReplayedRun], *, gpus: int) -> Measures:
    """Sum up a replay of at least one ReplayedRun. Cost: O(events x users)."""
    waits = sorted(run.wait_s / HOUR_SECONDS for run in runs)
    days = max(run.job.submit_s for run in runs) // DAY_SECONDS + 1
    by_user: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        by_user[run.job.user].append(run.wait_s / HOUR_SECONDS)
    means = [sum(own) / len(own) for own in by_user.values() if len(own) >= LEAST_JOBS]
    fair = fairness(runs, gpus=gpus, days=days)
    return Measures(
        jobs=len(runs),
        wait_mean_hours=statistics.fmean(waits),
        wait_p50_hours=statistics.median(waits),
        wait_p99_hours=waits[min(len(waits) - 1, int(len(waits) * 0.99))],
        bounded_slowdown=statistics.fmean(_slowdown(run) for run in runs),
        utilization=_used(runs, days * DAY_SECONDS) / (gpus * days * DAY_SECONDS),
        jain_flat=fair.flat,
        jain_tree=fair.tree,
        unserved_entitlement=fair.unserved_ratio,
        worst_user_wait_hours=max(means, default=0.0),
    )


@dataclass(frozen=True, slots=True)
class GroupWaits:
    """Waits and use of a group's jobs."""

    group: str
    jobs: int
    wait_mean_hours: float
    wait_p99_hours: float
    gpu_hours: float


def waits_by_group(runs: Sequence[ReplayedRun]) -> list[GroupWaits]:
    """Sum up each group's runs, by name."""
    by_group: dict[str, list[ReplayedRun]] = defaultdict(list)
    for run in runs:
        by_group[run.job.group].append(run)
    found = []
    for group, own in sorted(by_group.items()):
        waits = sorted(run.wait_s / HOUR_SECONDS for run in own)
        found.append(
            GroupWaits(
                group,
                len(own),
                statistics.fmean(waits),
                waits[min(len(waits) - 1, int(len(waits) * 0.99))],
                sum(run.job.gpus * run.job.duration_s for run in own) / HOUR_SECONDS,
            )
        )
    return found


@dataclass(frozen=True, slots=True)
class DayLoad:
    """A day of a replay: used GPU-seconds, and waiting ones."""

    used_gpu_seconds: int
    waited_gpu_seconds: int
    """Requested Gpus times the seconds in which they were waited for."""


def load_by_day(runs: Sequence[ReplayedRun], *, days: int) -> list[DayLoad]:
    """Sum up each day of the trace's span. Cost: O(days that runs touch)."""
    used, waited = [0] * days, [0] * days
    for run in runs:
        for sums, start, end in (
            (waited, run.job.submit_s, run.start_s),
            *((used, *piece) for piece in run.served),
        ):
            for day in range(start // DAY_SECONDS, days):
                low, high = day * DAY_SECONDS, (day + 1) * DAY_SECONDS
                if low >= end:
                    break
                sums[day] += run.job.gpus * (min(end, high) - max(start, low))
    return [DayLoad(*pair) for pair in zip(used, waited, strict=True)]


def _slowdown(run: ReplayedRun) -> float:
    ran_s = run.job.duration_s
    return max(1.0, (run.wait_s + ran_s) / max(ran_s, SHORT_SECONDS))


def _used(runs: Sequence[ReplayedRun], span_s: int) -> int:
    """GPU-seconds within the span."""
    return sum(
        run.job.gpus * max(0, min(end, span_s) - start)
        for run in runs
        for start, end in run.served
    )


@dataclass(frozen=True, slots=True)
class Fairness:
    """Jain's indexes of a day or of several, and the unserved share."""

    flat: float
    tree: float
    unserved_gpu_seconds: float
    entitled_gpu_seconds: float

    @property
    def unserved_ratio(self) -> float:
        """Part of the entitlement that was not served."""
        if not self.entitled_gpu_seconds:
            return 0.0
        return self.unserved_gpu_seconds / self.entitled_gpu_seconds


def fairness(runs: Sequence[ReplayedRun], *, gpus: int, days: int) -> Fairness:
    """Jain's indexes averaged over the days with demand. The rest is summed."""
    clock = _Clock(gpus)
    events = sorted(
        event
        for run in runs
        for event in (
            (run.job.submit_s, 1, run.job.gpus, 0, run.job.member),
            (run.end_s, 0, -run.job.gpus, 0, run.job.member),
            *(
                (at, kind, 0, change * run.job.gpus, run.job.member)
                for start, end in run.served
                for at, kind, change in ((start, 2, 1), (end, 0, -1))
            ),
        )
    )
    found: list[Fairness] = []
    place = 0
    for day in range(days):
        end = (day + 1) * DAY_SECONDS
        while place < len(events) and events[place][0] < end:
            at, _kind, demand, service, member = events[place]
            clock.go_to(at)
            clock.change(member, demand, service)
            place += 1
        clock.go_to(end)
        one = clock.close_window()
        if one is not None:
            found.append(one)
    if not found:
        return Fairness(1.0, 1.0, 0.0, 0.0)
    return Fairness(
        statistics.fmean(one.flat for one in found),
        statistics.fmean(one.tree for one in found),
        sum(one.unserved_gpu_seconds for one in found),
        sum(one.entitled_gpu_seconds for one in found),
    )


class _Clock:
    """Integrates service and entitlement between events."""

    def __init__(self, gpus: int) -> None:
        self.gpus = gpus
        self.now = 0
        self.demand: dict[Member, int] = defaultdict(int)
        self.running: dict[Member, int] = defaultdict(int)
        self.service: dict[Member, float] = defaultdict(float)
        self.flat: dict[Member, float] = defaultdict(float)
        self.tree: dict[Member, float] = defaultdict(float)
        self._rates: tuple[dict[Member, float], dict[Member, float]] | None = None

    def change(self, member: Member, demand: int, service: int) -> None:
        """Change demand and service after an event."""
        self.demand[member] += demand
        self.running[member] += service
        if demand:
            self._rates = None
        for counts in (self.demand, self.running):
            if not counts[member]:
                del counts[member]

    def go_to(self, at: int) -> None:
        """Advance to an instant."""
        seconds = at - self.now
        if seconds <= 0:
            return
        self.now = at
        if self._rates is None:
            self._rates = _entitlements(self.demand, self.gpus)
        for sums, rates in zip((self.flat, self.tree), self._rates, strict=True):
            for member, rate in rates.items():
                sums[member] += rate * seconds
        for member, held in self.running.items():
            self.service[member] += held * seconds

    def close_window(self) -> Fairness | None:
        """Return the fairness of the window. None: too little demand for an index."""
        flat, tree = (_jain(self.service, sums) for sums in (self.flat, self.tree))
        unserved = sum(
            max(0.0, owed - self.service.get(member, 0.0))
            for member, owed in self.tree.items()
        )
        entitled = sum(self.tree.values())
        for sums in (self.service, self.flat, self.tree):
            sums.clear()
        if flat is None or tree is None:
            return None
        return Fairness(flat, tree, unserved, entitled)


def _entitlements(
    demand: Mapping[Member, int], gpus: int
) -> tuple[dict[Member, float], dict[Member, float]]:
    """Return the present entitlement of each Membership in Gpus: flat, and by
    groups.
    """
    groups: dict[str, dict[Member, float]] = defaultdict(dict)
    for member, wanted in demand.items():
        groups[member[0]][member] = wanted
    tree: dict[Member, float] = {}
    parts = max_min({g: sum(own.values()) for g, own in groups.items()}, gpus)
    for group, part in parts.items():
        tree |= max_min(groups[group], part)
    return max_min(demand, gpus), tree


def max_min(wanted: Mapping[Name, float], capacity: float) -> dict[Name, float]:
    """Share a capacity by max-min fairness: nobody gets more while a poorer one lacks.

    >>> max_min({"a": 1, "b": 5, "c": 9}, 9)
    {'a': 1, 'b': 4.0, 'c': 4.0}
    """
    shares: dict[Name, float] = {}
    left = capacity
    order = sorted(wanted, key=lambda name: (wanted[name], name))
    for place, name in enumerate(order):
        shares[name] = min(wanted[name], left / (len(order) - place))
        left -= shares[name]
    return shares


def _jain(
    service: Mapping[Member, float], entitled: Mapping[Member, float]
) -> float | None:
    ratios = [
        service.get(member, 0.0) / gpu_seconds
        for member, gpu_seconds in entitled.items()
        if gpu_seconds > LEAST_ENTITLED_GPU_SECONDS
    ]
    if not ratios:
        return None
    squares = sum(ratio * ratio for ratio in ratios)
    return 0.0 if not squares else sum(ratios) ** 2 / (len(ratios) * squares)
