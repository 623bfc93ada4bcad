"""Telemetry's part of the JSON API: nodes, and the history of Gpus."""

from datetime import datetime
from typing import TypedDict

from django.db.models import Count, Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Query, Router

from telemetry.history import queries as history
from telemetry.history.charts import HistoryAnswer, answer_history
from telemetry.history.schemas import HistoryIn
from telemetry.models import Gpu, Node
from telemetry.web.answer_types import CsvAnswer
from telemetry.web.cursor_page import CURSOR, ROWS, NextPage, key_page, link_next

router = Router(tags=["telemetry"])


class LiveNode(TypedDict):
    """One node."""

    name: str
    gpus: int
    """Number of its GPUs that are present."""
    simulated: bool
    maintenance: bool
    draining: bool
    """Whether it takes no new bookings."""
    engine: str
    """The system that gives its GPUs out: portal or slurm."""
    isolation: str
    """How jobs are separated."""
    gate: str
    """How access to GPUs that a person has not booked is prevented."""
    driver_version: str
    cuda_version: str
    ram_total_bytes: int | None
    ram_free_bytes: int | None
    disk_free_bytes: int | None
    last_seen_at: datetime | None
    """When it last reported. Null: never."""


class NodeList(NextPage):
    """The nodes in service, by name."""

    nodes: list[LiveNode]


@router.get("/nodes")
def nodes(
    request: HttpRequest,
    response: HttpResponse,
    limit: int | None = ROWS,
    cursor: str = CURSOR,
) -> NodeList:
    """Every enrolled node, by name."""
    present = Count("gpus", filter=Q(gpus__present=True, gpus__retired=False))
    page, following = key_page(
        Node.objects.in_service().annotate(present_gpus=present),
        key=lambda node: (node.name,),
        kinds=(str,),
        cursor=cursor,
        limit=limit,
    )
    link_next(request, response, following)
    return {
        "nodes": [
            {
                "name": node.name,
                "engine": node.engine,
                "gpus": node.present_gpus,
                "simulated": node.simulated,
                "maintenance": node.maintenance,
                "draining": node.draining,
                "isolation": node.isolation,
                "gate": node.gate,
                "driver_version": node.driver_version,
                "cuda_version": node.cuda_version,
                "ram_total_bytes": node.ram_total_bytes,
                "ram_free_bytes": node.ram_free_bytes,
                "disk_free_bytes": node.disk_free_bytes,
                "last_seen_at": node.last_seen_at,
            }
            for node in page
        ],
        "next": following,
    }


@router.get("/gpus/{int:gpu_id}/history")
def gpu_history(
    request: HttpRequest, gpu_id: int, wish: Query[HistoryIn]
) -> HistoryAnswer | CsvAnswer:
    """The history of one GPU: columns with min, mean and max, null where nothing is
    known. The running minute is not included."""
    gpu = get_object_or_404(Gpu.objects.select_related("node"), pk=gpu_id)
    return answer_history(history.of_gpu(gpu), wish, now=timezone.now())


@router.get("/nodes/{name}/history")
def node_history(
    request: HttpRequest, name: str, wish: Query[HistoryIn]
) -> HistoryAnswer | CsvAnswer:
    """The history of all GPUs of a node together."""
    node = get_object_or_404(Node, name=name)
    return answer_history(history.of_node(node), wish, now=timezone.now())
