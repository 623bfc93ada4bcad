"""Telemetry's part of the JSON API: nodes, and what Gpus did."""

import time
from typing import Any

from django.db.models import Count, Q
from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from ninja import Query, Router

from telemetry.domain.series import MOST_POINTS, Series
from telemetry.models import Gpu, Node
from telemetry.snapshots import load_history

MOST_HOURS = 24 * 30
router = Router(tags=["telemetry"])


@router.get("/nodes")
def nodes(request: HttpRequest) -> dict[str, list[dict[str, Any]]]:
    """Every enrolled node."""
    present = Count("gpus", filter=Q(gpus__present=True, gpus__retired=False))
    return {
        "nodes": [
            {
                "name": node.name,
                "gpus": node.present_gpus,
                "simulated": node.simulated,
                "maintenance": node.maintenance,
                "isolation": node.isolation,
                "driver_version": node.driver_version,
                "cuda_version": node.cuda_version,
                "last_seen_at": node.last_seen_at,
            }
            for node in Node.objects.annotate(present_gpus=present).order_by("name")
        ]
    }


@router.get("/gpus/{int:gpu_id}/history")
def history(
    request: HttpRequest,
    gpu_id: int,
    hours: int = Query(24, ge=1, le=MOST_HOURS),
    points: int = Query(720, ge=1, le=MOST_POINTS),
) -> dict[str, int | Series]:
    """What one Gpu did: columns with min, mean and max; null where nothing is
    known. The minute that is running is not in it yet."""
    gpu = get_object_or_404(Gpu, pk=gpu_id)
    end = int(time.time())
    start = end - hours * 3600
    found = load_history(gpu.pk, start=start, end=end, points=points)
    return {"gpu": gpu.pk, "start": start, "end": end, "series": found}
