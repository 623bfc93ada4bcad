"""Inputs of programs that launch and stop Jobs."""

from typing import Any

from ninja import Field, Schema
from pydantic import ConfigDict, field_validator, model_validator

from placement.models import Job
from placement.planner.values.errors import LaunchInvalid
from reservations.web.schemas import Line


class GapWish(Schema):
    """The requirements of a Job that runs in gaps between Reservations."""

    model_config = ConfigDict(extra="forbid")
    membership: int | None = None
    """The Membership that pays. Null: the only one."""
    min_memory_gib: float = Field(0, ge=0, le=1e6)
    gpu_class: str = Field("", max_length=120)
    shortest_minutes: float = Field(30, ge=0, le=1e6)
    """The shortest useful stretch."""
    total_hours: float | None = Field(None, ge=0, le=1e6)
    """Of held time in total. Null: until it ends."""


class NewJob(Schema):
    """A Job to launch in the User's Reservation, or in gaps between Reservations."""

    reservation: int | None = None
    backfill: GapWish | None = None
    """Instead of a reservation."""
    name: str
    kind: str = ""
    """recipe or script. "": script if there is a script and no recipe."""
    recipe: str = ""
    recipe_settings: dict[str, Any] = {}
    script: str = ""
    files: dict[str, str] = {}
    """Of a script: text files in its folder, by relative path, such as modules that it
    imports. At most 200 and 1 MiB."""
    arguments: list[str] = []
    launcher: str = ""
    """Of a script: python, torchrun, accelerate or deepspeed. "": it starts itself."""
    environment_folder: str = ""
    """The script's environment on the node: the absolute path of a virtual or conda
    environment, of its bin folder or of a uv project, or a conda environment's name.
    ./requirements.txt means a requirements file among `files`. Its programs are first
    on the job's PATH."""
    plan: int | None = None
    strategy: str = ""
    """Run the plan's question by this strategy instead. "": by that of the plan."""
    node: str = ""
    gpus: int | None = None
    """How many it needs. Null: all that the reservation holds on its node."""
    retries: int = 0
    """How often it may start again when its node is lost."""
    retry_failed: bool = False
    """Whether it starts again, as often, when it failed."""
    resume_from: int | None = None
    """One of the caller's ended jobs on that node, whose checkpoint it loads."""
    after: int | None = None
    """A job that the caller may see. This one begins once that one is done. If it ends
    otherwise, this one fails without a start."""
    may_move: bool = False
    """Whether reviews may move it to a faster place."""
    restart: str = ""
    """How it may be restarted: fresh or resumes. "": not at all."""

    @field_validator("backfill", mode="before")
    @classmethod
    def _an_object(cls, sent: object) -> object:
        # A schema also reads attributes. Of a number or `false` it would find none
        # missing, and use the defaults.
        if sent is not None and not isinstance(sent, dict | GapWish):
            raise ValueError("must be an object")
        return sent

    @model_validator(mode="after")
    def _with_kind(self) -> "NewJob":
        # Not given: that of the given program.
        if not self.kind:
            own = self.script and not self.recipe
            self.kind = Job.Kind.SCRIPT.value if own else Job.Kind.RECIPE.value
        return self

    def wanted(self) -> dict[str, Any]:
        """Return the arguments of the service that launches it.

        Raises:
            LaunchInvalid: no reservation is named.
        """
        if self.reservation is None or self.backfill is not None:
            why = "name one, or ask for gaps with backfill: {}; not both"
            raise LaunchInvalid({"reservation": why})
        return {
            "reservation_id": self.reservation,
            "name": self.name,
            "kind": self.kind,
            "recipe": self.recipe,
            "recipe_settings": self.recipe_settings,
            "script": self.script,
            "files": self.files,
            "arguments": self.arguments,
            "launcher": self.launcher,
            "environment_folder": self.environment_folder,
            "plan_id": self.plan,
            "node": self.node,
            "gpu_count": self.gpus,
            "retries": self.retries,
            "retry_failed": self.retry_failed,
            "resume_from": self.resume_from,
            "after": self.after,
            "may_move": self.may_move,
            "restart": self.restart,
        }


class WaitingJob(NewJob):
    """A Job that waits with a request. Its place is not known yet."""

    model_config = ConfigDict(extra="forbid")
    reservation: int | None = 0


class StopReason(Schema):
    """The reason of a stop."""

    reason: Line = Field("", max_length=400)
