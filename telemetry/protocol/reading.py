"""What one Gpu said at one instant, read strictly from a node's message.

`None` means "the card cannot say"; it is never 0. A value out of range refuses
the whole message, with the path of the field.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from telemetry.protocol.fields import LATEST_AT, Fields
from telemetry.protocol.hardware import (
    MOST_CELSIUS,
    MOST_MEMORY_BYTES,
    MOST_MHZ,
    MOST_WATTS,
    NAME_LENGTH,
    UUID_LENGTH,
)

MOST_PROCESSES = 64
"""Processes told per Gpu; a node that has more tells the largest ones."""
MOST_PROCESSES_PER_NODE = 512
USER_LENGTH = 64
COMMAND_LENGTH = 120
MOST_XIDS = 16
"""Xid events told per Gpu and sample; more wait for the next one."""
MOST_XID = 10_000
MOST_INSTANCES = 16
"""MIG instances told of one card; the largest cards have seven."""
MOST_BYTES_PER_SECOND = 10**13
"""More than any link carries: 18 NVLinks of 50 GB/s are 9 * 10**11."""
MOST_RETIRED_PAGES = 100_000
SCRIPTED_PIDS = 2**22
"""Linux' ceiling of pid_max on 64 bits (proc(5)). Scripted processes of simulated
Gpus are told from here on: no signal to one of them can hit a real process."""
MOST_PID = 2 * SCRIPTED_PIDS
MOST_UID = 2**32 - 1
MOST_JOB = 2**63 - 1
MOST_COUNT = 2**63
MOST_JOULES = 1e15


class GpuAnswer(StrEnum):
    """Whether the Gpu answered."""

    OK = "ok"
    LOST = "lost"
    """Fallen off the bus, or gone from the driver's list."""
    HUNG = "hung"
    """The driver did not answer within the deadline."""
    ERROR = "error"
    """The driver answers, with nothing but errors."""


class Throttle(StrEnum):
    """Why the clocks are lower than they could be, in NVML's own terms."""

    GPU_IDLE = "gpu_idle"
    APPLICATIONS_CLOCKS = "applications_clocks"
    SW_POWER_CAP = "sw_power_cap"
    HW_SLOWDOWN = "hw_slowdown"
    SYNC_BOOST = "sync_boost"
    SW_THERMAL = "sw_thermal"
    HW_THERMAL = "hw_thermal"
    HW_POWER_BRAKE = "hw_power_brake"
    DISPLAY_CLOCK = "display_clock"


HEAT = frozenset({Throttle.SW_THERMAL, Throttle.HW_THERMAL})
"""Slowed down by heat."""
HARM = HEAT | {Throttle.HW_SLOWDOWN, Throttle.HW_POWER_BRAKE}
"""Slowed down by something an operator should look at (a power cap is not)."""


@dataclass(frozen=True, slots=True)
class XidEvent:
    """One error event of the driver (NVIDIA's "XID Errors" lists the codes)."""

    code: int
    at: float
    """Unix seconds at which the node heard of it."""

    @classmethod
    def from_fields(cls, fields: Fields) -> XidEvent:
        """Read one event. Raises MessageRefused."""
        return cls(
            code=fields.whole("code", most=MOST_XID, least=1),
            at=fields.number("at", most=LATEST_AT),
        )


@dataclass(frozen=True, slots=True)
class MigInstance:
    """One part of a split card. `None`: it cannot say."""

    uuid: str
    name: str = ""
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None

    @classmethod
    def from_fields(cls, fields: Fields) -> MigInstance:
        """Read one instance. Raises MessageRefused."""
        return cls(
            uuid=fields.text("uuid", most=UUID_LENGTH),
            name=fields.text_or_none("name", most=NAME_LENGTH) or "",
            memory_total_bytes=fields.whole_or_none(
                "memory_total_bytes", most=MOST_MEMORY_BYTES
            ),
            memory_used_bytes=fields.whole_or_none(
                "memory_used_bytes", most=MOST_MEMORY_BYTES
            ),
        )


@dataclass(frozen=True, slots=True)
class ProcessReading:
    """One process on one Gpu."""

    pid: int
    uid: int | None = None
    user: str | None = None
    """Login name on the node; None where the process is gone or hidden."""
    command: str = ""
    """Command line, shortened."""
    memory_bytes: int | None = None
    sm_pct: int | None = None
    """Share of the last second in which its kernels ran."""
    started_at: float | None = None
    """Unix seconds."""
    job: int | None = None
    """Portal job id, where the process belongs to a job's session."""

    @classmethod
    def from_fields(cls, fields: Fields) -> ProcessReading:
        """Read one process. Raises MessageRefused."""
        return cls(
            pid=fields.whole("pid", most=MOST_PID, least=1),
            uid=fields.whole_or_none("uid", most=MOST_UID),
            user=fields.text_or_none("user", most=USER_LENGTH),
            command=fields.text_or_none("command", most=COMMAND_LENGTH) or "",
            memory_bytes=fields.whole_or_none("memory_bytes", most=MOST_MEMORY_BYTES),
            sm_pct=fields.whole_or_none("sm_pct", most=100),
            started_at=fields.number_or_none("started_at", most=LATEST_AT),
            job=fields.whole_or_none("job", most=MOST_JOB),
        )


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One Gpu at one instant. Every `None` is "the card cannot say"."""

    uuid: str
    state: GpuAnswer = GpuAnswer.OK
    util_pct: int | None = None
    memory_util_pct: int | None = None
    memory_used_bytes: int | None = None
    """Without the driver's own reserve, as nvidia-smi shows it."""
    memory_reserved_bytes: int | None = None
    memory_total_bytes: int | None = None
    temperature_celsius: int | None = None
    memory_temperature_celsius: int | None = None
    fan_pct: int | None = None
    """Of the fan's full speed; None for a card that the chassis cools."""
    encoder_pct: int | None = None
    decoder_pct: int | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    pstate: int | None = None
    """Performance state, 0 (fastest) to 15."""
    throttle: tuple[Throttle, ...] | None = None
    energy_joules: float | None = None
    """Counter since the driver was loaded; only differences mean anything."""
    ecc_corrected: int | None = None
    """Errors since boot."""
    ecc_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failure: bool | None = None
    row_remap_corrected: int | None = None
    """Memory rows replaced for good, by the kind of error."""
    row_remap_uncorrected: int | None = None
    retired_pages: int | None = None
    """Memory pages out of use for good (cards before row remapping)."""
    retired_pages_pending: bool | None = None
    pcie_gen: int | None = None
    """Generation in use now: it falls when the card idles."""
    pcie_width: int | None = None
    pcie_tx_bytes_per_second: int | None = None
    """Rates are read only while somebody watches the Gpu; tx: out of the Gpu."""
    pcie_rx_bytes_per_second: int | None = None
    nvlink_tx_bytes_per_second: int | None = None
    """Sum over the Gpu's links."""
    nvlink_rx_bytes_per_second: int | None = None
    xids: tuple[XidEvent, ...] = ()
    """Events since the last sample."""
    mig_instances: tuple[MigInstance, ...] = ()
    """Of a split card."""
    processes: tuple[ProcessReading, ...] | None = None
    """None: the card cannot say who is there, which is not "nobody"."""

    @property
    def answers(self) -> bool:
        """Whether what it says can be used at all."""
        return self.state is GpuAnswer.OK

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; of the rarer ones only those that are there."""
        # dataclasses.asdict copies deeply and costs five times as much, each second.
        values: dict[str, Any] = {key: getattr(self, key) for key in _ALWAYS_TOLD}
        for key in _TOLD_IF_THERE:
            value = getattr(self, key)
            if value is not None:
                values[key] = value
        if self.xids:
            values["xids"] = [{"code": x.code, "at": x.at} for x in self.xids]
        if self.mig_instances:
            values["mig_instances"] = [_instance_dict(x) for x in self.mig_instances]
        if self.processes is not None:
            values["processes"] = [
                {key: getattr(process, key) for key in _PROCESS_KEYS}
                for process in self.processes
            ]
        return values

    @classmethod
    def from_fields(cls, fields: Fields) -> GpuReading:
        """Read one Gpu's part of a sample. Raises MessageRefused."""
        total_bytes = fields.whole_or_none("memory_total_bytes", most=MOST_MEMORY_BYTES)
        used_bytes = fields.whole_or_none("memory_used_bytes", most=MOST_MEMORY_BYTES)
        if (used_bytes or 0) > (
            MOST_MEMORY_BYTES if total_bytes is None else total_bytes
        ):
            fields.refuse("memory_used_bytes", f"{used_bytes} of {total_bytes}")
        values: dict[str, Any] = {
            **{key: fields.whole_or_none(key, most=n) for key, n in _WHOLE.items()},
            **{key: fields.number_or_none(key, most=n) for key, n in _NUMBERS.items()},
            **{key: fields.flag_or_none(key) for key in _FLAGS},
        }
        return cls(
            uuid=fields.text("uuid", most=UUID_LENGTH),
            state=fields.one_of("state", GpuAnswer, GpuAnswer.OK),
            memory_used_bytes=used_bytes,
            memory_total_bytes=total_bytes,
            throttle=_throttle(fields),
            xids=tuple(
                XidEvent.from_fields(x) for x in fields.objects("xids", most=MOST_XIDS)
            ),
            mig_instances=tuple(
                MigInstance.from_fields(x)
                for x in fields.objects("mig_instances", most=MOST_INSTANCES)
            ),
            processes=_processes(fields),
            **values,
        )


_WHOLE: dict[str, int] = {
    "util_pct": 100,
    "memory_util_pct": 100,
    "memory_reserved_bytes": MOST_MEMORY_BYTES,
    "temperature_celsius": int(MOST_CELSIUS),
    "memory_temperature_celsius": int(MOST_CELSIUS),
    "fan_pct": 100,
    "encoder_pct": 100,
    "decoder_pct": 100,
    "sm_clock_mhz": MOST_MHZ,
    "memory_clock_mhz": MOST_MHZ,
    "pstate": 15,
    "ecc_corrected": MOST_COUNT,
    "ecc_uncorrected": MOST_COUNT,
    "row_remap_corrected": MOST_COUNT,
    "row_remap_uncorrected": MOST_COUNT,
    "retired_pages": MOST_RETIRED_PAGES,
    "pcie_gen": 10,
    "pcie_width": 64,
    "pcie_tx_bytes_per_second": MOST_BYTES_PER_SECOND,
    "pcie_rx_bytes_per_second": MOST_BYTES_PER_SECOND,
    "nvlink_tx_bytes_per_second": MOST_BYTES_PER_SECOND,
    "nvlink_rx_bytes_per_second": MOST_BYTES_PER_SECOND,
}
"""Whole numbers of a reading and the most that each may be."""
_NUMBERS: dict[str, float] = {
    "power_watts": MOST_WATTS,
    "power_limit_watts": MOST_WATTS,
    "energy_joules": MOST_JOULES,
}
_FLAGS = ("remap_pending", "remap_failure", "retired_pages_pending")
_TOLD_IF_THERE = (
    "memory_temperature_celsius",
    "fan_pct",
    "encoder_pct",
    "decoder_pct",
    "row_remap_corrected",
    "row_remap_uncorrected",
    "retired_pages",
    "retired_pages_pending",
    "pcie_gen",
    "pcie_width",
    "pcie_tx_bytes_per_second",
    "pcie_rx_bytes_per_second",
    "nvlink_tx_bytes_per_second",
    "nvlink_rx_bytes_per_second",
)
"""Left out of a message where they are None: most cards lack some of them."""
_ALWAYS_TOLD = tuple(
    field.name
    for field in fields(GpuReading)
    if field.name not in {*_TOLD_IF_THERE, "xids", "mig_instances"}
)
_PROCESS_KEYS = tuple(field.name for field in fields(ProcessReading))


def _instance_dict(instance: MigInstance) -> dict[str, Any]:
    return {
        "uuid": instance.uuid,
        "name": instance.name,
        "memory_total_bytes": instance.memory_total_bytes,
        "memory_used_bytes": instance.memory_used_bytes,
    }


def largest(
    processes: Iterable[ProcessReading], most: int = MOST_PROCESSES
) -> tuple[ProcessReading, ...]:
    """At most `most` of them, those with the most memory first."""
    return tuple(sorted(processes, key=lambda p: -(p.memory_bytes or 0))[:most])


def _throttle(fields: Fields) -> tuple[Throttle, ...] | None:
    words = fields.words("throttle", most=len(Throttle), longest=20)
    if not words and not fields.has("throttle"):
        return None
    try:
        return tuple(Throttle(word) for word in words)
    except ValueError:
        fields.refuse("throttle", "not a reason this portal knows")


def _processes(fields: Fields) -> tuple[ProcessReading, ...] | None:
    if not fields.has("processes"):
        return None
    return tuple(
        ProcessReading.from_fields(x)
        for x in fields.objects("processes", most=MOST_PROCESSES)
    )
