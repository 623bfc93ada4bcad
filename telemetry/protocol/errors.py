"""What can go wrong between the card and the page, as data.

    TelemetryError            code, text made from the typed fields
    ├── MessageRefused        a message from a node that is not what it claims
    ├── FrameRefused          bytes that are no live frame
    ├── RosterRefused         a node's list of Gpus that cannot be taken over
    ├── NodeUnknown           no node of that name is enrolled
    ├── NodeExists            a node of that name is enrolled already
    ├── ProbeUnavailable      no driver, no simulator folder: nothing to read
    └── ClaimRefused          a claim on a simulated Gpu that cannot be had
        └── SimulatedOutOfMemory   not enough memory left, as CUDA would say

Nothing here knows of HTTP; `gpuportal/http/problems.py` maps codes to answers.
"""

from __future__ import annotations

from telemetry.protocol.sentences import sentence
from telemetry.protocol.units import format_bytes


class TelemetryError(Exception):
    """Root of the tree. `code` is stable and may be shown to programs."""

    code = "telemetry_error"


class MessageRefused(TelemetryError):
    """A message from a node holds something it must not. Nodes are not trusted."""

    code = "message_refused"

    def __init__(self, *, field: str, why: str) -> None:
        self.field = field
        """Path of the offending field, such as `gpus[3].util_pct`."""
        self.why = why
        super().__init__(f"{field}: {why}" if field else why)


class FrameRefused(TelemetryError):
    """Bytes that are no frame of a version this code reads."""

    code = "frame_refused"

    def __init__(self, *, why: str) -> None:
        self.why = why
        super().__init__(f"not a live frame: {why}")


class RosterRefused(TelemetryError):
    """A node says it has Gpus that this site does not take from it."""

    code = "roster_refused"

    def __init__(self, *, node: str, why: str) -> None:
        self.node = node
        self.why = why
        super().__init__(f"roster of {node} refused: {why}")


class NodeUnknown(TelemetryError):
    """No node of that name is enrolled."""

    code = "node_unknown"

    def __init__(self, *, node: str) -> None:
        self.node = node
        super().__init__(
            sentence("no node is enrolled under the name {node}", node=node)
        )


class NodeHeld(TelemetryError):
    """A node cannot be retired while its Gpus are booked."""

    code = "node_held"

    def __init__(self, *, node: str, reservations: list[int]) -> None:
        self.node = node
        self.reservations = reservations
        shown = ", ".join(str(number) for number in reservations[:10])
        more = ", ..." if len(reservations) > 10 else ""
        super().__init__(
            sentence(
                "{node} is still booked (reservations {reservations}). End or move "
                "them first.",
                node=node,
                reservations=f"{shown}{more}",
            )
        )


class NodeExists(TelemetryError):
    """A node of that name is enrolled already; its token still holds."""

    code = "node_exists"

    def __init__(self, *, node: str) -> None:
        self.node = node
        super().__init__(sentence("{node} is enrolled already", node=node))


class ProbeUnavailable(TelemetryError):
    """The probe cannot be opened; its text is one line an operator can act on."""

    code = "probe_unavailable"

    def __init__(self, *, backend: str, why: str, no_gpu: bool = False) -> None:
        self.backend = backend
        self.why = why
        self.no_gpu = no_gpu
        """Whether the driver answers, and there is no Gpu."""
        super().__init__(f"{backend}: {why}")


class ClaimRefused(TelemetryError):
    """A process cannot have what it asked of a simulated Gpu."""

    code = "claim_refused"

    def __init__(self, *, gpu: str, why: str) -> None:
        self.gpu = gpu
        self.why = why
        super().__init__(f"{gpu}: {why}")


class SimulatedOutOfMemory(ClaimRefused):
    """Out of memory on a simulated Gpu, in the numbers CUDA's own text gives."""

    code = "simulated_out_of_memory"

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
