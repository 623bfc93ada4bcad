"""The reasons why a Job is not launched or stopped.

    Refusal (reservations.rules.errors)
    └── JobRefusal
        ├── ReservationNotUsable   over, given back, or about to end
        ├── SpansNodes             Gpus on several nodes and none was named
        ├── ScriptsNotAllowed      Jobs are not isolated there
        ├── StrategyNotRunnable    a sound Plan that no recipe here can run
        ├── PlanElsewhere          a Plan for Gpus that the Reservation has not
        ├── TooManyJobs            as many as one Reservation may have
        └── JobOver                nothing left to stop

"Not found" and "not allowed" are errors of reservations.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo

from reservations.rules.errors import Refusal
from reservations.rules.figures import time_text
from telemetry.protocol.sentences import sentence


@dataclass(eq=False)
class JobRefusal(Refusal):
    """The rules refuse an action on a Job."""


@dataclass(eq=False)
class ReservationNotUsable(JobRefusal):
    """A job needs a reservation that runs now or later."""

    code = "reservation-not-usable"
    title = sentence("Reservation over")
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
    """The reservation has GPUs on several nodes, but a job runs on one."""

    code = "job-spans-nodes"
    title = sentence("Choose a node")
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
    """Jobs are not isolated on the node, so only ready recipes run there."""

    code = "scripts-not-allowed"
    title = sentence("Scripts cannot run there")
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
    """The plan is sound, but no recipe of the portal can start it."""

    code = "strategy-not-runnable"
    title = sentence("This plan cannot be started")
    strategy: str
    runnable: tuple[str, ...]
    why: str = ""
    """Empty: the strategy alone is the reason."""
    next_strategy: str = ""
    """Strategy of the next best Plan that the recipe runs; empty: none is known."""
    next_title: str = ""

    def text(self, zone: tzinfo = UTC) -> str:
        why = self.why or (
            sentence(
                "it starts {runnable}, and not {strategy}",
                runnable=", ".join(self.runnable),
                strategy=self.strategy,
            )
        )
        if self.next_title:
            return sentence(
                "The portal's recipe cannot run this plan ({strategy}): {why}. The "
                "next best plan that it can run is: {next}.",
                strategy=self.strategy,
                why=why,
                next=self.next_title,
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
    """The plan is for GPUs that the reservation does not have."""

    code = "plan-elsewhere"
    title = sentence("The plan is for other GPUs")
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
    """The reservation has as many waiting or running jobs as the limit."""

    code = "too-many-jobs"
    title = sentence("Too many jobs")
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
    """The job has ended, so it cannot be stopped."""

    code = "job-over"
    title = sentence("The job has ended")
    job: int
    state: str

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence("Job {job} is already {state}.", job=self.job, state=self.state)


@dataclass(eq=False)
class MoveGone(JobRefusal):
    """The proposal to move a job is no longer valid."""

    code = "move-gone"
    title = sentence("The proposal is no longer valid")
    move: int
    state: str

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence(
            "The job was not moved: the proposal is {state}.", state=self.state
        )


@dataclass(eq=False)
class RestartNotAllowed(JobRefusal):
    """A move restarts the job, and its owner has not allowed that yet."""

    code = "restart-not-allowed"
    title = sentence("Choose how the job may be restarted")
    job: int

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence(
            "A move stops job {job} and restarts it. The portal does not copy its "
            "state. Choose first whether the job starts from the beginning or "
            "resumes from its own checkpoint.",
            job=self.job,
        )
