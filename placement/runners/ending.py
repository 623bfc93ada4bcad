"""Why a shim ends its Job, and what tells it that the portal has ended."""

import os
from dataclasses import dataclass


@dataclass
class Ending:
    """Why and until when a Job is being ended."""

    reason: str
    kill_at: float
    """Monotonic time at which the rest is killed."""
    stopped: bool = True
    """Whether somebody or the clock ended it, and not a fault of the Job."""
    lost: bool = False


def supervisor() -> int | None:
    """Return a descriptor that becomes readable when the supervisor ends."""
    text = os.environ.get("GPUPORTAL_SUPERVISOR_PID", "")
    if not text:
        return None
    try:
        return os.pidfd_open(int(text))
    except ProcessLookupError:
        # Gone already: a pipe whose other end is closed says the same.
        read, write = os.pipe2(os.O_CLOEXEC)
        os.close(write)
        return read
