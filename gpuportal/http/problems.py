"""The refusal for an error of the domain, of Django or of the database.

``telemetry.web.error_answers`` renders it. The API and the pages use this module, and
``middleware.py`` for every error that a view did not handle.
"""

import errno
import re
from collections.abc import Iterator, Mapping

import redis
from django.db import DataError, InterfaceError, OperationalError, ProgrammingError
from django.http import HttpRequest

from telemetry.protocol.coded_error import CodedError
from telemetry.protocol.request_refusal import RequestRefused
from telemetry.protocol.sentences import joined, sentence

# The database or the broker is away. The visitor did not cause it, and it passes.
OUTAGES: tuple[type[Exception], ...] = (
    OperationalError,
    InterfaceError,
    redis.ConnectionError,
    redis.TimeoutError,
)
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def disk_is_full(error: BaseException) -> bool:
    """Return whether something could not be stored because the disk is full."""
    return isinstance(error, OSError) and error.errno in FULL


def refusal_of(
    error: BaseException, request: HttpRequest | None = None
) -> CodedError | None:
    """Return the refusal for an error; None: it is a crash.

    Args:
        error: raised by a view or a middleware.
        request: searched for values that no database can hold; None: not searched.
    """
    if isinstance(error, CodedError):
        return error if error.status is not None else None
    if isinstance(error, OUTAGES):
        return RequestRefused(
            "unavailable",
            sentence("Nothing was changed. Try again in a moment."),
            title=sentence("The portal cannot reach its database"),
        )
    if disk_is_full(error):
        return RequestRefused(
            "storage-full",
            sentence("Nothing was saved. Please tell the lab admin."),
            title=sentence("The portal's disk is full"),
        )
    if request is None:
        return None
    return _unstorable_value(request, error) or _admin_refusal(request, error)


def fields_refusal(fields: Mapping[str, str]) -> RequestRefused:
    """Return the refusal of invalid fields, each with its fault in a sentence."""
    parts = (joined((f"{name}:", text)) for name, text in fields.items())
    return RequestRefused(
        "invalid", joined(parts), title=sentence("Some fields are wrong"), fields=fields
    )


def no_such_address() -> RequestRefused:
    """Return the refusal of an unknown address."""
    return RequestRefused("not-found", sentence("There is nothing at this address."))


def page_expired() -> RequestRefused:
    """Return the refusal of a request whose CSRF token is missing or old."""
    return RequestRefused(
        "page-expired",
        sentence("Nothing was changed. Reload the page and try again."),
        title=sentence("This page has expired"),
    )


def too_large(most_bytes: int) -> RequestRefused:
    """Return the refusal of a body of more than so many bytes."""
    return RequestRefused(
        "too-large",
        sentence(
            "A request to this address may have at most {size} MiB.",
            size=most_bytes // 2**20,
        ),
        title=sentence("Too large"),
    )


LONG_NUMBER = re.compile(r"[0-9]{10,}")


NULL_WORDS = ("NUL (0x00)", "\\u0000", "null character", "null byte")
"""The words of PostgreSQL, its driver, Python and Django for a null character."""
SURROGATE_WORDS = "surrogates not allowed"
"""Python's words for half of a surrogate pair, which JSON can spell and no database
stores.
"""
INSTANT_WORDS = (
    *("time zone displacement", "timestamp out of range", "year is out of"),
    *("date value out of range", "date/time field value out of range"),
)
YEAR = re.compile(r"year -?\d+ is out of range")


def _unstorable_value(
    request: HttpRequest, error: BaseException
) -> RequestRefused | None:
    """Return the refusal of a value that the database cannot hold.

    That is a number of the address or of a form beyond its range (SQLite's driver
    raises OverflowError, PostgreSQL DataError; Django's admin passes on numbers of
    filters and of tampered choices unchecked), a null character, half of a surrogate
    pair, or an instant beyond its range. None: the error has another cause.
    """
    if not isinstance(error, OverflowError | DataError | ValueError):
        return None
    text = str(error)
    if any(words in text for words in NULL_WORDS):
        return RequestRefused(
            "bad-text",
            sentence("Null characters are not allowed. Remove them from the text."),
            title=sentence("A text has a null character"),
        )
    if SURROGATE_WORDS in text:
        return RequestRefused(
            "bad-text",
            sentence(
                "The last character of a text is incomplete. Type the text again."
            ),
            title=sentence("A text has an incomplete character"),
        )
    if any(words in text for words in INSTANT_WORDS) or YEAR.search(text):
        return RequestRefused(
            "bad-instant",
            sentence(
                "Use a year from 2000 to 2200 and a time zone offset of at most 14:00."
            ),
            title=sentence("A date is out of range"),
        )
    if not isinstance(error, OverflowError | DataError):
        return None
    if not LONG_NUMBER.search(request.get_full_path()):
        if not any(map(LONG_NUMBER.search, _texts(request))):
            return None
        return RequestRefused(
            "bad-number",
            sentence("No entry has a number this large. Go back and correct it."),
            title=sentence("A number in the form is too large"),
        )
    return RequestRefused(
        "bad-number",
        sentence("No entry has a number this large. Correct the address."),
        title=sentence("A number in the address is too large"),
    )


NO_NUMBER = re.compile(r"Field '\w+' expected a number but got '")
"""Django's words for a comparison of a text with the numbers of rows."""


def _admin_refusal(request: HttpRequest, error: BaseException) -> RequestRefused | None:
    """Return the refusal of an invalid address or form of Django's own admin.

    Django's admin does not check these: a row's number that is no number (actions,
    histories), a range of other than two values, an unknown field to search for, and an
    invalid date as the initial value of a form. None: the error has another cause.
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
    return RequestRefused(
        "bad-address",
        sentence(
            "The address or the form needs a number or a date in a place where it "
            "has something else. Go back and correct it."
        ),
        title=sentence("There is no such entry"),
    )


def _texts(request: HttpRequest) -> Iterator[str]:
    """Yield the values of a form."""
    for _name, values in request.POST.lists():
        yield from values


def wants_problem(request: HttpRequest) -> bool:
    """Return whether a program sent the request, and not a person with a browser."""
    return request.path.startswith(("/api/", "/node/")) or not request.accepts(
        "text/html"
    )
