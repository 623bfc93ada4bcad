"""Why a model is not served, as data. Below ``JobRefusal`` (job_refusals.py)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, tzinfo

from placement.rules.job_refusals import JobRefusal
from telemetry.protocol.sentences import joined, sentence


@dataclass(eq=False)
class FitsNowhere(JobRefusal):
    """No allowed GPU has enough memory for the model."""

    code = "model-fits-nowhere"
    title = sentence("The model fits on no GPU")
    why: tuple[str, ...]

    def text(self, zone: tzinfo = UTC) -> str:
        why = joined(self.why, "; ") if self.why else sentence("there is none")
        return sentence("No GPU can serve this model: {why}", why=why)


@dataclass(eq=False)
class ServesAlready(JobRefusal):
    """Another endpoint serves models on this GPU already."""

    code = "gpu-serves-already"
    title = sentence("This GPU serves models already")
    job: int

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence(
            "Job {job} serves models on this GPU already. Add this model to that "
            "job: the models then share the GPU.",
            job=self.job,
        )


@dataclass(eq=False)
class EndpointFull(JobRefusal):
    """The endpoint has the maximum of models."""

    code = "endpoint-full"
    title = sentence("The endpoint is full")
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
    """The model needs more memory than the endpoint's models may take together."""

    code = "model-too-large"
    title = sentence("The model is too large")
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
    """The person has the maximum of files, or of bytes."""

    code = "model-files-full"
    title = sentence("Too many model files")
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
    """The file is being served, so it cannot be deleted."""

    code = "model-file-served"
    title = sentence("The file is being served")
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
    """The endpoint cannot be moved now."""

    code = "endpoint-stays"
    title = sentence("The models cannot move now")
    job: int
    why: str

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence("Job {job} cannot move: {why}.", job=self.job, why=self.why)


@dataclass(eq=False)
class NothingServedFor(JobRefusal):
    """Models are served by their owner's Unix user, and none is set."""

    code = "no-unix-user"
    title = sentence("You have no Unix user there")
    node: str

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence(
            "On {node} models run under the Unix user of their owner. You have no "
            "Unix user in the portal. Ask the lab admin to set one.",
            node=self.node,
        )
