"""Pages about one Gpu and one Node.

Their holders come over the board's socket, because the calendar belongs to another app.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.conf import settings
from django.db.models import Max, Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.utils import timezone
from django.utils.translation import gettext
from django.views.decorators.http import require_safe

from telemetry.history.charts import charts_page
from telemetry.inventory.gate_report import shown_report
from telemetry.inventory.node_identity import identity_warnings
from telemetry.models import Alert, Gpu, Node, SlurmGpu
from telemetry.rules.alert_rules import REFUSED
from telemetry.rules.broker_refusals import cause

ALERTS_SHOWN = 20


@require_safe
def gpu_show(request: HttpRequest, pk: int) -> HttpResponse:
    """Show the facts of one Gpu, its last day, and what runs on it now."""
    rows = Gpu.objects.select_related(
        "node", "pool", "replaced_by__node", "replaces__node"
    )
    gpu = get_object_or_404(rows, pk=pk)
    alerts = Alert.objects.filter(gpu=gpu).order_by("-opened_at")
    return render(
        request,
        "telemetry/inventory/gpu_show.html",
        {
            "slurm_books": settings.SLURM_BOOK,
            "slurm_counts": _is_booked_by_count(gpu.node),
            "gpu": gpu,
            "alerts": alerts[:ALERTS_SHOWN],
            "fast_with": _fast_neighbours(gpu),
            "xids": gpu.xid_counts.order_by("-last_at"),
            "page": {
                "gpu": gpu.pk,
                "uuid": gpu.uuid,
                "node": gpu.node.name,
                "memory_total_bytes": gpu.memory_total_bytes or None,
                "power_limit_watts": gpu.power_limit_watts,
                "sees_all": bool(getattr(request.user, "is_operator", False)),
            },
            "history": charts_page(
                f"/gpus/{gpu.pk}/history",
                memory_total_bytes=gpu.memory_total_bytes or None,
                power_limit_watts=gpu.power_limit_watts,
            ),
        },
    )


@require_safe
def node_history(request: HttpRequest, name: str) -> HttpResponse:
    """Answer with the history of all Gpus of a Node together."""
    node = get_object_or_404(Node, name=name)
    most = node.gpus.aggregate(
        memory=Max("memory_total_bytes"), watts=Max("power_limit_watts")
    )
    gpus = list(node.gpus.filter(retired=False).order_by("index"))
    return render(
        request,
        "telemetry/history/history_show.html",
        {
            "name": node.name,
            "lead": gettext("All GPUs of this node together."),
            "history": charts_page(
                f"/nodes/{node.name}/history",
                memory_total_bytes=most["memory"],
                power_limit_watts=most["watts"],
                per_gpu=True,
                gpus=gpus if len(gpus) > 1 else (),
            ),
        },
    )


@require_safe
def node_show(request: HttpRequest, name: str) -> HttpResponse:
    """Show one machine: its Gpus live, what runs on them, and their links."""
    node = get_object_or_404(Node, name=name)
    gpus = list(node.gpus.filter(retired=False).select_related("pool"))
    here = Q(gpu__node=node) | Q(node=node)
    alerts = Alert.objects.open().filter(here).select_related("gpu__node", "node")
    return render(
        request,
        "telemetry/inventory/node_show.html",
        {
            "slurm_books": settings.SLURM_BOOK,
            "slurm_counts": _is_booked_by_count(node),
            "slurm_agent": bool(node.name == settings.SLURM_AGENT and not gpus),
            "node": node,
            "gpus": gpus,
            "links": link_matrix(node, gpus),
            "alerts": alerts.order_by("-opened_at")[:ALERTS_SHOWN],
            "refused": _refusal(alerts.filter(rule=REFUSED).first()),
            "gate": shown_report(node, to_admin=_is_admin(request)),
            "doubts": _doubts(request, node),
            "page": {"node": node.name},
        },
    )


def _is_booked_by_count(node: Node) -> bool:
    """Return whether some Gpus of a node of Slurm can be booked without the others."""
    if node.engine != Node.Engine.SLURM or not settings.SLURM_BOOK:
        return False
    return SlurmGpu.objects.filter(gpu__node=node, cpus__isnull=False).exists()


def _is_admin(request: HttpRequest) -> bool:
    return bool(getattr(request.user, "is_operator", False))


def _doubts(request: HttpRequest, node: Node) -> list[str]:
    """Return for an admin what is wrong with a node's machine."""
    if not _is_admin(request):
        return []
    return identity_warnings(node, timezone.now())


def _refusal(alert: Alert | None) -> dict[str, object] | None:
    """Return when and why the broker last refused the Node; None if it did not
    recently."""
    if alert is None:
        return None
    why, used = str(alert.detail.get("refused")), str(alert.detail.get("used", ""))
    at = datetime.fromisoformat(alert.detail["refused_at"])
    return {"at": at, "cause": cause(why, used)}


@dataclass(frozen=True, slots=True)
class LinkRow:
    """Return how one Gpu reaches each Gpu of its Node, in their order."""

    gpu: Gpu
    words: tuple[str, ...]


def link_matrix(node: Node, gpus: Sequence[Gpu]) -> list[LinkRow]:
    """Return the topology as `nvidia-smi topo -m` shows it; [] if nothing is known.

    NV: NVLink; PIX, PXB, PHB: one, several PCIe switches, the host bridge; NODE: within
    a NUMA node; SYS: across sockets.
    """
    known = {frozenset(pair): "NV" for pair in node.fast_links}
    known |= {frozenset((a, b)): str(kind).upper() for a, b, kind in node.links}
    if not known:
        return []
    return [
        LinkRow(
            row,
            tuple(
                "·"
                if row.uuid == column.uuid
                else known.get(frozenset((row.uuid, column.uuid)), "–")
                for column in gpus
            ),
        )
        for row in gpus
    ]


def _fast_neighbours(gpu: Gpu) -> list[Gpu]:
    """Return the Gpus of the node that NVLink connects with this one."""
    pairs = [pair for pair in gpu.node.fast_links if gpu.uuid in pair]
    uuids = {uuid for pair in pairs for uuid in pair} - {gpu.uuid}
    return list(gpu.node.gpus.filter(uuid__in=uuids).select_related("node"))
