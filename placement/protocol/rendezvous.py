"""The rendezvous of the ranks of a Job over several nodes, and their checkpoints.

It is torchrun's static rendezvous. The first node listens at an address and port, and
the others connect to it. Ranks are counted node by node. Each node has as many ranks as
Gpus of the Job. ("torchrun, Elastic Launch",
https://docs.pytorch.org/docs/stable/elastic/run.html; its c10d rendezvous assigns ranks
by host name, not by the Plan, so it is not used.) The signed command of each node has
both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from placement.protocol.node_refusals import OrderRefused

MOST_NODES = 256
MOST_PROCESSES = 64
NONE, LATER, REFUSED = "none", "later", "refused"
"""Why a node brings no checkpoint: there is none, not at present, or never."""
_ADDRESS = re.compile(r"[A-Za-z0-9][A-Za-z0-9.:-]{0,252}")
_TOKEN = re.compile(r"[a-z0-9]{16,64}")
Sha256 = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]


def address_problem(address: str) -> str:
    """Return why nodes cannot use an address for the rendezvous; "" if they can.

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
    """The position of one node among those of a Job."""

    node_rank: int
    """0: the first node, to which the others connect."""
    counts: tuple[int, ...]
    """Processes on each node, by node rank."""
    address: str
    """Address of the first node; "" only in that node's command: it uses its own
    address.
    """
    port: int
    """Its port; 0 only in that node's command: it takes a free port and reports it."""
    token: str
    """Unique to this attempt, so that ranks of two Jobs that connect by mistake do not
    mix.
    """

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
        """Return the first rank on this node."""
        return sum(self.counts[: self.node_rank])

    @property
    def world(self) -> int:
        """Return the number of processes on all nodes."""
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class StartCheckpoint:
    """A checkpoint, or one node's part of one, that is fetched before the start."""

    number: Annotated[int, Meta(ge=0, lt=MOST_NODES)]
    size_bytes: Annotated[int, Meta(gt=0, lt=2**53)]
    sha256: Sha256


def _malformed(name: str, why: str) -> OrderRefused:
    return OrderRefused("malformed", f"meeting.{name} {why}")
