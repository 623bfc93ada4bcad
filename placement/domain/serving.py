"""Serving several models on one Gpu under deadlines: who is let in, what runs next.

After Clockwork (Gujarati et al., OSDI 2020): one action at a time, each predicted from
measured runs; what cannot meet its deadline is turned away at once instead of making
others late. A decision is a walk over the queue, earliest deadline first, with batches:

    let in  <=>  in the walk with the newcomer nobody is late,
                 and the newcomer not even if its own run is a slow one

Two ways to make batches are walked: as full as the first one's deadline allows, and
only of neighbours in the order of deadlines. While runs take as long as predicted
nobody who was let in is ever late: a newcomer is let in only if that stays true, and
what runs next is the first step of such a walk.

Times are seconds of one monotonic clock that the caller reads. A walk costs O(n log m)
for n waiting requests of m models (n <= MOST_WAITING).
"""

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from heapq import heapify, heappop, heappush

from placement.domain.serving_times import ServingError, Timing

MOST_WAITING = 256
ROUNDING_SECONDS = 1e-9


@dataclass(frozen=True, slots=True)
class Request:
    """One inference that somebody waits for."""

    id: int
    model: str
    rows: int
    arrived_at: float
    deadline_at: float
    like: str = ""
    """Requests of one model with the same word may share a batch; "": none may."""

    @property
    def order(self) -> tuple[float, int]:
        """Earliest deadline first, then as they came."""
        return (self.deadline_at, self.id)


class Act(StrEnum):
    """What the Gpu is to do."""

    LOAD = "load"
    UNLOAD = "unload"
    INFER = "infer"


@dataclass(frozen=True, slots=True)
class Action:
    """One thing for the Gpu, to begin in [earliest, latest] or not at all."""

    act: Act
    model: str
    earliest: float
    latest: float
    predicted_seconds: float
    requests: tuple[Request, ...] = ()

    @property
    def rows(self) -> int:
        """Of all its requests together."""
        return sum(request.rows for request in self.requests)


class Verdict(StrEnum):
    """Whether a request is let in, and why not."""

    IN = "in"
    TOO_LATE = "too late"
    """It, or somebody who was let in before, would miss a deadline."""
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Admission:
    """The answer to a request, and when it would be done."""

    verdict: Verdict
    done_at: float


@dataclass(slots=True)
class Placed:
    """A model as the scheduler knows it."""

    name: str
    memory_bytes: int
    timing: Timing
    most_rows: int = 1


@dataclass(frozen=True, slots=True)
class _Step:
    model: str
    batch: tuple[Request, ...]
    begin: float
    """Of the run itself; a load comes before."""
    end: float


@dataclass
class Scheduler:
    """Decides for one Gpu. ``room_bytes``: what loaded models may take together.

    ``admits`` False is first come, first served, nobody turned away and nothing
    dropped: what the rest is measured against.
    """

    room_bytes: int
    admits: bool = True
    placed: dict[str, Placed] = field(default_factory=dict)
    loaded: list[str] = field(default_factory=list)
    """The least recently used first."""
    late: list[Request] = field(default_factory=list)
    """Let in and dropped since; the caller takes them out and says so."""
    _groups: dict[tuple[str, str], list[Request]] = field(default_factory=dict)
    _running: Action | None = None
    _free_at: float = 0.0

    # --- models --------------------------------------------------------------------

    def place(self, model: Placed, *, loaded: bool) -> None:
        """Take a model; ``loaded``: it is on the Gpu already. Raises ServingError."""
        if model.memory_bytes > self.room_bytes:
            raise ServingError(f"{model.name} is larger than the room for all models")
        self.placed[model.name] = model
        if loaded and model.name not in self.loaded:
            self.loaded.append(model.name)

    def remove(self, name: str) -> list[Request]:
        """Forget a model; return who waited for it."""
        self.placed.pop(name, None)
        if name in self.loaded:
            self.loaded.remove(name)
        gone = [key for key in self._groups if key[0] == name]
        return [request for key in gone for request in self._groups.pop(key)]

    def make_room(self, memory_bytes: int) -> list[str]:
        """Which models must leave before so much more fits, the oldest first."""
        used = sum(self.placed[name].memory_bytes for name in self.loaded)
        leaving = []
        for name in self.loaded:
            if used + memory_bytes <= self.room_bytes:
                break
            leaving.append(name)
            used -= self.placed[name].memory_bytes
        return leaving

    # --- requests ------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """How many wait."""
        return sum(len(group) for group in self._groups.values())

    def busy(self, until: float) -> None:
        """The Gpu does something else, probably until then."""
        self._free_at = until

    def offer(self, request: Request, now: float) -> Admission:
        """Let a request in, or turn it away with the time it would be done.

        Raises:
            ServingError: its model is not placed, or its rows are too many.
        """
        model = self.placed.get(request.model)
        if model is None or not 1 <= request.rows <= model.most_rows:
            raise ServingError(f"{request.model} takes no {request.rows} rows")
        if self.waiting >= MOST_WAITING and self.admits:
            return Admission(Verdict.FULL, self._done_at(request, now))
        self._add(request)
        if not self.admits:
            return Admission(Verdict.IN, now)
        # Who comes to an idle Gpu is let in on a usual run: else one slow spell, which
        # nobody who is let in could disprove, would keep everybody out.
        alone = self.waiting == 1 and self._running is None and self._free_at <= now
        slower = 0.0 if alone else self._slower(request)
        for greedy in (True, False):
            steps = self._walk(now, greedy=greedy)
            end = _end_of(steps, request)
            if self._holds(steps) and self._in_time(request, end + slower):
                return Admission(Verdict.IN, end)
        self._drop(request)
        return Admission(Verdict.TOO_LATE, self._done_at(request, now))

    def _slower(self, request: Request) -> float:
        """By how much a slow run is slower than a usual one."""
        timing = self.placed[request.model].timing
        rows = request.rows
        return timing.predicted_seconds(rows) - timing.typical_seconds(rows)

    def withdraw(self, request: Request) -> bool:
        """Nobody waits for it any more; False: it runs or ran."""
        return self._drop(request)

    # --- what runs -----------------------------------------------------------------

    def next(self, now: float) -> Action | None:
        """What the Gpu should do now; None: nothing, or it is at something.

        Requests that cannot be in time any more go to ``late``.
        """
        if self._running is not None or now < self._free_at - ROUNDING_SECONDS:
            return None
        if self.admits:
            self._drop_late(now)
        steps = self._walk(now, greedy=True, most=None if self.admits else 1)
        if self.admits and not self._holds(steps):
            strict = self._walk(now, greedy=False)
            steps = strict if self._holds(strict) else steps
        return self._action(steps[0], now) if steps else None

    def begin(self, action: Action, now: float) -> bool:
        """Start an action; False: it is too late, and it is dropped.

        Of a dropped run the requests go to ``late``; of a dropped load they are
        looked at again.
        """
        if action.act is Act.INFER:
            for request in action.requests:
                self._drop(request)
        if self.admits and now > action.latest + ROUNDING_SECONDS:
            self.late += action.requests
            return False
        self._running = action
        self._free_at = now + action.predicted_seconds
        if action.act is Act.UNLOAD:
            self.loaded.remove(action.model)
        else:
            self._touch(action.model)
        return True

    def finish(self, action: Action, now: float, *, seconds: float) -> None:
        """An action is over; it took so long."""
        self._running, self._free_at = None, now
        model = self.placed.get(action.model)
        if model is not None and action.act is Act.INFER:
            model.timing.ran(action.rows, seconds, now)
        elif model is not None and action.act is Act.LOAD:
            model.timing.load_seconds = seconds

    # --- the walk ------------------------------------------------------------------

    def _walk(
        self, now: float, *, greedy: bool, most: int | None = None
    ) -> list[_Step]:
        """The steps that all who wait would be served in; ``most``: only the first."""
        at, loaded = max(now, self._free_at), list(self.loaded)
        key = self._order
        ends = {group: 0 for group in self._groups}
        heads = [(key(rows[0]), group) for group, rows in self._groups.items() if rows]
        heapify(heads)
        steps: list[_Step] = []
        while heads and (most is None or len(steps) < most):
            _, group = heappop(heads)
            rows, first = self._groups[group], ends[group]
            bound = heads[0][0] if heads and not greedy else None
            model = self.placed[group[0]]
            begin = at + (0.0 if model.name in loaded else model.timing.load_seconds)
            last = self._filled(rows, first, begin, bound)
            batch = tuple(rows[first:last])
            seconds = model.timing.typical_seconds(sum(one.rows for one in batch))
            steps.append(_Step(model.name, batch, begin, begin + seconds))
            at, ends[group] = begin + seconds, last
            self._use(loaded, model)
            if last < len(rows):
                heappush(heads, (key(rows[last]), group))
        return steps

    def _filled(
        self,
        rows: Sequence[Request],
        first: int,
        begin: float,
        bound: tuple[float, int] | None,
    ) -> int:
        """Where the batch that starts with ``rows[first]`` ends."""
        head = rows[first]
        model = self.placed[head.model]
        total, last = head.rows, first + 1
        while head.like and last < len(rows):
            more = rows[last]
            if total + more.rows > model.most_rows:
                break
            if bound is not None and self._order(more) > bound:
                break
            end = begin + model.timing.typical_seconds(total + more.rows)
            if self.admits and not self._in_time(head, end):
                break
            total, last = total + more.rows, last + 1
        return last

    def _use(self, loaded: list[str], model: Placed) -> None:
        """Follow what loading and running do to the order of use."""
        if model.name in loaded:
            loaded.remove(model.name)
        else:
            used = sum(self.placed[name].memory_bytes for name in loaded)
            while used + model.memory_bytes > self.room_bytes:
                used -= self.placed[loaded.pop(0)].memory_bytes
        loaded.append(model.name)

    def _holds(self, steps: Sequence[_Step]) -> bool:
        return all(self._in_time(one, step.end) for step in steps for one in step.batch)

    def _in_time(self, request: Request, end: float) -> bool:
        return end <= request.deadline_at + ROUNDING_SECONDS

    def _action(self, step: _Step, now: float) -> Action:
        model = self.placed[step.model]
        deadline = min(one.deadline_at for one in step.batch)
        run_seconds = step.end - step.begin
        if model.name in self.loaded:
            latest = deadline - run_seconds
            return Action(Act.INFER, model.name, now, latest, run_seconds, step.batch)
        load_seconds = model.timing.load_seconds
        latest = deadline - run_seconds - load_seconds
        leaving = self.make_room(model.memory_bytes)
        if leaving:
            return Action(Act.UNLOAD, leaving[0], now, latest, 0.0)
        return Action(Act.LOAD, model.name, now, latest, load_seconds)

    # --- the queue -----------------------------------------------------------------

    def _order(self, request: Request) -> tuple[float, int]:
        return request.order if self.admits else (request.arrived_at, request.id)

    def _group(self, request: Request) -> tuple[str, str]:
        return (request.model, request.like or f"\0{request.id}")

    def _add(self, request: Request) -> None:
        group = self._groups.setdefault(self._group(request), [])
        insort(group, request, key=self._order)

    def _drop(self, request: Request) -> bool:
        key = self._group(request)
        group = self._groups.get(key, [])
        if request not in group:
            return False
        group.remove(request)
        if not group:
            del self._groups[key]
        return True

    def _drop_late(self, now: float) -> None:
        """Take out who would be late even if they were next."""
        for request in [one for group in self._groups.values() for one in group]:
            if not self._in_time(request, self._alone_at(request, now)):
                self._drop(request)
                self.late.append(request)

    def _alone_at(self, request: Request, at: float) -> float:
        model = self.placed[request.model]
        load = 0.0 if model.name in self.loaded else model.timing.load_seconds
        return at + load + model.timing.typical_seconds(request.rows)

    def _done_at(self, request: Request, now: float) -> float:
        """When a request would be done after everybody who waits."""
        steps = self._walk(now, greedy=True)
        at = steps[-1].end if steps else max(now, self._free_at)
        return self._alone_at(request, at) + self._slower(request)

    def _touch(self, name: str) -> None:
        if name in self.loaded:
            self.loaded.remove(name)
        self.loaded.append(name)


def _end_of(steps: Sequence[_Step], request: Request) -> float:
    return next(step.end for step in steps if request in step.batch)
