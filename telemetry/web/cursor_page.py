"""Pages of a list, newest first, that stay stable while rows are added.

A cursor names the last row of a page by its time and its number. So a new row does not
move the others, as it does with an offset. A cursor has no secret, and gives no right:
each page has only rows that the caller may see.
"""

import base64
import json
from datetime import datetime
from typing import Any, TypedDict, TypeVar

from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from ninja import Query

from telemetry.protocol.request_refusal import RequestRefused
from telemetry.protocol.sentences import sentence

MOST_CURSOR_CHARACTERS = 200
LARGEST_KEY = 2**62
_FIRST_YEAR, _LAST_YEAR = 2000, 2200
_Row = TypeVar("_Row", bound=Model)
CURSOR: str = Query(
    "",
    max_length=MOST_CURSOR_CHARACTERS,
    description="`next` of the page before. Empty: the first page.",
)
"""A query parameter."""


class NextPage(TypedDict):
    """A list of which there may be more."""

    next: str | None
    """Cursor of the next page, which is also in the header Link. Null: there is no
    more.
    """


def cursor_page(
    rows: QuerySet[_Row], *, by: str, cursor: str, limit: int, offset: int = 0
) -> tuple[list[_Row], str | None]:
    """Return a page of rows, newest first, and the cursor of the next one.

    Args:
        rows: those that the caller may see.
        by: the time of a row, a path of fields that is never null.
        cursor: of the page. "": the first one.
        limit: most rows of the page.
        offset: rows to leave out, for programs that use no cursor.

    Raises:
        RequestRefused: the cursor is not one of this list, or there is an offset, too.
    """
    if cursor:
        if offset:
            raise _refused("offset", sentence("Give a cursor or an offset, not both."))
        at, pk = _read(cursor)
        rows = rows.filter(Q(**{f"{by}__lt": at}) | Q(**{by: at, "pk__lt": pk}))
    found = list(rows.order_by(f"-{by}", "-pk")[offset : offset + limit + 1])
    if len(found) <= limit:
        return found, None
    return found[:limit], _written(found[limit - 1], by)


def link_next(
    request: HttpRequest, response: HttpResponse, following: str | None
) -> None:
    """Set the header Link (RFC 8288) to the address of the next page, if any."""
    if following is not None:
        query = request.GET.copy()
        query.pop("offset", None)
        query["cursor"] = following
        response["Link"] = f'<{request.path}?{query.urlencode()}>; rel="next"'


def _written(row: Model, by: str) -> str:
    value: Any = row
    for name in by.split("__"):
        value = getattr(value, name)
    told = json.dumps([value.isoformat(), row.pk], separators=(",", ":"))
    return base64.urlsafe_b64encode(told.encode()).decode().rstrip("=")


def _read(cursor: str) -> tuple[datetime, int]:
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        told = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
        text, pk = told
        at = datetime.fromisoformat(text)
        good = (
            type(pk) is int
            and 0 < pk <= LARGEST_KEY
            and at.tzinfo is not None
            and _FIRST_YEAR <= at.year <= _LAST_YEAR
        )
    except (ValueError, TypeError, RecursionError):
        good = False
    if not good:
        words = sentence("It is not the cursor of a page of this list.")
        raise _refused("cursor", words)
    return at, pk


def _refused(field: str, words: str) -> RequestRefused:
    return RequestRefused("invalid", words, fields={field: words})
