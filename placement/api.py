"""Placement's part of the JSON API: Jobs; models and Plans are in api.py."""

from typing import Any, TypedDict

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from ninja import Query, Router, Status

from placement.access.api import router as access
from placement.backfill.api import QueuedGap, gap_create
from placement.backfill.api import router as gaps
from placement.jobs import queries as snapshots
from placement.jobs import service as jobs
from placement.jobs.array_api import router as arrays
from placement.jobs.job_usage import job_usage
from placement.jobs.nodes import log_store, run_curves
from placement.jobs.results_api import router as results
from placement.jobs.schemas import NewJob, StopReason
from placement.language_models.api import router as language_models
from placement.models import Job
from placement.plans.api import router as plans
from placement.plans.next_plan import launch_of, plan_by_strategy, with_next_plan
from placement.protocol.rendezvous import MOST_NODES
from placement.rebalance.api import router as moves
from placement.rules.job_refusals import StrategyNotRunnable
from placement.serving.api import router as serve
from placement.workspace.api import router as workspaces
from reservations.models import User
from reservations.rules.errors import NotFound
from reservations.web.api_parts import count_request
from reservations.web.request_keys import repeatable
from telemetry.history.charts import UsageAnswer, usage_entry
from telemetry.protocol.sentences import sentence
from telemetry.web.cursor_page import CURSOR, NextPage, cursor_page, link_next

MOST_ROWS = 200
router = Router(tags=["placement"])
router.add_router("", access)
router.add_router("", arrays)
router.add_router("", gaps)
router.add_router("", moves)
router.add_router("", plans)
router.add_router("", language_models)
router.add_router("", serve)
router.add_router("", results)
router.add_router("", workspaces)


class JobList(NextPage):
    """Jobs that the caller may see."""

    count: int
    """Of all pages."""
    jobs: list[snapshots.JobAnswer]


class JobPage(snapshots.JobAnswer):
    """A job with its history and its last lines."""

    parts: list[snapshots.JobPartAnswer]
    """Of a job over several nodes."""
    events: list[snapshots.JobChange]
    last_lines: list[str]
    """The last 20 lines of its log."""
    log_note: str
    """Why the log was deleted or cut. Empty: it was not."""


class JobUsage(TypedDict):
    """The summary of a job."""

    job: int
    usage: UsageAnswer | None
    """Null: it has not begun."""


class LogRange(TypedDict):
    """A range of the stored log."""

    offset: int
    """Of its first byte."""
    bytes: int
    """Length of the range."""
    data: str
    """Its text, without control characters."""
    size: int
    """Bytes of the whole log."""
    note: str
    """Why the log was deleted or cut. Empty: it was not."""


class LogHit(TypedDict):
    """A line that contains the text."""

    offset: int
    """Bytes before the line, or before the shown part of a long line."""
    data: str


class LogHits(TypedDict):
    """The lines of a log that contain a text."""

    hits: list[LogHit]
    next_offset: int | None
    """Where the next search continues, in bytes. Null: there is no more."""
    size: int
    """Bytes of the whole log."""


class LogNumbers(TypedDict):
    """The numbers that a log contains."""

    rows: list[dict[str, float]]
    """Names and values of one line each: step and loss, for example."""
    left_bytes: int
    """Bytes of the log that are not read yet. Another request reads on."""
    not_finite: dict[str, float]
    """Names that were NaN or infinite, with the first step at which they were."""


@router.get("/jobs")
def job_list(
    request: HttpRequest,
    response: HttpResponse,
    state: Job.State | None = None,
    reservation: int | None = Query(None, ge=1, le=2**62),
    limit: int = Query(50, ge=1, le=MOST_ROWS),
    offset: int = Query(0, ge=0, le=10**9),
    cursor: str = CURSOR,
) -> JobList:
    """Jobs that the caller may see, newest first."""
    rows = _visible(request)
    if state is not None:
        rows = rows.filter(state=state)
    if reservation is not None:
        rows = rows.filter(reservation_id=reservation)
    page, following = cursor_page(
        rows.prefetch_related("events"),
        by="created_at",
        cursor=cursor,
        limit=limit,
        offset=offset,
    )
    link_next(request, response, following)
    return {
        "count": rows.count(),
        "jobs": [snapshots.job_facts(job) for job in page],
        "next": following,
    }


@router.get("/jobs/{int:job_id}")
def job_one(request: HttpRequest, job_id: int) -> JobPage:
    """One job with its moves and its last lines."""
    job = _visible_job(request, job_id)
    return {
        **snapshots.job_facts(job),
        "parts": snapshots.job_parts(job),
        "events": snapshots.job_events(job),
        "last_lines": log_store.last_lines(job, 20),
        "log_note": log_store.note(job),
    }


@router.get("/jobs/{int:job_id}/usage")
def job_summary(request: HttpRequest, job_id: int) -> JobUsage:
    """The summary of a job, so far if it is running. Null: it has not begun."""
    job = _visible_job(request, job_id)
    usage = job_usage(job, now=timezone.now())
    return {"job": job.pk, "usage": usage_entry(usage) if usage else None}


@router.get("/jobs/{int:job_id}/log")
def job_log(
    request: HttpRequest,
    job_id: int,
    offset: int = Query(0, ge=-(2**40), le=2**40),
    length: int = Query(65_536, ge=0, le=log_store.MOST_READ_BYTES),
    part: int = Query(0, ge=0, le=MOST_NODES),
) -> LogRange:
    """Return a range of the stored log. A negative offset counts from the end.

    For a job over several nodes, `part` is the number of the node in `parts`. `note`
    says why the log was deleted or cut. It is empty if it was not.
    """
    job = _visible_job(request, job_id)
    piece = log_store.read(job, offset=offset, length=length, part=part)
    return {
        "offset": piece.offset,
        "bytes": piece.bytes,
        "data": piece.data,
        "size": piece.size,
        "note": log_store.note(job),
    }


@router.get("/jobs/{int:job_id}/log/search")
def job_log_search(
    request: HttpRequest,
    job_id: int,
    q: str = Query(..., min_length=1, max_length=log_store.MOST_WANTED_CHARACTERS),
    offset: int = Query(0, ge=0, le=2**40),
    part: int = Query(0, ge=0, le=MOST_NODES),
) -> LogHits:
    """Search the whole stored log for a text, from a byte offset on."""
    job = _visible_job(request, job_id)
    found = log_store.search(job, q, offset=offset, part=part)
    return {
        "hits": [{"offset": hit.offset, "data": hit.data} for hit in found.hits],
        "next_offset": found.next_offset,
        "size": found.size,
    }


@router.get("/jobs/{int:job_id}/numbers")
def job_numbers(request: HttpRequest, job_id: int) -> LogNumbers:
    """The numbers in the log and in TensorBoard event files, thinned for a chart."""
    count_request(_user(request), writes=False)
    found = run_curves.numbers(_visible_job(request, job_id))
    return {
        "rows": found.rows,
        "left_bytes": found.left_bytes,
        "not_finite": found.not_finite,
    }


@router.post("/jobs", response={201: dict[str, Any]})
@repeatable
def job_launch(
    request: HttpRequest, body: NewJob
) -> Status[snapshots.JobAnswer | QueuedGap]:
    """Launch a job. It begins with its reservation, or in the first gap."""
    if body.backfill is not None and body.reservation is None:
        return Status(201, gap_create(_user(request), body))
    user, now, wanted = _user(request), timezone.now(), body.wanted()
    if body.strategy:
        chosen = plan_by_strategy(launch_of(user, wanted), body.strategy, now)
        wanted["plan_id"] = chosen.pk
    try:
        job = jobs.launch(user=user, now=now, **wanted)
    except StrategyNotRunnable as refusal:
        raise with_next_plan(refusal, launch_of(user, wanted), now) from refusal
    return Status(201, snapshots.job_facts(_visible_job(request, job.pk)))


@router.post("/jobs/{int:job_id}/stop")
def job_stop(
    request: HttpRequest, job_id: int, body: StopReason | None = None
) -> snapshots.JobAnswer:
    """Stop a job. It gets TERM, time to end, and then KILL."""
    job = jobs.stop(
        job_id=job_id,
        user=_user(request),
        reason=body.reason if body else "",
        now=timezone.now(),
    )
    return snapshots.job_facts(job)


def _user(request: HttpRequest) -> User:
    assert isinstance(request.user, User)
    return request.user


def _visible(request: HttpRequest):  # type: ignore[no-untyped-def]
    return Job.objects.visible_to(_user(request)).select_related(
        "owner", "node", "reservation"
    )


def _visible_job(request: HttpRequest, job_id: int) -> Job:
    job: Job | None = _visible(request).filter(pk=job_id).first()
    if job is None:
        raise NotFound(what=sentence("job #{job_id}", job_id=job_id))
    return job
