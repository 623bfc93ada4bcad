"""Jobs that run in gaps over the JSON API. POST /jobs queues one."""

from typing import TypedDict

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from ninja import Query, Router

from placement.backfill.queries import (
    MOST_ROWS,
    GapAnswer,
    gap_facts,
    placed_rows,
    visible_gaps,
)
from placement.backfill.service import queue_for_gaps, stop_in_gaps
from placement.jobs.schemas import NewJob, StopReason
from placement.models import Backfill
from reservations.models import Membership, User
from reservations.rules.errors import NotFound
from telemetry.protocol.sentences import sentence
from telemetry.web.cursor_page import CURSOR, NextPage, cursor_page, link_next

router = Router(tags=["placement"])


class QueuedGap(TypedDict):
    """A new job that waits for a gap."""

    backfill: GapAnswer


class PlacedGap(GapAnswer):
    """A job in gaps with its place among the waiting ones."""

    place: int | None
    """1 is the oldest. Null: it does not wait."""


class GapList(NextPage):
    """Jobs in gaps that the caller may see."""

    gaps: list[PlacedGap]


def gap_create(user: User, body: NewJob) -> QueuedGap:
    """Queue a Job from ``POST /jobs`` for gaps. Return the answer.

    Raises:
        LaunchInvalid, Refusal, NotAllowed, NotFound.
    """
    wish = body.backfill
    assert wish is not None
    payer = None
    if wish.membership is not None:
        payer = Membership.objects.filter(pk=wish.membership, user=user).first()
        if payer is None:
            raise NotFound(
                what=sentence(
                    "membership #{membership} of yours", membership=wish.membership
                )
            )
    now = timezone.now()
    row = queue_for_gaps(
        user=user,
        job=body.dict(exclude={"backfill", "reservation"}),
        membership=payer,
        now=now,
        **wish.dict(exclude={"membership"}),
    )
    return {"backfill": gap_facts(row, now=now)}


@router.get("/jobs/gaps")
def gap_list(
    request: HttpRequest,
    response: HttpResponse,
    ended: bool = False,
    limit: int = Query(MOST_ROWS, ge=1, le=MOST_ROWS),
    cursor: str = CURSOR,
) -> GapList:
    """Jobs in gaps that the caller may see, newest first. ``ended``: also ended
    ones.
    """
    user, now = _user(request), timezone.now()
    rows = visible_gaps(user, live=not ended)
    page, following = cursor_page(rows, by="created_at", cursor=cursor, limit=limit)
    link_next(request, response, following)
    placed = placed_rows(page, user)
    return {
        "gaps": [{**gap_facts(r.row, now=now), "place": r.place} for r in placed],
        "next": following,
    }


@router.get("/jobs/gaps/{int:backfill_id}")
def gap_one(request: HttpRequest, backfill_id: int) -> GapAnswer:
    """A job in gaps, with the numbers of its stretches."""
    rows = Backfill.objects.visible_to(_user(request))
    rows = rows.select_related("owner", "membership__account")
    row = rows.filter(pk=backfill_id).first()
    if row is None:
        raise NotFound(
            what=sentence("job in gaps #{backfill_id}", backfill_id=backfill_id)
        )
    return gap_facts(row, now=timezone.now())


@router.post("/jobs/gaps/{int:backfill_id}/stop")
def gap_stop(
    request: HttpRequest, backfill_id: int, body: StopReason | None = None
) -> GapAnswer:
    """Stop a job in gaps. Its stretch gets TERM, its grace, KILL."""
    now = timezone.now()
    row = stop_in_gaps(
        backfill_id=backfill_id,
        user=_user(request),
        reason=body.reason if body else "",
        now=now,
    )
    return gap_facts(row, now=now)


def _user(request: HttpRequest) -> User:
    assert isinstance(request.user, User)
    return request.user
