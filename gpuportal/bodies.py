"""How long a request may be, decided before any of it is kept.

Django writes every body to a temporary file before it looks at who sends it:
without a bound anybody could fill the disk.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from django.conf import settings
from django.http import HttpResponse

from gpuportal import problems
from placement.services.models import MOST_UPLOAD_BYTES

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]

UPLOAD_PATHS = frozenset(
    (
        *("/plan/", "/plan/choose/", "/api/v1/models"),
        *("/serve/new/", "/api/v1/serve/files"),
    )
)
"""Addresses that take a file."""
FORM_BYTES = 2**20
"""Room for a form around a file."""
MIB = 2**20


class BodyTooLarge(Exception):
    """More came than may."""


def most_body_bytes(scope: Scope) -> int:
    """Return how many bytes the body of a request may have.

    Only who shows a session or a token at all may send a file; whether it is a
    good one is seen later.
    """
    names = {name for name, _ in scope["headers"]}
    if scope["path"] in UPLOAD_PATHS and names & {b"cookie", b"authorization"}:
        return MOST_UPLOAD_BYTES + FORM_BYTES
    return settings.DATA_UPLOAD_MAX_MEMORY_SIZE


def bounded(scope: Scope, receive: Receive) -> Receive:
    """Return ``receive`` as it is allowed for this request.

    Raises:
        BodyTooLarge: the request declares too much; the returned function
            raises it where more comes than was allowed.
    """
    most_bytes = most_body_bytes(scope)
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > most_bytes:
            raise BodyTooLarge
    seen_bytes = 0

    async def counted() -> Mapping[str, Any]:
        nonlocal seen_bytes
        message = await receive()
        seen_bytes += len(message.get("body", b""))
        if seen_bytes > most_bytes:
            raise BodyTooLarge
        return message

    return counted


def too_large(scope: Scope) -> HttpResponse:
    """Return 413; no middleware adds to it, so its headers are here."""
    response: HttpResponse = problems.respond(
        problems.problem(
            413,
            code="too-large",
            title="Too large",
            detail=f"A request here may have {most_body_bytes(scope) // MIB} MiB.",
        )
    )
    response["Content-Security-Policy"] = "default-src 'none'; frame-ancestors 'none'"
    response["X-Content-Type-Options"] = "nosniff"
    return response
