"""The calendar and the preview of a booking, for programs and for the pages' scripts.

Both need the booking and the waitlist. Other addresses are in the ``api.py`` of their
capability. Every handler parses, calls one service and answers. Refusals are
exceptions, which ``gpuportal.http`` turns into problem details.
"""

import gzip
import json
import re
from datetime import timedelta

from django.http import HttpRequest
from django.utils import timezone
from ninja import Query, Router

from reservations.accounts.ssh_keys.api import router as ssh_keys_router
from reservations.accounts.token_api import router as tokens_router
from reservations.booking import service as booking
from reservations.booking.api import router as bookings_router
from reservations.fairshare.api import router as standing_router
from reservations.notifications.api import router as notices_router
from reservations.presence.api import router as presence_router
from reservations.reports.history_api import router as history_router
from reservations.rules.calendar import CalendarFlexRisk
from reservations.rules.errors import EndNotAfterStart, TooLong
from reservations.series.api import router as series_router
from reservations.sharing.api import router as people_router
from reservations.store.booking_facts import site_policy
from reservations.store.calendar_queries import (
    PlainCalendar,
    Reader,
    calendar_page,
)
from reservations.store.foreign_use import SOON_SECONDS, foreign_gpus
from reservations.waitlist.api import calendar_extras, preview_chance
from reservations.waitlist.api import router as waiting_router
from reservations.waitlist.queries import ExpectedPlace
from reservations.web.api_parts import (
    BookingDecision,
    count_request,
    decision_json,
    own_membership,
    signed_in,
)
from reservations.web.schemas import (
    PreviewIn,
    SpanIn,
)
from telemetry.web.answer_types import Content, EncodedAnswer
from telemetry.web.translation import translated_values

router = Router(tags=["calendar"])
router.add_router("", bookings_router)
router.add_router("", history_router)
router.add_router("", notices_router)
router.add_router("", people_router)
router.add_router("", presence_router)
router.add_router("", series_router)
router.add_router("", ssh_keys_router)
router.add_router("", standing_router)
router.add_router("", tokens_router)
router.add_router("", waiting_router)
LONGEST_VIEW = timedelta(days=62)
_GZIP_ACCEPTED = re.compile(r"\bgzip\b(?!\s*;\s*q=0(?:\.0*)?\s*(?:,|$))", re.IGNORECASE)
_COMPRESS_FROM_BYTES = 1400


class CalendarAnswer(PlainCalendar):
    """The calendar between two instants."""

    waiting: list[ExpectedPlace]
    """Expected places of the caller's waiting requests."""


class BookingPreview(BookingDecision):
    """What a booking would be and cost, or why it is refused."""

    chance: CalendarFlexRisk | None
    """The risk of flex. Null: it cannot be taken."""
    foreign_gpu_ids: list[int]
    """GPUs that a process without a right to them uses now."""


@router.get("/calendar")
def calendar(
    request: HttpRequest, span: Query[SpanIn]
) -> EncodedAnswer[CalendarAnswer]:
    """List the GPUs, and their reservations between two instants."""
    if span.end <= span.start:
        raise EndNotAfterStart(start=span.start, end=span.end)
    if span.end - span.start > LONGEST_VIEW:
        raise TooLong(
            asked_seconds=int((span.end - span.start).total_seconds()),
            longest_seconds=int(LONGEST_VIEW.total_seconds()),
            joined=False,
        )
    user, policy, now = signed_in(request), site_policy(), timezone.now()
    page = calendar_page(
        span.start, span.end, reader=Reader.of(user, policy), policy=policy, now=now
    )
    waiting, chances = calendar_extras(user, span, policy, now)
    for entry in page.reservations if chances else ():
        if entry["id"] in chances:
            entry["chance"] = chances[entry["id"]]
    content: CalendarAnswer = {**page.to_json(), "waiting": waiting}
    return _json(request, content)


def _json(request: HttpRequest, content: Content) -> EncodedAnswer[Content]:
    """Answer with JSON in the reader's language. It contains no secret.

    It is compressed if the client supports that.
    """
    body = json.dumps(translated_values(content), separators=(",", ":")).encode()
    response = EncodedAnswer[Content](content_type="application/json")
    if len(body) >= _COMPRESS_FROM_BYTES:
        response["Vary"] = "Accept-Encoding"
        if _GZIP_ACCEPTED.search(request.headers.get("Accept-Encoding", "")):
            # Level 1: a third of the time of the default, a tenth more bytes.
            body = gzip.compress(body, compresslevel=1, mtime=0)
            response["Content-Encoding"] = "gzip"
    response["Cache-Control"] = "no-store"
    response.content = body
    return response


@router.post("/reservations/preview")
def preview(request: HttpRequest, wish: PreviewIn) -> BookingPreview:
    """Check a booking, or a change of ``ignoring``, without making it."""
    user = signed_in(request)
    now = count_request(user, writes=False)
    decision = booking.preview(
        user=user,
        membership=own_membership(user, wish.membership),
        gpu_ids=wish.gpu_ids,
        start=wish.start,
        end=wish.end,
        now=now,
        ignoring=wish.ignoring,
        voucher_id=wish.voucher,
    )
    chance = preview_chance(user, wish, decision, now)
    soon = wish.start < now + timedelta(seconds=SOON_SECONDS) and not wish.ignoring
    used = sorted(foreign_gpus() & set(wish.gpu_ids)) if soon else []
    return {**decision_json(decision), "chance": chance, "foreign_gpu_ids": used}
