"""Give each running reservation on a node of Slurm the GPUs that Slurm gave it.

Reads what the last reading of the cluster stored (`telemetry.slurm`), so that Slurm is
not asked again. Runs after each reconciliation. A second run changes nothing.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from django.conf import settings
from django.db import transaction

from reservations.engines.card_rules import exchange
from reservations.engines.service import lock_engine
from reservations.models import Allocation, Reservation
from reservations.notifications import live
from reservations.rules.engine_names import reservation_of
from reservations.rules.lifecycle import State
from reservations.rules.policy import Policy
from reservations.store import ledger
from telemetry.models import Gpu, Node, SlurmGpu
from telemetry.protocol.sentences import sentence
from telemetry.rules.isolated_steps import isolated


@dataclass(frozen=True)
class CardHooks:
    """Functions of placement for the Gpus of its Jobs."""

    follow: Callable[[Mapping[int, int], Collection[int]], None]
    """Exchange Gpus, by the old one, in the rows of these Reservations. Called in the
    transaction."""
    settle: Callable[[], None]
    """Bind each Job to the Gpus that Slurm gave it. Called after all nodes."""


HOOKS: list[CardHooks] = []
log = logging.getLogger(__name__)


def bind_cards(now: datetime, policy: Policy) -> int:
    """Bind the Gpus of all nodes that Slurm gives out by number. Return how many
    Reservations have other Gpus than before."""
    rows = SlurmGpu.objects.filter(
        cpus__isnull=False, gpu__node__engine=Node.Engine.SLURM
    )
    changed = 0
    for node in sorted(set(rows.order_by().values_list("gpu__node_id", flat=True))):
        with isolated(log, "the GPUs of node %s are not bound", node):
            changed += _bind_node(node, now, policy)
    for hook in HOOKS:
        with isolated(log, "the GPUs of jobs are not bound"):
            hook.settle()
    return changed


@transaction.atomic(durable=True)
def _bind_node(node_pk: int, now: datetime, policy: Policy) -> int:
    shown = Gpu.objects.shown().filter(node_id=node_pk, present=True)
    gpus = list(shown.select_related("node"))
    pks = [gpu.pk for gpu in gpus]
    if not _exchange(pks, now):
        return 0
    # In the order of bookings: Gpus, Reservations, the engine.
    held = Gpu.objects.filter(pk__in=pks).order_by("pk")
    list(held.select_for_update(no_key=True).values_list("pk"))
    mine = Allocation.objects.filter(gpu_id__in=pks, live=True).order_by()
    numbers = set(mine.values_list("reservation_id", flat=True))
    reservations = Reservation.objects.filter(pk__in=numbers).order_by("pk")
    rows = {
        row.pk: row for row in reservations.select_for_update(no_key=True, of=("self",))
    }
    lock_engine()
    moved = _exchange(pks, now)
    return _move(moved, rows, {gpu.pk: str(gpu) for gpu in gpus}, now, policy)


def _exchange(pks: list[int], now: datetime) -> dict[int, int]:
    """Return the new Gpu of each Gpu of a node, by what is stored now."""
    held: dict[int, list[int]] = defaultdict(list)
    running = Allocation.objects.filter(
        gpu_id__in=pks,
        live=True,
        start__lte=now,
        end__gt=now,
        reservation__state=State.ACTIVE,
    )
    for pk, gpu in running.order_by("gpu_id").values_list("reservation_id", "gpu_id"):
        held[pk].append(gpu)
    marks: dict[int, int] = {}
    seen = SlurmGpu.objects.filter(gpu_id__in=pks).exclude(reservation="")
    # A Gpu with a job is certain. The others only stand for a number.
    ordered = sorted(
        seen.values_list("gpu_id", "reservation", "job_id"),
        key=lambda one: (one[2] is None, one[0]),
    )
    for gpu, name, _job in ordered:
        holder = reservation_of(settings.SLURM_SITE, name)
        if holder is None or holder not in held:
            continue
        if list(marks.values()).count(holder) < len(held[holder]):
            marks[gpu] = holder
    return exchange(pks, held, marks)


def _move(
    moved: Mapping[int, int],
    rows: Mapping[int, Reservation],
    names: Mapping[int, str],
    now: datetime,
    policy: Policy,
) -> int:
    if not moved:
        return 0
    changed = list(
        Allocation.objects.filter(gpu_id__in=list(moved), live=True).order_by("pk")
    )
    pks = [one.pk for one in changed]
    # Two rows that exchange their Gpus overlap for a moment, unless none is live.
    Allocation.objects.filter(pk__in=pks).update(live=False)
    before: dict[int, dict[str, str]] = defaultdict(dict)
    for one in changed:
        old, new = one.gpu_id, moved[one.gpu_id]
        before[one.reservation_id][names[old]] = names[new]
        one.gpu_id = new
    Allocation.objects.bulk_update(changed, ["gpu_id"])
    Allocation.objects.filter(pk__in=pks).update(live=True)
    for pk, gpus in sorted(before.items()):
        row = rows[pk]
        row.version += 1
        row.save(update_fields=["version"])
        reason = sentence("Slurm chose the GPUs")
        ledger.audit("moved", row, actor=None, now=now, reason=reason, gpus=gpus)
        live_rows = row.allocations.filter(live=True).order_by("gpu_id")
        live.publish_reservation(
            row, gpu_ids=list(live_rows.values_list("gpu_id", flat=True)), policy=policy
        )
    for hook in HOOKS:
        hook.follow(moved, before.keys())
    return len(before)
