"""Why a Job is not launched or stopped, as data.

    Refusal (reservations.rules.errors)
    └── JobRefusal
        ├── ReservationNotUsable   over, given back, or about to end
        ├── SpansNodes             Gpus on several nodes and none was named
        ├── ScriptsNotAllowed      Jobs are not isolated there
        ├── StrategyNotRunnable    a sound Plan that no recipe here can run
        ├── PlanElsewhere          a Plan for Gpus that the Reservation has not
        ├── TooManyJobs            as many as one Reservation may have
        └── JobOver                nothing left to stop

"Not found" and "not allowed" are the reservations floor's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import ClassVar

from reservations.rules.errors import Refusal
from reservations.rules.figures import time_text
from telemetry.protocol.sentences import sentence


@dataclass(eq=False)
class JobRefusal(Refusal):
    """The rules refuse an action on a Job."""

    code: ClassVar[str] = "job-refused"


@dataclass(eq=False)
class ReservationNotUsable(JobRefusal):
    """A Job needs a Reservation that runs or will run."""

    code: ClassVar[str] = "reservation-not-usable"
    title: ClassVar[str] = sentence("Reservation over")
    reservation: int
    state: str
    end: datetime

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence(
            "Reservation {reservation} is {state} (end: {end}). A job needs a "
            "reservation that runs now or later. Book a new one.",
            reservation=self.reservation,
            state=self.state,
            end=time_text(self.end, zone),
        )


@dataclass(eq=False)
class SpansNodes(JobRefusal):
    """One Job runs on one node; which one must be said."""

    code: ClassVar[str] = "job-spans-nodes"
    title: ClassVar[str] = sentence("Choose a node")
    reservation: int
    nodes: tuple[str, ...]
    """``name: count`` for each node with Gpus of the Reservation."""
    asked: str = ""

    def text(self, zone: tzinfo = UTC) -> str:
        there = ", ".join(self.nodes)
        if self.asked:
            return sentence(
                "Reservation {reservation} has no GPU on {asked}. It has {there}.",
                reservation=self.reservation,
                asked=self.asked,
                there=there,
            )
        return sentence(
            "Reservation {reservation} has GPUs on several nodes ({there}), but a "
            "job runs on one. Choose the node.",
            reservation=self.reservation,
            there=there,
        )


@dataclass(eq=False)
class ScriptsNotAllowed(JobRefusal):
    """Only ready recipes run where Jobs are not isolated."""

    code: ClassVar[str] = "scripts-not-allowed"
    title: ClassVar[str] = sentence("Scripts cannot run there")
    node: str
    why: str

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence(
            "Jobs on {node} are not isolated: {why}. Only ready recipes run there. "
            "Ask the lab admin to change that.",
            node=self.node,
            why=self.why,
        )


@dataclass(eq=False)
class StrategyNotRunnable(JobRefusal):
    """The Plan is sound; what starts it is not there yet."""

    code: ClassVar[str] = "strategy-not-runnable"
    title: ClassVar[str] = sentence("This plan cannot be started")
    strategy: str
    runnable: tuple[str, ...]
    why: str = ""
    """Empty: the strategy alone is the reason."""

    def text(self, zone: tzinfo = UTC) -> str:
        why = self.why or (
            sentence(
                "it starts {runnable}, and not {strategy}",
                runnable=", ".join(self.runnable),
                strategy=self.strategy,
            )
        )
        return sentence(
            "The portal's recipe cannot run this plan ({strategy}): {why}. The "
            "plan's numbers hold: book its GPUs and start the training with a "
            "script of your own.",
            strategy=self.strategy,
            why=why,
        )


@dataclass(eq=False)
class PlanElsewhere(JobRefusal):
    """A Plan names its Gpus; it runs on those or not at all."""

    code: ClassVar[str] = "plan-elsewhere"
    title: ClassVar[str] = sentence("The plan is for other GPUs")
    reservation: int
    missing: tuple[str, ...]
    """``node:index`` of the Gpus that the Reservation does not hold."""

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence(
            "The plan is for {missing}, which reservation {reservation} does not "
            "include. Choose the reservation that was booked for the plan, or "
            "continue without the plan.",
            missing=", ".join(self.missing),
            reservation=self.reservation,
        )


@dataclass(eq=False)
class TooManyJobs(JobRefusal):
    """A Reservation has a ceiling of Jobs that wait or run."""

    code: ClassVar[str] = "too-many-jobs"
    title: ClassVar[str] = sentence("Too many jobs")
    reservation: int
    live: int
    most: int

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence(
            "Reservation {reservation} has {live} jobs that wait or run. The limit "
            "is {most}. Wait until one has ended.",
            reservation=self.reservation,
            live=self.live,
            most=self.most,
        )


@dataclass(eq=False)
class JobOver(JobRefusal):
    """There is nothing left to stop."""

    code: ClassVar[str] = "job-over"
    title: ClassVar[str] = sentence("The job has ended")
    job: int
    state: str

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence("Job {job} is already {state}.", job=self.job, state=self.state)


@dataclass(eq=False)
class MoveGone(JobRefusal):
    """A proposal to move a Job that does not stand any more."""

    code: ClassVar[str] = "move-gone"
    title: ClassVar[str] = sentence("The proposal is no longer valid")
    move: int
    state: str

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence(
            "The job was not moved: the proposal is {state}.", state=self.state
        )


@dataclass(eq=False)
class RestartNotAllowed(JobRefusal):
    """A move stops a Job and starts it again; that must be allowed first."""

    code: ClassVar[str] = "restart-not-allowed"
    title: ClassVar[str] = sentence("Choose how the job may be restarted")
    job: int

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence(
            "A move stops job {job} and restarts it. The portal does not copy its "
            "state. Choose first whether the job starts from the beginning or "
            "resumes from its own checkpoint.",
            job=self.job,
        )
