"""How the ranks of a Job over several nodes meet, and what they bring along.

torchrun's static rendezvous: the first node listens at an address and port, the others
come there, ranks are counted node by node, with as many on each as it has Gpus of the
Job. ("torchrun, Elastic Launch", https://docs.pytorch.org/docs/stable/elastic/run.html;
its c10d rendezvous gives ranks by host name, not by the Plan, so it is not used.) Both
are carried in the signed order of each node.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from placement.planner.values.errors import OrderRefused

MOST_NODES = 256
MOST_PROCESSES = 64
NONE, LATER, REFUSED = "none", "later", "refused"
"""Why a node brings no checkpoint: there is none; it cannot now; it never can."""
_ADDRESS = re.compile(r"[A-Za-z0-9][A-Za-z0-9.:-]{0,252}")
_TOKEN = re.compile(r"[a-z0-9]{16,64}")
Sha256 = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]


def address_problem(address: str) -> str:
    """Say why nodes cannot meet at an address; "" where they can.

    >>> address_problem("lab-a.example.org"), address_problem("10.0.0.7")
    ('', '')
    >>> address_problem("--upload /etc")
    'is neither a host name nor an IP address'
    """
    if _ADDRESS.fullmatch(address):
        return ""
    return "is neither a host name nor an IP address"


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where one node stands among those of a Job."""

    node_rank: int
    """0: the first, which the others come to."""
    counts: tuple[int, ...]
    """Processes on each node, by node rank."""
    address: str
    """Of the first node; "", in its own order only: the one that it has by itself."""
    port: int
    """There; 0, in its own order only: it takes a free one and tells."""
    token: str
    """Of this attempt alone: ranks of two Jobs that meet by mistake do not mix."""

    def __post_init__(self) -> None:
        first = self.node_rank == 0
        if not 2 <= len(self.counts) <= MOST_NODES:
            raise _malformed("counts", f"must name 2 to {MOST_NODES} nodes")
        if not all(1 <= count <= MOST_PROCESSES for count in self.counts):
            raise _malformed(
                "counts", f"must be 1 to {MOST_PROCESSES} processes a node"
            )
        if not 0 <= self.node_rank < len(self.counts):
            raise _malformed("node_rank", "is none of them")
        if not (first and not self.address) and address_problem(self.address):
            raise _malformed("address", address_problem(self.address))
        if not (first and self.port == 0) and not 1 <= self.port < 2**16:
            raise _malformed("port", "is none")
        if not _TOKEN.fullmatch(self.token):
            raise _malformed("token", "is none")

    @property
    def first_rank(self) -> int:
        """Of the ranks on this node."""
        return sum(self.counts[: self.node_rank])

    @property
    def world(self) -> int:
        """Processes in all."""
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class StartCheckpoint:
    """A checkpoint, or one node's part of one, that is fetched before the start."""

    number: Annotated[int, Meta(ge=0, lt=MOST_NODES)]
    size_bytes: Annotated[int, Meta(gt=0, lt=2**53)]
    sha256: Sha256


def _malformed(name: str, why: str) -> OrderRefused:
    return OrderRefused("malformed", f"meeting.{name} {why}")
