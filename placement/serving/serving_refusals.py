"""Why a model is not served, as data. Below ``JobRefusal`` (job_refusals.py)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, tzinfo
from typing import ClassVar

from placement.rules.job_refusals import JobRefusal
from telemetry.protocol.sentences import joined, sentence


@dataclass(eq=False)
class FitsNowhere(JobRefusal):
    """No Gpu that may be used holds the model."""

    code: ClassVar[str] = "model-fits-nowhere"
    title: ClassVar[str] = sentence("The model fits on no GPU")
    why: tuple[str, ...]

    def text(self, zone: tzinfo = UTC) -> str:
        why = joined(self.why, "; ") if self.why else sentence("there is none")
        return sentence("No GPU can serve this model: {why}", why=why)


@dataclass(eq=False)
class ServesAlready(JobRefusal):
    """One server per Gpu: its models share it by plan."""

    code: ClassVar[str] = "gpu-serves-already"
    title: ClassVar[str] = sentence("This GPU serves models already")
    job: int

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence(
            "Job {job} serves models on this GPU already. Add this model to that "
            "job: the models then share the GPU.",
            job=self.job,
        )


@dataclass(eq=False)
class EndpointFull(JobRefusal):
    """As many models as one endpoint may hold."""

    code: ClassVar[str] = "endpoint-full"
    title: ClassVar[str] = sentence("The endpoint is full")
    job: int
    most: int

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence(
            "Job {job} serves {most} models, which is the limit.",
            job=self.job,
            most=self.most,
        )


@dataclass(eq=False)
class TooLargeForEndpoint(JobRefusal):
    """The model needs more than all models of the endpoint may take together."""

    code: ClassVar[str] = "model-too-large"
    title: ClassVar[str] = sentence("The model is too large")
    job: int
    needs_bytes: int
    room_bytes: int

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence(
            "The model needs about {needs} GiB. All models of job {job} together "
            "may take {room} GiB.",
            needs=f"{self.needs_bytes / 2**30:.2f}",
            job=self.job,
            room=f"{self.room_bytes / 2**30:.2f}",
        )


@dataclass(eq=False)
class FilesFull(JobRefusal):
    """As many files, or bytes, as one person may keep."""

    code: ClassVar[str] = "model-files-full"
    title: ClassVar[str] = sentence("Too many model files")
    files: int
    size_bytes: int
    most_files: int
    most_bytes: int

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence(
            "You have {files} model files, {size} GiB. The limit is {most_files} "
            "files and {most} GiB per person. Delete a file that is not served.",
            files=self.files,
            size=f"{self.size_bytes / 2**30:.2f}",
            most_files=self.most_files,
            most=f"{self.most_bytes / 2**30:.0f}",
        )


@dataclass(eq=False)
class FileServed(JobRefusal):
    """A file that is served cannot be deleted."""

    code: ClassVar[str] = "model-file-served"
    title: ClassVar[str] = sentence("The file is being served")
    jobs: tuple[int, ...]

    def text(self, zone: tzinfo = UTC) -> str:
        there = ", ".join(str(job) for job in self.jobs)
        return sentence(
            "The file is served by job {there}. Stop the job or remove the model "
            "there.",
            there=there,
        )


@dataclass(eq=False)
class CannotMove(JobRefusal):
    """An endpoint that does not go anywhere now."""

    code: ClassVar[str] = "endpoint-stays"
    title: ClassVar[str] = sentence("The models cannot move now")
    job: int
    why: str

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence("Job {job} cannot move: {why}.", job=self.job, why=self.why)


@dataclass(eq=False)
class NothingServedFor(JobRefusal):
    """Models are served by their owner's Unix user, and none is set."""

    code: ClassVar[str] = "no-unix-user"
    title: ClassVar[str] = sentence("You have no Unix user there")
    node: str

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence(
            "On {node} models run under the Unix user of their owner. You have no "
            "Unix user in the portal. Ask the lab admin to set one.",
            node=self.node,
        )
