"""Which gap a backfill Job takes, how long, and when it must leave. Pure.

"Backfill" as in EASY (Lifka, "The ANL/IBM SP Scheduling System", 1995):
a Job that fits into time nobody else uses now may run at once as long as it delays
nobody. There the promise stands on the Job's own estimate of its length; here nobody
is asked for one: the Job is stopped, with its grace, when the gap is over or somebody
books its Gpus, and goes on from its checkpoint in the next gap.

Cost: one sort of the free Gpus for each Job that is looked at.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum


class GapState(StrEnum):
    """Where a Job that runs in gaps stands."""

    QUEUED = "queued"  # waits for a gap, before the first and between two
    RUNNING = "running"  # holds a gap; the stretch in it is a Job of its own
    STOPPING = "stopping"  # somebody stopped it: its last stretch is about to end
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"  # ended by somebody, or its time was used up

    @property
    def label(self) -> str:
        """Return the word on screen."""
        return self.value

    @classmethod
    def live(cls) -> frozenset[GapState]:
        """Return the states in which it waits for Gpus or holds some."""
        return frozenset({cls.QUEUED, cls.RUNNING, cls.STOPPING})


_ENDS = frozenset({GapState.DONE, GapState.FAILED, GapState.STOPPED})

NEXT: dict[GapState, frozenset[GapState]] = {
    GapState.QUEUED: frozenset({GapState.RUNNING, GapState.STOPPED, GapState.FAILED}),
    GapState.RUNNING: frozenset({GapState.QUEUED, GapState.STOPPING}) | _ENDS,
    GapState.STOPPING: _ENDS,
    GapState.DONE: frozenset(),
    GapState.FAILED: frozenset(),
    GapState.STOPPED: frozenset(),
}
