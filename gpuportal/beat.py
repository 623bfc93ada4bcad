"""The beat that keeps ticking when the machine's clock is set.

Celery's beat uses the wall clock for the next time of each task. If the clock were set
back an hour, it would send nothing for an hour, and no reservation would begin or end.
"""

import logging
import time
from typing import Any

from celery.beat import Scheduler

JUMP_SECONDS = 2.0
"""A larger difference between two ticks means that the clock was set."""

logger = logging.getLogger(__name__)


class SteadyScheduler(Scheduler):  # type: ignore[misc]
    """Restarts every interval after a jump of the clock. It stores nothing, because all
    tasks are intervals."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._offset_seconds = time.time() - time.monotonic()
        super().__init__(*args, **kwargs)

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Send the due tasks. Return the seconds until the next look."""
        offset_seconds = time.time() - time.monotonic()
        jump_seconds = offset_seconds - self._offset_seconds
        self._offset_seconds = offset_seconds
        if abs(jump_seconds) > JUMP_SECONDS:
            logger.warning("the clock was set by %+.0f s", jump_seconds)
            for entry in self.schedule.values():
                entry.last_run_at = entry.default_now()
            self._heap = None
        seconds: float = super().tick(*args, **kwargs)
        return seconds
