"""The interface of an engine: the system that gives out the GPUs of a node. Pure.

Each node belongs to exactly one engine (``Node.engine``). An engine has two sides. On
the portal's side it holds nodes for reservations: `capabilities`, `reserve`, `change`,
`release`, `stop` and `observe`, here. On the node's side it runs jobs: `start`, `stop`
and `observe`, by the Runner of ``placement/agent/job_folder.py``.

Values go in and come out. No engine reads or writes the database.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol


@dataclass(frozen=True, slots=True)
class HoldInfo:
    """The time and the nodes that an engine holds for one reservation."""

    name: str
    """It identifies the hold in the engine, so that a repeated request is one hold."""
    start: datetime
    end: datetime
    nodes: tuple[str, ...]
    """In alphabetical order."""
    users: tuple[str, ...]
    """Unix users who may use it, in alphabetical order."""
    idle_seconds: int = 0
    """The engine drops the hold if nothing ran in it for so long; 0: it does not."""
    gpus_each: int = 0
    """Number of GPUs on each node; 0: the nodes are held as a whole, without a number.
    The engine chooses which ones."""
    kind: str = ""
    """Their type; "": they have none, or no number is given."""
    cpus_each: int = field(default=0, compare=False)
    """Processors on each node that are held with them."""
    of_each: int = field(default=0, compare=False)
    """Number of all GPUs of each node."""

    @property
    def is_part(self) -> bool:
        """Whether it holds some of the GPUs of its nodes."""
        return 0 < self.gpus_each < self.of_each


@dataclass(frozen=True, slots=True)
class EngineCapabilities:
    """What an engine can do for the calendar."""

    holds: bool
    """Whether it has to be told of reservations. The portal itself has not."""


@dataclass(frozen=True, slots=True)
class EngineView:
    """What an engine holds now, and what runs in it."""

    at: datetime
    """When it was asked."""
    holds: Mapping[str, HoldInfo] = field(default_factory=dict)
    running: Mapping[str, int] = field(default_factory=dict)
    """Number of jobs that run, by the name of the hold."""
    used: frozenset[str] = frozenset()
    """Names of the holds in which a job runs, or ran a short time ago."""
    others: tuple[HoldInfo, ...] = ()
    """What it holds on nodes for other purposes."""


class EngineAnswer(StrEnum):
    """Why an engine refuses a request."""

    TAKEN = "taken"
    """It holds a node for another purpose in that time."""
    BUSY = "busy"
    """A job that is not ours has a node beyond the start."""
    IN_USE = "in-use"
    """A job runs in the hold."""
    SHORT = "short"
    """Fewer GPUs of a node are free than were asked for."""
    NO_USER = "no-user"
    DENIED = "denied"
    """The portal may not reserve there."""
    OTHER = "other"


class EngineFailure(Exception):
    """An engine did not do what was asked. The text is one line."""


class EngineAway(EngineFailure):
    """It does not answer. It may have done what was asked."""


class EngineDeclined(EngineFailure):
    """It answers, and refuses."""

    def __init__(
        self, text: str, answer: EngineAnswer, held_gpus: int | None = None
    ) -> None:
        """Args:
        held_gpus: of ``SHORT``: how many of the GPUs of a node others have reserved
            in that time; None: it is not known.
        """
        super().__init__(text)
        self.answer, self.held_gpus = answer, held_gpus


class ReservationEngine(Protocol):
    """The portal's side of an engine.

    Each method but `capabilities` raises `EngineAway` if the engine does not answer.
    """

    def capabilities(self) -> EngineCapabilities:
        """Return what it can do. Asks nobody."""

    def within(self, seconds: float) -> ReservationEngine:
        """Return the same engine for requests that take so long together, at most.

        The database is locked meanwhile. What is not answered then raises `EngineAway`.
        """

    def reserve(self, hold: HoldInfo, *, now: datetime, lost: bool = False) -> None:
        """Hold nodes. If there is a hold of this name, change it to this one.

        Args:
            lost: the engine had this hold. Jobs of its users that run on its nodes are
                no reason to refuse it.

        Raises:
            EngineDeclined: the nodes are not free, or it may not be asked.
        """

    def change(self, hold: HoldInfo, *, seen: HoldInfo, now: datetime) -> None:
        """Change a hold to these values.

        Raises:
            EngineDeclined: as in `reserve`. The hold is unchanged.
        """

    def check_rights(self) -> None:
        """Check that the portal may see and change its holds, so that a hold that
        `observe` does not show is gone.

        Raises:
            EngineDeclined: ``DENIED``.
        """

    def release(self, name: str) -> None:
        """Give the nodes back. A hold that is gone is no error.

        Raises:
            EngineDeclined: ``IN_USE``, while something runs in it.
        """

    def stop(self, name: str) -> None:
        """End everything that runs in a hold. It may take a while."""

    def observe(self, *, now: datetime) -> EngineView:
        """Return all holds of the portal, and what runs in them."""


class PortalEngine:
    """The portal's own nodes. The calendar itself holds them, so nobody is asked."""

    def capabilities(self) -> EngineCapabilities:
        """Return that nothing has to be held elsewhere."""
        return EngineCapabilities(holds=False)

    def within(self, seconds: float) -> ReservationEngine:
        """Return this engine, because nobody is asked."""
        return self

    def reserve(self, hold: HoldInfo, *, now: datetime, lost: bool = False) -> None:
        """Do nothing: the Allocations hold the GPUs."""

    def change(self, hold: HoldInfo, *, seen: HoldInfo, now: datetime) -> None:
        """Do nothing: the Allocations hold the GPUs."""

    def check_rights(self) -> None:
        """Do nothing: the portal may do everything."""

    def release(self, name: str) -> None:
        """Do nothing: the Allocations hold the GPUs."""

    def stop(self, name: str) -> None:
        """Do nothing: the tick of jobs stops them."""

    def observe(self, *, now: datetime) -> EngineView:
        """Return nothing: the database has everything."""
        return EngineView(now)
