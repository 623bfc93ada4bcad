"""One change of thread per request: Django's whole chain runs in one thread of a pool.

Every view and nearly every middleware here is synchronous. Django's ASGI handler adapts
each of them separately (two changes of thread per middleware) and starts a thread, and
therefore a database connection, for every request. Together this costs more processor
time than a booking. Here the chain is synchronous, as under WSGI, and is entered once,
in threads that stay and keep their connection for CONN_MAX_AGE. Sockets are not
affected.
"""

import logging
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.handlers.asgi import ASGIHandler, ASGIRequest
from django.db import close_old_connections
from django.http import FileResponse, HttpRequest, StreamingHttpResponse
from django.http.response import HttpResponseBase

from gpuportal.http.bodies import (
    Receive,
    Scope,
    Uploads,
    admitted,
    refusal,
)
from gpuportal.http.planners import (
    PLANNED,
    PlannerLost,
    Planners,
    refused_response,
)
from gpuportal.http.sender import sender_of_scope
from telemetry.protocol.request_refusal import RequestRefused

log = logging.getLogger(__name__)
PIECE_BYTES = 256 * 1024
"""Bytes of a file in memory at once, for each download."""
THREADS = 16
"""Requests at once in one process. More wait in a queue, as they would for the
database."""


class OneHopHandler(ASGIHandler):
    """Answers HTTP. An asynchronous view still works, adapted once."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = ThreadPoolExecutor(THREADS, thread_name_prefix="http")
        self.uploads = Uploads()
        self.planners = Planners()

    def load_middleware(self, is_async: bool = False) -> None:
        """Build the synchronous chain. The argument is ignored."""
        super().load_middleware(is_async=False)

    async def handle(self, scope: Scope, receive: Receive, send: Any) -> None:
        """Answer a request, unless its body is refused."""
        try:
            async with admitted(
                scope, receive, sender=self._sender, uploads=self.uploads
            ) as bounded:
                await super().handle(scope, bounded, send)
        except RequestRefused as refused:
            await self.send_response(refusal(scope, refused), send)

    async def get_response_async(self, request: HttpRequest) -> HttpResponseBase:
        """Run the chain in one thread, or in the planner's process."""
        if settings.PLANNER_PROCESS and isinstance(request, ASGIRequest):
            planned = await self._planned(request)
            if planned is not None:
                return planned
        respond = sync_to_async(
            self.get_response_here, thread_sensitive=False, executor=self.pool
        )
        return await respond(request)

    async def _planned(self, request: ASGIRequest) -> HttpResponseBase | None:
        """Return the planner's answer; None if the request is not for the planner."""
        if not PLANNED.fullmatch(request.path):
            return None
        user_pk = await self._sender(dict(request.scope))
        if user_pk is None:
            # The chain will send it to the login page.
            return None
        try:
            return await self.planners.answer(request, user_pk)
        except RequestRefused as refused:
            if isinstance(refused, PlannerLost):
                log.warning("a planned request was lost: %s", refused.code)
            return refused_response(request, refused)

    async def _sender(self, scope: Scope) -> int | None:
        find = sync_to_async(
            sender_of_scope, thread_sensitive=False, executor=self.pool
        )
        return await find(scope)

    async def send_response(self, response: HttpResponseBase, send: Any) -> None:
        """Send an answer. A file of any length is sent in pieces.

        Django would collect the whole output of a synchronous iterator first.
        """
        if isinstance(response, StreamingHttpResponse) and not response.is_async:
            if isinstance(response, FileResponse):
                response.block_size = PIECE_BYTES
            response.streaming_content = self._pieces(iter(response))
        await super().send_response(response, send)

    async def _pieces(self, content: Iterator[bytes]) -> AsyncIterator[bytes]:
        def step() -> bytes | None:
            return next(content, None)

        ask = sync_to_async(step, thread_sensitive=False, executor=self.pool)
        while (piece := await ask()) is not None:
            yield piece

    def get_response_here(self, request: HttpRequest) -> HttpResponseBase:
        """Run the chain in this thread."""
        # Django's signals for this run in a different thread than the chain.
        close_old_connections()
        try:
            return self.get_response(request)
        finally:
            close_old_connections()
