"""Simulate a trace under a queue order: the start of each job on free Gpus.

Each event handles ends, submissions, and then one pass over the queue. The pass goes
through the queue in the given order and starts jobs that fit now. The first ``planned``
jobs that do not fit get a planned start, which later jobs may not delay. 0 is a strict
queue (no overtaking), 1 is EASY backfill (Lifka 1995; Mu'alem and Feitelson, IEEE TPDS
2001), more is docs/design/fair-booking.md#rule-5. Schedulers see requested lengths,
never real ones.

Free Gpus that are held for a planned start would stay idle. If some jobs can be paused
(``pauses``), waiting ones run there until the Gpus are needed, like Jobs in gaps in the
portal: they save when they are stopped, and resume later.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from reservations.reports.replay.trace import TraceJob
from telemetry.protocol.coded_error import CodedError

TELL_EVENTS = 50
"""Events between two reports of a replay's progress."""
RESTART_SECONDS = 60
"""Time that a job in a gap needs to resume from its checkpoint."""


class TooWide(CodedError):
    """A job of the trace wants more GPUs than there are."""

    code = "trace-too-wide"


class QueueOrder(Protocol):
    """The order of the queue. It receives every event in order of time."""

    planned: int
    """How many waiting jobs have a planned start."""
    keeps_plans: bool
    """Whether starts are planned even while no Gpu is free. Then ``plans`` is
    called.
    """

    def submitted(self, job: TraceJob, now: int) -> None:
        """A job was submitted."""

    def started(self, job: TraceJob, now: int) -> None:
        """A job started."""

    def ended(self, job: TraceJob, now: int, *, waiting: bool) -> None:
        """A job returned its Gpus. ``waiting``: another job waits for them."""

    def ran_in_gap(self, job: TraceJob, seconds: int, now: int, *, done: bool) -> None:
        """A waiting job ran in a gap for this long. ``done``: it is finished."""

    def queue(self, jobs: Sequence[TraceJob], now: int) -> Sequence[TraceJob]:
        """The waiting jobs, in the order of service."""

    def plans(self, job: TraceJob, at: int, now: int) -> bool:
        """Return whether a job may hold a start planned for then, and record it."""


@dataclass(frozen=True, slots=True)
class ReplayedRun:
    """The times at which a job ran."""

    job: TraceJob
    start_s: int
    pieces: tuple[tuple[int, int], ...] = ()
    """Starts and ends of a job that also ran in gaps. Empty: it ran in one piece."""

    @property
    def served(self) -> tuple[tuple[int, int], ...]:
        """Starts and ends of the finished work, in order of time."""
        return self.pieces or ((self.start_s, self.end_s),)

    @property
    def end_s(self) -> int:
        """First second in which its Gpus are free again."""
        if self.pieces:
            return self.pieces[-1][1]
        return self.start_s + self.job.duration_s

    @property
    def wait_s(self) -> int:
        """Seconds after the submission in which the job did not run."""
        return self.end_s - self.job.submit_s - self.job.duration_s


class EasyBackfill:
    """One planned start: that of the first waiting job, at the earliest possible end.

    The two numbers of Mu'alem and Feitelson: the shadow time, and the extra Gpus that
    are free then. A job that ends before the shadow time, or fits into the extra Gpus,
    may overtake.
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
        """Whether the first waiting job is not delayed."""
        return self.now + seconds <= self.shadow or gpus <= self.extra

    def take_gpus(self, gpus: int, seconds: int) -> None:
        """Take Gpus. A job beyond the shadow time takes from the extra ones."""
        if self.now + seconds > self.shadow:
            self.extra -= gpus


class Profile:
    """The expected free Gpus over time: a step function."""

    def __init__(self, now: int, free: int, ends: Sequence[tuple[int, int, int]]):
        """``ends``: (expected end, number, Gpus) of running jobs, in order of time."""
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
        """Whether this many are free from now on for this long."""
        until = bisect_left(self.times, self.times[0] + seconds)
        return min(self.free[: max(until, 1)]) >= gpus

    def take_gpus(self, gpus: int, seconds: int) -> None:
        """Take Gpus from now on."""
        self.hold(self.times[0], gpus, seconds)

    def hold(self, at: int, gpus: int, seconds: int) -> None:
        """Hold Gpus over [at, at + seconds)."""
        first, last = self._step_index_at(at), self._step_index_at(at + seconds)
        for place in range(first, last):
            self.free[place] -= gpus

    def earliest(self, gpus: int, seconds: int) -> int:
        """Return the first instant from which this many are free for this long."""
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

    def _step_index_at(self, at: int) -> int:
        """Return the index of the step at an instant; insert a missing one."""
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
    order: QueueOrder,
    progress: Callable[[float], None] | None = None,
    pauses: Callable[[TraceJob], bool] | None = None,
) -> list[ReplayedRun]:
    """Run a trace to its end. Return the runs in order of their start.

    Args:
        jobs: in order of submission.
        gpus: equal Gpus of one pool.
        progress: called from time to time with the submitted share of the jobs, 0 to 1.
            An exception from it ends the replay.
        pauses: whether a job can be paused, and so may run in gaps. None: no job can.

    Raises:
        TooWide: a job needs more than all of them.
    """
    wide = next((job for job in jobs if job.gpus > gpus), None)
    if wide is not None:
        raise TooWide(f"job {wide.job_id} wants {wide.gpus} GPUs, there are {gpus}")
    return _Pool(gpus, order, pauses).run(jobs, progress)


@dataclass(frozen=True, slots=True)
class _GapRun:
    """A waiting job that runs on free Gpus until they are needed."""

    job: TraceJob
    since: int

    def done_s(self, now: int) -> int:
        """Return the seconds of its work that are done by an instant."""
        return min(max(0, now - self.since - RESTART_SECONDS), self.job.duration_s)

    @property
    def end_s(self) -> int:
        """Return when it finishes, if the Gpus are not needed before."""
        return self.since + RESTART_SECONDS + self.job.duration_s


class _Pool:
    """The Gpus, the running jobs and the queue."""

    def __init__(
        self,
        gpus: int,
        order: QueueOrder,
        pauses: Callable[[TraceJob], bool] | None = None,
    ) -> None:
        self.free = gpus
        """Gpus without a started job. Jobs in gaps may be on them."""
        self.order = order
        self.pauses = pauses
        self.in_gaps: list[_GapRun] = []
        """In order of their start: the newest leaves first."""
        self.pieces: dict[int, list[tuple[int, int]]] = {}
        """By number, the starts and ends of work done in gaps."""
        self.waiting: list[TraceJob] = []
        self.ends: list[tuple[int, int, TraceJob]] = []
        self.expected: list[tuple[int, int, int]] = []
        self.runs: list[ReplayedRun] = []

    def run(
        self, jobs: Sequence[TraceJob], progress: Callable[[float], None] | None
    ) -> list[ReplayedRun]:
        """Process one event after another."""
        coming = events = 0
        while coming < len(jobs) or self.ends or self.in_gaps:
            events += 1
            if progress is not None and not events % TELL_EVENTS:
                progress(coming / len(jobs))
            instants = [jobs[coming].submit_s] if coming < len(jobs) else []
            instants += [self.ends[0][0]] if self.ends else []
            if self.in_gaps:
                instants += [run.end_s for run in self.in_gaps]
            now = min(instants)
            if self.in_gaps:
                for run in [run for run in self.in_gaps if run.end_s == now]:
                    self._leave_gap(run, now)
            while self.ends and self.ends[0][0] == now:
                self._end(heapq.heappop(self.ends)[2], now)
            while coming < len(jobs) and jobs[coming].submit_s == now:
                self.waiting.append(jobs[coming])
                self.order.submitted(jobs[coming], now)
                coming += 1
            if self.waiting and (self.free or self.order.keeps_plans):
                self._start_jobs(now)
                if self.pauses is not None:
                    self._fill_gaps(self.pauses, now)
        return self.runs

    def _idle_gpus(self) -> int:
        """Return the Gpus without any job."""
        return self.free - sum(run.job.gpus for run in self.in_gaps)

    def _fill_gaps(self, pauses: Callable[[TraceJob], bool], now: int) -> None:
        """Let waiting jobs that can be paused run on idle Gpus."""
        idle = self._idle_gpus()
        if not idle:
            return
        running = {run.job.number for run in self.in_gaps}
        for job in self.order.queue(self.waiting, now):
            if job.gpus <= idle and job.number not in running and pauses(job):
                self.in_gaps.append(_GapRun(self._remaining_job(job), now))
                idle -= job.gpus

    def _leave_gap(self, run: _GapRun, now: int) -> None:
        """Remove a job from its gap. It keeps its progress."""
        self.in_gaps.remove(run)
        job, done = run.job, run.done_s(now)
        if done:
            start = run.since + RESTART_SECONDS
            self.pieces.setdefault(job.number, []).append((start, start + done))
        through = done == job.duration_s
        if through:
            place = next(
                at for at, one in enumerate(self.waiting) if one.number == job.number
            )
            whole = self.waiting.pop(place)
            pieces = tuple(self.pieces.get(job.number, [(now, now)]))
            self.runs.append(ReplayedRun(whole, pieces[0][0], pieces))
        self.order.ran_in_gap(job, now - run.since, now, done=through)

    def _remaining_job(self, job: TraceJob) -> TraceJob:
        """Return a job with its remaining length after its gaps."""
        if job.number not in self.pieces:
            return job
        done = sum(end - start for start, end in self.pieces[job.number])
        return replace(job, duration_s=job.duration_s - done, req_s=job.req_s - done)

    def _start_jobs(self, now: int) -> None:
        """Start the jobs that may start, in the order of the queue."""
        queue = list(self.order.queue(self.waiting, now))
        ready = 0
        while ready < len(queue) and queue[ready].gpus <= self.free:
            self._start(queue[ready], now)
            ready += 1
        left = queue[ready:]
        if left and self.free and self.order.planned == 1:
            left = [
                left[0],
                *self._backfill(left[1:], now, self._easy_backfill(left[0], now)),
            ]
        elif left and self.order.planned and (self.free or self.order.keeps_plans):
            profile = Profile(now, self.free, self.expected)
            left = self._backfill(left, now, profile, self.order.planned)
        self.waiting = sorted(left, key=lambda job: (job.submit_s, job.number))

    def _easy_backfill(self, head: TraceJob, now: int) -> EasyBackfill:
        return EasyBackfill(now, self.free, self.expected, head)

    def _backfill(
        self,
        queue: list[TraceJob],
        now: int,
        plan: EasyBackfill | Profile,
        promises: int = 0,
    ) -> list[TraceJob]:
        """Start the jobs that delay no planned start. Return the others.

        The first ``promises`` jobs that cannot start get a planned start.
        """
        left = []
        for job in queue:
            seconds = self._remaining_job(job).req_s if self.pieces else job.req_s
            if job.gpus <= self.free and plan.fits_now(job.gpus, seconds):
                plan.take_gpus(job.gpus, seconds)
                self._start(job, now)
                continue
            left.append(job)
            if promises and isinstance(plan, Profile):
                at = plan.earliest(job.gpus, seconds)
                if self.order.plans(job, at, now):
                    plan.hold(at, job.gpus, seconds)
                    promises -= 1
        return left

    def _start(self, job: TraceJob, now: int) -> None:
        if self.in_gaps:
            self._clear_gaps(job, now)
        left = job
        self.free -= job.gpus
        if job.number in self.pieces:
            left, pieces = self._remaining_job(job), self.pieces[job.number]
            last = (now, now + left.duration_s)
            self.runs.append(ReplayedRun(job, pieces[0][0], (*pieces, last)))
        else:
            self.runs.append(ReplayedRun(job, now))
        heapq.heappush(self.ends, (now + left.duration_s, job.number, left))
        insort(self.expected, (now + left.req_s, job.number, job.gpus))
        self.order.started(left, now)

    def _clear_gaps(self, job: TraceJob, now: int) -> None:
        """Remove a job from its gap, and the newest from theirs until it fits."""
        for run in [run for run in self.in_gaps if run.job.number == job.number]:
            self._leave_gap(run, now)
        while self._idle_gpus() < job.gpus:
            self._leave_gap(self.in_gaps[-1], now)

    def _end(self, job: TraceJob, now: int) -> None:
        self.free += job.gpus
        entry = (now - job.duration_s + job.req_s, job.number, job.gpus)
        del self.expected[bisect_left(self.expected, entry)]
        self.order.ended(job, now, waiting=bool(self.waiting))
