"""How a simulated Gpu behaves: readings from a script, a seed and the time.

Pure and without state: the same script at the same instant gives the same readings on
every call, so a restarted node continues where it was. Load follows the script with a
smooth wobble. Power follows load within seconds and temperature within a minute, as
first-order lags (Newton's law of cooling). The lags are computed from the script, not
from stored values.

Cost: about 15 evaluations of the load per Gpu and sample, 0.1 ms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

from telemetry.protocol.hardware import GpuInfo, HostCapacity
from telemetry.protocol.sample import GpuReading, Throttle
from telemetry.protocol.units import GIB_BYTES, MIB_BYTES, TIB_BYTES

WARM_UP_SECONDS = 4.0
"""A process loads data before it computes."""
POWER_LAG_SECONDS = 2.0
HEAT_LAG_SECONDS = 40.0
LAG_STEPS = 14
"""Number of past points. With a spacing of lag / 3 they reach back 4.7 lags."""
IDLE_POWER_RATIO = 0.13
FULL_POWER_RATIO = 0.96
CONTEXT_BYTES = 4 * MIB_BYTES
"""Power of a card without processes."""
ROOM_CELSIUS = 27.0
DEFAULT_LIMIT_WATTS = 300.0
DEFAULT_SLOWDOWN_CELSIUS = 90.0
DEFAULT_CLOCK_MHZ = 1500
MEMORY_CLOCK_MHZ = 1593
IDLE_CLOCK_MHZ = 210
HOST_MEMORY_RATIO = 2
"""Memory of a GPU server beside that of its Gpus: a DGX A100 with 640 GB has 2 TB, and
workstations have about as much as their cards."""
HOST_FREE_RATIO = 0.85
DISK_FREE_BYTES = 2 * TIB_BYTES


@dataclass(frozen=True, slots=True)
class SimulatedProcess:
    """One process on one Gpu, scripted or from a real process's claim."""

    gpu: str
    """UUID."""
    pid: int
    memory_bytes: int
    util_pct: float
    wobble_pct: float = 0.0
    from_at: float = 0.0
    """Unix seconds, half-open window."""
    until_at: float | None = None
    uid: int | None = None
    user: str | None = None
    command: str = ""
    job: int | None = None

    def present(self, at: float) -> bool:
        """Return whether the process is there at an instant (Unix seconds)."""
        return self.from_at <= at and (self.until_at is None or at < self.until_at)

    def pct(self, at: float, seed: str) -> float:
        """Return its utilization of the Gpu, 0 to 100."""
        if not self.present(at) or self.util_pct <= 0:
            return 0.0
        warm = min((at - self.from_at) / WARM_UP_SECONDS, 1.0)
        key = f"{seed}/{self.gpu}/{self.pid}"
        swing = 0.7 * smooth_noise(key, at, 23.0) + 0.3 * smooth_noise(key, at, 3.0)
        return min(max(warm * (self.util_pct + self.wobble_pct * swing), 0.0), 100.0)


def host_capacity(gpus: Sequence[GpuInfo]) -> HostCapacity:
    """Return the memory and disk of a machine with such Gpus, whole GiB."""
    gib = HOST_MEMORY_RATIO * sum(x.memory_total_bytes for x in gpus) // GIB_BYTES
    return HostCapacity(
        memory_total_bytes=gib * GIB_BYTES,
        memory_free_bytes=int(HOST_FREE_RATIO * gib) * GIB_BYTES,
        disk_free_bytes=DISK_FREE_BYTES,
    )


def smooth_noise(key: str, at: float, period_seconds: float) -> float:
    """Return smooth noise in [-1, 1]: a random value every period, a cosine between
    them."""
    knot, part = divmod(at / period_seconds, 1.0)
    a, b = (
        _noise_knot(key, period_seconds, int(knot)),
        _noise_knot(key, period_seconds, int(knot) + 1),
    )
    return a + (b - a) * (1 - math.cos(math.pi * part)) / 2


@lru_cache(maxsize=16_384)
def _noise_knot(key: str, period_seconds: float, number: int) -> float:
    digest = blake2b(f"{key}/{period_seconds}/{number}".encode(), digest_size=4)
    return int.from_bytes(digest.digest()) / (2**31) - 1.0


def total_pct(loads: Sequence[SimulatedProcess], at: float, seed: str) -> float:
    """Return the utilization of a Gpu: the sum of its processes, at most 100."""
    return min(sum(load.pct(at, seed) for load in loads), 100.0)


def drawn_pct(loads: Sequence[SimulatedProcess], at: float, seed: str) -> float:
    """Return the load that power follows: weights fall by e every
    `POWER_LAG_SECONDS`."""
    step_seconds = POWER_LAG_SECONDS / 3
    weights = [math.exp(-step / 3) for step in range(LAG_STEPS)]
    values = [total_pct(loads, at - n * step_seconds, seed) for n in range(LAG_STEPS)]
    weighed = sum(w * v for w, v in zip(weights, values, strict=True))
    return weighed / sum(weights)


def heat_pct(loads: Sequence[SimulatedProcess], at: float) -> float:
    """Return the load that temperature follows: the step response of each process.

    The wobble is left out, because it averages to zero over 40 s.
    """
    total = 0.0
    for load in loads:
        age_seconds = max(at - load.from_at, 0.0)
        gone_seconds = 0.0 if load.until_at is None else max(at - load.until_at, 0.0)
        # A window that ends before it begins warms nothing.
        total += load.util_pct * max(
            math.exp(-gone_seconds / HEAT_LAG_SECONDS)
            - math.exp(-age_seconds / HEAT_LAG_SECONDS),
            0.0,
        )
    return min(total, 100.0)


def reserved_bytes(info: GpuInfo) -> int:
    """Return the driver's share: 0.3 to 0.6 GiB on real cards."""
    return min(info.memory_total_bytes // 130, 6 * GIB_BYTES // 10)


def used_bytes(info: GpuInfo, loads: Sequence[SimulatedProcess]) -> int:
    """Return the memory that these processes use, at most what the Gpu has."""
    asked_bytes = CONTEXT_BYTES + sum(load.memory_bytes for load in loads)
    return min(asked_bytes, info.memory_total_bytes - reserved_bytes(info))


def reading(
    info: GpuInfo, loads: Sequence[SimulatedProcess], *, at: float, seed: str
) -> GpuReading:
    """Return the Gpu's readings at an instant, without its processes.

    `loads` are all loads of this Gpu, past ones included, because they still warm it.
    """
    here = [load for load in loads if load.present(at)]
    util_pct = total_pct(loads, at, seed)
    drawn_ratio = drawn_pct(loads, at, seed) / 100
    limit_watts = info.power_limit_watts or DEFAULT_LIMIT_WATTS
    watts = limit_watts * (
        IDLE_POWER_RATIO
        + (0.05 if here else 0.0)
        + (FULL_POWER_RATIO - IDLE_POWER_RATIO - 0.05) * drawn_ratio**0.9
        + 0.008 * smooth_noise(f"{seed}/{info.uuid}/power", at, 5.0)
    )
    slowdown_celsius = info.slowdown_celsius or DEFAULT_SLOWDOWN_CELSIUS
    place = smooth_noise(f"{seed}/{info.uuid}/place", 0.0, 1.0)  # slots differ
    span_celsius = slowdown_celsius - 14 - ROOM_CELSIUS
    celsius = ROOM_CELSIUS + 4 + 3 * place + span_celsius * heat_pct(loads, at) / 100
    celsius += 0.8 * smooth_noise(f"{seed}/{info.uuid}/heat", at, 31.0)
    top_mhz = info.sm_clock_max_mhz or DEFAULT_CLOCK_MHZ
    busy_mhz = top_mhz * (1.0 - 0.07 * drawn_ratio)
    return GpuReading(
        uuid=info.uuid,
        util_pct=round(util_pct),
        memory_util_pct=round(0.55 * util_pct),
        memory_used_bytes=used_bytes(info, here),
        memory_reserved_bytes=reserved_bytes(info),
        memory_total_bytes=info.memory_total_bytes,
        temperature_celsius=round(celsius),
        power_watts=round(max(watts, 0.0), 1),
        power_limit_watts=info.power_limit_watts,
        sm_clock_mhz=round(busy_mhz / 15) * 15 if here else IDLE_CLOCK_MHZ,
        memory_clock_mhz=MEMORY_CLOCK_MHZ,
        pstate=0 if here else 8,
        throttle=_throttle(here, watts, limit_watts, celsius, slowdown_celsius),
        ecc_corrected=0,
        ecc_uncorrected=0,
        remap_pending=False,
        remap_failure=False,
    )


def _throttle(
    here: Sequence[SimulatedProcess],
    watts: float,
    limit_watts: float,
    celsius: float,
    slowdown_celsius: float,
) -> tuple[Throttle, ...]:
    if not here:
        return (Throttle.GPU_IDLE,)
    words = []
    if watts >= 0.94 * limit_watts:
        words.append(Throttle.SW_POWER_CAP)
    if celsius >= slowdown_celsius:
        words.append(Throttle.SW_THERMAL)
    return tuple(words)
