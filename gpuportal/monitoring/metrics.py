"""``/metrics``: every Gpu for Prometheus, under dcgm-exporter's names.

Names, units and labels are those of dcgm-exporter's default counters
(github.com/NVIDIA/dcgm-exporter, etc/default-counters.csv), so that NVIDIA's own
Grafana board (grafana.com, 12239) draws a lab without DCGM. The portal adds the labels
``holder``, ``group`` and ``reservation``, and the metrics ``gpuportal_*``.

Values that a card cannot report, and values older than a few seconds, are left out: a
gap in Prometheus, never a 0. The only exception is the ratio of the tensor pipe, which
is NaN if a card has no such counter, because boards query the series by name.
"""

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from prometheus_client import Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from redis import Redis, RedisError

from gpuportal.board.board_snapshot import LiveBooking, load_board
from gpuportal.http.token_auth import bearer, user_of
from gpuportal.monitoring.site_metrics import read_site
from reservations.models import SitePolicy
from telemetry.inventory.queries import read_live
from telemetry.live import broadcast
from telemetry.models import Gpu
from telemetry.protocol.frame import FrameRow
from telemetry.protocol.gpu_state import WORDS, GpuState
from telemetry.protocol.request_refusal import RequestRefused
from telemetry.protocol.units import MIB_BYTES
from telemetry.web.error_answers import problem_response

SCOPE = "metrics"
TIMEOUT_SECONDS = 2.0
FRESH_SECONDS = 5.0
"""An older frame, or an older reading in it, is outdated."""
DCGM_LABELS = (
    "gpu",
    "UUID",
    "uuid",
    "pci_bus_id",
    "device",
    "modelName",
    "Hostname",
    "DCGM_FI_DRIVER_VERSION",
    "GPU_I_ID",
    "GPU_I_PROFILE",
)
"""Labels as dcgm-exporter writes them. NVIDIA's board queries ``uuid`` in lower case.
The ``GPU_I_*`` are empty for a card that is not a MIG instance."""
OUR_LABELS = ("holder", "group", "reservation")
LABELS = (*DCGM_LABELS, *OUR_LABELS)

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class GpuMetric:
    """One metric of a Gpu: its name, and the source of its value."""

    name: str
    help: str
    value: Callable[[FrameRow, Values, Gpu], float | None]


def _used_mib(row: FrameRow, detail: Values, gpu: Gpu) -> float | None:
    # A split card's instances report its memory, which a sum must not count twice.
    return None if gpu.mig else row.memory_used_mib


def _free_mib(row: FrameRow, detail: Values, gpu: Gpu) -> float | None:
    if row.memory_used_mib is None or not gpu.memory_total_bytes:
        return None
    if gpu.mig:
        return None
    reserved_mib = (detail.get("memory_reserved_bytes") or 0) / MIB_BYTES
    total_mib = gpu.memory_total_bytes / MIB_BYTES
    return max(0.0, total_mib - reserved_mib - row.memory_used_mib)


def _reserved_mib(row: FrameRow, detail: Values, gpu: Gpu) -> float | None:
    found = None if gpu.mig else detail.get("memory_reserved_bytes")
    return None if found is None else float(found) / MIB_BYTES


def _detail(field: str, factor: float = 1.0) -> Callable[..., float | None]:
    """Return a function that reads a field of the details in the metric's unit."""

    def value(row: FrameRow, detail: Values, gpu: Gpu) -> float | None:
        found = detail.get(field)
        return None if found is None else float(found) * factor

    return value


def _ratio(row: FrameRow, detail: Values, gpu: Gpu) -> float | None:
    return None if row.util_pct is None else row.util_pct / 100


def _tensor_ratio(row: FrameRow, detail: Values, gpu: Gpu) -> float | None:
    found = detail.get("tensor_active_ratio")
    return math.nan if found is None else float(found)


def _last_xid(row: FrameRow, detail: Values, gpu: Gpu) -> float | None:
    events = detail.get("xids")
    return float(events[-1]["code"]) if events else 0.0


MEASURES = (
    GpuMetric(
        "DCGM_FI_DEV_GPU_UTIL",
        "Share of the last second in which a kernel was resident (in %).",
        lambda row, _detail, _gpu: row.util_pct,
    ),
    GpuMetric(
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
        "Share of time in which an engine was active (0 to 1), by NVML's utilization.",
        _ratio,
    ),
    GpuMetric(
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
        "Share of cycles in which the tensor pipe was active (0 to 1); NaN: no such "
        "counter on this card.",
        _tensor_ratio,
    ),
    GpuMetric(
        "DCGM_FI_DEV_MEM_COPY_UTIL",
        "Share of the last second in which memory was read or written (in %).",
        _detail("memory_util_pct"),
    ),
    GpuMetric("DCGM_FI_DEV_ENC_UTIL", "Encoder (in %).", _detail("encoder_pct")),
    GpuMetric("DCGM_FI_DEV_DEC_UTIL", "Decoder (in %).", _detail("decoder_pct")),
    GpuMetric("DCGM_FI_DEV_FB_USED", "Memory used (in MiB).", _used_mib),
    GpuMetric("DCGM_FI_DEV_FB_FREE", "Memory free (in MiB).", _free_mib),
    GpuMetric(
        "DCGM_FI_DEV_FB_RESERVED",
        "Memory that the driver keeps (in MiB).",
        _reserved_mib,
    ),
    GpuMetric(
        "DCGM_FI_DEV_GPU_TEMP",
        "Temperature (in C).",
        lambda row, _detail, _gpu: row.temperature_celsius,
    ),
    GpuMetric(
        "DCGM_FI_DEV_MEMORY_TEMP",
        "Temperature of the memory (in C).",
        _detail("memory_temperature_celsius"),
    ),
    GpuMetric(
        "DCGM_FI_DEV_POWER_USAGE",
        "Power draw (in W).",
        lambda row, _detail, _gpu: row.power_watts,
    ),
    GpuMetric(
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        "Energy since the driver was loaded (in mJ).",
        _detail("energy_joules", 1000.0),
    ),
    GpuMetric(
        "DCGM_FI_DEV_SM_CLOCK",
        "SM clock (in MHz).",
        lambda row, _detail, _gpu: row.sm_clock_mhz,
    ),
    GpuMetric(
        "DCGM_FI_DEV_MEM_CLOCK",
        "Memory clock (in MHz).",
        _detail("memory_clock_mhz"),
    ),
    GpuMetric(
        "DCGM_FI_DEV_XID_ERRORS",
        "The last Xid of the newest reading; 0: none.",
        _last_xid,
    ),
    GpuMetric(
        "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
        "Corrected memory errors since the driver was loaded.",
        _detail("ecc_corrected"),
    ),
    GpuMetric(
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
        "Uncorrected memory errors since the driver was loaded.",
        _detail("ecc_uncorrected"),
    ),
    GpuMetric(
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
        "Rows remapped for corrected errors.",
        _detail("row_remap_corrected"),
    ),
    GpuMetric(
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
        "Rows remapped for uncorrected errors.",
        _detail("row_remap_uncorrected"),
    ),
    GpuMetric(
        "DCGM_FI_DEV_ROW_REMAP_FAILURE",
        "Whether remapping of rows has failed.",
        _detail("remap_failure"),
    ),
    GpuMetric(
        "DCGM_FI_DEV_RETIRED_PENDING",
        "Whether pages wait for a restart to be retired.",
        _detail("retired_pages_pending"),
    ),
)


NO_TOKEN = (
    "Make a token with the scope “metrics” on the page Settings and send it as "
    "“Authorization: Bearer gp_...”."
)


@login_not_required
@never_cache
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Answer a scrape; 401 without a token of the scope ``metrics``."""
    try:
        if user_of(bearer(request), scopes=[SCOPE]) is None:
            raise RequestRefused("signed-out", NO_TOKEN, title="A token is needed")
    except RequestRefused as refused:
        return problem_response(refused)
    names = SitePolicy.current().names_visible
    return HttpResponse(
        generate_latest(CollectedMetrics(read(names_visible=names))),  # type: ignore[arg-type]
        content_type=CONTENT_TYPE_LATEST,
    )


class CollectedMetrics:
    """The interface of a registry that ``generate_latest`` needs, without global
    state."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """Return the families."""
        return self._families


def read(*, names_visible: bool) -> Iterator[Metric]:
    """Read frame, details and calendar, and yield the families.

    The number of queries and of reads of the broker does not depend on the number of
    Gpus.
    """
    now = timezone.now()
    frame_at, rows, details = live_readings()
    gpus = list(Gpu.objects.shown().select_related("node", "pool"))
    held = load_board(now).holdings
    labels = {
        gpu.pk: labels_of(
            gpu,
            held[gpu.pk].now if gpu.pk in held else None,
            names_visible=names_visible,
        )
        for gpu in gpus
    }
    for measure in MEASURES:
        # Counters are written as gauges too, because the client would append _total and
        # DCGM does not.
        family = Metric(measure.name, measure.help, "gauge")
        for gpu in gpus:
            row = rows.get(gpu.uuid)
            if row is None or (row.age_seconds or 0.0) > FRESH_SECONDS:
                continue
            value = measure.value(row, details.get(gpu.uuid, {}), gpu)
            if value is not None:
                family.add_sample(measure.name, labels[gpu.pk], float(value))
        yield family
    yield _states(gpus, rows, labels)
    yield from read_site(now, frame_at, {gpu.node for gpu in gpus})


def labels_of(
    gpu: Gpu, booking: LiveBooking | None, *, names_visible: bool
) -> dict[str, str]:
    """Return the labels of one Gpu's samples. Hidden names are empty."""
    values = (
        str(gpu.index),
        gpu.uuid,
        gpu.uuid,
        gpu.pci_bus_id,
        f"nvidia{gpu.index}",
        gpu.name,
        gpu.node.name,
        gpu.node.driver_version,
        "" if gpu.mig_instance is None else str(gpu.mig_instance),
        _profile(gpu.name) if gpu.mig_parent else "",
        booking.user if booking and names_visible else "",
        booking.account if booking else "",
        str(booking.reservation) if booking else "",
    )
    return dict(zip(LABELS, values, strict=True))


def _profile(name: str) -> str:
    """Return the MIG profile in an instance's name.

    >>> _profile("NVIDIA A100-SXM4-80GB MIG 1g.10gb")
    '1g.10gb'
    """
    return name.rpartition(" MIG ")[2]


def live_readings() -> tuple[
    float | None, dict[str, FrameRow], dict[str, dict[str, Any]]
]:
    """Return (Unix seconds of the newest frame, its rows, details by UUID)."""
    try:
        with Redis.from_url(
            settings.REDIS_URL, socket_timeout=TIMEOUT_SECONDS
        ) as client:
            at, found = read_live(client)
            if at is None or time.time() - at > FRESH_SECONDS:
                return at, {}, {}
            nodes = sorted({gpu.tag["node"] for gpu in found})
            texts = client.mget([broadcast.DETAIL + n for n in nodes]) if nodes else []
    except RedisError:
        return None, {}, {}
    details: dict[str, dict[str, Any]] = {}
    for text in texts:  # type: ignore[union-attr]
        details |= json.loads(text)["gpus"] if text else {}
    return at, {gpu.tag["uuid"]: gpu.row for gpu in found}, details


def _states(
    gpus: Iterable[Gpu], rows: Mapping[str, FrameRow], labels: Mapping[int, dict]
) -> Metric:
    family = Metric(
        "gpuportal_gpu_state", "State of each GPU, as the board's.", "gauge"
    )
    for gpu in gpus:
        row = rows.get(gpu.uuid)
        state = GpuState.UNKNOWN if row is None else GpuState(row.state)
        tags = labels[gpu.pk] | {"state": WORDS[state]}
        family.add_sample(family.name, tags, 1.0)
    return family
