"""A person's standing for programs: rank, quotas and ledger."""

from typing import TypedDict

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from ninja import Query, Router

from reservations.fairshare import service as standing_service
from reservations.fairshare.rights_text import RightsAnswer, rights_json
from reservations.fairshare.service import MembershipStanding, QuotaStanding
from reservations.store.calendar_queries import iso
from reservations.web.api_parts import hours_of, signed_in
from telemetry.web.answer_types import UtcInstant
from telemetry.web.cursor_page import CURSOR, NextPage, cursor_page, link_next

router = Router(tags=["calendar"])
LEDGER_ROWS = 50
MOST_LEDGER_ROWS = 200


class QuotaPoint(TypedDict):
    """What is left of a quota at an instant."""

    at: UtcInstant
    left_credits: float


class QuotaAnswer(TypedDict):
    """One quota, in credits (weighted GPU-hours)."""

    account: str
    """Name of the group."""
    own: bool
    """Whether it is the caller's. Otherwise it is the group's."""
    quota_credits: float
    held_credits: float
    left_credits: float
    band: list[QuotaPoint]
    """What is left in the next days."""


class StandingLevel(TypedDict):
    """One level of the tree of shares, from the outermost on."""

    kind: str
    name: str
    title: str
    shares: int | None
    """Null: it shares with the level above."""
    level_fs: float | None
    """Share divided by usage, as Slurm's LevelFS. Null: infinite."""
    usage_credits: float


class MembershipAnswer(TypedDict):
    """The rank and the quotas of one membership."""

    id: int
    account: str
    """Name of the group."""
    rank: int | None
    """1 is served first."""
    of: int
    """Number of memberships."""
    path: list[StandingLevel]
    quotas: list[QuotaAnswer]


class LedgerLine(TypedDict):
    """One row of the ledger."""

    at: UtcInstant
    reservation: int | None
    account: str | None
    """Name of the group."""
    kind: str
    credits: float
    """Weighted GPU-hours. Negative: returned."""
    reason: str


class StandingAnswer(RightsAnswer, NextPage):
    """The caller's rank, quotas and a page of the ledger, to which ``next`` belongs."""

    now: UtcInstant
    memberships: list[MembershipAnswer]
    ledger: list[LedgerLine]
    """Newest first."""


@router.get("/standing")
def standing(
    request: HttpRequest,
    response: HttpResponse,
    limit: int = Query(LEDGER_ROWS, ge=1, le=MOST_LEDGER_ROWS),
    cursor: str = CURSOR,
) -> StandingAnswer:
    """Return the caller's rank, quotas and a page of the ledger, newest rows first."""
    user = signed_in(request)
    rows = standing_service.ledger_of(user).select_related("membership__account")
    page, following = cursor_page(rows, by="at", cursor=cursor, limit=limit)
    link_next(request, response, following)
    found = standing_service.standing(user=user, now=timezone.now())
    return {
        "now": iso(found.now),
        "memberships": [_standing_json(own) for own in found.memberships],
        **rights_json(found),
        "ledger": [
            {
                "at": iso(row.at),
                "reservation": row.reservation_id,
                "account": row.membership.account.name if row.membership else None,
                "kind": row.kind,
                "credits": hours_of(row.gpu_seconds),
                "reason": row.reason,
            }
            for row in page
        ],
        "next": following,
    }


def _standing_json(own: MembershipStanding) -> MembershipAnswer:
    return {
        "id": own.membership.pk,
        "account": own.membership.account.name,
        "rank": own.place,
        "of": own.of,
        "path": [
            {
                "kind": level.kind,
                "name": level.name,
                "title": level.title,
                "shares": level.shares,
                "level_fs": level.level_fs,
                "usage_credits": round(level.usage_gpu_hours, 3),
            }
            for level in own.path
        ],
        "quotas": [_quota(quota) for quota in own.quotas],
    }


def _quota(quota: QuotaStanding) -> QuotaAnswer:
    return {
        "account": quota.account,
        "own": quota.own,
        "quota_credits": hours_of(quota.quota_gpu_seconds),
        "held_credits": hours_of(quota.held_gpu_seconds),
        "left_credits": hours_of(quota.left_gpu_seconds),
        "band": [
            {"at": iso(point.at), "left_credits": hours_of(point.left_gpu_seconds)}
            for point in quota.band
        ],
    }
