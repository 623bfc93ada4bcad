"""Why a node of another engine is not booked."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, tzinfo
from typing import ClassVar

from reservations.engines.engine_port import EngineAnswer
from reservations.rules.errors import Refusal
from telemetry.protocol.sentences import sentence

_WORDS: dict[str, str] = {
    EngineAnswer.TAKEN: sentence(
        "Slurm has reserved {nodes} for another purpose in this time."
    ),
    EngineAnswer.BUSY: sentence(
        "A job of Slurm runs on {nodes}, or may run beyond the start."
    ),
    EngineAnswer.NO_USER: sentence(
        "Slurm does not know the Unix user of this reservation. The admin can correct "
        "it."
    ),
    EngineAnswer.DENIED: sentence(
        "Slurm does not let the portal reserve nodes. The admin can see why with "
        "manage.py slurm check."
    ),
    EngineAnswer.OTHER: sentence("Slurm refuses it: {why}."),
    "away": sentence(
        "Slurm does not answer, so {nodes} cannot be booked now. Try again in a minute."
    ),
    "leaving": sentence(
        "The jobs of the reservation before are ending on {nodes}. Try again in a "
        "minute."
    ),
    "closed": sentence("{nodes} is closed in Slurm. Reason: {why}."),
    "no-login": sentence(
        "{nodes} belongs to Slurm, and you have no Unix user there. The admin enters "
        "it under Manage, People."
    ),
}


@dataclass(eq=False)
class EngineRefused(Refusal):
    """The engine of a node does not hold it. ``cause`` is a key of the sentences."""

    code = "engine-refused"
    title = sentence("Not free in Slurm")
    curable: ClassVar[bool] = True
    cause: str
    nodes: str
    why: str = ""
    """In the words of the engine."""

    @property
    def passes(self) -> bool:
        """Whether the same request may be granted in some minutes."""
        return self.cause in ("away", "leaving")

    def text(self, zone: tzinfo = UTC) -> str:
        template = _WORDS.get(self.cause, _WORDS[EngineAnswer.OTHER])
        return sentence(template, nodes=self.nodes, why=self.why)


@dataclass(eq=False)
class WholeNodeNeeded(Refusal):
    """A reservation has some of the GPUs of a node that is given out as a whole."""

    code = "whole-node-needed"
    title = sentence("Whole node needed")
    curable: ClassVar[bool] = True
    node: str
    missing: str
    """Names of the other GPUs, for people."""
    gpu_ids: tuple[int, ...]
    """All GPUs of the node."""

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence(
            "Slurm gives out {node} as a whole. Choose its other GPUs too: {missing}.",
            node=self.node,
            missing=self.missing,
        )
