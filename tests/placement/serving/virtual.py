"""Open-loop load on a scheduler in virtual time: exact, fast, reproducible."""

import random
from collections import Counter
from collections.abc import Callable

from placement.agent.serving.deadline_scheduler import (
    AdmissionVerdict,
    GpuAction,
    Scheduler,
)
from placement.agent.serving.queue_simulation import QueuedRequest


def open_loop(
    gpu: Scheduler,
    *,
    model: str,
    per_second: float,
    seconds: float,
    deadline_seconds: float,
    run_seconds: Callable[[int], float],
    seed: int,
) -> Counter[str]:
    """Send requests of one row at times of a Poisson process; what came of them.

    Args:
        gpu: with the model placed and loaded.
        model: its name.
        per_second: mean number of requests.
        seconds: of virtual time that requests come for.
        deadline_seconds: of every request, from when it comes.
        run_seconds: what a run of so many rows really takes, drawn anew each time.
        seed: of the times at which they come.
    """
    lots, fates = random.Random(seed), Counter[str]()
    at, number, free_at, running = lots.expovariate(per_second), 0, 0.0, None
    now = begun = 0.0
    while True:
        while running is not None and (free_at <= at or at > seconds):
            now = free_at
            for one in running.requests:
                fates["in time" if now <= one.deadline_at else "late"] += 1
            gpu.finish(running, now, seconds=now - begun)
            running = None
            fates["dropped"] += _taken_out(gpu)
            action = gpu.next(now)
            fates["dropped"] += _taken_out(gpu)
            if action is not None and gpu.begin(action, now):
                running, begun = action, now
                free_at = now + run_seconds(action.rows)
        if at > seconds:
            return fates
        now = at
        number += 1
        asked = QueuedRequest(number, model, 1, now, now + deadline_seconds, "x")
        if gpu.offer(asked, now).verdict is not AdmissionVerdict.IN:
            fates["refused"] += 1
        if running is None:
            action = gpu.next(now)
            if action is not None and gpu.begin(action, now):
                assert action.act is GpuAction.INFER
                running, begun = action, now
                free_at = now + run_seconds(action.rows)
        at += lots.expovariate(per_second)


def _taken_out(gpu: Scheduler) -> int:
    dropped = len(gpu.late)
    gpu.late.clear()
    return dropped


def uneven(seed: int, one: float, more: float) -> Callable[[int], float]:
    """Run times that vary by a tenth, and one in a hundred that takes three times."""
    lots = random.Random(seed)

    def drawn(rows: int) -> float:
        usual = (one + more * (rows - 1)) * lots.lognormvariate(0.0, 0.1)
        return usual * 3 if lots.random() < 0.01 else usual

    return drawn
