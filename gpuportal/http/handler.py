"""One hop per request: the whole of Django's chain in one thread of a pool.

Every view and nearly every middleware here is synchronous. Django's own ASGI
handler adapts each of them by itself (two changes of thread per middleware) and
starts a thread, so a database connection, for every request: together more
processor time than a booking. Here the chain is built synchronous, as under
WSGI, and entered once, in threads that stay and keep their connection as long
as CONN_MAX_AGE says. Sockets are not concerned.
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
    BodyRefused,
    Receive,
    Scope,
    Uploads,
    admitted,
    refusal,
)
from gpuportal.http.planners import (
    PLANNED,
    PlannerBusy,
    PlannerLost,
    Planners,
    busy_response,
    lost_response,
)
from gpuportal.http.sender import sender_of_scope

log = logging.getLogger(__name__)
PIECE_BYTES = 256 * 1024
"""Of a file in memory at once, for each who fetches one."""
THREADS = 16
"""At once in one process; more wait in line, as they would for the database."""


class OneHopHandler(ASGIHandler):
    """Answers HTTP; a view that is asynchronous still works, adapted once."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = ThreadPoolExecutor(THREADS, thread_name_prefix="http")
        self.uploads = Uploads()
        self.planners = Planners()

    def load_middleware(self, is_async: bool = False) -> None:
        """Build the synchronous chain, whatever is asked for."""
        super().load_middleware(is_async=False)

    async def handle(self, scope: Scope, receive: Receive, send: Any) -> None:
        """Answer a request, unless its body may not come."""
        try:
            async with admitted(
                scope, receive, sender=self._sender, uploads=self.uploads
            ) as bounded:
                await super().handle(scope, bounded, send)
        except BodyRefused as refused:
            await self.send_response(refusal(scope, refused), send)

    async def get_response_async(self, request: HttpRequest) -> HttpResponseBase:
        """Run the chain in one thread, or where plans are made."""
        if settings.PLANNER_PROCESS and isinstance(request, ASGIRequest):
            planned = await self._planned(request)
            if planned is not None:
                return planned
        respond = sync_to_async(
            self.get_response_here, thread_sensitive=False, executor=self.pool
        )
        return await respond(request)

    async def _planned(self, request: ASGIRequest) -> HttpResponseBase | None:
        """Return the planner's answer; None: this request is not for it."""
        if not PLANNED.fullmatch(request.path):
            return None
        user_pk = await self._sender(dict(request.scope))
        if user_pk is None:
            # It will be sent to the login page.
            return None
        try:
            return await self.planners.answer(request, user_pk)
        except PlannerBusy as busy:
            return busy_response(request, busy)
        except PlannerLost as lost:
            log.warning("a planned request was lost: %s", type(lost).__name__)
            return lost_response(request, lost)

    async def _sender(self, scope: Scope) -> int | None:
        find = sync_to_async(
            sender_of_scope, thread_sensitive=False, executor=self.pool
        )
        return await find(scope)

    async def send_response(self, response: HttpResponseBase, send: Any) -> None:
        """Send an answer; a file a piece at a time, whatever its length.

        Django by itself would gather all of what a synchronous iterator gives.
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
        # Django's signals for this run in another thread than the chain.
        close_old_connections()
        try:
            return self.get_response(request)
        finally:
            close_old_connections()
