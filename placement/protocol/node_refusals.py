"""What a node refuses, and what the portal refuses of a node.

The codes of all are in docs/errors.md.
"""

from http import HTTPStatus

from telemetry.protocol.coded_error import CodedError
from telemetry.protocol.node_proof import ProofFault
from telemetry.protocol.sentences import sentence


class OrderRefused(CodedError):
    """A node refuses a command. `code` has the reason."""

    def __init__(self, code: str, detail: str) -> None:
        self.code = code
        self.detail = detail
        super().__init__(detail)


class NodeProofRefused(CodedError):
    """A machine that proves itself as a node gets no token."""

    code = "proof-refused"
    title = sentence("The machine is refused as this node")
    status = HTTPStatus.CONFLICT

    def __init__(self, fault: ProofFault, *, node: str, other: str) -> None:
        self.fault = fault
        words = {
            ProofFault.OTHER_KEY: sentence(
                "{node} is bound to the key of {other}. If this machine is a clone, "
                "type systemctl disable --now gpuportal-node here. Otherwise let it "
                "join again.",
                node=node,
                other=other or "?",
            ),
            # A node reports at most 200 characters of it.
            ProofFault.BEHIND: sentence(
                "{other} has renewed the token of {node}. If this machine is a clone, "
                "type systemctl disable --now gpuportal-node here. Otherwise let it "
                "join again.",
                node=node,
                other=other or "?",
            ),
        }
        super().__init__(words[fault])

    @property
    def members(self) -> dict[str, object]:
        """Return the reason for programs."""
        return {"fault": self.fault.value}


class FactRefused(CodedError):
    """A node's message about jobs breaks the protocol."""

    code = "fact-refused"

    def __init__(self, field: str, why: str) -> None:
        self.field = field
        self.why = why
        super().__init__(f"{field}: {why}")


class LogConflict(CodedError):
    """A piece of a log does not begin at the end of the stored part."""

    code = "log-conflict"
    title = sentence("The log does not continue here")
    status = HTTPStatus.CONFLICT
    words = sentence("the log has {size} bytes")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        super().__init__(sentence(self.words, size=size_bytes))

    @property
    def members(self) -> dict[str, object]:
        """Return the size in bytes, at which the next piece begins."""
        return {"size": self.size_bytes}


class LogTooLarge(CodedError):
    """The stored log would grow over its limit."""

    code = "log-too-large"
    title = sentence("The log is too large")
    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
