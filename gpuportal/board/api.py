"""`GET /gpus`: the board's data for programs. It joins several apps, so it is here."""

import json
import time
from dataclasses import fields
from datetime import datetime
from typing import TypedDict, cast

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from ninja import Router
from redis import Redis, RedisError

from gpuportal.board.board_snapshot import GpuHolder, holders_for, load_board, viewer_of
from reservations.models import SitePolicy, User
from telemetry.inventory.queries import load_cluster, read_live
from telemetry.live.broadcast import RosterGpu
from telemetry.protocol.frame import FrameRow
from telemetry.protocol.gpu_state import WORDS, GpuState
from telemetry.protocol.units import MIB_BYTES
from telemetry.web.cursor_page import CURSOR, ROWS, NextPage, key_page, link_next

router = Router(tags=["board"])
TIMEOUT_SECONDS = 2.0
FRESH_SECONDS = 5.0
"""An older frame is outdated: ingest is not running."""
FIGURES = sorted(
    {field.name for field in fields(FrameRow)} - {"state", "memory_used_mib"}
)
"""Fields of the frame that the API returns in the units of the frame."""
NOTHING_KNOWN = FrameRow(state=GpuState.UNKNOWN)


class GpuReadings(TypedDict):
    """The readings of a GPU. Null: unknown."""

    state: str
    """The state in a word, as on the board."""
    memory_used_bytes: int | None
    util_pct: int | None
    temperature_celsius: int | None
    power_watts: int | None
    sm_clock_mhz: int | None
    age_seconds: float | None
    """Seconds since the newest sample arrived. Null: there is none."""


class BoardGpu(RosterGpu, GpuReadings):
    """One GPU: names, readings (null if unknown), holder."""

    holder: GpuHolder | None
    """Null: nobody holds it, and it has no next booking."""


class GpuList(NextPage):
    """Every GPU now, by node and index."""

    now: datetime
    gpus: list[BoardGpu]


@router.get("/gpus")
def gpus(
    request: HttpRequest,
    response: HttpResponse,
    limit: int | None = ROWS,
    cursor: str = CURSOR,
) -> GpuList:
    """Every GPU now: state, readings (null if unknown), holder, next booking."""
    user = request.user
    assert isinstance(user, User)
    rows = live_rows()
    viewer = viewer_of(user, names_visible=SitePolicy.current().names_visible)
    holders = holders_for(load_board(timezone.now()), viewer)
    every: list[RosterGpu] = json.loads(load_cluster().roster)["gpus"]
    tags, following = key_page(
        every,
        key=lambda tag: (tag["node"], tag["index"], tag["uuid"]),
        kinds=(str, int, str),
        cursor=cursor,
        limit=limit,
    )
    link_next(request, response, following)
    return {
        "now": timezone.now(),
        "gpus": [
            {
                **tag,
                **readings(rows.get(tag["uuid"], NOTHING_KNOWN)),
                "holder": holders.get(str(tag["id"])),
            }
            for tag in tags
        ],
        "next": following,
    }


def live_rows() -> dict[str, FrameRow]:
    """Return the newest frame's rows by UUID; {} if there is no current frame."""
    try:
        with Redis.from_url(
            settings.REDIS_URL, socket_timeout=TIMEOUT_SECONDS
        ) as client:
            at, found = read_live(client)
    except RedisError:
        return {}
    if at is None or time.time() - at > FRESH_SECONDS:
        return {}
    return {gpu.tag["uuid"]: gpu.row for gpu in found}


def readings(row: FrameRow) -> GpuReadings:
    """Return a frame's row in the API's units."""
    used = row.memory_used_mib
    values = {name: getattr(row, name) for name in FIGURES}
    return cast(
        GpuReadings,
        {
            "state": WORDS[row.state],
            "memory_used_bytes": None if used is None else used * MIB_BYTES,
            **values,
        },
    )
