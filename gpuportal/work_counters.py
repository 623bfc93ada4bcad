"""Counts of the requests and tasks of all processes, which ``/metrics`` shows.

Each web process and each process of a worker counts for itself. A thread adds the
counts to those in the broker, so that one address shows those of all. A process that is
killed loses the counts of the last seconds.
"""

import logging
import threading
from collections import Counter, defaultdict

import redis

from gpuportal import ticks
from gpuportal.logs.repeated_call import repeat

KEY = "portal.work"
"""A hash in the broker. Its fields are the kind, the label and the unit, with spaces
between them: "request 2xx count", "task reservations.tick:done seconds"."""
WRITE_SECONDS = 10.0
_lock = threading.Lock()
_counts: Counter[str] = Counter()
_seconds: defaultdict[str, float] = defaultdict(float)
log = logging.getLogger(__name__)


def count(kind: str, label: str, seconds: float) -> None:
    """Count one request or task, and how long it took."""
    with _lock:
        _counts[f"{kind} {label} count"] += 1
        _seconds[f"{kind} {label} seconds"] += seconds


def start() -> None:
    """Write the counts of this process from now on, in a thread."""
    repeat(write, WRITE_SECONDS, "work-counters")


def write() -> None:
    """Add what was counted to the counts in the broker. Without it they wait."""
    with _lock:
        counts, seconds = dict(_counts), dict(_seconds)
        _counts.clear()
        _seconds.clear()
    if not counts:
        return
    try:
        with ticks.broker().pipeline() as pipe:
            for name, number in counts.items():
                pipe.hincrby(KEY, name, number)
            for name, took in seconds.items():
                pipe.hincrbyfloat(KEY, name, took)
            pipe.execute()
    except redis.RedisError as error:
        # A broker that is away is reported elsewhere, and this comes at every stop.
        log.info("requests and tasks are not counted: %s", error)
        with _lock:
            _counts.update(counts)
            for name, took in seconds.items():
                _seconds[name] += took


def read() -> dict[tuple[str, str], dict[str, float]]:
    """Return the counts by label, for each kind and unit: ("request", "count").

    Raises:
        redis.RedisError: the broker does not answer.
    """
    stored: dict[bytes, bytes] = ticks.broker().hgetall(KEY)  # type: ignore[assignment]
    found: dict[tuple[str, str], dict[str, float]] = {}
    for name, value in sorted(stored.items()):
        kind, label, unit = name.decode().split(" ")
        found.setdefault((kind, unit), {})[label] = float(value)
    return found
