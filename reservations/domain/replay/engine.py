"""Runs a trace against an order: who starts when, on how many free Gpus.

Event by event: what ends, what is submitted, then one look at the queue. The look
goes through the queue in the order's own order and starts what fits now; the first
``planned`` that do not fit get a planned start, which nothing behind them may push
back. 0 is a strict queue (nobody overtakes), 1 is EASY backfill (Lifka 1995; Mu'alem
and Feitelson, IEEE TPDS 2001), more is POLICY.md rule 5. Schedulers see requested
lengths, never real ones.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from reservations.domain.replay.trace import TraceJob

TELL_EVENTS = 50
"""Events between two words of how far a replay is."""


class TooWide(ValueError):
    """A job wants more Gpus than there are."""


class Order(Protocol):
    """Who is next. Told of everything that happens, in order of time."""

    planned: int
    """How many waiting jobs hold a planned start."""
    keeps_plans: bool
    """Whether starts are planned even while no Gpu is free; ``plans`` is told."""

    def submitted(self, job: TraceJob, now: int) -> None:
        """A job came."""

    def started(self, job: TraceJob, now: int) -> None:
        """A job got its Gpus."""

    def ended(self, job: TraceJob, now: int, *, waiting: bool) -> None:
        """A job gave them back; ``waiting``: somebody is there to take them."""

    def queue(self, jobs: Sequence[TraceJob], now: int) -> Sequence[TraceJob]:
        """The waiting jobs, first served first."""

    def plans(self, job: TraceJob, at: int, now: int) -> bool:
        """Whether a job may hold a start planned for then; told of it, if so."""


@dataclass(frozen=True, slots=True)
class Run:
    """When a job ran."""

    job: TraceJob
    start_s: int

    @property
    def end_s(self) -> int:
        """First second in which its Gpus are free again."""
        return self.start_s + self.job.duration_s

    @property
    def wait_s(self) -> int:
        """Seconds between submission and start."""
        return self.start_s - self.job.submit_s


class Easy:
    """One promise: the first that waits, at the earliest end that makes room.

    Mu'alem and Feitelson's two numbers: the shadow time, and the extra Gpus that are
    left over then; who ends before the shadow or fits into the extra may overtake.
    """

    def __init__(
        self, now: int, free: int, ends: Sequence[tuple[int, int, int]], head: TraceJob
    ) -> None:
        self.now, self.shadow = now, now
        room = free
        for end, _number, gpus in ends:
            room += gpus
            if room >= head.gpus:
                self.shadow = end
                break
        self.extra = room - head.gpus

    def fits_now(self, gpus: int, seconds: int) -> bool:
        """Whether the first that waits is not pushed back."""
        return self.now + seconds <= self.shadow or gpus <= self.extra

    def take(self, gpus: int, seconds: int) -> None:
        """Take them; who stays beyond the shadow takes from the extra."""
        if self.now + seconds > self.shadow:
            self.extra -= gpus


class Profile:
    """Free Gpus over time, as a scheduler expects them: a step function."""

    def __init__(self, now: int, free: int, ends: Sequence[tuple[int, int, int]]):
        """``ends``: (expected end, number, Gpus) of what runs, in order of time."""
        self.times = [now]
        self.free = [free]
        for end, _number, gpus in ends:
            at = max(end, now)
            if at == self.times[-1]:
                self.free[-1] += gpus
            else:
                self.times.append(at)
                self.free.append(self.free[-1] + gpus)

    def fits_now(self, gpus: int, seconds: int) -> bool:
        """Whether so many are free from now on for so long."""
        until = bisect_left(self.times, self.times[0] + seconds)
        return min(self.free[: max(until, 1)]) >= gpus

    def take(self, gpus: int, seconds: int) -> None:
        """Hold Gpus from now on."""
        self.hold(self.times[0], gpus, seconds)

    def hold(self, at: int, gpus: int, seconds: int) -> None:
        """Hold Gpus over [at, at + seconds)."""
        first, last = self._cut(at), self._cut(at + seconds)
        for place in range(first, last):
            self.free[place] -= gpus

    def earliest(self, gpus: int, seconds: int) -> int:
        """First instant from which so many are free for so long."""
        place, size = 0, len(self.times)
        while place < size:
            until = bisect_left(self.times, self.times[place] + seconds)
            blocked = next(
                (k for k in range(place, until) if self.free[k] < gpus), None
            )
            if blocked is None:
                return self.times[place]
            place = blocked + 1
        raise TooWide(f"{gpus} GPUs are never free")

    def _cut(self, at: int) -> int:
        """Index of the step that begins at an instant, made if there is none."""
        place = bisect_right(self.times, at)
        if self.times[place - 1] == at:
            return place - 1
        self.times.insert(place, at)
        self.free.insert(place, self.free[place - 1])
        return place


def replay(
    jobs: Sequence[TraceJob],
    *,
    gpus: int,
    order: Order,
    progress: Callable[[float], None] | None = None,
) -> list[Run]:
    """Run a trace to its end; Runs in order of their start.

    Args:
        jobs: in order of submission.
        gpus: equal Gpus of one pool.
        progress: told now and then which part of the jobs was submitted, 0 to 1; what
            it raises ends the replay.

    Raises:
        TooWide: a job wants more than all of them.
    """
    wide = next((job for job in jobs if job.gpus > gpus), None)
    if wide is not None:
        raise TooWide(f"job {wide.job_id} wants {wide.gpus} GPUs, there are {gpus}")
    return _Pool(gpus, order).run(jobs, progress)


class _Pool:
    """The Gpus, what runs on them and who waits."""

    def __init__(self, gpus: int, order: Order) -> None:
        self.free = gpus
        self.order = order
        self.waiting: list[TraceJob] = []
        self.ends: list[tuple[int, int, TraceJob]] = []
        self.expected: list[tuple[int, int, int]] = []
        self.runs: list[Run] = []

    def run(
        self, jobs: Sequence[TraceJob], progress: Callable[[float], None] | None
    ) -> list[Run]:
        """Go from event to event."""
        coming = events = 0
        while coming < len(jobs) or self.ends:
            events += 1
            if progress is not None and not events % TELL_EVENTS:
                progress(coming / len(jobs))
            instants = [jobs[coming].submit_s] if coming < len(jobs) else []
            instants += [self.ends[0][0]] if self.ends else []
            now = min(instants)
            while self.ends and self.ends[0][0] == now:
                self._end(heapq.heappop(self.ends)[2], now)
            while coming < len(jobs) and jobs[coming].submit_s == now:
                self.waiting.append(jobs[coming])
                self.order.submitted(jobs[coming], now)
                coming += 1
            if self.waiting and (self.free or self.order.keeps_plans):
                self._look(now)
        return self.runs

    def _look(self, now: int) -> None:
        """Start what may start, in the order's own order."""
        queue = list(self.order.queue(self.waiting, now))
        ready = 0
        while ready < len(queue) and queue[ready].gpus <= self.free:
            self._start(queue[ready], now)
            ready += 1
        left = queue[ready:]
        if left and self.free and self.order.planned == 1:
            left = [left[0], *self._backfill(left[1:], now, self._easy(left[0], now))]
        elif left and self.order.planned and (self.free or self.order.keeps_plans):
            profile = Profile(now, self.free, self.expected)
            left = self._backfill(left, now, profile, self.order.planned)
        self.waiting = sorted(left, key=lambda job: (job.submit_s, job.number))

    def _easy(self, head: TraceJob, now: int) -> Easy:
        return Easy(now, self.free, self.expected, head)

    def _backfill(
        self, queue: list[TraceJob], now: int, plan: Easy | Profile, promises: int = 0
    ) -> list[TraceJob]:
        """Start whoever pushes no promise back; return the others.

        The first ``promises`` that cannot start get a planned start of their own.
        """
        left = []
        for job in queue:
            if job.gpus <= self.free and plan.fits_now(job.gpus, job.req_s):
                plan.take(job.gpus, job.req_s)
                self._start(job, now)
                continue
            left.append(job)
            if promises and isinstance(plan, Profile):
                at = plan.earliest(job.gpus, job.req_s)
                if self.order.plans(job, at, now):
                    plan.hold(at, job.gpus, job.req_s)
                    promises -= 1
        return left

    def _start(self, job: TraceJob, now: int) -> None:
        self.free -= job.gpus
        self.runs.append(Run(job, now))
        heapq.heappush(self.ends, (now + job.duration_s, job.number, job))
        insort(self.expected, (now + job.req_s, job.number, job.gpus))
        self.order.started(job, now)

    def _end(self, job: TraceJob, now: int) -> None:
        self.free += job.gpus
        entry = (now - job.duration_s + job.req_s, job.number, job.gpus)
        del self.expected[bisect_left(self.expected, entry)]
        self.order.ended(job, now, waiting=bool(self.waiting))
