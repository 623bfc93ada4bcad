"""Simulate the order and the batches in which waiting requests would be served.

The simulation goes over the queue, earliest deadline first, and forms batches in one of
two ways: *greedy*, as full as the first request's deadline allows, or only of
neighbours in the order of deadlines. A new request changes nothing before the first
batch that it could join or precede, so adding or removing it repeats the simulation
only from there. A request with the latest deadline costs one batch, not the queue.

Times are seconds of one monotonic clock that the caller reads.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from placement.protocol.serving_times import Timing

ROUNDING_SECONDS = 1e-9

Group = tuple[str, str]
Order = tuple[float, int]


@dataclass(frozen=True, slots=True, eq=False)
class QueuedRequest:
    """One waiting inference request."""

    id: int
    model: str
    rows: int
    arrived_at: float
    deadline_at: float
    like: str = ""
    """Requests of one model with the same value may share a batch. "": none may."""

    @property
    def group(self) -> Group:
        """Requests of one group may share a batch, if ``like`` is not empty."""
        return (self.model, self.like)

    def in_time(self, end: float) -> bool:
        """Whether it would be in time with this end."""
        return end <= self.deadline_at + ROUNDING_SECONDS


@dataclass(slots=True)
class ScheduledModel:
    """A model as the scheduler knows it."""

    name: str
    memory_bytes: int
    timing: Timing
    most_rows: int = 1


class InferenceQueue:
    """Waiting requests by group. ``by_deadline`` False: in order of arrival."""

    def __init__(self, *, by_deadline: bool) -> None:
        self.by_deadline = by_deadline
        self.groups: dict[Group, list[QueuedRequest]] = {}
        self._ids: set[int] = set()

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, request: QueuedRequest) -> bool:
        return request.id in self._ids

    def order(self, request: QueuedRequest) -> Order:
        """Earliest deadline first, then as they came."""
        at = request.deadline_at if self.by_deadline else request.arrived_at
        return (at, request.id)

    def add(self, request: QueuedRequest) -> None:
        """O(log n) comparisons."""
        insort(self.groups.setdefault(request.group, []), request, key=self.order)
        self._ids.add(request.id)

    def drop(self, request: QueuedRequest) -> bool:
        """Take a request out; False: it does not wait."""
        if request.id not in self._ids:
            return False
        self._ids.remove(request.id)
        rows = self.groups[request.group]
        del rows[bisect_left(rows, self.order(request), key=self.order)]
        if not rows:
            del self.groups[request.group]
        return True

    def drop_model(self, name: str) -> list[QueuedRequest]:
        """Remove and return the requests for a model."""
        gone = [key for key in self.groups if key[0] == name]
        found = [request for key in gone for request in self.groups.pop(key)]
        self._ids.difference_update(one.id for one in found)
        return found

    def mixes(self, newcomer: QueuedRequest | None = None) -> bool:
        """Whether batches could be made past others who wait, newcomer included."""
        groups, people = len(self.groups), len(self)
        if newcomer is not None:
            groups += newcomer.group not in self.groups
            people += 1
        return 1 < groups < people

    def all(self) -> list[QueuedRequest]:
        """Everybody, group by group."""
        return [one for group in self.groups.values() for one in group]


@dataclass(slots=True, eq=False)
class SimulatedRun:
    """One simulated run, and the state before it."""

    model: str
    group: Group
    batch: tuple[QueuedRequest, ...]
    before: float
    """When the one before it is over; a load comes between the two."""
    begin: float
    end: float
    in_time: bool
    """Its first one, who has the earliest deadline of them, and so all."""
    loaded: tuple[str, ...]
    """Before it; the least recently used first."""


@dataclass(frozen=True, slots=True)
class SimulationChange:
    """The changes that a new request made in a walk."""

    keep: int
    """The steps that stayed."""
    old: list[SimulatedRun]
    """Those that were replaced, as they were before."""


class QueueSimulation:
    """The steps in which all who wait would be served, from ``at`` on."""

    def __init__(
        self,
        queue: InferenceQueue,
        placed: Mapping[str, ScheduledModel],
        *,
        room_bytes: int,
        loaded: Iterable[str],
        at: float,
        greedy: bool,
        late_batches: bool = False,
    ) -> None:
        """``late_batches``: a batch may make its first one late."""
        self.queue, self.placed, self.room_bytes = queue, placed, room_bytes
        self.greedy, self.late_batches = greedy, late_batches
        self.began_at = self.at = at
        self.loaded = tuple(loaded)
        self.steps: list[SimulatedRun] = []
        self.late = 0
        """Steps that would miss a deadline."""
        self._taken: dict[Group, int] = {}

    def simulate_rest(
        self, groups: Iterable[Group], *, most: int | None = None
    ) -> None:
        """Simulate the rest of these groups, at most ``most`` steps."""
        order, rows_of, taken = self.queue.order, self.queue.groups, self._taken
        heads = []
        for group in groups:
            rows, first = rows_of[group], taken.get(group, 0)
            if first < len(rows):
                heads.append((order(rows[first]), group))
        heapify(heads)
        while heads and most != 0:
            _, group = heappop(heads)
            bound = heads[0][0] if heads and not self.greedy else None
            self._step(group, bound)
            rows, last = rows_of[group], taken[group]
            if last < len(rows):
                heappush(heads, (order(rows[last]), group))
            most = None if most is None else most - 1

    def insert(self, request: QueuedRequest) -> SimulationChange:
        """Repeat the simulation from the first batch that a new request changes."""
        keep = self._unchanged_by(request)
        old = self.steps[keep:]
        self._drop_steps_from(keep)
        self.simulate_rest({request.group, *(step.group for step in old)})
        return SimulationChange(keep, old)

    def undo_insert(self, changed: SimulationChange) -> None:
        """Be as before ``insert``; the newcomer is out of the queue again."""
        self._drop_steps_from(changed.keep)
        for step in changed.old:
            self._append(step)
        if changed.old:
            last = changed.old[-1]
            self.at, self.loaded = last.end, self._used(last.loaded, last.model)

    def begin_first_step(self, batch: tuple[QueuedRequest, ...]) -> bool:
        """The first step begins and left the queue; False: another one did."""
        if not self.steps or self.steps[0].batch != batch:
            return False
        step = self.steps.pop(0)
        self.late -= not step.in_time
        left = self._taken[step.group] - len(batch)
        if left:
            self._taken[step.group] = left
        else:
            del self._taken[step.group]
        self.began_at = step.end
        return True

    def step_of(self, request: QueuedRequest) -> SimulatedRun:
        """The run that a request is in. Raises StopIteration: it is in none."""
        return next(step for step in reversed(self.steps) if request in step.batch)

    def _unchanged_by(self, request: QueuedRequest) -> int:
        """How many steps are the same with a newcomer.

        Heads of steps come in the order of deadlines, so what could begin after the
        newcomer are the last ones. The batch of its group just before may take it in.
        """
        order, group = self.queue.order(request), request.group
        follows = self.queue.groups[group][0] is not request
        keep = len(self.steps)
        for index in range(keep - 1, -1, -1):
            step = self.steps[index]
            if step.group == group and self.queue.order(step.batch[0]) < order:
                return index
            if self.queue.order(step.batch[-1]) > order:
                keep = index
            elif not follows:
                break
        return keep

    def _drop_steps_from(self, keep: int) -> None:
        """Forget the steps from there on."""
        if keep == len(self.steps):
            return
        first = self.steps[keep]
        self.at, self.loaded = first.before, first.loaded
        for step in self.steps[keep:]:
            self._taken[step.group] -= len(step.batch)
            self.late -= not step.in_time
        del self.steps[keep:]

    def _step(self, group: Group, bound: Order | None) -> None:
        """The next run is one of this group."""
        model, rows = self.placed[group[0]], self.queue.groups[group]
        there = model.name in self.loaded
        begin = self.at if there else self.at + model.timing.load_seconds
        first = self._taken.get(group, 0)
        last, total = self._filled(model, rows, first, begin, bound)
        batch = tuple(rows[first:last])
        end = begin + model.timing.typical_seconds(total)
        in_time = batch[0].in_time(end)
        name, before = model.name, self.loaded
        self._append(
            SimulatedRun(name, group, batch, self.at, begin, end, in_time, before)
        )
        self.at, self.loaded = end, self._used(before, name)

    def _append(self, step: SimulatedRun) -> None:
        self.steps.append(step)
        self._taken[step.group] = self._taken.get(step.group, 0) + len(step.batch)
        self.late += not step.in_time

    def _filled(
        self,
        model: ScheduledModel,
        rows: list[QueuedRequest],
        first: int,
        begin: float,
        bound: Order | None,
    ) -> tuple[int, int]:
        """Where the batch that starts with ``rows[first]`` ends, and its rows."""
        head, last = rows[first], first + 1
        total = head.rows
        if not head.like:
            return last, total
        seconds, most = model.timing.typical_seconds, model.most_rows
        while last < len(rows):
            more = total + rows[last].rows
            if more > most:
                break
            if bound is not None and self.queue.order(rows[last]) > bound:
                break
            if not (self.late_batches or head.in_time(begin + seconds(more))):
                break
            total, last = more, last + 1
        return last, total

    def _used(self, loaded: tuple[str, ...], name: str) -> tuple[str, ...]:
        """Return the loaded models after a run, least recently used first."""
        if loaded and loaded[-1] == name:
            return loaded
        rest = [one for one in loaded if one != name]
        if name not in loaded:
            used = sum(self.placed[one].memory_bytes for one in rest)
            while used + self.placed[name].memory_bytes > self.room_bytes:
                used -= self.placed[rest.pop(0)].memory_bytes
        return (*rest, name)
