"""Execute the scheduler's decisions for the served models of one Gpu.

An event loop receives and answers requests. One thread beside it asks the scheduler for
the next action and runs it: one inference (or load) at a time. So the Gpu never waits
while the loop turns requests away. Explicit commands (load a model, unload it) go
before the scheduler's next action.

Both sides take ``_changed`` around the scheduler. Futures are the loop's alone.
"""

import asyncio
import contextlib
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from placement.agent.serving.batch import (
    AdmittedRequest,
    AnsweredRequest,
    HostedModel,
    InferenceResult,
    resident_bytes,
    shared_run,
    turned_away,
)
from placement.agent.serving.deadline_scheduler import (
    Action,
    Admission,
    AdmissionVerdict,
    GpuAction,
    Scheduler,
)
from placement.agent.serving.model_limits import bounded
from placement.agent.serving.onnx_engine import (
    Engine,
    EngineError,
    LoadedModel,
    ModelOverLimit,
    monotonic,
)
from placement.agent.serving.queue_simulation import QueuedRequest, ScheduledModel
from placement.agent.serving.tensors import InferenceRequest
from placement.protocol.call_refusal import CallRefused
from placement.protocol.serving_times import Lag, ServingError, Timing

SWITCH_SECONDS = 0.0002
"""Python's switch interval in a serving process. With it, the runtime's thread waits
only briefly at the end of a run for a loop that computes (Python's default is 5 ms).
"""
IDLE_SECONDS = 0.5
WATCH_SECONDS = 0.1
"""Between two checks whether a run takes too long."""
FIRST_LOAD_SECONDS = 3.0
"""The assumed time to load a new model, and its extension if it takes longer, because
it cannot be predicted.
"""
TOO_LATE = "Its deadline can no longer be met."


class ServingExecutor:
    """Takes models and requests. ``run`` is its loop."""

    def __init__(
        self,
        engine: Engine,
        *,
        room_bytes: int,
        admits: bool = True,
        clock: Callable[[], float] = monotonic,
        failed: Mapping[str, str] | None = None,
    ) -> None:
        """``failed``: files with which an earlier server died, with the reasons."""
        self.failed = dict(failed or {})
        self.engine, self.clock = engine, clock
        self.scheduler = Scheduler(room_bytes=room_bytes, admits=admits)
        self.kept: dict[str, HostedModel] = {}
        self.started_at = clock()
        self.busy_seconds = 0.0
        self._numbers = itertools.count(1)
        self._waiting: dict[int, AdmittedRequest] = {}
        self._todo: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._lag = Lag()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = False

    # --- models --------------------------------------------------------------------

    def take(self, kept: HostedModel) -> None:
        """Add a model. It loads when its turn comes. Raises ServingError."""
        if kept.memory_bytes > self.scheduler.room_bytes:
            raise ServingError(f"{kept.name} is larger than the room for all models")
        if kept.name in self.kept:
            raise ServingError(f"there is a model {kept.name} already")
        self.kept[kept.name] = kept
        if why := self.failed.get(str(kept.path)):
            kept.state, kept.note = "failed", why
        if kept.state == "failed":
            return
        with self._changed:
            self._todo.append(lambda: self._first_load(kept))
            self._begin_load()
            self._changed.notify()

    def let_go(self, name: str) -> bool:
        """Unload a model and fail its waiting requests. False: no such model."""
        kept = self.kept.pop(name, None)
        if kept is None:
            return False
        with self._changed:
            gone = self.scheduler.remove(name)
            self._todo.append(lambda: self._release(kept.model))
            self._changed.notify()
        self._refuse_all(gone, "gone", f"{name} is not served any more")
        return True

    def _begin_load(self) -> None:
        """Tell the scheduler that a new model is loaded and measured."""
        until = self.clock() + FIRST_LOAD_SECONDS
        self.scheduler.busy(until, more_seconds=FIRST_LOAD_SECONDS)

    def _first_load(self, kept: HostedModel) -> None:
        """Load and measure a model, then place it."""
        if self.kept.get(kept.name) is not kept:
            return
        with self._changed:
            self._begin_load()
            leaving = self.scheduler.make_room(kept.memory_bytes)
        try:
            timing = self._measured(kept, leaving)
        except EngineError as error:
            kept.state, kept.note = "failed", str(error)
            return
        finally:
            with self._changed:
                for name in leaving:
                    self.scheduler.unloaded(name)
        assert kept.model is not None
        with self._changed:
            if self.kept.get(kept.name) is kept:
                most = max(timing.profile) if kept.model.batches else 1
                placed = ScheduledModel(
                    kept.name, kept.memory_bytes, timing, most_rows=most
                )
                self.scheduler.place(placed, loaded=True)
                kept.state, kept.note = "ready", kept.model.note
                return
        self.engine.unload(kept.model)

    def _measured(self, kept: HostedModel, leaving: list[str]) -> Timing:
        """Load a model once those are unloaded, and measure it. Raises EngineError."""
        for name in leaving:
            self._unload(name)
        begun = self.clock()
        with bounded(kept.memory_bytes, cuda=self.engine.provider == "cuda"):
            model = self.engine.load(kept.path)
            load_seconds = self.clock() - begun
            try:
                profile = self.engine.measure(model, kept.most_batch, self.clock)
            except EngineError:
                self.engine.unload(model)
                raise
        kept.model = model
        return Timing(profile, load_seconds=load_seconds)

    def _release(self, model: LoadedModel | None) -> None:
        if model is not None:
            self.engine.unload(model)

    def _unload(self, name: str) -> None:
        kept = self.kept.get(name)
        self._release(kept.model if kept is not None else None)

    # --- requests ------------------------------------------------------------------

    async def infer(
        self, kept: HostedModel, asked: InferenceRequest, *, way_ms: float
    ) -> AnsweredRequest:
        """Serve one request, or refuse it at once: ``let_in``, then ``answered``."""
        return await self.answered(self.let_in(kept, asked, way_ms=way_ms))

    def let_in(
        self, kept: HostedModel, asked: InferenceRequest, *, way_ms: float
    ) -> AdmittedRequest:
        """Admit a request that can be in time, for ``answered``.

        Args:
            kept: the model.
            asked: with its deadline, counted from now.
            way_ms: the part of the deadline for the network, both ways.

        Raises:
            CallRefused: late, full, or the model is gone.
        """
        now = self.clock()
        within_ms = (asked.deadline_ms or kept.deadline_ms) - way_ms
        lag = self._lag.seconds(now)
        request = self._request(kept, asked, now, within_ms / 1000 - lag)
        answer: asyncio.Future[InferenceResult] = (
            asyncio.get_running_loop().create_future()
        )
        waiting = AdmittedRequest(request, asked, kept, within_ms, answer)
        admission = self._offer(waiting, now)
        waiting.predicted_ms = (admission.done_at - now + lag) * 1000
        if admission.verdict is not AdmissionVerdict.IN:
            placed = self.scheduler.placed.get(kept.name)
            rows = request.rows
            run_ms = 1000 * placed.timing.predicted_seconds(rows) if placed else 0.0
            raise turned_away(waiting, admission.verdict, way_ms, run_ms)
        return waiting

    async def answered(self, waiting: AdmittedRequest) -> AnsweredRequest:
        """Return the result of an admitted request. A cancelled call withdraws it.

        Raises:
            CallRefused: it could no longer be in time, or the model is gone.
            EngineError: the model failed on these inputs.
        """
        request, kept = waiting.request, waiting.kept
        try:
            ran = await waiting.answer
        finally:
            if self._waiting.pop(request.id, None) is not None:
                with self._changed:
                    self.scheduler.withdraw(request)
        now = self.clock()
        self._lag.heard(now - ran.ended_at, now)
        actual_ms = (now - request.arrived_at) * 1000
        in_time = actual_ms <= waiting.within_ms
        kept.counts.done(
            now,
            predicted_seconds=waiting.predicted_ms / 1000,
            seconds=actual_ms / 1000,
            run_seconds=ran.run_seconds,
            in_time=in_time,
        )
        return AnsweredRequest(
            results=ran.results,
            predicted_ms=waiting.predicted_ms,
            actual_ms=actual_ms,
            run_ms=ran.run_seconds * 1000,
            batch=ran.batch,
            in_time=in_time,
        )

    def _offer(self, waiting: AdmittedRequest, now: float) -> Admission:
        """Submit to the scheduler, which stores admitted requests. Raises
        CallRefused.
        """
        request = waiting.request
        with self._changed:
            try:
                admission = self.scheduler.offer(request, now)
            except ServingError as error:
                raise CallRefused("gone", str(error)) from None
            if admission.verdict is AdmissionVerdict.IN:
                self._waiting[request.id] = waiting
                self._changed.notify()
        return admission

    def _request(
        self, kept: HostedModel, asked: InferenceRequest, now: float, left: float
    ) -> QueuedRequest:
        model = kept.model
        rows, like = 1, ""
        if model is not None and model.batches:
            shapes = [value.shape for _, value in sorted(asked.inputs.items())]
            rows, like = shapes[0][0], f"{[shape[1:] for shape in shapes]}"
        return QueuedRequest(
            next(self._numbers), kept.name, rows, now, now + left, like
        )

    # --- the event loop's side ------------------------------------------------------

    async def run(self) -> None:
        """Execute actions until ``stop``."""
        self._loop = asyncio.get_running_loop()
        watch = asyncio.create_task(self._watch())
        with ThreadPoolExecutor(1, thread_name_prefix="runtime") as pool:
            try:
                await self._loop.run_in_executor(pool, self._drive)
            finally:
                watch.cancel()
                self.stop()

    async def _watch(self) -> None:
        """End runs that take too long. Answer requests that wait too long for one."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            self.engine.end_overdue()
            if self._waiting:
                with self._changed:
                    self.scheduler.drop_late(self.clock())
                    late, self.scheduler.late = self.scheduler.late, []
                self._refuse_all(late, "late", TOO_LATE)

    def stop(self) -> None:
        """End after the current run, and fail the waiting requests."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        requests = [waiting.request for waiting in self._waiting.values()]
        self._refuse_all(requests, "gone", "The endpoint stops.")

    def _refuse_all(self, requests: list[QueuedRequest], code: str, why: str) -> None:
        for request in requests:
            waiting = self._waiting.pop(request.id, None)
            if waiting is None or waiting.answer.done():
                continue
            waiting.kept.counts.dropped += code == "late"
            error = CallRefused(code, why)
            waiting.answer.set_exception(error)

    def _answer(
        self,
        waiting: list[AdmittedRequest],
        results: list[InferenceResult | EngineError],
    ) -> None:
        for one, result in zip(waiting, results, strict=True):
            self._waiting.pop(one.request.id, None)
            if isinstance(result, EngineError):
                one.kept.counts.failed += 1
                waited_seconds = self.clock() - one.request.arrived_at
                one.kept.counts.failed_seconds += waited_seconds
            if one.answer.done():
                continue
            if isinstance(result, EngineError):
                one.answer.set_exception(result)
            else:
                one.answer.set_result(result)
        if waiting:
            rows = sum(one.request.rows for one in waiting)
            ran = [one for one in results if not isinstance(one, EngineError)]
            seconds = ran[0].run_seconds if ran else 0.0
            waiting[0].kept.counts.record_run(rows, seconds, at=time.time())

    # --- the runtime's thread -------------------------------------------------------

    def _post(self, work: Callable[..., None], *values: Any) -> None:
        """Have the event loop call it. If the loop is gone, nothing waits any more."""
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(work, *values)

    def _drive(self) -> None:
        """Run one action after the other until ``stop``.

        For the scheduler a run begins at the end of the previous one, so the time
        between the two counts as part of it.
        """
        begun = forgot_at = self.clock()
        while True:
            with self._changed:
                if self._stopping:
                    return
                todo = self._todo.popleft() if self._todo else None
                action = None if todo else self._begin_next(begun)
                if todo is None and action is None:
                    self._changed.wait(IDLE_SECONDS)
                    begun = self.clock()
                    if begun - forgot_at > IDLE_SECONDS:
                        self.scheduler.forget_old(begun)
                        forgot_at = begun
                    continue
            if action is not None:
                ended = self._carry_out(action, begun)
            else:
                assert todo is not None
                todo()
                ended = self.clock()
                with self._changed:
                    self.scheduler.busy(ended)
            self.busy_seconds += ended - begun
            begun = ended

    def _begin_next(self, now: float) -> Action | None:
        """Begin the next action, and fail requests that can no longer be in time."""
        scheduler = self.scheduler
        action = scheduler.next(now)
        while action is not None and not scheduler.begin(action, now):
            action = scheduler.next(now)
        if scheduler.late:
            self._post(self._refuse_all, scheduler.late, "late", TOO_LATE)
            scheduler.late = []
        return action

    def _carry_out(self, action: Action, begun: float) -> float:
        """Carry out an action. Return when it ended."""
        asked = (self._waiting.get(one.id) for one in action.requests)
        waiting = [one for one in asked if one is not None]
        found: list[dict[str, Any] | EngineError] = []
        failed = unfit = None
        try:
            found = self._work(action, waiting)
        except ModelOverLimit as error:
            unfit = str(error)
        except EngineError as error:
            failed = str(error)
        ended = self.clock()
        with self._changed:
            self.scheduler.finish(action, ended, seconds=ended - begun)
        if unfit is not None:
            self._fail(action.model, unfit, f"{action.model} is not served any more")
            self._post(self._answer, waiting, [EngineError(unfit)] * len(waiting))
        elif failed is not None:
            self._fail(action.model, failed, "it cannot be loaded")
        elif action.act is GpuAction.INFER:
            rows = sum(one.request.rows for one in waiting)
            results = [
                one
                if isinstance(one, EngineError)
                else InferenceResult(
                    one, run_seconds=ended - begun, ended_at=ended, batch=rows
                )
                for one in found
            ]
            self._post(self._answer, waiting, results)
        return ended

    def _work(
        self, action: Action, waiting: list[AdmittedRequest]
    ) -> list[dict[str, Any] | EngineError]:
        """Carry out the work of an action. Raises EngineError."""
        if action.act is GpuAction.INFER:
            model = waiting[0].kept.model if waiting else None
            return shared_run(self.engine, model, waiting)
        if action.act is GpuAction.UNLOAD:
            self._unload(action.model)
            return []
        kept = self.kept.get(action.model)
        if kept is None or kept.model is None:
            return []
        fresh = self.engine.load(kept.path)
        fresh.batches, fresh.note = kept.model.batches, kept.model.note
        fresh.run_seconds = kept.model.run_seconds
        kept.model = fresh
        return []

    def _fail(self, name: str, why: str, words: str) -> None:
        """Stop serving a model, and fail its waiting requests."""
        kept = self.kept.get(name)
        if kept is not None:
            kept.state, kept.note = "failed", why
            self._release(kept.model)
        with self._changed:
            gone = self.scheduler.remove(name)
        self._post(self._refuse_all, gone, "gone", f"{words}: {why}")

    # --- reports --------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Return the present state, for the page."""
        now = self.clock()
        used = sum(
            kept.memory_bytes
            for kept in self.kept.values()
            if kept.name in self.scheduler.loaded
        )
        return {
            "provider": self.engine.provider,
            "uptime_seconds": round(now - self.started_at, 1),
            "busy_ratio": round(
                self.busy_seconds / max(now - self.started_at, 1e-9), 4
            ),
            "waiting": self.scheduler.waiting,
            "room_bytes": self.scheduler.room_bytes,
            "loaded_bytes": used,
            "process_bytes": resident_bytes(),
            "models": [
                kept.to_json(
                    self.scheduler.placed.get(kept.name),
                    loaded=kept.name in self.scheduler.loaded,
                    now=now,
                )
                for kept in self.kept.values()
            ],
        }
