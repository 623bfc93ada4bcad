"""One Gpu's worth of served models: carries out what the scheduler decides.

Everything happens in one event loop; ONNX Runtime runs in one thread beside it, so one
inference (or load) at a time. What people ask for explicitly (take a model, let it go)
goes before what the scheduler would do next.
"""

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from placement.domain.serving import Act, Action, Placed, Request, Scheduler, Verdict
from placement.domain.serving_times import ServingError, Timing, quantile
from placement.serving.counts import profile_json
from placement.serving.engine import Engine, EngineError, Loaded, monotonic
from placement.serving.parts import (
    Answered,
    Kept,
    TurnedAway,
    Waiting,
    resident_bytes,
    shared_run,
)
from placement.serving.tensors import Asked

HANDINGS = 15
FIRST_LOAD_SECONDS = 3.0
"""How long taking a new model is taken to last: nobody can know."""


class Station:
    """Takes models and requests. ``run`` is its loop."""

    def __init__(
        self,
        engine: Engine,
        *,
        room_bytes: int,
        admits: bool = True,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.engine, self.clock = engine, clock
        self.scheduler = Scheduler(room_bytes=room_bytes, admits=admits)
        self.kept: dict[str, Kept] = {}
        self.started_at = clock()
        self.busy_seconds = 0.0
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Waiting] = {}
        self._todo: deque[Callable[[], Awaitable[None]]] = deque()
        self._wake = asyncio.Event()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="runtime")
        self._stopping = False

    # --- models --------------------------------------------------------------------

    def take(self, kept: Kept) -> None:
        """Take a model; it loads when its turn comes. Raises ServingError."""
        if kept.memory_bytes > self.scheduler.room_bytes:
            raise ServingError(f"{kept.name} is larger than the room for all models")
        if kept.name in self.kept:
            raise ServingError(f"there is a model {kept.name} already")
        self.kept[kept.name] = kept
        self._todo.append(lambda: self._first_load(kept))
        self.scheduler.busy(self.clock() + FIRST_LOAD_SECONDS)
        self._wake.set()

    def let_go(self, name: str) -> bool:
        """Let a model go; who waits for it is told. False: there is none."""
        kept = self.kept.pop(name, None)
        if kept is None:
            return False
        for request in self.scheduler.remove(name):
            self._turn(request, "gone", f"{name} is not served any more")
        self._todo.append(lambda: self._forget(kept))
        self._wake.set()
        return True

    async def _first_load(self, kept: Kept) -> None:
        """Load and measure a model in the runtime's thread, then place it."""
        if self.kept.get(kept.name) is not kept:
            return
        leaving = self.scheduler.make_room(kept.memory_bytes)
        try:
            handing = await self._handing_seconds()
            timing = await self._in_thread(
                lambda: self._measured(kept, leaving, handing)
            )
        except EngineError as error:
            kept.state, kept.note = "failed", str(error)
            return
        finally:
            for name in leaving:
                self.scheduler.loaded.remove(name)
        assert kept.model is not None
        if self.kept.get(kept.name) is not kept:
            self.engine.unload(kept.model)
            return
        most = max(timing.profile) if kept.model.batches else 1
        placed = Placed(kept.name, kept.memory_bytes, timing, most_rows=most)
        self.scheduler.place(placed, loaded=True)
        kept.state, kept.note = "ready", kept.model.note

    async def _handing_seconds(self) -> float:
        """What handing a run to the thread and back takes, by doing nothing there."""
        found = []
        for _ in range(HANDINGS):
            begun = self.clock()
            await self._in_thread(int)
            found.append(self.clock() - begun)
        return quantile(found, 0.5)

    def _measured(self, kept: Kept, leaving: list[str], handing: float) -> Timing:
        """In the runtime's thread. Raises EngineError."""
        for name in leaving:
            self._unload(name)
        begun = self.clock()
        model = self.engine.load(kept.path)
        load_seconds = self.clock() - begun
        profile = self.engine.measure(model, kept.most_batch, self.clock)
        kept.model = model
        return Timing(_steps_around(profile, handing), load_seconds=load_seconds)

    async def _forget(self, kept: Kept) -> None:
        if kept.model is not None:
            await self._in_thread(lambda: self._release(kept.model))

    def _release(self, model: Loaded | None) -> None:
        if model is not None:
            self.engine.unload(model)

    def _unload(self, name: str) -> None:
        kept = self.kept.get(name)
        self._release(kept.model if kept is not None else None)

    # --- requests ------------------------------------------------------------------

    async def infer(self, kept: Kept, asked: Asked, *, way_ms: float) -> Answered:
        """Serve one request, or say at once why not.

        Args:
            kept: the model.
            asked: with its deadline, counted from now.
            way_ms: of it is gone, or will be, on the way here and back.

        Raises:
            TurnedAway: late, full, or the model is gone.
            EngineError: the model failed on these inputs.
        """
        now = self.clock()
        within_ms = (asked.deadline_ms or kept.deadline_ms) - way_ms
        request = self._request(kept, asked, now, within_ms)
        try:
            admission = self.scheduler.offer(request, now)
        except ServingError as error:
            raise TurnedAway("gone", str(error), predicted_ms=None) from None
        predicted_ms = (admission.done_at - now) * 1000
        if admission.verdict is not Verdict.IN:
            full = admission.verdict is Verdict.FULL
            kept.counts.full += full
            kept.counts.refused += not full
            why = "too many wait" if full else _left(within_ms)
            raise TurnedAway(
                "full" if full else "deadline",
                f"it would take {predicted_ms:.1f} ms: {why}",
                predicted_ms=predicted_ms + way_ms,
            )
        future = asyncio.get_running_loop().create_future()
        seconds = admission.done_at - now
        self._waiting[request.id] = Waiting(request, asked, kept, seconds, future)
        self._wake.set()
        try:
            return await future
        finally:
            self._waiting.pop(request.id, None)
            self.scheduler.withdraw(request)

    def _request(
        self, kept: Kept, asked: Asked, now: float, within_ms: float
    ) -> Request:
        model = kept.model
        rows, like = 1, ""
        if model is not None and model.batches:
            shapes = [value.shape for _, value in sorted(asked.inputs.items())]
            rows, like = shapes[0][0], f"{[shape[1:] for shape in shapes]}"
        return Request(
            next(self._numbers), kept.name, rows, now, now + within_ms / 1000, like
        )

    def _turn(self, request: Request, code: str, why: str) -> None:
        waiting = self._waiting.pop(request.id, None)
        if waiting is not None and not waiting.answer.done():
            waiting.kept.counts.dropped += code == "late"
            error = TurnedAway(code, why, predicted_ms=None)
            waiting.answer.set_exception(error)

    # --- the loop ------------------------------------------------------------------

    async def run(self) -> None:
        """Do what is to be done until ``stop``."""
        while not self._stopping:
            if self._todo:
                await self._todo.popleft()()
                self.scheduler.busy(self.clock())
                continue
            action = self.scheduler.next(self.clock())
            self._tell_late()
            if action is None:
                self._wake.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.5):
                        await self._wake.wait()
                self._forget_old()
                continue
            if self.scheduler.begin(action, self.clock()):
                await self._do(action)
            self._tell_late()

    def stop(self) -> None:
        """End the loop after what runs now; who waits is told."""
        self._stopping = True
        self._wake.set()
        for waiting in list(self._waiting.values()):
            self._turn(waiting.request, "gone", "the endpoint stops")

    def _tell_late(self) -> None:
        while self.scheduler.late:
            request = self.scheduler.late.pop()
            self._turn(request, "late", "it could not be in time any more")

    def _forget_old(self) -> None:
        now = self.clock()
        for placed in self.scheduler.placed.values():
            placed.timing.forget(now)

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        begun = self.clock()
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._pool, work)
        finally:
            self.busy_seconds += self.clock() - begun

    async def _do(self, action: Action) -> None:
        begun = self.clock()
        waiting = [
            self._waiting[one.id] for one in action.requests if one.id in self._waiting
        ]
        try:
            result = await self._in_thread(lambda: self._work(action, waiting))
        except EngineError as error:
            self._not_loaded(action.model, str(error))
            return
        finally:
            now = self.clock()
            self.scheduler.finish(action, now, seconds=now - begun)
        if action.act is Act.INFER:
            self._answer(waiting, result, now=now, begun=begun)

    def _work(self, action: Action, waiting: list[Waiting]) -> Any:
        """One action, in the runtime's thread. Raises EngineError."""
        if action.act is Act.INFER:
            model = waiting[0].kept.model if waiting else None
            return shared_run(self.engine, model, waiting)
        if action.act is Act.UNLOAD:
            self._unload(action.model)
            return []
        kept = self.kept.get(action.model)
        if kept is None or kept.model is None:
            return []
        fresh = self.engine.load(kept.path)
        fresh.batches, fresh.note = kept.model.batches, kept.model.note
        kept.model = fresh
        return []

    def _not_loaded(self, name: str, why: str) -> None:
        """A load that the scheduler ordered failed: nobody waits for it in vain."""
        kept = self.kept.get(name)
        if kept is not None:
            kept.state, kept.note = "failed", why
        for request in self.scheduler.remove(name):
            self._turn(request, "gone", f"it cannot be loaded: {why}")

    def _answer(
        self,
        waiting: list[Waiting],
        results: list[dict[str, Any] | EngineError],
        *,
        now: float,
        begun: float,
    ) -> None:
        rows = sum(one.request.rows for one in waiting)
        for one, result in zip(waiting, results, strict=False):
            if isinstance(result, EngineError):
                one.kept.counts.failed += 1
                if not one.answer.done():
                    one.answer.set_exception(result)
                continue
            seconds = now - one.request.arrived_at
            in_time = now <= one.request.deadline_at
            one.kept.counts.done(
                now,
                predicted_seconds=one.predicted_seconds,
                seconds=seconds,
                in_time=in_time,
            )
            if not one.answer.done():
                one.answer.set_result(
                    Answered(
                        results=result,
                        predicted_ms=one.predicted_seconds * 1000,
                        actual_ms=seconds * 1000,
                        run_ms=(now - begun) * 1000,
                        batch=rows,
                        in_time=in_time,
                    )
                )
        if waiting:
            waiting[0].kept.counts.ran(rows)

    # --- telling -------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Where everything stands, for the page."""
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
            "models": [self._model_json(kept, now) for kept in self.kept.values()],
        }

    def _model_json(self, kept: Kept, now: float) -> dict[str, Any]:
        placed = self.scheduler.placed.get(kept.name)
        model = kept.model
        return {
            "name": kept.name,
            "state": kept.state,
            "loaded": kept.name in self.scheduler.loaded,
            "note": kept.note,
            "memory_bytes": kept.memory_bytes,
            "deadline_ms": kept.deadline_ms,
            "batches": bool(model and model.batches),
            "most_batch": placed.most_rows if placed else kept.most_batch,
            "load_seconds": round(placed.timing.load_seconds, 4) if placed else None,
            "profile": profile_json(placed.timing) if placed else [],
            **kept.counts.to_json(now),
        }


def _left(within_ms: float) -> str:
    """What is left of a deadline, in words."""
    if within_ms > 0:
        return f"{within_ms:.1f} ms are left for it"
    return f"the way here and back takes {-within_ms:.1f} ms more than its deadline"


def _steps_around(
    profile: dict[int, list[float]], seconds: float
) -> dict[int, list[float]]:
    """Add what it takes to hand a run to its thread and to hear of its end."""
    return {size: [one + seconds for one in runs] for size, runs in profile.items()}
