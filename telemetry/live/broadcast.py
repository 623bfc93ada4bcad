"""The messages of ingest to every web process, and their names.

They use plain Redis pub/sub, because the channel layer would copy each frame into a
list per browser. Each message is also kept under a key, so that a process that joins
late starts with the present state.

| channel and key           | content                               | when        |
| ------------------------- | ------------------------------------- | ----------- |
| telemetry.frame(.latest)  | live frame, binary, protocol/frame.py | each second |
| telemetry.frame.minute    | list: the last 60 frames, newest 1st  | each second |
| telemetry.roster          | `Roster` as JSON                      | on change   |
| telemetry.detail.<node>   | `Detail` as JSON                      | each sample |
| telemetry.trouble.<node>  | key only: newest trouble, no expiry   | on change   |
| telemetry.watched.<uuid>  | key only, by the web: a page is open  | each 5 s    |
"""

import logging
from typing import Any, Literal, NotRequired, TypedDict

import redis
from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from django.db import transaction
from redis.client import Pipeline

from telemetry.protocol.frame import FrameLayout

FRAME = "telemetry.frame"
FRAME_LATEST = "telemetry.frame.latest"
FRAME_MINUTE = "telemetry.frame.minute"
MINUTE_FRAMES = 60
"""A new page draws its sparklines from these frames."""
ROSTER = "telemetry.roster"
DETAIL = "telemetry.detail."
DETAIL_ALL = "telemetry.detail.*"
TROUBLE = "telemetry.trouble."
WATCHED_SECONDS = 10
"""How long after its last sign a page counts as open (``broker_keys.WATCHED``)."""
WATCHED_AGAIN_SECONDS = 5.0
CALENDAR_CHANGED = "reservations.changed"
"""Published when the holders of Gpus have changed, by reservations and by what reads
Slurm."""

ALERTS = "telemetry.alerts"
"""Group of the channel layer. Alerts change rarely, and few pages listen."""

FRAME_SECONDS = 1.0
DETAIL_KEPT_SECONDS = 60

log = logging.getLogger(__name__)


class RosterXid(TypedDict):
    """The newest Xid that was not cleared yet."""

    code: int
    at: str
    """ISO 8601, UTC."""


class RosterGpu(TypedDict):
    """The names that belong to one row of the frame."""

    id: int
    uuid: str
    node: str
    engine: str
    """The system that gives it out: `portal` or `slurm`."""
    index: int
    name: str
    gpu_class: str
    memory_total_bytes: int | None
    """None: the card cannot report it."""
    power_limit_watts: float | None
    slowdown_celsius: float | None
    sm_clock_max_mhz: int | None
    simulated: bool
    present: bool
    maintenance: bool
    draining: bool
    """No new bookings: set on the Gpu or on its node."""
    mig: bool
    last_xid: RosterXid | None


class RosterNode(TypedDict):
    """The names that belong to one node."""

    name: str
    engine: str
    simulated: bool
    maintenance: bool
    draining: bool
    driver_version: str
    cuda_version: str
    isolation: str
    gate: str


class Roster(TypedDict):
    """Names of the rows of frames that carry the same `roster_id`."""

    roster_id: int
    layout: FrameLayout
    """How to read a row of these frames."""
    gpus: list[RosterGpu]
    nodes: list[RosterNode]


class DetailProcess(TypedDict):
    """One process on one Gpu, as the node reported it."""

    pid: int
    uid: int | None
    user: str | None
    command: str
    memory_bytes: int | None
    sm_pct: int | None
    started_at: float | None
    job: int | None


class DetailGpu(TypedDict):
    """Details that are not in the frame. `processes` None: the card cannot list them.

    All other keys are those of GpuReading. A key is missing if its value is None.
    """

    processes: list[DetailProcess] | None
    throttle: list[str] | None
    memory_reserved_bytes: int | None
    memory_util_pct: NotRequired[int]
    memory_temperature_celsius: NotRequired[int]
    fan_pct: NotRequired[int]
    encoder_pct: NotRequired[int]
    decoder_pct: NotRequired[int]
    power_limit_watts: NotRequired[float]
    sm_clock_mhz: NotRequired[int]
    memory_clock_mhz: NotRequired[int]
    pstate: NotRequired[int]
    energy_joules: NotRequired[float]
    ecc_corrected: NotRequired[int]
    ecc_uncorrected: NotRequired[int]
    remap_pending: NotRequired[bool]
    remap_failure: NotRequired[bool]
    row_remap_corrected: NotRequired[int]
    row_remap_uncorrected: NotRequired[int]
    retired_pages: NotRequired[int]
    retired_pages_pending: NotRequired[bool]
    pcie_gen: NotRequired[int]
    pcie_width: NotRequired[int]
    pcie_tx_bytes_per_second: NotRequired[int]
    pcie_rx_bytes_per_second: NotRequired[int]
    nvlink_tx_bytes_per_second: NotRequired[int]
    nvlink_rx_bytes_per_second: NotRequired[int]
    xids: NotRequired[list[dict[str, Any]]]
    mig_instances: NotRequired[list[dict[str, Any]]]


class Detail(TypedDict):
    """One node's Gpus by UUID, at an instant of the node's clock."""

    node: str
    at: float
    load1: float | None
    gpus: dict[str, DetailGpu]
    trouble: NotRequired[dict[str, Any]]
    """The node's newest report about its driver: state, reason, at."""


def publish_frame(pipe: Pipeline, frame: bytes) -> None:
    """Queue a frame."""
    pipe.set(FRAME_LATEST, frame)
    pipe.lpush(FRAME_MINUTE, frame)
    pipe.ltrim(FRAME_MINUTE, 0, MINUTE_FRAMES - 1)
    pipe.publish(FRAME, frame)


def publish_roster(pipe: Pipeline, roster: bytes) -> None:
    """Queue a roster (`Roster` as JSON)."""
    pipe.set(ROSTER, roster)
    pipe.publish(ROSTER, roster)


def publish_detail(pipe: Pipeline, node: str, detail: bytes) -> None:
    """Queue a node's details (`Detail` as JSON)."""
    pipe.set(DETAIL + node, detail, ex=DETAIL_KEPT_SECONDS)
    pipe.publish(DETAIL + node, detail)


def publish_trouble(pipe: Pipeline, node: str, trouble: bytes) -> None:
    """Queue a node's newest report about its driver. It is kept until the next one."""
    pipe.set(TROUBLE + node, trouble)


class AlertsChanged(TypedDict):
    """Sent to the group ALERTS. The handler is ``alerts_changed``. It has no content:
    each page asks the server for the Alerts that its user may see."""

    type: Literal["alerts.changed"]


def announce_alerts() -> None:
    """Tell open pages, after the commit, that an Alert has changed."""
    transaction.on_commit(_tell_alerts, robust=True)


def _tell_alerts() -> None:
    try:
        _send_alerts(AlertsChanged(type="alerts.changed"))
    except (redis.RedisError, OSError) as error:
        # Pages also read again at regular intervals.
        log.warning("an alert changed, but nobody was told: %s", error)


@async_to_sync
async def _send_alerts(message: AlertsChanged) -> None:
    await get_channel_layer().group_send(ALERTS, message)
