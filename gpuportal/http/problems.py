"""Turn an error of the domain into an answer: status, code, sentence (RFC 9457).

Only this module knows both the apps' errors and HTTP. The API and the pages use it, and
``middleware.py`` uses it for errors that a view let through.
"""

import errno
import re
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import redis
from django.db import DataError, InterfaceError, OperationalError, ProgrammingError
from django.http import HttpRequest, JsonResponse
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_noop as noop

from placement.planner.values import errors as placement
from reservations.rules import errors as reservations
from telemetry.protocol import errors as telemetry
from telemetry.web.field_errors import field_sentences
from telemetry.web.translation import translated, translated_values

RETRY_AFTER_SECONDS = 5
CONTENT_TYPE = "application/problem+json"

# The first matching class decides. An error that is not here is a crash.
_STATUSES: tuple[tuple[type[Exception], HTTPStatus], ...] = (
    (reservations.NotAllowed, HTTPStatus.FORBIDDEN),
    (reservations.NotFound, HTTPStatus.NOT_FOUND),
    (reservations.TooFast, HTTPStatus.TOO_MANY_REQUESTS),
    # Refusals, and other errors of booking that its page does not show itself.
    (reservations.BookingError, HTTPStatus.CONFLICT),
    (placement.BadInput, HTTPStatus.UNPROCESSABLE_ENTITY),
    (placement.LogConflict, HTTPStatus.CONFLICT),
    (placement.LogTooLarge, HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
    (telemetry.NodeUnknown, HTTPStatus.NOT_FOUND),
    (telemetry.NodeExists, HTTPStatus.CONFLICT),
    (telemetry.ProbeUnavailable, HTTPStatus.SERVICE_UNAVAILABLE),
    (telemetry.TelemetryError, HTTPStatus.UNPROCESSABLE_ENTITY),
)
# The database or the broker is away, for a while and not by the visitor's fault.
OUTAGES: tuple[type[Exception], ...] = (
    OperationalError,
    InterfaceError,
    redis.ConnectionError,
    redis.TimeoutError,
)
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def disk_is_full(error: BaseException) -> bool:
    """Return whether something could not be stored because space ran out."""
    return isinstance(error, OSError) and error.errno in FULL


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status of an error; None for a crash."""
    if isinstance(error, OUTAGES):
        return HTTPStatus.SERVICE_UNAVAILABLE
    if disk_is_full(error):
        return HTTPStatus.INSUFFICIENT_STORAGE
    for kind, status in _STATUSES:
        if isinstance(error, kind):
            return status
    return None


def problem_of(error: Exception) -> dict[str, object]:
    """Return an error as problem details, ready for JSON.

    Members: type, title, status, code, detail; ``fields`` (name to sentence)
    where fields of a form are wrong; ``numbers`` that the sentence is made of;
    ``next_slot`` where another time would work, ``works_instead`` where a part of the
    GPUs would, at the same time.

    Raises:
        LookupError: the error has no status, so it is a crash.
    """
    status = status_of(error)
    if status is None:
        raise LookupError(f"{type(error).__name__} is a crash, not a refusal")
    if isinstance(error, OUTAGES):
        return problem(
            status,
            code="unavailable",
            title=gettext("The portal cannot reach its database"),
            detail=gettext("Nothing was changed. Try again in a moment."),
        )
    if disk_is_full(error):
        return problem(
            status,
            code="storage-full",
            title=gettext("The portal's disk is full"),
            detail=gettext("Nothing was saved. Please tell the lab admin."),
        )
    members: dict[str, object] = {}
    if isinstance(error, placement.BadInput):
        members["fields"] = error.problems
    elif isinstance(numbers := getattr(error, "fields", None), dict) and numbers:
        members["numbers"] = numbers
    for name in ("next_slot", "works_instead"):
        slot = getattr(error, name, None)
        if slot is not None:
            members[name] = {
                "gpu_ids": list(slot.gpu_ids),
                "start": reservations.json_ready(slot.start),
                "end": reservations.json_ready(slot.end),
            }
    return problem(
        status,
        code=str(getattr(error, "code", "refused")),
        title=str(getattr(error, "title", "")),
        detail=sentence(error),
        **members,
    )


def problem(
    status: int, *, code: str, detail: str, title: str = "", **members: object
) -> dict[str, object]:
    """Return problem details from their parts, in the reader's language.

    A program that names no language reads English. ``numbers`` are for programs and
    stay as they are.
    """
    if "fields" in members:
        members["fields"] = translated_values(members["fields"])
    return {
        "type": f"urn:gpuportal:problem:{code}",
        "title": translated(title) or gettext(HTTPStatus(status).phrase),
        "status": int(status),
        "code": code,
        "detail": translated(detail),
        **members,
    }


PHRASES = (
    *(noop("Bad Request"), noop("Forbidden"), noop("Not Found")),
    *(noop("Method Not Allowed"), noop("Conflict"), noop("Unprocessable Entity")),
    *(noop("Too Many Requests"), noop("Service Unavailable"), noop("Unauthorized")),
)
"""Titles of problems without one, for the translators."""
UNREADABLE = noop("The request's body cannot be read: it must be valid JSON.")


def invalid(errors: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    """Return problem details for values that an operation's schema refuses.

    Args:
        errors: as the schema reports them. A place is (source, parameter, field, ...)
            or (source, field). People know only the field.
    """
    return invalid_fields(field_sentences(errors, skip=2))


def invalid_fields(fields: Mapping[str, str]) -> dict[str, object]:
    """Return problem details for fields with what is wrong with each, in a sentence."""
    return problem(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        code="invalid",
        title=gettext("Some fields are wrong"),
        detail=" ".join(f"{name}: {translated(text)}" for name, text in fields.items()),
        fields=dict(fields),
    )


def not_found() -> dict[str, object]:
    """Return problem details for an address without content."""
    return problem(
        HTTPStatus.NOT_FOUND,
        code="not-found",
        detail=gettext("There is no such thing."),
    )


def sentence(error: Exception) -> str:
    """Return an error's text for a person, in the site's time zone."""
    if isinstance(error, reservations.BookingError):
        return error.text(timezone.get_current_timezone())
    text = getattr(error, "text", None)
    return str(text()) if callable(text) else str(error)


def problem_response(error: Exception) -> JsonResponse:
    """Answer a program with an error of the domain.

    Raises:
        LookupError: the error has no status, so it is a crash.
    """
    return respond(problem_of(error))


def respond(details: dict[str, object]) -> JsonResponse:
    """Answer a program with problem details made elsewhere."""
    status = int(str(details["status"]))
    response = JsonResponse(details, status=status, content_type=CONTENT_TYPE)
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        response["Retry-After"] = str(RETRY_AFTER_SECONDS)
    response["Cache-Control"] = "no-store"
    return response


LONG_NUMBER = re.compile(r"[0-9]{10,}")


NULL_WORDS = ("NUL (0x00)", "\\u0000", "null character", "null byte")
"""How PostgreSQL, its driver, Python and Django name a null character."""
SURROGATE_WORDS = "surrogates not allowed"
"""How Python names half of a character, which JSON can express and no database can
store."""
INSTANT_WORDS = (
    *("time zone displacement", "timestamp out of range", "year is out of"),
    *("date value out of range", "date/time field value out of range"),
)
YEAR = re.compile(r"year -?\d+ is out of range")


def value_problem(request: HttpRequest, error: Exception) -> dict[str, object] | None:
    """Return problem details for a value that the database cannot store.

    Such a value is a number of the address or of a form beyond its range (SQLite's
    driver raises OverflowError, PostgreSQL DataError, and Django's admin passes numbers
    of filters and of tampered choices on unchecked), a null character, half of a
    character, or an instant beyond its range. None: the error has another cause.
    """
    if not isinstance(error, OverflowError | DataError | ValueError):
        return None
    text = str(error)
    if any(words in text for words in NULL_WORDS):
        return problem(
            HTTPStatus.BAD_REQUEST,
            code="bad-text",
            title=gettext("A text has a null character"),
            detail=gettext("Null characters are not allowed. Take it out of the text."),
        )
    if SURROGATE_WORDS in text:
        return problem(
            HTTPStatus.BAD_REQUEST,
            code="bad-text",
            title=gettext("A text has half of a character"),
            detail=gettext("A text ends within a character. Type it again."),
        )
    if any(words in text for words in INSTANT_WORDS) or YEAR.search(text):
        return problem(
            HTTPStatus.BAD_REQUEST,
            code="bad-instant",
            title=gettext("A date is out of range"),
            detail=gettext(
                "The portal knows the years 2000 to 2200 and offsets up to 14:00."
            ),
        )
    if not isinstance(error, OverflowError | DataError):
        return None
    if not LONG_NUMBER.search(request.get_full_path()):
        if not any(map(LONG_NUMBER.search, _texts(request))):
            return None
        return problem(
            HTTPStatus.BAD_REQUEST,
            code="bad-number",
            title=gettext("A number in the form is too large"),
            detail=gettext("Nothing here has such a number. Go back and correct it."),
        )
    return problem(
        HTTPStatus.BAD_REQUEST,
        code="bad-number",
        title=gettext("A number in the address is too large"),
        detail=gettext("Nothing here has such a number. Take it out of the address."),
    )


NO_NUMBER = re.compile(r"Field '\w+' expected a number but got '")
"""Django's error when a text is compared with the numbers of rows."""


def admin_problem(request: HttpRequest, error: Exception) -> dict[str, object] | None:
    """Return problem details for a wrong address or form of Django's own admin.

    The admin passes these on unchecked: a row's number that is not a number (actions,
    histories), a range without exactly two values, an unknown field to search, and an
    invalid initial date of a form. None: the error has another cause.
    """
    match = request.resolver_match
    if match is None or "admin" not in match.namespaces:
        return None
    known = (
        (isinstance(error, ValueError) and NO_NUMBER.match(str(error)))
        or (
            isinstance(error, ProgrammingError)
            and any(name.endswith("__range") for name in request.GET)
        )
        or (
            isinstance(error, AttributeError)
            and (error.name, type(error.obj)) == ("utcoffset", str)
        )
        or (isinstance(error, AttributeError) and error.name == "get_limit_choices_to")
    )
    if not known:
        return None
    return problem(
        HTTPStatus.BAD_REQUEST,
        code="bad-address",
        title=gettext("There is no such row"),
        detail=gettext(
            "The address or the form has something else where a number or a date "
            "belongs. Go back and correct it."
        ),
    )


def _texts(request: HttpRequest) -> Iterator[str]:
    """Yield the values of a form."""
    for _name, values in request.POST.lists():
        yield from values


def wants_problem(request: HttpRequest) -> bool:
    """Return whether a program sent the request, not a person with a browser."""
    return request.path.startswith(("/api/", "/node/")) or not request.accepts(
        "text/html"
    )
