"""The reading of one Gpu at one instant, checked strictly in a node's message.

`None` means "the card cannot report it" and is never 0. If a value is out of range, the
whole message is refused, with the path of the field.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from types import NoneType
from typing import Annotated, Any

from msgspec import Meta, Struct, field

from telemetry.protocol.codec import Line
from telemetry.protocol.hardware import (
    MOST_CELSIUS,
    GpuUuid,
    Megahertz,
    MemoryBytes,
    Name,
    Watts,
)
from telemetry.protocol.message import Instant

MOST_PROCESSES = 64
"""Processes per Gpu in a sample. A node with more reports the largest ones."""
MOST_PROCESSES_PER_NODE = 512
USER_LENGTH = 64
COMMAND_LENGTH = 120
MOST_XIDS = 16
"""Xid events per Gpu and sample. More of them wait for the next sample."""
MOST_XID = 10_000
MOST_INSTANCES = 16
"""MIG instances of one card in a sample. The largest cards have seven."""
MOST_BYTES_PER_SECOND = 10**13
"""More than any link carries: 18 NVLinks of 50 GB/s are 9 * 10**11."""
MOST_RETIRED_PAGES = 100_000
SCRIPTED_PIDS = 2**22
"""Linux' highest pid_max on 64 bits (proc(5)). Scripted processes of simulated Gpus
have pids from here on, so that no signal to one of them can hit a real process.
"""
MOST_PID = 2 * SCRIPTED_PIDS
MOST_UID = 2**32 - 1
MOST_JOB = 2**63 - 1
MOST_COUNT = 2**63 - 1
MOST_JOULES = 1e15

Celsius = Annotated[int, Meta(ge=0, le=int(MOST_CELSIUS))]
Pct = Annotated[int, Meta(ge=0, le=100)]
Count = Annotated[int, Meta(ge=0, le=MOST_COUNT)]
BytesPerSecond = Annotated[int, Meta(ge=0, le=MOST_BYTES_PER_SECOND)]
Pid = Annotated[int, Meta(ge=1, le=MOST_PID)]
Uid = Annotated[int, Meta(ge=0, le=MOST_UID)]
LoginName = Annotated[Line, Meta(max_length=USER_LENGTH)]
CommandLine = Annotated[Line, Meta(max_length=COMMAND_LENGTH)]
JobNumber = Annotated[int, Meta(ge=0, le=MOST_JOB)]
ALWAYS_TOLD: Any = field(default_factory=NoneType)
"""These fields are written even if they are None. Other fields of a reading are left
out of the message if they are None, because most cards lack some of them.
"""


class GpuAnswer(StrEnum):
    """Whether the Gpu answered."""

    OK = "ok"
    LOST = "lost"
    """Fallen off the bus, or missing in the driver's list."""
    HUNG = "hung"
    """The driver did not answer within the deadline."""
    ERROR = "error"
    """The driver answers, but only with errors."""


class Throttle(StrEnum):
    """The reason for lower clocks, in NVML's terms."""

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
"""Causes of lower clocks that an operator should look at (a power cap is not one)."""


class XidEvent(Struct, frozen=True):
    """One error event of the driver (codes: NVIDIA's "XID Errors")."""

    code: Annotated[int, Meta(ge=1, le=MOST_XID)]
    at: Instant
    """Unix seconds at which the node received it."""


class MigInstance(Struct, frozen=True):
    """One part of a split card. `None`: it cannot be reported."""

    uuid: GpuUuid
    name: Name = ""
    memory_total_bytes: MemoryBytes | None = None
    memory_used_bytes: MemoryBytes | None = None


class ProcessReading(Struct, frozen=True):
    """One process on one Gpu."""

    pid: Pid
    uid: Uid | None = None
    user: LoginName | None = None
    """Login name on the node; None if the process is gone or hidden."""
    command: CommandLine = ""
    """Command line, shortened."""
    memory_bytes: MemoryBytes | None = None
    sm_pct: Pct | None = None
    """Share of the last second in which its kernels ran."""
    started_at: Instant | None = None
    """Unix seconds."""
    job: JobNumber | None = None
    """Portal job id, if the process belongs to a job's session."""


class GpuReading(Struct, frozen=True, omit_defaults=True):
    """One Gpu at one instant. `None`: the card cannot report the value."""

    uuid: GpuUuid
    state: GpuAnswer = field(default_factory=lambda: GpuAnswer.OK)
    util_pct: Pct | None = ALWAYS_TOLD
    memory_util_pct: Pct | None = ALWAYS_TOLD
    memory_used_bytes: MemoryBytes | None = ALWAYS_TOLD
    """Without the driver's reserve, as nvidia-smi shows it."""
    memory_reserved_bytes: MemoryBytes | None = ALWAYS_TOLD
    memory_total_bytes: MemoryBytes | None = ALWAYS_TOLD
    temperature_celsius: Celsius | None = ALWAYS_TOLD
    memory_temperature_celsius: Celsius | None = None
    fan_pct: Pct | None = None
    """Percent of the fan's full speed; None for a card that the chassis cools."""
    encoder_pct: Pct | None = None
    decoder_pct: Pct | None = None
    power_watts: Watts | None = ALWAYS_TOLD
    power_limit_watts: Watts | None = ALWAYS_TOLD
    sm_clock_mhz: Megahertz | None = ALWAYS_TOLD
    memory_clock_mhz: Megahertz | None = ALWAYS_TOLD
    pstate: Annotated[int, Meta(ge=0, le=15)] | None = ALWAYS_TOLD
    """Performance state, 0 (fastest) to 15."""
    throttle: Annotated[tuple[Throttle, ...], Meta(max_length=len(Throttle))] | None = (
        ALWAYS_TOLD
    )
    energy_joules: Annotated[float, Meta(ge=0, le=MOST_JOULES)] | None = ALWAYS_TOLD
    """Counter since the driver was loaded. Only differences have a meaning."""
    ecc_corrected: Count | None = ALWAYS_TOLD
    """Errors since boot."""
    ecc_uncorrected: Count | None = ALWAYS_TOLD
    remap_pending: bool | None = ALWAYS_TOLD
    remap_failure: bool | None = ALWAYS_TOLD
    row_remap_corrected: Count | None = None
    """Memory rows replaced permanently, by the kind of error."""
    row_remap_uncorrected: Count | None = None
    retired_pages: Annotated[int, Meta(ge=0, le=MOST_RETIRED_PAGES)] | None = None
    """Memory pages permanently out of use (cards before row remapping)."""
    retired_pages_pending: bool | None = None
    pcie_gen: Annotated[int, Meta(ge=0, le=10)] | None = None
    """Present generation, which falls when the card idles."""
    pcie_width: Annotated[int, Meta(ge=0, le=64)] | None = None
    pcie_tx_bytes_per_second: BytesPerSecond | None = None
    """Rates are read only while a page of the Gpu is open. tx: out of the Gpu."""
    pcie_rx_bytes_per_second: BytesPerSecond | None = None
    nvlink_tx_bytes_per_second: BytesPerSecond | None = None
    """Sum over the Gpu's links."""
    nvlink_rx_bytes_per_second: BytesPerSecond | None = None
    xids: Annotated[tuple[XidEvent, ...], Meta(max_length=MOST_XIDS)] = ()
    """Events since the last sample."""
    mig_instances: Annotated[
        tuple[MigInstance, ...], Meta(max_length=MOST_INSTANCES)
    ] = ()
    """Of a split card."""
    processes: (
        Annotated[tuple[ProcessReading, ...], Meta(max_length=MOST_PROCESSES)] | None
    ) = ALWAYS_TOLD
    """None: the card cannot list them, which is not the same as no process."""

    @property
    def answers(self) -> bool:
        """Return whether its values can be used."""
        return self.state is GpuAnswer.OK


def largest(
    processes: Iterable[ProcessReading], most: int = MOST_PROCESSES
) -> tuple[ProcessReading, ...]:
    """Return at most `most` of them, those with the most memory first."""
    return tuple(sorted(processes, key=lambda p: -(p.memory_bytes or 0))[:most])
