"""Limits of request bodies: their size, their senders, how many at once, and their
time.

Django writes every body to a temporary file before it checks the sender. So the limits
are here, before that: a small body from anybody, a file only from a User with a valid
session or token, a few files at once, on a disk with space for them, and none slower
than a bad connection.
"""

import asyncio
import shutil
import socket
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import translation

from gpuportal.http import problems
from gpuportal.http.socket_language import language_of_browser
from placement.plans.model_registry import MOST_UPLOAD_BYTES
from placement.plans.site_slots import (
    OUTAGES,
    SiteSlots,
    SlotLimits,
    SlotTicket,
    SlotVerdict,
)
from telemetry.protocol.request_refusal import RequestRefused
from telemetry.protocol.sentences import sentence
from telemetry.web.error_answers import problem_response

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Sender = Callable[[Scope], Awaitable[int | None]]

UPLOAD_PATHS = frozenset(
    (
        *("/plan/", "/plan/choose/", "/api/v1/models"),
        *("/serve/new/", "/api/v1/serve/files"),
    )
)
"""Addresses that take a file."""
FORM_BYTES = 2**20
"""Room for a form around a file."""
MOST_UPLOADS = 8
"""Uploads at once on the site."""
MOST_UPLOADS_PER_USER = 2
COPIES = 3
"""Copies of an upload on the disk at once: the body, the file in it, the parser's."""
SPARE_BYTES = 2**30
"""Bytes that an upload must leave free on the disk."""
GRACE_SECONDS = 30.0
LEAST_BYTES_PER_SECOND = 64 * 1024
"""A body may take the grace, and one second per this many bytes."""


class Uploads:
    """The uploads that one web process receives, counted for the whole site.

    While the broker is away, each web process counts only its own.
    """

    def __init__(self) -> None:
        self._by_user: Counter[int] = Counter()
        self._bytes = 0
        self._site = SiteSlots("uploads")

    @asynccontextmanager
    async def counted_upload(
        self, user_pk: int, size_bytes: int
    ) -> AsyncIterator[None]:
        """Count an upload while it arrives.

        Raises:
            RequestRefused: too many at once, or no space for it.
        """
        ticket = SlotTicket(user_pk, size_bytes=size_bytes)
        try:
            self._check(await self._verdict(ticket))
            self._by_user[user_pk] += 1
            self._bytes += size_bytes
            try:
                await self._check_disk()
                yield
            finally:
                self._by_user[user_pk] -= 1
                self._by_user += Counter()
                self._bytes -= size_bytes
        finally:
            await asyncio.shield(self._site.leave(ticket))

    async def _verdict(self, ticket: SlotTicket) -> SlotVerdict:
        bounds = SlotLimits(
            slots=MOST_UPLOADS,
            running_per_user=MOST_UPLOADS_PER_USER,
            per_user=MOST_UPLOADS_PER_USER,
        )
        try:
            return (await self._site.enter(ticket, bounds))[0]
        except OUTAGES:
            if self._by_user[ticket.user_pk] >= MOST_UPLOADS_PER_USER:
                return SlotVerdict.USER_FULL
            full = self._by_user.total() >= MOST_UPLOADS
            return SlotVerdict.ALL_FULL if full else SlotVerdict.IN

    def _check(self, verdict: SlotVerdict) -> None:
        """Raise RequestRefused unless the upload is allowed."""
        if verdict is SlotVerdict.USER_FULL:
            raise RequestRefused(
                "too-many-uploads",
                sentence(
                    "You are uploading {n} files already. Send this one when they "
                    "are done.",
                    n=MOST_UPLOADS_PER_USER,
                ),
                title=sentence("Too many files at once"),
                retry_seconds=10,
            )
        if verdict is not SlotVerdict.IN:
            raise RequestRefused(
                "too-many-uploads",
                sentence(
                    "The portal is receiving as many files as it can. Try again in "
                    "half a minute."
                ),
                title=sentence("Too many files at once"),
                retry_seconds=30,
            )

    async def _check_disk(self) -> None:
        """Raise RequestRefused if the running uploads do not fit on the disk."""
        try:
            coming_bytes = await self._site.held_bytes(socket.gethostname())
        except OUTAGES:
            coming_bytes = self._bytes
        free_bytes = shutil.disk_usage(tempfile.gettempdir()).free
        if free_bytes - COPIES * coming_bytes < SPARE_BYTES:
            raise RequestRefused(
                "storage-full",
                sentence("There is no space for this file. Please tell the lab admin."),
                title=sentence("The portal's disk is full"),
            )


@asynccontextmanager
async def admitted(
    scope: Scope, receive: Receive, *, sender: Sender, uploads: Uploads
) -> AsyncIterator[Receive]:
    """Yield ``receive`` as it is allowed for this request.

    Args:
        scope: of the request.
        receive: its body's pieces.
        sender: returns the User behind a request's session or token; None: nobody.
        uploads: the running uploads.

    Raises:
        RequestRefused: the body is not allowed. The yielded function raises it if more
            arrives than was declared, or if it arrives too slowly.
    """
    declared, chunked, credentials = _declared_body(scope)
    small = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    large = chunked or (declared or 0) > small
    if not (large and credentials and scope["path"] in UPLOAD_PATHS):
        yield bounded(receive, _allowed_bytes(declared, small))
        return
    most_bytes = _allowed_bytes(declared, MOST_UPLOAD_BYTES + FORM_BYTES)
    user_pk = await sender(scope)
    if user_pk is None:
        raise RequestRefused(
            "signed-out",
            sentence("Sign in again, or send a token that is valid. No file was read."),
            title=sentence("Signed out"),
        )
    size_bytes = most_bytes if declared is None else declared
    async with uploads.counted_upload(user_pk, size_bytes):
        yield bounded(receive, most_bytes)


def _declared_body(scope: Scope) -> tuple[int | None, bool, bool]:
    """Return the declared length, whether it is left open, and whether the request
    names a User."""
    declared, chunked, credentials = None, False, False
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            declared = int(value[:20])
        chunked = chunked or name == b"transfer-encoding"
        credentials = credentials or name in (b"cookie", b"authorization")
    return declared, chunked, credentials


def _allowed_bytes(declared: int | None, most_bytes: int) -> int:
    """Return the limit. Raises RequestRefused if more is declared."""
    if declared is not None and declared > most_bytes:
        raise problems.too_large(most_bytes)
    return most_bytes


def bounded(receive: Receive, most_bytes: int) -> Receive:
    """Return a ``receive`` that raises RequestRefused for too many or too few bytes."""
    loop = asyncio.get_running_loop()
    begun, seen_bytes, whole = loop.time(), 0, False

    async def counted() -> Mapping[str, Any]:
        nonlocal seen_bytes, whole
        if whole:
            # The body is complete. The next message can only be the client's
            # disconnect.
            return await receive()
        until = begun + GRACE_SECONDS + seen_bytes / LEAST_BYTES_PER_SECOND
        try:
            async with asyncio.timeout_at(until):
                message = await receive()
        except TimeoutError:
            raise RequestRefused(
                "slow",
                sentence("The request body did not arrive in time."),
                title=sentence("Too slow"),
            ) from None
        seen_bytes += len(message.get("body", b""))
        if seen_bytes > most_bytes:
            raise problems.too_large(most_bytes)
        whole = not message.get("more_body", False)
        return message

    return counted


def refusal(scope: Scope, refused: RequestRefused) -> HttpResponse:
    """Return the answer; no middleware adds to it, so its headers are here."""
    request = HttpRequest()
    request.path = scope["path"]
    accepts = dict(scope["headers"]).get(b"accept", b"*/*")
    request.META = {"HTTP_ACCEPT": accepts.decode("latin1")}
    response: HttpResponse
    if refused.status == 401 and not problems.wants_problem(request):
        response = redirect("login")
    else:
        with translation.override(language_of_browser(scope)):
            response = problem_response(refused)
    response["Content-Security-Policy"] = "default-src 'none'; frame-ancestors 'none'"
    response["X-Content-Type-Options"] = "nosniff"
    return response
