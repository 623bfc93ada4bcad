"""Why a node of another engine is not booked."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, tzinfo
from typing import ClassVar

from reservations.engines.engine_port import EngineAnswer
from reservations.rules.errors import Refusal
from reservations.rules.whole_nodes import whole_node_words
from telemetry.protocol.sentences import joined, sentence

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
    EngineAnswer.IN_USE: sentence(
        "Slurm does not change the number of GPUs of a reservation while a job runs in "
        "it."
    ),
    EngineAnswer.SHORT: sentence(
        "Not enough GPUs of {nodes} are free in Slurm in this time. Wanted: {asked} of "
        "{all}. Jobs or other reservations have them."
    ),
    "short-by": sentence(
        "Not enough GPUs of {nodes} are free in Slurm in this time. Wanted: {asked} of "
        "{all}. Held by other reservations: {held}. Jobs may have more."
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
    "unreported": sentence(
        "{nodes} has not reported to Slurm since its restart, or does not answer it. "
        "Try again in a minute."
    ),
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
    asked_gpus: int = 0
    """Number on each node."""
    all_gpus: int = 0
    """Number that each node has."""
    held_gpus: int | None = None
    """Number that other reservations hold; None: it is not known."""

    @property
    def passes(self) -> bool:
        """Whether the same request may be granted in some minutes."""
        return self.cause in ("away", "leaving")

    def text(self, zone: tzinfo = UTC) -> str:
        cause = self.cause
        if cause == EngineAnswer.SHORT and self.held_gpus:
            cause = "short-by"
        template = _WORDS.get(cause, _WORDS[EngineAnswer.OTHER])
        return sentence(
            template,
            nodes=self.nodes,
            why=self.why,
            asked=self.asked_gpus,
            all=self.all_gpus,
            held=self.held_gpus,
        )


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
    because: str = ""
    """A `WholeNodes`; "": it is not known."""

    def text(self, zone: tzinfo = UTC) -> str:
        need = sentence(
            "Slurm gives out {node} as a whole. Choose its other GPUs too: {missing}.",
            node=self.node,
            missing=self.missing,
        )
        return joined([need, whole_node_words(self.because)])


@dataclass(eq=False)
class SameNumberNeeded(Refusal):
    """A reservation has other numbers or types of GPUs on one node than on another."""

    code = "same-number-needed"
    title = sentence("Same number of GPUs needed")
    curable: ClassVar[bool] = True
    counts: tuple[tuple[str, int], ...]
    """Names of the nodes, with the number of GPUs."""

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence(
            "Slurm reserves the same number of GPUs of one type on each node. You "
            "chose {counts}. Book each node for itself.",
            counts=", ".join(f"{node}: {count}" for node, count in self.counts),
        )
