"""Pages of a list that stay stable while rows are added.

A cursor names the last row of a page: by its time and its number where the newest is
first, otherwise by the key that orders the list. So a new row does not move the others,
as it does with an offset. A cursor has no secret, and gives no right: each page has
only rows that the caller may see.
"""

import base64
import json
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, TypedDict, TypeVar

from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from ninja import Query

from telemetry.protocol.request_refusal import RequestRefused
from telemetry.protocol.sentences import sentence

MOST_CURSOR_CHARACTERS = 400
MOST_ROWS = 1000
LARGEST_KEY = 2**62
_FIRST_YEAR, _LAST_YEAR = 2000, 2200
_Row = TypeVar("_Row", bound=Model)
_Item = TypeVar("_Item")
_Key = tuple[str | int, ...]
CURSOR: str = Query(
    "",
    max_length=MOST_CURSOR_CHARACTERS,
    description="`next` of the page before. Empty: the first page.",
)
"""A query parameter."""
ROWS: int | None = Query(
    None, ge=1, le=MOST_ROWS, description="Most rows of a page. Without it: all rows."
)
"""A query parameter of a list that programs read whole before it had pages."""


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


def key_page(
    rows: Iterable[_Item],
    *,
    key: Callable[[_Item], _Key],
    kinds: tuple[type, ...],
    cursor: str,
    limit: int | None,
) -> tuple[list[_Item], str | None]:
    """Return a page of a list in memory, and the cursor of the next page.

    Args:
        rows: the whole list, in any order.
        key: of a row, unique. The list is ordered by it.
        kinds: the types of the key's parts: str or int.
        cursor: of the page. "": the first one.
        limit: most rows of the page. None: all.

    Raises:
        RequestRefused: the cursor is not one of this list.
    """
    found = sorted(rows, key=key)
    if cursor:
        last = _read_key(cursor, kinds)
        found = [row for row in found if key(row) > last]
    if limit is None or len(found) <= limit:
        return found, None
    return found[:limit], _encoded(key(found[limit - 1]))


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
    return _encoded((value.isoformat(), row.pk))


def _encoded(key: _Key) -> str:
    told = json.dumps(key, separators=(",", ":"))
    return base64.urlsafe_b64encode(told.encode()).decode().rstrip("=")


def _decoded(cursor: str) -> Any:
    """Return what a cursor holds. Raises: ValueError, RecursionError."""
    padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
    return json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))


def _read_key(cursor: str, kinds: tuple[type, ...]) -> _Key:
    try:
        told = _decoded(cursor)
    except (ValueError, RecursionError):
        told = None
    if not isinstance(told, list) or tuple(map(type, told)) != kinds:
        raise _not_a_cursor()
    return tuple(told)


def _read(cursor: str) -> tuple[datetime, int]:
    try:
        text, pk = _decoded(cursor)
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
        raise _not_a_cursor()
    return at, pk


def _not_a_cursor() -> RequestRefused:
    words = sentence("It is not the cursor of a page of this list.")
    return _refused("cursor", words)


def _refused(field: str, words: str) -> RequestRefused:
    return RequestRefused("invalid", words, fields={field: words})
