"""One look at every Gpu of a node at one instant.

The sampling child writes it (`NodeSample.to_message`), ingest reads it
(`NodeSample.from_message`) and believes nothing: a value out of range refuses
the whole message, with the path of the field. `None` means "the card cannot
say"; it is never 0, and a Gpu that cannot be read stays in the list.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

from telemetry.domain.fields import (
    LATEST_AT,
    MESSAGE_MOST_BYTES,
    MESSAGE_VERSION,
    Fields,
    dump_object,
    load_message,
)
from telemetry.domain.hardware import (
    MOST_CELSIUS,
    MOST_GPUS,
    MOST_MEMORY_BYTES,
    MOST_MHZ,
    MOST_WATTS,
    UUID_LENGTH,
    NodeInfo,
)

MOST_PROCESSES = 64
"""Processes told per Gpu; a node that has more tells the largest ones."""
MOST_PROCESSES_PER_NODE = 512
USER_LENGTH = 64
COMMAND_LENGTH = 120
SCRIPTED_PIDS = 2**22
"""Linux' ceiling of pid_max on 64 bits (proc(5)). Scripted processes of simulated
Gpus are told from here on: no signal to one of them can hit a real process."""
MOST_PID = 2 * SCRIPTED_PIDS
MOST_UID = 2**32 - 1
MOST_JOB = 2**63 - 1
MOST_COUNT = 2**63
MOST_JOULES = 1e15


class Health(StrEnum):
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
    state: Health = Health.OK
    util_pct: int | None = None
    memory_util_pct: int | None = None
    memory_used_bytes: int | None = None
    """Without the driver's own reserve, as nvidia-smi shows it."""
    memory_reserved_bytes: int | None = None
    memory_total_bytes: int | None = None
    temperature_celsius: int | None = None
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
    processes: tuple[ProcessReading, ...] | None = None
    """None: the card cannot say who is there, which is not "nobody"."""

    @property
    def answers(self) -> bool:
        """Whether what it says can be used at all."""
        return self.state is Health.OK

    @classmethod
    def from_fields(cls, fields: Fields) -> GpuReading:
        """Read one Gpu's part of a sample. Raises MessageRefused."""
        total_bytes = fields.whole_or_none("memory_total_bytes", most=MOST_MEMORY_BYTES)
        used_bytes = fields.whole_or_none("memory_used_bytes", most=MOST_MEMORY_BYTES)
        if (used_bytes or 0) > (
            MOST_MEMORY_BYTES if total_bytes is None else total_bytes
        ):
            fields.refuse("memory_used_bytes", f"{used_bytes} of {total_bytes}")
        return cls(
            uuid=fields.text("uuid", most=UUID_LENGTH),
            state=fields.one_of("state", Health, Health.OK),
            util_pct=fields.whole_or_none("util_pct", most=100),
            memory_util_pct=fields.whole_or_none("memory_util_pct", most=100),
            memory_used_bytes=used_bytes,
            memory_reserved_bytes=fields.whole_or_none(
                "memory_reserved_bytes", most=MOST_MEMORY_BYTES
            ),
            memory_total_bytes=total_bytes,
            temperature_celsius=fields.whole_or_none(
                "temperature_celsius", most=int(MOST_CELSIUS)
            ),
            power_watts=fields.number_or_none("power_watts", most=MOST_WATTS),
            power_limit_watts=fields.number_or_none(
                "power_limit_watts", most=MOST_WATTS
            ),
            sm_clock_mhz=fields.whole_or_none("sm_clock_mhz", most=MOST_MHZ),
            memory_clock_mhz=fields.whole_or_none("memory_clock_mhz", most=MOST_MHZ),
            pstate=fields.whole_or_none("pstate", most=15),
            throttle=_throttle(fields),
            energy_joules=fields.number_or_none("energy_joules", most=MOST_JOULES),
            ecc_corrected=fields.whole_or_none("ecc_corrected", most=MOST_COUNT),
            ecc_uncorrected=fields.whole_or_none("ecc_uncorrected", most=MOST_COUNT),
            remap_pending=fields.flag_or_none("remap_pending"),
            remap_failure=fields.flag_or_none("remap_failure"),
            processes=_processes(fields),
        )


@dataclass(frozen=True, slots=True)
class NodeSample:
    """All Gpus of a node at one instant of the node's clock."""

    node: str
    """Whose sample it is. Not part of the message: the stream's name says it."""
    at: float
    """Unix seconds, the node's clock. Staleness goes by the server's instead."""
    gpus: tuple[GpuReading, ...]
    seq: int = 0
    """Counts the child's samples; a gap is a dropped sample."""
    load1: float | None = None
    """Load average of the last minute."""
    took_seconds: float = 0.0
    """Wall time of the reading."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "v": MESSAGE_VERSION,
            "kind": "sample",
            "at": self.at,
            "seq": self.seq,
            "load1": self.load1,
            "took_seconds": self.took_seconds,
            "gpus": [_gpu_dict(gpu) for gpu in self.gpus],
        }

    def to_message(self) -> bytes:
        """The sample as compact JSON, never above the size a reader takes.

        A node with more processes than a message may hold tells the largest of
        each Gpu; one whose commands are too long together sends none of them.
        """
        told = _told(self.gpus)
        bounded = self if told <= MOST_PROCESSES_PER_NODE else _fewer_processes(self)
        message = dump_object(bounded.to_dict())
        if len(message) <= MESSAGE_MOST_BYTES:
            return message
        return dump_object(_without_commands(bounded).to_dict())

    @classmethod
    def from_message(cls, data: bytes | str, *, node: str = "") -> NodeSample:
        """Read a sample. Raises MessageRefused with the field that is wrong."""
        return cls.from_fields(load_message(data, kind="sample"), node=node)

    @classmethod
    def from_fields(cls, fields: Fields, *, node: str = "") -> NodeSample:
        """Read a sample from its JSON object. Raises MessageRefused."""
        gpus = tuple(
            GpuReading.from_fields(x) for x in fields.objects("gpus", most=MOST_GPUS)
        )
        if len({gpu.uuid for gpu in gpus}) != len(gpus):
            fields.refuse("gpus", "a UUID appears twice")
        told = _told(gpus)
        if told > MOST_PROCESSES_PER_NODE:
            fields.refuse(
                "gpus", f"{told} processes, at most {MOST_PROCESSES_PER_NODE}"
            )
        return cls(
            node=node,
            at=fields.number("at", most=LATEST_AT),
            seq=fields.whole("seq", most=MOST_COUNT),
            load1=fields.number_or_none("load1", most=1e6),
            took_seconds=fields.number_or_none("took_seconds", most=3600.0) or 0.0,
            gpus=gpus,
        )


def read_message(data: bytes | str, *, node: str = "") -> NodeInfo | NodeSample:
    """What one message of a node's raw stream holds. Raises MessageRefused."""
    message = load_message(data)
    kind = message.text("kind", most=20)
    if kind == "sample":
        return NodeSample.from_fields(message, node=node)
    if kind == "roster":
        return NodeInfo.from_fields(message, node=node)
    return message.refuse("kind", "neither roster nor sample")


_GPU_KEYS = tuple(field.name for field in fields(GpuReading))
_PROCESS_KEYS = tuple(field.name for field in fields(ProcessReading))


def _gpu_dict(gpu: GpuReading) -> dict[str, Any]:
    # dataclasses.asdict copies deeply and costs five times as much, each second.
    values = {key: getattr(gpu, key) for key in _GPU_KEYS}
    if gpu.processes is not None:
        values["processes"] = [
            {key: getattr(process, key) for key in _PROCESS_KEYS}
            for process in gpu.processes
        ]
    return values


def _told(gpus: tuple[GpuReading, ...]) -> int:
    return sum(len(gpu.processes or ()) for gpu in gpus)


def largest(
    processes: Iterable[ProcessReading], most: int = MOST_PROCESSES
) -> tuple[ProcessReading, ...]:
    """At most `most` of them, those with the most memory first."""
    return tuple(sorted(processes, key=lambda p: -(p.memory_bytes or 0))[:most])


def _fewer_processes(sample: NodeSample) -> NodeSample:
    share = max(1, MOST_PROCESSES_PER_NODE // len(sample.gpus))
    return replace(
        sample,
        gpus=tuple(
            replace(gpu, processes=largest(gpu.processes, share))
            if gpu.processes
            else gpu
            for gpu in sample.gpus
        ),
    )


def _without_commands(sample: NodeSample) -> NodeSample:
    return replace(
        sample,
        gpus=tuple(
            replace(gpu, processes=tuple(replace(p, command="") for p in gpu.processes))
            if gpu.processes
            else gpu
            for gpu in sample.gpus
        ),
    )


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
