"""One sample of every Gpu of a node at one instant.

The sampling child writes it (`NodeSample.to_message`). Ingest reads it
(`NodeSample.from_message`) and trusts nothing: if a value is out of range, the whole
message is refused, with the path of the field. `None` means "the card cannot report it"
and is never 0. A Gpu that cannot be read stays in the list.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from telemetry.protocol.codec import encode
from telemetry.protocol.errors import MessageRefused
from telemetry.protocol.hardware import (
    MOST_GPUS,
    MOST_MEMORY_BYTES,
    NodeInfo,
    RosterMessage,
)
from telemetry.protocol.message import MESSAGE_MOST_BYTES, NodeMessage, read_as
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
    Count,
    GpuAnswer,
    GpuReading,
    MigInstance,
    ProcessReading,
    Throttle,
    XidEvent,
    largest,
)
from telemetry.protocol.trouble import NodeTrouble, TroubleMessage

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


class NodeSample(Struct, frozen=True):
    """All Gpus of a node at one instant of the node's clock."""

    node: str
    """Name of the node. Not part of the message, because the stream's name has it."""
    at: float
    """Unix seconds, the node's clock. Staleness is judged by the server's clock."""
    gpus: tuple[GpuReading, ...]
    seq: int = 0
    """Number of the child's sample. A gap means a dropped sample."""
    load1: float | None = None
    """Load average of the last minute."""
    took_seconds: float = 0.0
    """Wall time of the reading."""

    @property
    def message(self) -> SampleMessage:
        """Return the message of the sample, without bounds."""
        return SampleMessage(
            v=1,
            at=self.at,
            seq=self.seq,
            load1=self.load1,
            took_seconds=self.took_seconds,
            gpus=self.gpus,
        )

    def to_message(self) -> bytes:
        """Return the sample as compact JSON, never above the size that a reader
        accepts.

        If a node has more processes than a message may hold, only the largest of each
        Gpu are sent. If their commands are too long together, none of the commands is
        sent.
        """
        told = _process_count(self.gpus)
        bounded = self if told <= MOST_PROCESSES_PER_NODE else _fewer_processes(self)
        data = encode(bounded.message)
        if len(data) <= MESSAGE_MOST_BYTES:
            return data
        return encode(_without_commands(bounded).message)

    @classmethod
    def from_message(cls, data: bytes | str, *, node: str = "") -> NodeSample:
        """Read a sample. Raises MessageRefused with the invalid field."""
        return read_as(SampleMessage, data).value(node)


class SampleMessage(NodeMessage, frozen=True, kw_only=True, tag="sample"):
    """A sample as it is sent."""

    seq: Count
    load1: Annotated[float, Meta(ge=0, le=1e6)] | None = None
    took_seconds: Annotated[float, Meta(ge=0, le=3600)] | None = None
    gpus: Annotated[tuple[GpuReading, ...], Meta(max_length=MOST_GPUS)] = ()

    def value(self, node: str) -> NodeSample:
        """Return the sample of a node.

        Raises:
            MessageRefused: a UUID twice, more memory used than exists, or more
                processes than a node may report.
        """
        if len({gpu.uuid for gpu in self.gpus}) != len(self.gpus):
            raise MessageRefused(field="gpus", why="a UUID appears twice")
        for number, gpu in enumerate(self.gpus):
            used, total = gpu.memory_used_bytes, gpu.memory_total_bytes
            if (used or 0) > (MOST_MEMORY_BYTES if total is None else total):
                raise MessageRefused(
                    field=f"gpus[{number}].memory_used_bytes", why=f"{used} of {total}"
                )
        told = _process_count(self.gpus)
        if told > MOST_PROCESSES_PER_NODE:
            raise MessageRefused(
                field="gpus", why=f"{told} processes, at most {MOST_PROCESSES_PER_NODE}"
            )
        return NodeSample(
            node, self.at, self.gpus, self.seq, self.load1, self.took_seconds or 0.0
        )


def read_message(
    data: bytes | str, *, node: str = ""
) -> NodeInfo | NodeSample | NodeTrouble:
    """Return one message of a node's raw stream. Raises MessageRefused."""
    kinds: type[AnyMessage] = AnyMessage  # type: ignore[assignment]
    return read_as(kinds, data).value(node)


AnyMessage = SampleMessage | RosterMessage | TroubleMessage


def _process_count(gpus: tuple[GpuReading, ...]) -> int:
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
