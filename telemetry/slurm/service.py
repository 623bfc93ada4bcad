"""Read a Slurm cluster, and store its nodes and GPUs with what Slurm does with them.

Nothing here changes Slurm. If Slurm does not answer, only that is stored: no node, GPU
or holder is taken away.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache, partial
from typing import Any

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from telemetry.models import Gpu, Node, Pool, SlurmCluster, SlurmGpu
from telemetry.models.slurm_rows import REASON_LENGTH, WORD_LENGTH
from telemetry.protocol.hardware import NODE_NAME
from telemetry.rules.slurm_cards import memory_of_type
from telemetry.slurm.cluster_view import SlurmGpuView, SlurmNodeView, view_cluster
from telemetry.slurm.gpu_reservations import (
    SOUND_GPU_RESERVATIONS,
    cpus_of_each,
    why_whole,
)
from telemetry.slurm.slurm_commands import SlurmCommands
from telemetry.slurm.slurm_output import SlurmFailure

MOST_GPUS = 20_000
"""A cluster with more GPUs is read up to here. A frame has room for 65,535 rows."""
BATCH = 200
COLUMNS = (
    "use",
    "unix_user",
    "account",
    "job_id",
    "reservation",
    "until",
    "next_at",
    "next_user",
    "reason",
    "cpus",
    "whole_because",
    "job_name",
)
UNTYPED = "GPU"
"""Name of a GPU whose GRES has no type."""

_PLAIN = re.compile(r"[A-Za-z0-9-]{1,80}")


@dataclass(slots=True)
class SlurmChanges:
    """What one reading has changed."""

    answered: bool = True
    nodes: int = 0
    gpus: int = 0
    changed: int = 0
    """GPUs whose holder, state or end is another one than before."""
    skipped: list[tuple[str, str]] = field(default_factory=list)
    """(node, reason) of nodes that are not shown."""


def read_cluster(name: str, commands: SlurmCommands) -> SlurmChanges:
    """Ask Slurm once, and store what it says, or that it does not answer."""
    try:
        # Fails at once while the controller is away.
        commands.ping()
        version = commands.version()
        nodes, jobs = commands.nodes(version), commands.jobs()
        reservations = commands.reservations(version)
        # Older versions reserve whole nodes, whatever the settings are.
        config = commands.config() if version.since(*SOUND_GPU_RESERVATIONS) else {}
    except SlurmFailure as error:
        return _record_failure(name, str(error), timezone.now())
    now = timezone.now()
    view = view_cluster(
        nodes, jobs, reservations, now=now.timestamp(), before=_marks(name)
    )
    why = {node.name: why_whole(node, version, config) for node in nodes}
    cpus = {node.name: cpus_of_each(node) for node in nodes if not why[node.name]}
    view = [
        replace(
            one,
            cpus=cpus.get(one.name),
            whole_because=why[one.name] or "",
        )
        for one in view
    ]
    return record_view(name, view, version=str(version), now=now)


@transaction.atomic(durable=True)
def record_view(
    name: str, view: Iterable[SlurmNodeView], *, version: str, now: datetime
) -> SlurmChanges:
    """Store the nodes and GPUs of a cluster as Slurm reports them at an instant."""
    changes = SlurmChanges()
    cluster, _made = SlurmCluster.objects.get_or_create(name=name)
    cluster = SlurmCluster.objects.select_for_update().get(pk=cluster.pk)
    changes.changed += cluster.failing_since is not None
    pools: dict[str, Pool] = {}
    uuids = set()
    held: list[tuple[str, str, int, int, int | None]] = []
    changed: list[SlurmGpu] = []
    back: list[int] = []
    rows = _rows_of(cluster)
    nodes = {node.name: node for node in Node.objects.all()}
    memory_of = cache(partial(memory_of_type, named=settings.SLURM_CARDS))
    for one in view:
        if changes.gpus + len(one.gpus) > MOST_GPUS:
            changes.skipped.append((one.name, f"more than {MOST_GPUS} GPUs"))
            continue
        node = _node(one.name, nodes.get(one.name), now, changes)
        if node is None:
            continue
        changes.nodes += 1
        for word, begin, over, number in one.held:
            held.append((_cut(word), one.name, begin, over, number))
        for gpu in one.gpus:
            uuid = gpu_uuid(name, one.name, gpu.index)
            uuids.add(uuid)
            changes.gpus += 1
            told = _columns(gpu, one)
            row = rows.get(uuid) or _new_gpu(uuid, node, gpu, cluster, pools)
            if uuid not in rows or _differs(row, told):
                changed.append(row)
            for key, value in told.items():
                setattr(row, key, value)
            memory = memory_of(gpu.kind)
            if (row.gpu.name, row.gpu.memory_total_bytes) != (
                (gpu.kind or UNTYPED)[:80],
                memory,
            ):
                _change_type(row.gpu, gpu.kind, name, pools, memory)
                changes.changed += 1
            if not row.gpu.present:
                back.append(row.gpu.pk)
    SlurmGpu.objects.bulk_create(
        changed,
        batch_size=BATCH,
        update_conflicts=True,
        unique_fields=["gpu"],
        update_fields=COLUMNS,
    )
    gone = [row.gpu.pk for uuid, row in rows.items() if uuid not in uuids]
    changes.changed += len(changed)
    for present, pks in ((True, back), (False, gone)):
        moved = Gpu.objects.filter(pk__in=pks, present=not present)
        changes.changed += moved.update(present=present)
    cluster.version, cluster.read_at = version, now
    cluster.failing_since, cluster.failure = None, ""
    cluster.held = held
    cluster.skipped = [list(one) for one in changes.skipped]
    cluster.save()
    return changes


@transaction.atomic(durable=True)
def _record_failure(name: str, why: str, now: datetime) -> SlurmChanges:
    cluster, _made = SlurmCluster.objects.get_or_create(name=name)
    cluster = SlurmCluster.objects.select_for_update().get(pk=cluster.pk)
    began = cluster.failing_since is None
    if began:
        cluster.failing_since = now
    cluster.failure = why[:300]
    cluster.save(update_fields=["failing_since", "failure"])
    return SlurmChanges(answered=False, changed=int(began))


@transaction.atomic(durable=True)
def record_import(name: str, failure: str, *, at: datetime | None) -> None:
    """Store how the last import of a cluster's usage ended.

    Args:
        failure: what was not read; "": everything was.
        at: when it ended. None: it read nothing.
    """
    cluster, _made = SlurmCluster.objects.get_or_create(name=name)
    cluster.import_failure = _plain(failure)[:300]
    if at is not None:
        cluster.imported_at = at
    cluster.save(update_fields=["import_failure", "imported_at"])


def gpu_uuid(cluster: str, node: str, index: int) -> str:
    """Return the identity of a GPU: Slurm numbers GPUs, and knows no UUID.

    >>> gpu_uuid("lab", "gpu1", 3)
    'slurm-lab-gpu1-3'
    """
    found = f"slurm-{cluster}-{node}-{index}"
    if _PLAIN.fullmatch(found):
        return found
    digest = hashlib.sha256(f"{cluster}/{node}/{index}".encode()).hexdigest()
    return f"slurm-{digest[:40]}"


def _marks(cluster: str) -> dict[tuple[str, int], str]:
    """Return the reservation that each GPU stands for, by node and number."""
    rows = SlurmGpu.objects.filter(cluster__name=cluster).exclude(reservation="")
    values = rows.values_list("gpu__node__name", "gpu__index", "reservation")
    return {(node, index): name for node, index, name in values}


def _rows_of(cluster: SlurmCluster) -> dict[str, SlurmGpu]:
    rows = SlurmGpu.objects.filter(cluster=cluster).select_related("gpu__pool")
    return {row.gpu.uuid: row for row in rows}


def _node(
    name: str, found: Node | None, now: datetime, changes: SlurmChanges
) -> Node | None:
    """Return the row of a node of Slurm; None: it is not shown."""
    why = ""
    if not NODE_NAME.fullmatch(name):
        why = "its name has other characters than letters, digits, - and _"
    elif found is None:
        return Node.objects.create(
            name=name, engine=Node.Engine.SLURM, token_hash="", enrolled_at=now
        )
    elif found.engine != Node.Engine.SLURM:
        why = "a node of this name is enrolled in the portal"
    elif found.retired:
        why = "it is retired in the portal"
    if not why:
        return found
    changes.skipped.append((name, why))
    return None


def _new_gpu(
    uuid: str,
    node: Node,
    gpu: SlurmGpuView,
    cluster: SlurmCluster,
    pools: dict[str, Pool],
) -> SlurmGpu:
    card, _made = Gpu.objects.get_or_create(
        uuid=uuid,
        defaults={
            "node": node,
            "pool": _pool(gpu.kind, cluster.name, pools),
            "index": gpu.index,
            "name": (gpu.kind or UNTYPED)[:80],
            "memory_total_bytes": memory_of_type(gpu.kind, settings.SLURM_CARDS),
            "foreign": True,
        },
    )
    return SlurmGpu(gpu=card, cluster=cluster)


def _change_type(
    gpu: Gpu, kind: str, cluster: str, pools: dict[str, Pool], memory_bytes: int
) -> None:
    """Follow a GPU whose type is another one than before, after a replacement, or
    whose card is known now."""
    gpu.name = (kind or UNTYPED)[:80]
    gpu.pool = _pool(kind, cluster, pools)
    gpu.memory_total_bytes = memory_bytes
    gpu.save(update_fields=["name", "pool", "memory_total_bytes"])


def _pool(kind: str, cluster: str, pools: dict[str, Pool]) -> Pool:
    """Return the pool of a type. Its weight means nothing before an admin sets it."""
    gpu_class = class_of(kind, cluster)
    if gpu_class not in pools:
        pools[gpu_class], _made = Pool.objects.get_or_create(
            gpu_class=gpu_class, defaults={"weight": 1}
        )
    return pools[gpu_class]


def class_of(kind: str, cluster: str) -> str:
    """Return the class of a GPU. It differs from the classes of the portal's GPUs,
    because nobody can book it here.

    >>> class_of("a100", "lab")
    'a100 (Slurm lab)'
    """
    return f"{(kind or UNTYPED)[:30]} (Slurm {cluster})"


def _differs(row: SlurmGpu, told: Mapping[str, Any]) -> bool:
    return any(getattr(row, key) != value for key, value in told.items())


def _columns(gpu: SlurmGpuView, node: SlurmNodeView) -> Mapping[str, Any]:
    values = (
        gpu.use.value,
        _cut(gpu.unix_user),
        _cut(gpu.account),
        gpu.job_id,
        _cut(gpu.reservation),
        _at(gpu.until),
        _at(gpu.next_at),
        _cut(gpu.next_user),
        _plain(node.reason)[:REASON_LENGTH],
        node.cpus,
        node.whole_because,
        _cut(gpu.job_name),
    )
    return dict(zip(COLUMNS, values, strict=True))


def _cut(word: str) -> str:
    return _plain(word)[:WORD_LENGTH]


def _plain(text: str) -> str:
    """Return a text without NUL, which PostgreSQL does not store."""
    return text.replace("\0", "")


def _at(seconds: int | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
