"""Reservations on nodes of another engine, and what it should hold for them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime

from django.conf import settings
from django.db.models import Exists, OuterRef, Q

from reservations.engines.engine_port import HoldInfo
from reservations.engines.rules import HoldFacts, idle_seconds_of, is_due
from reservations.models import Allocation, CoUser, EngineHold, Reservation, SitePolicy
from reservations.rules.engine_names import UNIX_USER, hold_name
from reservations.rules.lifecycle import Kind, State
from reservations.rules.policy import Policy
from reservations.rules.whole_nodes import engine_note
from telemetry.models import Gpu, Node, SlurmCluster, SlurmGpu
from telemetry.protocol.sentences import sentence
from telemetry.rules.slurm_use import SlurmUse
from telemetry.slurm.service import UNTYPED

_ON_SLURM = Allocation.objects.filter(
    reservation=OuterRef("pk"), live=True, gpu__node__engine=Node.Engine.SLURM
)


def is_reconciled() -> bool:
    """Return whether the portal looks after holds: nodes can be booked, or were, and
    Slurm still holds some."""
    held = EngineHold.objects.filter(gone_at=None)
    return bool(settings.SLURM_CLUSTER) and (settings.SLURM_BOOK or held.exists())


def to_reconcile() -> list[int]:
    """Return the Reservations that have a hold, or may need one, by number."""
    held = EngineHold.objects.filter(gone_at=None)
    live = Reservation.objects.live().filter(Exists(_ON_SLURM))
    pks = set(held.values_list("pk", flat=True))
    return sorted(pks | set(live.order_by().values_list("pk", flat=True)))


def names_of_nodes(gpu_ids: Iterable[int]) -> tuple[str, ...]:
    """Return the names of the nodes of Slurm that have these Gpus."""
    rows = Node.objects.filter(gpus__in=list(gpu_ids), engine=Node.Engine.SLURM)
    return tuple(sorted(set(rows.order_by().values_list("name", flat=True))))


@dataclass(slots=True)
class EngineNode:
    """A node of Slurm, with all its Gpus that are in service."""

    name: str
    gpus: dict[int, str] = field(default_factory=dict)
    """Their names, by primary key."""
    kind: str = ""
    """Type of its GPUs in Slurm; "": none."""
    cpus: int | None = None
    """Processors that are held with each GPU; None: it is held as a whole."""
    whole_because: str = ""
    """A `WholeNodes`."""


def engine_nodes_named(names: Collection[str]) -> dict[str, EngineNode]:
    """Return these nodes with their Gpus and how Slurm holds them."""
    found = {name: EngineNode(name) for name in names}
    rows = Gpu.objects.shown().filter(node__name__in=names, present=True)
    for pk, node, index, kind, cpus, because in rows.values_list(
        "pk", "node__name", "index", "name", "slurm__cpus", "slurm__whole_because"
    ):
        one = found[node]
        one.gpus[pk] = f"{node}:{index}"
        one.kind, one.cpus = "" if kind == UNTYPED else kind, cpus
        one.whole_because = because or ""
    return found


@dataclass(frozen=True, slots=True)
class ReturnablePart:
    """Gpus that can only be returned together: one, or those of a whole node."""

    name: str
    gpu_ids: tuple[int, ...]

    @property
    def value(self) -> str:
        """The value of its box in a form."""
        return ",".join(map(str, self.gpu_ids))


def parts_of(allocations: Iterable[Allocation]) -> list[ReturnablePart]:
    """Return the parts of a Reservation that can be returned.

    Args:
        allocations: with their Gpus and nodes.
    """
    gpus = [one.gpu for one in allocations]
    of_slurm = {g.node.name for g in gpus if g.node.engine == Node.Engine.SLURM}
    found = engine_nodes_named(of_slurm).values() if of_slurm else ()
    whole = {one.name for one in found if one.cpus is None}
    parts: dict[str, list[int]] = {}
    for gpu in gpus:
        name = gpu.node.name if gpu.node.name in whole else str(gpu)
        parts.setdefault(name, []).append(gpu.pk)
    return [ReturnablePart(name, tuple(pks)) for name, pks in parts.items()]


def held_gpus(chosen: Collection[int]) -> tuple[int, str, int, int]:
    """Return what a hold of these Gpus has on each node: their number, their type, the
    processors, and the number of all Gpus. (0, "", 0, 0): whole nodes.
    """
    nodes = engine_nodes_named(names_of_nodes(chosen)).values()
    each = {
        (len(chosen & one.gpus.keys()), one.kind, one.cpus, len(one.gpus))
        for one in nodes
    }
    if len(each) != 1:
        return 0, "", 0, 0
    ((number, kind, cpus, total),) = each
    return (0, "", 0, 0) if cpus is None else (number, kind, cpus * number, total)


def unix_users_of(row: Reservation) -> tuple[str, ...]:
    """Return the Unix users of the holder and the co-users who have one."""
    shared = CoUser.objects.sharing().filter(reservation=row).order_by()
    names = {row.user.unix_user, *shared.values_list("user__unix_user", flat=True)}
    return tuple(sorted(name for name in names if UNIX_USER.fullmatch(name)))


def facts_of(
    row: Reservation, hold: EngineHold | None, *, now: datetime, policy: Policy
) -> HoldFacts:
    """Return the facts that decide the next request about a Reservation's hold."""
    came = row.checked_in_at is not None
    facts = HoldFacts(
        wanted=None,
        confirmed=hold is not None and hold.confirmed_at is not None,
        asked_at=hold.asked_at if hold else None,
        leaving_since=hold.leaving_since if hold else None,
        grace_seconds=SitePolicy.current().stop_grace_seconds,
        idle_seconds=idle_seconds_of(policy, came=came),
    )
    held = frozenset(
        row.allocations.filter(live=True).order_by().values_list("gpu_id", flat=True)
    )
    nodes = names_of_nodes(held)
    state, kind = State(row.state), Kind(row.kind)
    if not nodes or row.end <= now:
        return facts
    if not is_due(state, kind, row.start, now=now, policy=policy):
        return facts
    number, gpu_type, cpus, total = held_gpus(held)
    wanted = HoldInfo(
        name=hold_name(settings.SLURM_SITE, row.pk),
        start=row.start,
        end=row.end,
        nodes=nodes,
        users=unix_users_of(row),
        idle_seconds=0 if 0 < number < total else facts.idle_seconds,
        gpus_each=number,
        kind=gpu_type,
        cpus_each=cpus,
        of_each=total,
    )
    return replace(facts, wanted=wanted)


def cluster_is_silent() -> bool:
    """Return whether Slurm did not answer when it was read last, or was never read."""
    found = SlurmCluster.objects.filter(name=settings.SLURM_CLUSTER).first()
    return found is None or found.failing_since is not None


def closed_nodes(names: Collection[str]) -> dict[str, tuple[SlurmUse, str]]:
    """Return why no job can begin now on each of these nodes, with Slurm's reason."""
    closed = Q(use__in=[SlurmUse.CLOSED, SlurmUse.AWAY])
    rows = SlurmGpu.objects.filter(closed, gpu__node__name__in=names)
    found = rows.values_list("gpu__node__name", "use", "reason")
    return {node: (SlurmUse(use), reason) for node, use, reason in found}


@dataclass(frozen=True, slots=True)
class HoldShown:
    """The hold of a Reservation, for its page."""

    name: str
    nodes: tuple[str, ...]
    held: bool
    """Whether the engine has confirmed it."""
    failure: str
    runs_jobs: bool
    """Whether the portal starts jobs there."""
    what: str
    """What it holds, in words: nodes, or a number of their GPUs."""
    note: str = ""
    """Which GPUs it has, in a sentence; "": all of its nodes."""


def hold_shown(row: Reservation, on: Iterable[Node]) -> HoldShown | None:
    """Return the hold of a live Reservation; None: its nodes are the portal's.

    Args:
        on: the nodes of its GPUs.
    """
    nodes = tuple(sorted({n.name for n in on if n.engine == Node.Engine.SLURM}))
    if not nodes or row.state not in State.live():
        return None
    kept = EngineHold.objects.filter(pk=row.pk).first()
    live = row.allocations.filter(live=True).order_by()
    number, _kind, _cpus, total = held_gpus(
        frozenset(live.values_list("gpu_id", flat=True))
    )
    is_part, words = 0 < number < total, ", ".join(nodes)
    return HoldShown(
        name=hold_name(settings.SLURM_SITE, row.pk),
        nodes=nodes,
        held=kept is not None and kept.confirmed_at is not None,
        failure=kept.failure if kept else "",
        runs_jobs=bool(settings.SLURM_AGENT),
        what=sentence(
            "{number} of {all} GPUs of {nodes}", number=number, all=total, nodes=words
        )
        if is_part
        else words,
        note=engine_note(words, whole_node=False, because="") if is_part else "",
    )
