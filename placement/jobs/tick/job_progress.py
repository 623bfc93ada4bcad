"""The progress and step time of a running Job, from its log.

A line counts if it names a step (`step=120 loss=2.3`; `steps=` names the last one). Two
readings at different times give the pace. The Job itself is not asked.
"""

from dataclasses import dataclass
from datetime import datetime

from placement.jobs.nodes import log_store
from placement.models import Job
from placement.planner.launch.recipes import TINY_TRANSFORMER
from placement.rules.log_text import numbers_of

TAIL_BYTES = 16 * 1024
LEAST_SECONDS = 5.0
"""The least time between two steps from which a pace is measured."""
MOST_STEP = 2**62


@dataclass(frozen=True, slots=True)
class Progress:
    """Steps done and in total. None: the log has none."""

    done: int | None
    total: int | None

    @property
    def left(self) -> int | None:
        """Remaining steps."""
        if self.done is None or self.total is None:
            return None
        return max(0, self.total - self.done)


def progress_of(job: Job) -> Progress:
    """Return the progress of a Job."""
    done: int | None = None
    total: int | None = None
    for line in reversed(log_store.tail(job, TAIL_BYTES).data.splitlines()):
        numbers = numbers_of(line)
        if numbers is not None:
            done = _step_count(numbers.get("step"))
            total = _step_count(numbers.get("steps"))
            break
    if job.recipe == TINY_TRANSFORMER.name:
        total = int(job.recipe_settings["steps"])
    return Progress(done, total)


def _step_count(value: float | None) -> int | None:
    return None if value is None or not 0 <= value < MOST_STEP else int(value)


def measure(job: Job, now: datetime) -> None:
    """Store the last step, and the pace since the previous reading."""
    done = progress_of(job).done
    if done is None or done == job.seen_step:
        return
    fields: dict[str, object] = {"seen_step": done, "seen_step_at": now}
    if job.seen_step is not None and job.seen_step_at is not None:
        seconds = (now - job.seen_step_at).total_seconds()
        if done > job.seen_step and seconds < LEAST_SECONDS:
            return
        pace = seconds / (done - job.seen_step) if done > job.seen_step else None
        fields["step_seconds"] = pace
    Job.objects.filter(pk=job.pk).update(**fields)
    for name, value in fields.items():
        setattr(job, name, value)
