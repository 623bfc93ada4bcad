"""Operations of the API that programs should stop using.

One declaration gives the headers Deprecation (RFC 9745) and Sunset (RFC 8594), the mark
in the schema and the words in the reference.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import wraps
from typing import Any, TypeVar

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.http import http_date
from ninja.decorators import decorate_view

REFERENCE = "/api/v1/docs"
_Operation = TypeVar("_Operation", bound=Callable[..., Any])


@dataclass(frozen=True)
class Deprecation:
    """Why and since when an operation should not be used."""

    since: date
    instead: str
    """What to use: an operation or a parameter, in English."""
    sunset: date | None = None
    """From this day on it may be gone. None: it stays in this version of the API."""

    @property
    def text(self) -> str:
        """Return it as sentences for the description of the operation.

        >>> Deprecation(date(2027, 1, 1), "`GET /b`", date(2028, 1, 1)).text
        'Deprecated since 2027-01-01. It may be gone from 2028-01-01 on. Use `GET /b`.'
        """
        gone = f" It may be gone from {self.sunset} on." if self.sunset else ""
        return f"Deprecated since {self.since}.{gone} Use {self.instead}."

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers of each answer, refusals included.

        >>> Deprecation(date(2027, 1, 1), "`GET /b`", date(2028, 1, 1)).headers
        ... # doctest: +NORMALIZE_WHITESPACE
        {'Deprecation': '@1798761600', 'Sunset': 'Sat, 01 Jan 2028 00:00:00 GMT'}
        """
        found = {"Deprecation": f"@{_unix(self.since)}"}
        if self.sunset:
            found["Sunset"] = http_date(_unix(self.sunset))
        return found


def deprecated(
    since: date, *, instead: str, sunset: date | None = None
) -> Callable[[_Operation], _Operation]:
    """Mark an operation as deprecated. This decorator is below the router's."""
    told = Deprecation(since, instead, sunset)

    def with_headers(run: Callable[..., HttpResponseBase]) -> Any:
        @wraps(run)
        def answer(request: HttpRequest, *args: Any, **values: Any) -> HttpResponseBase:
            response = run(request, *args, **values)
            for name, value in told.headers.items():
                response[name] = value
            link = f'<{REFERENCE}>; rel="deprecation"; type="text/html"'
            before = response.get("Link")
            response["Link"] = f"{before}, {link}" if before else link
            return response

        return answer

    def mark(operation: _Operation) -> _Operation:
        operation.deprecation = told  # type: ignore[attr-defined]
        return decorate_view(with_headers)(operation)

    return mark


def _unix(day: date) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())
