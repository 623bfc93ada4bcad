"""Read rows as values: the cluster as ingest knows it."""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime

from django.db.models import F, Q
from redis import Redis

from telemetry.live import broadcast
from telemetry.live.broadcast import Roster, RosterGpu, RosterNode, RosterXid
from telemetry.models import (
    Gpu,
    Node,
    SampleMinute,
    SlurmGpu,
    TelemetryPolicy,
    XidCount,
)
from telemetry.protocol.frame import LAYOUT, FrameRow, decode
from telemetry.rules.chart_series import ChartSeries, series, step_seconds_for
from telemetry.rules.retention import RAW_MOST_SECONDS
from telemetry.rules.rollup import MinuteTotals


@dataclass(frozen=True, slots=True)
class SlurmFact:
    """What Slurm said of a GPU, and when."""

    use: str
    """A `SlurmUse`."""
    read_at: datetime


@dataclass(frozen=True, slots=True)
class ClusterGpu:
    """One row of the live frame."""

    pk: int
    uuid: str
    node: str
    present: bool
    maintenance: bool
    """Set on the Gpu or on its node."""
    mig: bool
    slurm: SlurmFact | None = None
    """None: the portal gives it out."""


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """Nodes and Gpus in the order of the frame, and the roster that names them."""

    nodes: tuple[str, ...]
    """Nodes that report themselves. Slurm's are not among them."""
    gpus: tuple[ClusterGpu, ...]
    bound: Mapping[str, Mapping[str, ClusterGpu]]
    """Node name -> UUID -> Gpu. A node may report only these."""
    roster_id: int
    """CRC of the roster. Two processes that see the same rows get the same."""
    roster: bytes
    owners: Mapping[str, str]
    """UUID -> name of the node that it is bound to."""
    keep_raw_seconds: int = RAW_MOST_SECONDS
    """How long raw samples stay in the broker."""

    def owner_of(self, uuid: str) -> str | None:
        """Return the name of the node to which a UUID is bound; None if there is
        none."""
        return self.owners.get(uuid)


EMPTY_CLUSTER = ClusterSnapshot((), (), {}, 0, b"", {})


def load_cluster() -> ClusterSnapshot:
    """Read the cluster: three queries, and one more with Slurm."""
    nodes = list(Node.objects.in_service().order_by("name"))
    by_pk = {node.pk: node for node in nodes}
    rows = [
        (gpu, by_pk[gpu.node_id])
        for gpu in Gpu.objects.shown().select_related("pool")
        if gpu.node_id in by_pk
    ]
    own = tuple(node.name for node in nodes if node.engine == Node.Engine.PORTAL)
    facts = _slurm_facts() if len(own) < len(nodes) else {}
    gpus = tuple(
        ClusterGpu(
            pk=gpu.pk,
            uuid=gpu.uuid,
            node=node.name,
            present=gpu.present,
            maintenance=gpu.maintenance or node.maintenance,
            mig=gpu.mig,
            slurm=facts.get(gpu.pk),
        )
        for gpu, node in rows
    )
    bound: dict[str, dict[str, ClusterGpu]] = {name: {} for name in own}
    for row in gpus:
        if row.node in bound:
            bound[row.node][row.uuid] = row
    xids = _standing_xids()
    named = [_roster_gpu(gpu, node, xids.get(gpu.pk)) for gpu, node in rows]
    roster_id, roster = _roster(named, [_roster_node(node) for node in nodes])
    return ClusterSnapshot(
        nodes=own,
        gpus=gpus,
        bound=bound,
        roster_id=roster_id,
        roster=roster,
        owners={gpu.uuid: gpu.node for gpu in gpus},
        keep_raw_seconds=TelemetryPolicy.current().keep_raw_seconds,
    )


def _slurm_facts() -> dict[int, SlurmFact]:
    rows = SlurmGpu.objects.values_list("gpu_id", "use", "cluster__read_at")
    return {
        pk: SlurmFact(use, read_at) for pk, use, read_at in rows if read_at is not None
    }


def _standing_xids() -> dict[int, RosterXid]:
    """Return the newest Xid of each Gpu since the last clearing."""
    rows = XidCount.objects.filter(
        Q(cleared_at=None) | Q(last_at__gt=F("cleared_at"))
    ).order_by("last_at")
    return {
        gpu_id: {"code": code, "at": at.astimezone(UTC).isoformat()}
        for gpu_id, code, at in rows.values_list("gpu_id", "code", "last_at")
    }


def _roster_gpu(gpu: Gpu, node: Node, xid: RosterXid | None) -> RosterGpu:
    return {
        "id": gpu.pk,
        "uuid": gpu.uuid,
        "node": node.name,
        "engine": node.engine,
        "index": gpu.index,
        "name": gpu.name,
        "gpu_class": gpu.pool.gpu_class,
        "memory_total_bytes": gpu.memory_total_bytes or None,
        "power_limit_watts": gpu.power_limit_watts,
        "slowdown_celsius": gpu.slowdown_celsius,
        "sm_clock_max_mhz": gpu.sm_clock_max_mhz,
        "simulated": node.simulated,
        "present": gpu.present,
        "maintenance": gpu.maintenance or node.maintenance,
        "draining": gpu.draining or node.draining,
        "mig": gpu.mig,
        "last_xid": xid,
    }


def _roster_node(node: Node) -> RosterNode:
    return {
        "name": node.name,
        "engine": node.engine,
        "simulated": node.simulated,
        "maintenance": node.maintenance,
        "draining": node.draining,
        "driver_version": node.driver_version,
        "cuda_version": node.cuda_version,
        "isolation": node.isolation,
        "gate": node.gate,
    }


def _roster(gpus: list[RosterGpu], nodes: list[RosterNode]) -> tuple[int, bytes]:
    # Another layout is another roster: its frames wait until a page has it.
    content = json.dumps([LAYOUT, gpus, nodes], separators=(",", ":")).encode()
    roster: Roster = {
        "roster_id": zlib.crc32(content),
        "layout": LAYOUT,
        "gpus": gpus,
        "nodes": nodes,
    }
    return roster["roster_id"], json.dumps(roster, separators=(",", ":")).encode()


def load_history(gpu_id: int, *, start: int, end: int, points: int) -> ChartSeries:
    """Return one Gpu's minutes of [start, end), Unix seconds, as the columns of a
    chart."""
    names = [field.name for field in fields(MinuteTotals)]
    rows = SampleMinute.objects.filter(
        gpu_id=gpu_id,
        minute_at__gte=datetime.fromtimestamp(start, UTC),
        minute_at__lt=datetime.fromtimestamp(end, UTC),
    ).values_list("minute_at", *names)
    return series(
        ((int(at.timestamp()), MinuteTotals(*totals)) for at, *totals in rows),
        start=start,
        end=end,
        step_seconds=step_seconds_for(end - start, points),
    )


@dataclass(frozen=True, slots=True)
class LiveGpu:
    """One Gpu as ingest last published it."""

    tag: RosterGpu
    row: FrameRow


def read_live(client: Redis) -> tuple[float | None, list[LiveGpu]]:
    """Return (Unix seconds of the newest frame, its Gpus); (None, []) if ingest has
    published nothing, or if roster and frame do not fit together."""
    data, names = client.mget(broadcast.FRAME_LATEST, broadcast.ROSTER)  # type: ignore[misc]
    if data is None or names is None:
        return None, []
    frame, roster = decode(data), json.loads(names)
    if roster["roster_id"] != frame.roster_id:
        return None, []
    return frame.server_at, [
        LiveGpu(tag, row) for tag, row in zip(roster["gpus"], frame.rows, strict=True)
    ]
