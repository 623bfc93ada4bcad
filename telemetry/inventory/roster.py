"""Store the hardware that a node reports.

A node runs students' code, so its report is accepted only within bounds. A UUID is
bound to the node that first reported it. Another node that claims it is refused, and an
Alert reports that. A Gpu's Pool, which decides its price, is set once. Only the
operator changes it. The number of Gpus of a node is limited.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import Q

from telemetry.alerts.service import close_alert, open_alert
from telemetry.models import Alert, Gpu, Node, Pool, TelemetryPolicy
from telemetry.protocol.errors import NodeUnknown, RosterRefused
from telemetry.protocol.hardware import (
    MOST_GPUS,
    UNNAMED,
    Backend,
    GpuInfo,
    HostCapacity,
    LinkKind,
    NodeInfo,
)
from telemetry.rules.alert_rules import CLAIMED_ELSEWHERE, MISSING, NEW_GPU
from telemetry.rules.peak_flops import default_weight, peak_flops_of

EXPECTED_WITHIN = timedelta(days=1)
"""For this time after enrolment, new Gpus are expected: the operator has just installed
the node."""
MOST_GPUS_EVER = 2 * MOST_GPUS
"""Most Gpus that one node may ever report, replaced cards included."""

COPIED = (
    "index",
    "name",
    "memory_total_bytes",
    "power_limit_watts",
    "slowdown_celsius",
    "sm_clock_max_mhz",
    "compute_capability",
    "pci_bus_id",
    "serial",
    "mig",
    "mig_parent",
    "mig_instance",
)
"""Facts of a Gpu that follow the roster."""
ALWAYS_KNOWN = frozenset({"index", "mig", "mig_parent", "mig_instance"})
"""Facts that every roster has. An empty value means something."""


@dataclass(slots=True)
class RosterReport:
    """The changes that a roster made."""

    added: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    claimed: list[str] = field(default_factory=list)
    """UUIDs that belong to another node."""
    refused: list[str] = field(default_factory=list)
    """UUIDs beyond the number of Gpus that a node may report."""

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.missing)


@transaction.atomic(durable=True)
def record_roster(*, info: NodeInfo, now: datetime) -> RosterReport:
    """Update the rows of a node and its Gpus from its roster.

    Raises:
        NodeUnknown: the node is not enrolled.
        RosterRefused: simulated Gpus if the site allows none, or from a node that was
            not enrolled as simulated; real Gpus of a simulated node.
    """
    node = (
        Node.objects.run_by_portal().select_for_update().filter(name=info.node).first()
    )
    if node is None:
        raise NodeUnknown(node=info.node)
    _check_backend(node, info)
    report = RosterReport()
    before = {gpu.uuid: gpu for gpu in node.gpus.select_for_update().order_by("pk")}
    owners = _owners(info, node)
    for gpu in info.gpus:
        if gpu.uuid in owners:
            report.claimed.append(gpu.uuid)
            _tell_claim(owners[gpu.uuid], node, now)
        elif gpu.uuid in before:
            _update_gpu(before[gpu.uuid], gpu, now, report)
        elif len(before) + len(report.added) < MOST_GPUS_EVER:
            _add(node, gpu, now, report)
        else:
            report.refused.append(gpu.uuid)
    told = {gpu.uuid for gpu in info.gpus}
    for gone in before.values():
        if gone.uuid not in told and not gone.retired:
            _mark_missing(
                gone, rebooted=node.boot_id != info.boot_id, now=now, report=report
            )
    _follow_node(node, info, report)
    _close_settled(node, now)
    return report


def _check_backend(node: Node, info: NodeInfo) -> None:
    simulated = info.backend is Backend.SIMULATED
    if simulated and not settings.ALLOW_SIMULATED_GPUS:
        raise RosterRefused(node=node.name, why="this site takes no simulated Gpus")
    if simulated and not node.simulated:
        raise RosterRefused(
            node=node.name, why="simulated Gpus, but it was not enrolled as simulated"
        )
    if node.simulated and not simulated:
        raise RosterRefused(
            node=node.name, why="real Gpus, but it was enrolled as simulated"
        )


def _owners(info: NodeInfo, node: Node) -> dict[str, Gpu]:
    """Return the Gpus of the roster that are bound to other nodes."""
    uuids = [gpu.uuid for gpu in info.gpus]
    bound = Gpu.objects.filter(uuid__in=uuids).exclude(node=node)
    return {gpu.uuid: gpu for gpu in bound.select_related("node")}


def _tell_claim(gpu: Gpu, claimant: Node, now: datetime) -> None:
    detail = {"claimed_by": claimant.name, "bound_to": gpu.node.name}
    open_alert(rule=CLAIMED_ELSEWHERE, gpu_id=gpu.pk, now=now, detail=detail)


def _add(node: Node, info: GpuInfo, now: datetime, report: RosterReport) -> None:
    pool = _pool_of(info)
    values = {key: getattr(info, key) for key in COPIED}
    values["new"] = _waits(node, info, now)
    try:
        with transaction.atomic():
            gpu = Gpu.objects.create(uuid=info.uuid, node=node, pool=pool, **values)
    except IntegrityError:
        # Another node reported the same UUID at the same moment and was first.
        other = Gpu.objects.select_related("node").get(uuid=info.uuid)
        _tell_claim(other, node, now)
        report.claimed.append(info.uuid)
    else:
        report.added.append(info.uuid)
        if gpu.new:
            detail = {"node": node.name, "name": info.name, "uuid": info.uuid}
            open_alert(rule=NEW_GPU, gpu_id=gpu.pk, now=now, detail=detail)


def _pool_of(info: GpuInfo) -> Pool:
    """Return the pool of a card's class. If the memory, and with it the class, is
    unknown, it is the only pool of cards of this name, if there is exactly one."""
    if not info.memory_total_bytes:
        found = Pool.objects.filter(gpu_class__startswith=f"{info.gpu_class} ")[:2]
        if len(found) == 1:
            return found[0]
    pool, _made = Pool.objects.get_or_create(
        gpu_class=info.gpu_class,
        defaults={
            "weight": default_weight(info.memory_total_bytes),
            "peak_flops": peak_flops_of(info.gpu_class),
        },
    )
    return pool


def _close_settled(node: Node, now: datetime) -> None:
    """Close findings that an operator has settled: a new Gpu that was checked, and a
    claim by the node that now has the Gpu."""
    looked_at = Q(rule=NEW_GPU, gpu__new=False)
    settled = Q(rule=CLAIMED_ELSEWHERE, detail__claimed_by=node.name)
    rows = Alert.objects.open().filter(looked_at | settled, gpu__node=node)
    for rule, gpu_id in rows.values_list("rule", "gpu_id"):
        close_alert(rule=rule, gpu_id=gpu_id, now=now)


def _waits(node: Node, info: GpuInfo, now: datetime) -> bool:
    """Return whether an operator has to check a Gpu before it can be booked.

    Gpus reported on the day of enrolment were expected. A Gpu with unknown memory has
    no class yet, and therefore no price.
    """
    expected = now - node.enrolled_at <= EXPECTED_WITHIN
    waits = TelemetryPolicy.current().new_gpus_wait and not expected
    return waits or not info.memory_total_bytes


def _update_gpu(gpu: Gpu, info: GpuInfo, now: datetime, report: RosterReport) -> None:
    changed = [
        key
        for key in COPIED
        if getattr(gpu, key) != getattr(info, key) and not _unknown(key, info)
    ]
    for key in changed:
        setattr(gpu, key, getattr(info, key))
    if gpu.new and not gpu.memory_total_bytes and info.memory_total_bytes:
        # Nobody could book it until now. Now its class and therefore its pool are
        # known.
        gpu.pool = _pool_of(info)
        changed.append("pool")
    if not gpu.present:
        gpu.present = True
        changed.append("present")
        close_alert(rule=MISSING, gpu_id=gpu.pk, now=now)
    if changed:
        gpu.save(update_fields=changed)
        report.changed.append(gpu.uuid)


def _unknown(key: str, info: GpuInfo) -> bool:
    """Return whether a fact could not be read just now. The stored value then stays."""
    value = getattr(info, key)
    return key not in ALWAYS_KNOWN and (
        value in (None, "", UNNAMED) or (key == "memory_total_bytes" and value == 0)
    )


def _mark_missing(
    gpu: Gpu, *, rebooted: bool, now: datetime, report: RosterReport
) -> None:
    if gpu.present:
        gpu.present = False
        gpu.save(update_fields=["present"])
        report.missing.append(gpu.uuid)
        detail = {"node": gpu.node.name, "index": gpu.index, "rebooted": rebooted}
        open_alert(rule=MISSING, gpu_id=gpu.pk, now=now, detail=detail)


def _follow_node(node: Node, info: NodeInfo, report: RosterReport) -> None:
    told: dict[str, Any] = {
        "driver_version": info.driver_version,
        "cuda_version": info.cuda_version,
        "boot_id": info.boot_id,
        "isolation": info.isolation.value,
        "not_isolated": info.not_isolated.value,
        "extras": list(info.extras),
        "release": info.release,
    }
    if info.host is not None:
        told |= _host_columns(info.host)
    if info.links_known:
        told["fast_links"] = [list(pair) for pair in info.fast_links]
        told["links"] = [
            [link.a, link.b, link.kind.value]
            for link in info.links
            if link.kind is not LinkKind.NVLINK
        ]
    changed = [key for key, value in told.items() if getattr(node, key) != value]
    for key in changed:
        setattr(node, key, told[key])
    if changed:
        node.save(update_fields=changed)
        report.changed.append(node.name)


def record_host(*, node: str, backend: Backend, host: HostCapacity) -> None:
    """Store the memory and disk of a node whose other facts have not changed.

    A node that is not enrolled, or whose backend is not the enrolled one, is ignored.
    """
    rows = Node.objects.in_service().filter(name=node)
    rows.filter(simulated=backend is Backend.SIMULATED).update(**_host_columns(host))


def _host_columns(host: HostCapacity) -> dict[str, int | None]:
    return {
        "ram_total_bytes": host.memory_total_bytes,
        "ram_free_bytes": host.memory_free_bytes,
        "disk_free_bytes": host.disk_free_bytes,
    }
