"""What programs send to launch and stop Jobs."""

from typing import Any

from ninja import Field, Schema
from pydantic import ConfigDict

from placement.models import Job
from reservations.schemas import Line


class NewJob(Schema):
    """A Job to launch into one's own Reservation."""

    reservation: int
    name: str
    kind: str = Job.Kind.RECIPE.value
    recipe: str = ""
    recipe_settings: dict[str, Any] = {}
    script: str = ""
    arguments: list[str] = []
    launcher: str = ""
    """Of a script: python, torchrun, accelerate or deepspeed; "": it starts itself."""
    environment_folder: str = ""
    """First on the job's PATH: the bin folder of one's own environment, absolute."""
    plan: int | None = None
    node: str = ""
    gpus: int | None = None
    """How many it needs; null: all that the reservation holds on its node."""
    retries: int = 0
    """How often it may start again when its node is lost."""
    resume_from: int | None = None
    """An own job that has ended on that node, whose checkpoint it begins with."""
    may_move: bool = False
    """Look again whether it would run faster elsewhere."""
    restart: str = ""
    """How it may be started again: fresh or resumes; "": not at all."""

    def wanted(self) -> dict[str, Any]:
        """Return the arguments of the service that launches it."""
        return {
            "reservation_id": self.reservation,
            "name": self.name,
            "kind": self.kind,
            "recipe": self.recipe,
            "recipe_settings": self.recipe_settings,
            "script": self.script,
            "arguments": self.arguments,
            "launcher": self.launcher,
            "environment_folder": self.environment_folder,
            "plan_id": self.plan,
            "node": self.node,
            "gpu_count": self.gpus,
            "retries": self.retries,
            "resume_from": self.resume_from,
            "may_move": self.may_move,
            "restart": self.restart,
        }


class WaitingJob(NewJob):
    """A Job that waits with a request: where it runs is not known yet."""

    model_config = ConfigDict(extra="forbid")
    reservation: int = 0


class StopReason(Schema):
    """Why a Job is stopped."""

    reason: Line = Field("", max_length=400)
