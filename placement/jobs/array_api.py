"""Arrays over the JSON API: launch a sweep, read it, stop it."""

from collections.abc import Iterable
from typing import Any, TypedDict

from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from ninja import Router, Status

from placement.jobs import queries as snapshots
from placement.jobs.job_arrays import launch_array, stop_array
from placement.jobs.schemas import NewJob, StopReason
from placement.models import Job, JobArray
from placement.rules.sweep import checked_sweep
from reservations.models import User
from reservations.rules.errors import NotFound
from reservations.web.request_keys import repeatable
from telemetry.protocol.sentences import sentence
from telemetry.web.cursor_page import CURSOR, ROWS, NextPage, key_page, link_next

router = Router(tags=["placement"])


class NewArray(NewJob):
    """A Job for every combination of a sweep's values."""

    sweep: dict[str, list[Any]]


class ArrayJob(snapshots.JobAnswer):
    """A job of a sweep."""

    parameters: dict[str, Any]
    """Its values of the sweep."""


class ArrayAnswer(TypedDict):
    """A sweep with all its jobs."""

    array: int
    name: str
    sweep: dict[str, list[Any]]
    """The values by name."""
    jobs: list[ArrayJob]


class ArrayPage(ArrayAnswer, NextPage):
    """A sweep with the jobs of a page."""


class ArrayStopped(TypedDict):
    """How many jobs of a sweep were stopped."""

    array: int
    stopped: int


@router.post("/jobs/arrays", response={201: dict[str, Any]})
@repeatable
def array_launch(request: HttpRequest, body: NewArray) -> Status[ArrayAnswer]:
    """Launch all jobs of a sweep, or none. Each gets ``gpus`` GPUs, default one."""
    array = launch_array(
        user=_user(request),
        sweep=checked_sweep(body.sweep),
        now=timezone.now(),
        **(body.wanted() | {"resume_from": None}),
    )
    return Status(201, _facts(array, _jobs(array, _user(request))))


@router.get("/jobs/arrays/{int:array_id}")
def array_one(
    request: HttpRequest,
    response: HttpResponse,
    array_id: int,
    limit: int | None = ROWS,
    cursor: str = CURSOR,
) -> ArrayPage:
    """An array with all its jobs, in the order of the sweep."""
    user = _user(request)
    seen = Job.objects.visible_to(user).filter(array_id=array_id)
    array = JobArray.objects.filter(pk=array_id, tasks__in=seen).first()
    if array is None:
        raise NotFound(what=sentence("array #{array_id}", array_id=array_id))
    page, following = key_page(
        _jobs(array, user),
        key=lambda job: (job.array_index or 0, job.pk),
        kinds=(int, int),
        cursor=cursor,
        limit=limit,
    )
    link_next(request, response, following)
    return {**_facts(array, page), "next": following}


@router.post("/jobs/arrays/{int:array_id}/stop")
def array_stop(
    request: HttpRequest, array_id: int, body: StopReason | None = None
) -> ArrayStopped:
    """Stop the jobs of an array that have not ended."""
    stopped = stop_array(
        array_id=array_id,
        user=_user(request),
        reason=body.reason if body else "",
        now=timezone.now(),
    )
    return {"array": array_id, "stopped": stopped}


def _user(request: HttpRequest) -> User:
    assert isinstance(request.user, User)
    return request.user


def _jobs(array: JobArray, user: User) -> QuerySet[Job]:
    return (
        Job.objects.visible_to(user)
        .filter(array=array)
        .select_related("owner", "node", "reservation")
        .prefetch_related("events")
        .order_by("array_index")
    )


def _facts(array: JobArray, rows: Iterable[Job]) -> ArrayAnswer:
    return {
        "array": array.pk,
        "name": array.name,
        "sweep": array.sweep,
        "jobs": [
            {**snapshots.job_facts(job), "parameters": job.parameters} for job in rows
        ],
    }
