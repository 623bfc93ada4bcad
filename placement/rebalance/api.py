"""Moves of running Jobs over the JSON API: list, permission, accept and decline."""

from typing import TypedDict

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from ninja import Query, Router, Schema

from placement.jobs import queries as snapshots
from placement.jobs.views.viewer import reader
from placement.models import Job, MoveDecision
from placement.rebalance import move_proposals
from placement.rebalance.move_proposals import allow_moves
from placement.rules.rebalance_policy import RestartMode
from reservations.rules.errors import NotFound
from telemetry.protocol.sentences import sentence
from telemetry.web.cursor_page import CURSOR, NextPage, cursor_page, link_next

router = Router(tags=["placement"])


class Allowance(Schema):
    """Whether a Job is reviewed, and how it may be restarted."""

    may_move: bool
    restart: RestartMode = RestartMode.NOT


class MovesAnswer(TypedDict):
    """Whether a job may move, and its reviews."""

    may_move: bool
    restart: str
    """fresh or resumes. Empty: not at all."""
    proposal: snapshots.MoveProposal | None
    """It waits for an answer."""
    moves: list[snapshots.MoveAnswer]
    """Newest first."""


class MoveList(MovesAnswer, NextPage):
    """The reviews of a page."""


@router.get("/jobs/{int:job_id}/moves")
def move_list(
    request: HttpRequest,
    response: HttpResponse,
    job_id: int,
    limit: int = Query(snapshots.MOST_MOVES, ge=1, le=snapshots.MOST_MOVES),
    cursor: str = CURSOR,
) -> MoveList:
    """The reviews of a job, newest first, with predicted and actual gain."""
    job = Job.objects.visible_to(reader(request)).filter(pk=job_id).first()
    if job is None:
        raise NotFound(what=sentence("job #{job_id}", job_id=job_id))
    page, following = cursor_page(
        snapshots.reviews_of(job), by="at", cursor=cursor, limit=limit
    )
    link_next(request, response, following)
    return {**_facts(job, page), "next": following}


@router.post("/jobs/{int:job_id}/moves")
def move_allow(request: HttpRequest, job_id: int, body: Allowance) -> MovesAnswer:
    """Set whether the caller's job is reviewed, and how it may be restarted."""
    return _facts(
        allow_moves(
            job_id=job_id,
            user=reader(request),
            may_move=body.may_move,
            restart=body.restart,
            now=timezone.now(),
        )
    )


@router.post("/jobs/{int:job_id}/moves/{int:move_id}/accept")
def move_accept(request: HttpRequest, job_id: int, move_id: int) -> MovesAnswer:
    """Accept a proposal. It is carried out within seconds."""
    return _decide(request, job_id, move_id, accept=True)


@router.post("/jobs/{int:job_id}/moves/{int:move_id}/decline")
def move_decline(request: HttpRequest, job_id: int, move_id: int) -> MovesAnswer:
    """Decline a proposal. It is not made again for an hour."""
    return _decide(request, job_id, move_id, accept=False)


def _decide(
    request: HttpRequest, job_id: int, move_id: int, *, accept: bool
) -> MovesAnswer:
    row = move_proposals.decide(
        job_id=job_id,
        move_id=move_id,
        user=reader(request),
        accept=accept,
        now=timezone.now(),
    )
    return _facts(row.job)


def _facts(job: Job, page: list[MoveDecision] | None = None) -> MovesAnswer:
    """Return the facts with the reviews of a page. None: the newest ones."""
    return {
        "may_move": job.may_move,
        "restart": job.restart,
        "proposal": snapshots.job_proposal(job),
        "moves": snapshots.job_moves(job)
        if page is None
        else [snapshots.move_facts(row) for row in page],
    }
