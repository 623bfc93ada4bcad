"""Serve several models on one Gpu under deadlines: admission and the next batch.

After Clockwork (Gujarati et al., OSDI 2020): one action at a time, each predicted from
measured runs. A request that cannot meet its deadline is turned away at once, so it
makes no other request late. A decision simulates the queue, earliest deadline first:

    admit  <=>  in the simulation with the new request no request is late,
                and the new request is in time even if its own run is a slow one

Two ways to form batches are simulated: as full as the first request's deadline allows,
and only of neighbours in the order of deadlines. While runs take as long as predicted,
no admitted request is late: a new request is admitted only if this stays true, and the
next batch is the first step of such a simulation.

Times are seconds of one monotonic clock that the caller reads. A whole simulation costs
O(n log n) for n waiting requests (n <= MOST_WAITING) and runs once per batch. A new
request costs only the part of the queue that it changes (``queue_simulation.py``).
"""

from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile

from placement.agent.serving.queue_simulation import (
    ROUNDING_SECONDS,
    InferenceQueue,
    QueuedRequest,
    QueueSimulation,
    ScheduledModel,
    SimulatedRun,
)
from placement.protocol.serving_times import ServingError

MOST_WAITING = 256
OVERRUN_PARTS = 4
"""A run that takes longer than predicted is extended by this part of the prediction at
a time, so that not every request that arrives meanwhile computes another end.
"""


class GpuAction(StrEnum):
    """An action of the Gpu."""

    LOAD = "load"
    UNLOAD = "unload"
    INFER = "infer"


@dataclass(frozen=True, slots=True)
class Action:
    """One action for the Gpu, to begin in [earliest, latest] or not at all."""

    act: GpuAction
    model: str
    earliest: float
    latest: float
    predicted_seconds: float
    requests: tuple[QueuedRequest, ...] = ()

    @property
    def rows(self) -> int:
        """Of all its requests together."""
        return sum(request.rows for request in self.requests)


class AdmissionVerdict(StrEnum):
    """Whether a request is admitted, and why not."""

    IN = "in"
    TOO_LATE = "too late"
    """It, or a request admitted before, would miss its deadline."""
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Admission:
    """The answer to a request, with its predicted end."""

    verdict: AdmissionVerdict
    done_at: float


class Scheduler:
    """Decides for one Gpu.

    Args:
        room_bytes: the memory of all loaded models together.
        admits: False: first come, first served, without refusals and drops, as a
            baseline for measurements.
    """

    def __init__(self, *, room_bytes: int, admits: bool = True) -> None:
        self.room_bytes, self.admits = room_bytes, admits
        self.placed: dict[str, ScheduledModel] = {}
        self.loaded: list[str] = []
        """The least recently used first."""
        self.late: list[QueuedRequest] = []
        """Admitted and dropped since. The caller removes them and answers."""
        self._queue = InferenceQueue(by_deadline=admits)
        self._walks: list[QueueSimulation] = []
        """As full as possible, and only of neighbours. Empty: to be computed again."""
        self._running: Action | None = None
        self._free_at = 0.0
        self._more_seconds = 0.0

    # --- models --------------------------------------------------------------------

    def place(self, model: ScheduledModel, *, loaded: bool) -> None:
        """Add a model. ``loaded``: it is on the Gpu already. Raises ServingError."""
        if model.memory_bytes > self.room_bytes:
            raise ServingError(f"{model.name} is larger than the room for all models")
        self.placed[model.name] = model
        if loaded and model.name not in self.loaded:
            self.loaded.append(model.name)
        self._walks = []

    def remove(self, name: str) -> list[QueuedRequest]:
        """Remove a model. Return its waiting requests."""
        self.placed.pop(name, None)
        self.unloaded(name)
        return self._queue.drop_model(name)

    def unloaded(self, name: str) -> None:
        """A model is not on the Gpu any more."""
        if name in self.loaded:
            self.loaded.remove(name)
        self._walks = []

    def make_room(self, memory_bytes: int) -> list[str]:
        """Return the models to unload for more memory, the oldest first."""
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
        """Return the number of waiting requests."""
        return len(self._queue)

    def busy(self, until: float, *, more_seconds: float = 0.0) -> None:
        """Note that the Gpu has another task, probably until then.

        Args:
            until: its expected end.
            more_seconds: if it has not ended then, it is extended by this time,
                repeatedly. 0.0: it ends at that time.
        """
        self._free_at, self._more_seconds = until, more_seconds

    def offer(self, request: QueuedRequest, now: float) -> Admission:
        """Admit a request, or refuse it with its predicted end.

        Raises:
            ServingError: its model is not placed, or its rows are too many.
        """
        model = self.placed.get(request.model)
        if model is None or not 1 <= request.rows <= model.most_rows:
            raise ServingError(f"{request.model} takes no {request.rows} rows")
        if not self.admits:
            self._queue.add(request)
            return Admission(AdmissionVerdict.IN, now)
        walks = self._walked(now, request)
        if self.waiting >= MOST_WAITING:
            return Admission(AdmissionVerdict.FULL, self._done_at(request, walks[0]))
        # On an idle Gpu the usual run time decides. Otherwise one slow spell would turn
        # every request away, and no run could show that the spell is over.
        alone = not self.waiting and self._is_idle(now)
        self._queue.add(request)
        changed = [walk.insert(request) for walk in walks]
        latest = now
        for walk in walks:
            step = walk.step_of(request)
            latest = step.end if alone else self._latest_end(walk, step, request)
            if not walk.late and request.in_time(latest):
                return Admission(AdmissionVerdict.IN, step.end)
        self._queue.drop(request)
        for walk, before in zip(walks, changed, strict=True):
            walk.undo_insert(before)
        done_at = max(latest, self._done_at(request, walks[0]))
        return Admission(AdmissionVerdict.TOO_LATE, done_at)

    def _latest_end(
        self, walk: QueueSimulation, step: SimulatedRun, request: QueuedRequest
    ) -> float:
        """Return the latest end of its run: a slow run, joined by later requests.

        Under load, a batch that starts half empty wastes time that all requests need. A
        request that would start a new batch behind others is admitted only if it is in
        time with a batch as large as two such runs within its deadline allow (Nexus,
        Shen et al., SOSP 2019, section 4.1: half the deadline is spent waiting).
        """
        timing = self.placed[step.model].timing
        rows = sum(one.rows for one in step.batch)
        latest = step.end + self._slower(step.model, rows)
        opens = step.batch[0] is request and step is walk.steps[-1]
        if not (opens and request.like) or len(walk.steps) == 1:
            return latest
        rows = timing.rows_within((request.deadline_at - request.arrived_at) / 2)
        rows = min(rows, self.placed[step.model].most_rows)
        return max(latest, step.begin + timing.predicted_seconds(rows))

    def _slower(self, model: str, rows: int) -> float:
        """Return by how much a slow run is slower than a usual one."""
        timing = self.placed[model].timing
        return timing.predicted_seconds(rows) - timing.typical_seconds(rows)

    def withdraw(self, request: QueuedRequest) -> bool:
        """Remove a request. False: it runs or ran."""
        if not self._queue.drop(request):
            return False
        self._walks = []
        return True

    # --- what runs -----------------------------------------------------------------

    def next(self, now: float) -> Action | None:
        """Return the next action of the Gpu. None: nothing to do, or it is busy.

        Requests that can no longer be in time go to ``late``.
        """
        if self._running is not None or now < self._free_at - ROUNDING_SECONDS:
            return None
        if not self.admits:
            walk = self._new_walk(now, greedy=True, most=1)
        else:
            walk = self._chosen(now)
            if walk.late and self._drop_late(now):
                walk = self._chosen(now)
        return self._action(walk.steps[0], now) if walk.steps else None

    def drop_late(self, now: float) -> None:
        """Move requests to ``late`` that would be late even if the Gpu were free now.

        While its action lasts longer than predicted, they are answered at their
        deadline and not at the end of the action.
        """
        if self.admits and self._free_at < now and not self._is_idle(now):
            self._drop_late(now)

    def begin(self, action: Action, now: float) -> bool:
        """Start an action. False: it is too late, and it is dropped.

        The requests of a dropped run go to ``late``. Those of a dropped load are
        considered again.
        """
        for request in action.requests:
            self._queue.drop(request)
        if self.admits and now > action.latest + ROUNDING_SECONDS:
            self._walks = []
            self.late += action.requests
            return False
        self._running = action
        self.busy(
            now + action.predicted_seconds,
            more_seconds=action.predicted_seconds / OVERRUN_PARTS,
        )
        going_on = takewhile(
            lambda walk: walk.begin_first_step(action.requests), self._walks
        )
        self._walks = list(going_on) if action.act is GpuAction.INFER else []
        if action.act is GpuAction.UNLOAD:
            self.loaded.remove(action.model)
        else:
            self._mark_recently_used(action.model)
        return True

    def finish(self, action: Action, now: float, *, seconds: float) -> None:
        """End an action that took this long."""
        self._running = None
        self.busy(now)
        self._walks = []
        model = self.placed.get(action.model)
        if model is not None and action.act is GpuAction.INFER:
            model.timing.record_run(action.rows, seconds, now)
        elif model is not None and action.act is GpuAction.LOAD:
            model.timing.load_seconds = seconds

    def forget_old(self, now: float) -> None:
        """Drop old runs, so that only recent runs predict."""
        self._walks = []
        for placed in self.placed.values():
            placed.timing.forget(now)

    # --- the walks -----------------------------------------------------------------

    def _walked(
        self, now: float, newcomer: QueuedRequest | None = None
    ) -> list[QueueSimulation]:
        """Return the simulations of the whole queue. One if both ways are the same."""
        at = self._free_from(now)
        if not self._walks or abs(self._walks[0].began_at - at) > ROUNDING_SECONDS:
            self._walks = [self._new_walk(at, greedy=True)]
        if len(self._walks) == 1 and self._queue.mixes(newcomer):
            self._walks.append(self._new_walk(at, greedy=False))
        return self._walks

    def _new_walk(
        self, at: float, *, greedy: bool, most: int | None = None
    ) -> QueueSimulation:
        walk = QueueSimulation(
            self._queue,
            self.placed,
            room_bytes=self.room_bytes,
            loaded=self.loaded,
            at=at,
            greedy=greedy,
            late_batches=not self.admits,
        )
        walk.simulate_rest(self._queue.groups, most=most)
        return walk

    def _chosen(self, now: float) -> QueueSimulation:
        """Return the first simulation without a late request, or the first one."""
        walks = self._walked(now)
        return next((walk for walk in walks if not walk.late), walks[0])

    def _is_idle(self, now: float) -> bool:
        """Whether the Gpu is idle."""
        return self._running is None and self._free_at <= now and not self._more_seconds

    def _free_from(self, now: float) -> float:
        """Return when the next run can begin."""
        over = now - self._free_at
        if over <= 0:
            return self._free_at
        part = self._more_seconds
        if part < ROUNDING_SECONDS:
            return now
        return self._free_at + part * -(-over // part)

    def _action(self, step: SimulatedRun, now: float) -> Action:
        model = self.placed[step.model]
        deadline = min(one.deadline_at for one in step.batch)
        run_seconds = step.end - step.begin
        if model.name in self.loaded:
            latest = deadline - run_seconds
            return Action(
                GpuAction.INFER, model.name, now, latest, run_seconds, step.batch
            )
        load_seconds = model.timing.load_seconds
        latest = deadline - run_seconds - load_seconds
        leaving = self.make_room(model.memory_bytes)
        if leaving:
            return Action(GpuAction.UNLOAD, leaving[0], now, latest, 0.0)
        return Action(GpuAction.LOAD, model.name, now, latest, load_seconds)

    def _drop_late(self, now: float) -> bool:
        """Remove requests that would be late even if they were next. Return whether any
        were.
        """
        found = [
            request
            for request in self._queue.all()
            if not request.in_time(self._end_if_alone(request, now))
        ]
        for request in found:
            self.withdraw(request)
        self.late += found
        return bool(found)

    def _end_if_alone(self, request: QueuedRequest, at: float) -> float:
        model = self.placed[request.model]
        load = 0.0 if model.name in self.loaded else model.timing.load_seconds
        return at + load + model.timing.typical_seconds(request.rows)

    def _done_at(self, request: QueuedRequest, walk: QueueSimulation) -> float:
        """Return when a request would finish behind all waiting requests."""
        slower = self._slower(request.model, request.rows)
        return self._end_if_alone(request, walk.at) + slower

    def _mark_recently_used(self, name: str) -> None:
        if name in self.loaded:
            self.loaded.remove(name)
        self.loaded.append(name)
