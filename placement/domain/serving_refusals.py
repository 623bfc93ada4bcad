"""Why a model is not served, as data. Below ``JobRefusal`` (refusals.py)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, tzinfo
from typing import ClassVar

from placement.domain.refusals import JobRefusal


@dataclass(eq=False)
class FitsNowhere(JobRefusal):
    """No Gpu that may be used holds the model."""

    code: ClassVar[str] = "model-fits-nowhere"
    title: ClassVar[str] = "No GPU holds the model"
    why: tuple[str, ...]

    def text(self, zone: tzinfo = UTC) -> str:
        return "No GPU can serve it: " + "; ".join(self.why or ("none is offered",))


@dataclass(eq=False)
class ServesAlready(JobRefusal):
    """One server per Gpu: its models share it by plan."""

    code: ClassVar[str] = "gpu-serves-already"
    title: ClassVar[str] = "It serves already"
    job: int

    def text(self, zone: tzinfo = UTC) -> str:
        return (
            f"Job #{self.job} serves models on that GPU already. Add this model to it: "
            "models that share a GPU take turns by plan."
        )


@dataclass(eq=False)
class EndpointFull(JobRefusal):
    """As many models as one endpoint may hold."""

    code: ClassVar[str] = "endpoint-full"
    title: ClassVar[str] = "The endpoint is full"
    job: int
    most: int

    def text(self, zone: tzinfo = UTC) -> str:
        return f"Job #{self.job} holds {self.most} models, as many as it may."


@dataclass(eq=False)
class TooLargeForEndpoint(JobRefusal):
    """The model needs more than all models of the endpoint may take together."""

    code: ClassVar[str] = "model-too-large"
    title: ClassVar[str] = "The model is too large for it"
    job: int
    needs_bytes: int
    room_bytes: int

    def text(self, zone: tzinfo = UTC) -> str:
        return (
            f"The model needs about {self.needs_bytes / 2**30:.2f} GiB; models at job "
            f"#{self.job} may take {self.room_bytes / 2**30:.2f} GiB."
        )


@dataclass(eq=False)
class FilesFull(JobRefusal):
    """As many files, or bytes, as one person may keep."""

    code: ClassVar[str] = "model-files-full"
    title: ClassVar[str] = "Too many model files"
    files: int
    size_bytes: int
    most_files: int
    most_bytes: int

    def text(self, zone: tzinfo = UTC) -> str:
        return (
            f"You keep {self.files} model files, {self.size_bytes / 2**30:.2f} GiB; "
            f"{self.most_files} files and {self.most_bytes / 2**30:.0f} GiB are what "
            "one person may keep. Delete one that is not served."
        )


@dataclass(eq=False)
class FileServed(JobRefusal):
    """A file that is served cannot be deleted."""

    code: ClassVar[str] = "model-file-served"
    title: ClassVar[str] = "It is being served"
    jobs: tuple[int, ...]

    def text(self, zone: tzinfo = UTC) -> str:
        there = ", ".join(f"#{job}" for job in self.jobs)
        return f"The file is served by job {there}. Stop that, or take it out there."


@dataclass(eq=False)
class CannotMove(JobRefusal):
    """An endpoint that does not go anywhere now."""

    code: ClassVar[str] = "endpoint-stays"
    title: ClassVar[str] = "It cannot move now"
    job: int
    why: str

    def text(self, zone: tzinfo = UTC) -> str:
        return f"Job #{self.job} cannot move: {self.why}."


@dataclass(eq=False)
class NothingServedFor(JobRefusal):
    """Models are served by their owner's Unix user, and none is set."""

    code: ClassVar[str] = "no-unix-user"
    title: ClassVar[str] = "You have no Unix user there"
    node: str

    def text(self, zone: tzinfo = UTC) -> str:
        return (
            f"On {self.node} models are served by their owner's own Unix user, and "
            "none is set for you in the portal: ask an operator."
        )
