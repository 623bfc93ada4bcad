"""CPU time of a call."""

import statistics
import time
from collections.abc import Callable

RUNS = 5


def milliseconds(work: Callable[[], object]) -> float:
    """Return CPU time of one call, median of 5."""
    times = []
    for _ in range(RUNS):
        start = time.process_time()
        work()
        times.append((time.process_time() - start) * 1000)
    return statistics.median(times)
