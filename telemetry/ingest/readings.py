"""The current state of each node and Gpu, and the minutes that are being counted."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

from msgspec.structs import replace

from telemetry.inventory.queries import ClusterGpu, ClusterSnapshot, SlurmFact
from telemetry.live.broadcast import Detail, DetailGpu
from telemetry.protocol.codec import to_plain
from telemetry.protocol.frame import FrameRow
from telemetry.protocol.gpu_state import GpuState
from telemetry.protocol.hardware import NodeInfo
from telemetry.protocol.sample import GpuReading, NodeSample
from telemetry.protocol.trouble import NodeTrouble
from telemetry.rules.rollup import (
    EMPTY,
    MINUTE_SECONDS,
    MinuteTotals,
    merge,
    minute_start,
)
from telemetry.rules.slurm_use import slurm_state

Judge = Callable[[int, GpuReading | None, float, datetime], GpuState]
"""(primary key of a Gpu, its newest reading, seconds since it arrived, now) ->
state."""
HolderPresent = Callable[[int, GpuReading, datetime], bool]
"""Whether a reading has a process of the Gpu's holder."""

NEVER_SECONDS = float("inf")
"""Age of a Gpu without any reading."""
MESSAGES_PER_SECOND = 5.0
MESSAGES_AT_ONCE = 10.0
"""A node sends one sample a second and sometimes a roster. Messages beyond this rate
are ignored."""


@dataclass(slots=True)
class LatestReading:
    """The newest reading of one Gpu."""

    reading: GpuReading
    arrived: float
    """When it arrived at the server, in seconds of the steady clock."""


@dataclass(slots=True, eq=False)
class NodeInbox:
    """The reports of one node on its Gpus."""

    name: str
    last_id: str
    read_until_ms: int = 0
    """Server's clock up to which the stream has been read. Entries read next arrived
    later, whatever their id is."""
    behind: bool = False
    """Whether the last read left existing entries."""
    passed_over_until: float | None = None
    """Steady clock's seconds until which a flooded stream is not read."""
    refused: int = 0
    """Excess messages since the last one that was admitted."""
    sample: NodeSample | None = None
    arrived: float | None = None
    """When that arrived at the server, in seconds of the steady clock."""
    published: NodeSample | None = None
    """The sample that was last published as details."""
    trouble: NodeTrouble | None = None
    """The node's newest report about its driver."""
    trouble_ms: int = 0
    """Its stream entry. An entry that is read again is not new."""
    trouble_at: float = float("-inf")
    """When it arrived at the server, in seconds of the steady clock."""
    skew_seconds: float = 0.0
    """The node's clock minus the server's, of the newest sample."""
    told: NodeTrouble | None = None
    """The trouble that was last published."""
    info: NodeInfo | None = None
    latest: dict[str, LatestReading] = field(default_factory=dict)
    newest_ms: int = 0
    """Stream entry of the newest sample. An entry that is read again is not new."""
    _tokens: float = MESSAGES_AT_ONCE
    _tokens_ms: int = 0

    def admits(self, at_ms: int) -> bool:
        """Token bucket over the arrival times of messages. A second reading gives the
        same result, because then the server's ids are used."""
        passed_seconds = max(0, at_ms - self._tokens_ms) / 1000
        self._tokens_ms = max(self._tokens_ms, at_ms)
        filled = self._tokens + passed_seconds * MESSAGES_PER_SECOND
        self._tokens = min(MESSAGES_AT_ONCE, filled)
        if self._tokens < 1:
            self.refused += 1
            return False
        self._tokens -= 1
        self.refused = 0
        return True


class OpenMinutes:
    """Totals of minutes that are not stored yet."""

    def __init__(self) -> None:
        self._totals: dict[int, dict[int, MinuteTotals]] = {}

    def add(self, gpu_id: int, at: float, total: MinuteTotals) -> None:
        """Add a sample's totals to the minute of an instant (Unix seconds)."""
        gpus = self._totals.setdefault(minute_start(at), {})
        gpus[gpu_id] = merge(gpus.get(gpu_id, EMPTY), total)

    def forget_until(self, minute: int) -> None:
        """Drop minutes up to and including this one, which are stored."""
        for old in [start for start in self._totals if start <= minute]:
            del self._totals[old]

    def over(self, at: float) -> dict[int, dict[int, MinuteTotals]]:
        """Return the minutes that were over at an instant (Unix seconds), oldest
        first."""
        limit = minute_start(at)
        return {
            start: dict(self._totals[start])
            for start in sorted(self._totals)
            if start + MINUTE_SECONDS <= limit
        }


def frame_rows(
    cluster: ClusterSnapshot,
    inboxes: dict[str, NodeInbox],
    judge: Judge,
    *,
    now: datetime,
    steady: float,
) -> Iterator[tuple[ClusterGpu, FrameRow]]:
    """Yield every Gpu's row of the frame, in the roster's order."""
    for gpu in cluster.gpus:
        if gpu.slurm is not None:
            yield gpu, _slurm_row(gpu, gpu.slurm, now)
            continue
        inbox = inboxes.get(gpu.node)
        heard = inbox.latest.get(gpu.uuid) if inbox else None
        if heard is None:
            state = _gpu_state(gpu, None, NEVER_SECONDS, judge, now)
            yield gpu, FrameRow(state=state)
        else:
            age_seconds = max(0.0, steady - heard.arrived)
            state = _gpu_state(gpu, heard.reading, age_seconds, judge, now)
            yield gpu, FrameRow.of(heard.reading, state, age_seconds)


def _slurm_row(gpu: ClusterGpu, fact: SlurmFact, now: datetime) -> FrameRow:
    """Return the row of a Gpu that Slurm gives out. Nothing measures it."""
    age_seconds = max(0.0, (now - fact.read_at).total_seconds())
    state = slurm_state(fact.use, age_seconds)
    if gpu.maintenance:
        state = GpuState.MAINTENANCE
    elif not gpu.present:
        state = GpuState.LOST
    return FrameRow(state=state, age_seconds=age_seconds)


def _gpu_state(
    gpu: ClusterGpu,
    reading: GpuReading | None,
    age_seconds: float,
    judge: Judge,
    now: datetime,
) -> GpuState:
    """The operator's settings and the roster take precedence over the judge."""
    if gpu.maintenance:
        return GpuState.MAINTENANCE
    if not gpu.present:
        return GpuState.LOST
    state = judge(gpu.pk, reading, age_seconds, now)
    if gpu.mig and reading is not None and state not in {GpuState.STALE, GpuState.LOST}:
        return GpuState.MIG
    return state


def own_gpus(sample: NodeSample, bound: Mapping[str, ClusterGpu]) -> NodeSample:
    """Return the sample without Gpus that this node may not report."""
    return replace(sample, gpus=tuple(x for x in sample.gpus if x.uuid in bound))


def detail_of(inbox: NodeInbox) -> Detail:
    """Return the details that are not in the frame."""
    sample, trouble = inbox.sample, inbox.trouble
    detail: Detail = {
        "node": inbox.name,
        "at": sample.at if sample else trouble.at if trouble else 0.0,
        "load1": sample.load1 if sample else None,
        "gpus": {gpu.uuid: _detail_gpu(gpu) for gpu in sample.gpus} if sample else {},
    }
    if trouble is not None:
        detail["trouble"] = trouble_of(trouble)
    return detail


def trouble_of(trouble: NodeTrouble) -> dict[str, Any]:
    """Return a node's trouble as it is stored and shown."""
    return {
        "state": trouble.state.value,
        "reason": trouble.reason,
        "at": trouble.at,
    }


_IN_FRAME = {
    "uuid",
    "state",
    "util_pct",
    "memory_used_bytes",
    "memory_total_bytes",
    "temperature_celsius",
    "power_watts",
}
"""The frame and the roster have these already."""
_ALWAYS = ("processes", "throttle", "memory_reserved_bytes")


def _detail_gpu(gpu: GpuReading) -> DetailGpu:
    values = {
        key: value
        for key, value in to_plain(gpu).items()
        if key not in _IN_FRAME and (value is not None or key in _ALWAYS)
    }
    return cast(DetailGpu, values)
