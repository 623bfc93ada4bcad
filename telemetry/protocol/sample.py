"""One look at every Gpu of a node at one instant.

The sampling child writes it (`NodeSample.to_message`), ingest reads it
(`NodeSample.from_message`) and believes nothing: a value out of range refuses
the whole message, with the path of the field. `None` means "the card cannot
say"; it is never 0, and a Gpu that cannot be read stays in the list.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from telemetry.protocol.fields import (
    LATEST_AT,
    MESSAGE_MOST_BYTES,
    MESSAGE_VERSION,
    Fields,
    dump_object,
    load_message,
)
from telemetry.protocol.hardware import MOST_GPUS, NodeInfo
from telemetry.protocol.reading import (
    COMMAND_LENGTH,
    HARM,
    HEAT,
    MOST_BYTES_PER_SECOND,
    MOST_COUNT,
    MOST_JOB,
    MOST_JOULES,
    MOST_PID,
    MOST_PROCESSES,
    MOST_PROCESSES_PER_NODE,
    MOST_RETIRED_PAGES,
    MOST_UID,
    MOST_XID,
    MOST_XIDS,
    SCRIPTED_PIDS,
    USER_LENGTH,
    GpuAnswer,
    GpuReading,
    MigInstance,
    ProcessReading,
    Throttle,
    XidEvent,
    largest,
)
from telemetry.protocol.trouble import NodeTrouble

__all__ = [
    "COMMAND_LENGTH",
    "HARM",
    "HEAT",
    "MOST_BYTES_PER_SECOND",
    "MOST_COUNT",
    "MOST_JOB",
    "MOST_JOULES",
    "MOST_PID",
    "MOST_PROCESSES",
    "MOST_PROCESSES_PER_NODE",
    "MOST_RETIRED_PAGES",
    "MOST_UID",
    "MOST_XID",
    "MOST_XIDS",
    "SCRIPTED_PIDS",
    "USER_LENGTH",
    "GpuAnswer",
    "GpuReading",
    "MigInstance",
    "NodeSample",
    "NodeTrouble",
    "ProcessReading",
    "Throttle",
    "XidEvent",
    "largest",
    "read_message",
]


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
            "gpus": [gpu.to_dict() for gpu in self.gpus],
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


def read_message(
    data: bytes | str, *, node: str = ""
) -> NodeInfo | NodeSample | NodeTrouble:
    """What one message of a node's raw stream holds. Raises MessageRefused."""
    message = load_message(data)
    kind = message.text("kind", most=20)
    if kind == "sample":
        return NodeSample.from_fields(message, node=node)
    if kind == "roster":
        return NodeInfo.from_fields(message, node=node)
    if kind == "trouble":
        return NodeTrouble.from_fields(message, node=node)
    return message.refuse("kind", "neither roster, sample nor trouble")


def _told(gpus: tuple[GpuReading, ...]) -> int:
    return sum(len(gpu.processes or ()) for gpu in gpus)


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
