"""The drains of nodes and single GPUs: the author, the time and the reason."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from reservations.models import AuditEntry
from telemetry.models import Node

VERB = "node.drain"
GPU_VERB = "gpu.drain"


@dataclass(frozen=True, slots=True)
class Drain:
    """The act that drained a node or a GPU."""

    at: datetime
    actor: str
    """"": the portal itself."""
    reason: str


def drains(node_pks: Iterable[int]) -> dict[int, Drain]:
    """Return the newest drain of each of these draining nodes, in one query.

    A node that was not drained on the portal's pages has none.
    """
    subjects = {f"node:{pk}": pk for pk in node_pks}
    if not subjects:
        return {}
    rows = AuditEntry.objects.filter(verb=VERB, subject__in=subjects)
    found: dict[int, Drain] = {}
    for row in rows.select_related("actor").order_by("at", "pk"):
        actor = str(row.actor) if row.actor is not None else ""
        found[subjects[row.subject]] = Drain(row.at, actor, row.reason)
    return found


def drain_reasons(nodes: Iterable[str]) -> dict[str, str]:
    """Return the reasons of the draining ones among these nodes, by name."""
    names = set(nodes)
    if not names:
        return {}
    rows = Node.objects.filter(draining=True, name__in=names)
    drained = dict(rows.values_list("pk", "name"))
    return {drained[pk]: one.reason for pk, one in drains(drained).items()}


def gpu_drain_reasons(gpu_pks: Iterable[int]) -> dict[int, str]:
    """Return the reasons of these draining GPUs, by number, in one query.

    Only reasons from forms that say that everybody sees them. A GPU that drains with
    its whole node has none.
    """
    subjects = {f"gpu:{pk}": pk for pk in gpu_pks}
    if not subjects:
        return {}
    rows = AuditEntry.objects.filter(
        verb=GPU_VERB, subject__in=subjects, detail__shown=True
    )
    told = rows.order_by("at", "pk").values_list("subject", "reason")
    return {subjects[subject]: reason for subject, reason in told}
