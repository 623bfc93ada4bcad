"""Totals of the demo lab's Gpus over a span of time."""

from typing import Any

from gpuportal.demo.lab import NODES
from telemetry.models import Gpu
from telemetry.rules.rollup import EMPTY, MinuteTotals

IDLE_WATTS = 45.0
_NAMES = tuple(MinuteTotals.__dataclass_fields__)
_LIMITS = {node.name: node.power_limit_watts for node in NODES}


def sample_totals(gpu: Gpu, util: float | None, seconds: int) -> MinuteTotals:
    """Return a Gpu's totals for so many seconds at one utilization; None: no
    process."""
    if seconds <= 0:
        return EMPTY
    busy = util or 0.0
    memory = 0 if util is None else int(gpu.memory_total_bytes * 0.6)
    watts = IDLE_WATTS + (_LIMITS[gpu.node.name] - IDLE_WATTS) * 0.9 * busy / 100
    return MinuteTotals(
        n=seconds,
        util_n=seconds,
        util_sum_pct=seconds * busy,
        util_max_pct=min(100.0, busy + 6 if busy else 0.0),
        util_min_pct=max(0.0, busy - 9),
        idle_n=0 if busy else seconds,
        memory_n=seconds,
        memory_sum_bytes=seconds * memory,
        memory_max_bytes=memory,
        temperature_max_celsius=int(34 + 0.45 * busy),
        power_n=seconds,
        power_sum_watts=seconds * watts,
        process_n=0 if util is None else seconds,
        energy_joules=seconds * watts,
    )


def columns(totals: MinuteTotals) -> dict[str, Any]:
    """Return the totals as a row's columns. dataclasses.asdict would copy deeply."""
    return {name: getattr(totals, name) for name in _NAMES}
