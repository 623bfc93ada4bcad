"""The errors between the GPU and the page.

CodedError
├── MessageRefused        a message of a node breaks the protocol
├── FrameRefused          bytes that are no live frame
├── RosterRefused         a node's list of GPUs that this site does not accept
├── NodeUnknown           no node of that name is enrolled
├── NodeExists            a node of that name is enrolled already
├── NodeHeld              a node that cannot be retired: its GPUs are booked
├── ProbeUnavailable      no driver, no simulator folder: nothing to read
└── ClaimRefused          a claim on a simulated GPU that cannot be granted
    └── SimulatedOutOfMemory   not enough memory left, in CUDA's words
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, tzinfo
from http import HTTPStatus

from telemetry.protocol.coded_error import CodedError
from telemetry.protocol.sentences import sentence
from telemetry.protocol.units import format_bytes


@dataclass(eq=False)
class MessageRefused(CodedError):
    """A message of a node has an invalid value. Nodes are not trusted."""

    code = "message-refused"
    title = sentence("The message is not valid")
    status = HTTPStatus.UNPROCESSABLE_ENTITY
    field: str
    """Path of the invalid field, such as `gpus[3].util_pct`."""
    why: str

    def text(self, zone: tzinfo = UTC) -> str:
        return f"{self.field}: {self.why}" if self.field else self.why


@dataclass(eq=False)
class FrameRefused(CodedError):
    """The bytes are not a frame of a version that this code reads."""

    code = "frame-refused"
    why: str

    def text(self, zone: tzinfo = UTC) -> str:
        return f"not a live frame: {self.why}"


@dataclass(eq=False)
class RosterRefused(CodedError):
    """A node reports GPUs that this site does not accept from it."""

    code = "roster-refused"
    node: str
    why: str

    def text(self, zone: tzinfo = UTC) -> str:
        return f"roster of {self.node} refused: {self.why}"


@dataclass(eq=False)
class NodeUnknown(CodedError):
    """No node of that name is enrolled."""

    code = "node-unknown"
    title = sentence("There is no such node")
    status = HTTPStatus.NOT_FOUND
    node: str

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence("no node is enrolled under the name {node}", node=self.node)


@dataclass(eq=False)
class NodeHeld(CodedError):
    """A node cannot be retired while its GPUs are booked."""

    code = "node-held"
    title = sentence("The node is in use")
    status = HTTPStatus.UNPROCESSABLE_ENTITY
    node: str
    reservations: list[int]

    def text(self, zone: tzinfo = UTC) -> str:
        shown = ", ".join(str(number) for number in self.reservations[:10])
        more = ", ..." if len(self.reservations) > 10 else ""
        return sentence(
            "{node} is still booked (reservations {reservations}). End or move "
            "them first.",
            node=self.node,
            reservations=f"{shown}{more}",
        )


@dataclass(eq=False)
class NodeExists(CodedError):
    """A node of that name is enrolled already. Its token stays valid."""

    code = "node-exists"
    title = sentence("The node exists already")
    status = HTTPStatus.CONFLICT
    node: str

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence("{node} is enrolled already", node=self.node)


@dataclass(eq=False)
class ProbeUnavailable(CodedError):
    """The probe cannot be opened. Its text is one line that an operator can act on."""

    code = "probe-unavailable"
    title = sentence("The GPUs cannot be read")
    status = HTTPStatus.SERVICE_UNAVAILABLE
    backend: str
    why: str
    no_gpu: bool = False
    """Whether the driver answers but there is no GPU."""

    def text(self, zone: tzinfo = UTC) -> str:
        return f"{self.backend}: {self.why}"


@dataclass(eq=False)
class ClaimRefused(CodedError):
    """A process cannot have the requested part of a simulated GPU."""

    code = "claim-refused"
    gpu: str
    why: str

    def text(self, zone: tzinfo = UTC) -> str:
        return f"{self.gpu}: {self.why}"


class SimulatedOutOfMemory(ClaimRefused):
    """Out of memory on a simulated GPU, with the numbers of CUDA's message."""

    code = "simulated-out-of-memory"

    def __init__(
        self, *, gpu: str, asked_bytes: int, free_bytes: int, total_bytes: int
    ) -> None:
        self.asked_bytes = asked_bytes
        self.free_bytes = free_bytes
        self.total_bytes = total_bytes
        super().__init__(
            gpu=gpu,
            why=(
                f"simulated CUDA out of memory: tried to take "
                f"{format_bytes(asked_bytes)}, {format_bytes(free_bytes)} free of "
                f"{format_bytes(total_bytes)}"
            ),
        )
