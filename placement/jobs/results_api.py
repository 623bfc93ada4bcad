"""The API of Jobs' results and of the outcomes of their Plans."""

from typing import TypedDict

from django.http import FileResponse, HttpRequest
from ninja import Router

from placement.jobs import queries as snapshots
from placement.jobs.nodes import result_files
from placement.jobs.views.result_downloads import sent
from placement.models import Job
from placement.rules.tracked_runs import tracked_runs
from reservations.models import User
from reservations.rules.errors import NotFound
from telemetry.protocol.sentences import sentence

router = Router(tags=["placement"])


class TrackedRunsRow(TypedDict):
    """The runs of one tool in one folder of the results."""

    tool: str
    folder: str
    runs: int
    command: str
    """What shows them, in the folder that has been downloaded."""


class JobFiles(TypedDict):
    """The files in a job's results folder."""

    job: int
    files: list[snapshots.JobFile]
    runs: list[TrackedRunsRow]
    """Runs of TensorBoard, wandb and MLflow among the files."""


@router.get("/jobs/{int:job_id}/files")
def job_files(request: HttpRequest, job_id: int) -> JobFiles:
    """The files in a job's results folder. Only its owner may download them."""
    assert isinstance(request.user, User)
    job = Job.objects.visible_to(request.user).filter(pk=job_id).first()
    if job is None:
        raise NotFound(what=sentence("job #{job_id}", job_id=job_id))
    files = snapshots.job_results(job)
    runs = tracked_runs([file["path"] for file in files])
    return {
        "job": job.pk,
        "files": files,
        "runs": [
            {
                "tool": one.tool,
                "folder": one.folder,
                "runs": one.runs,
                "command": one.command,
            }
            for one in runs
        ],
    }


@router.get("/jobs/{int:job_id}/files/{int:file_id}", include_in_schema=False)
def job_file(request: HttpRequest, job_id: int, file_id: int) -> FileResponse:
    """One file of the caller's own job."""
    job = Job.objects.filter(pk=job_id, owner=request.user).first()  # type: ignore[misc]
    row = None if job is None else result_files.stored_file(job, file_id)
    if row is None:
        raise NotFound(
            what=sentence(
                "file #{file_id} of job #{job_id}", file_id=file_id, job_id=job_id
            )
        )
    return sent(row)
