"""Planning in a separate process, in a fair order.

A plan of a large model takes seconds of arithmetic in Python. In the web process it
would block the interpreter and with it every page. So the web process passes whole
requests for plans, and for files that are parsed, to one child
(``planner_process.py``): the same Django, at a lower priority. Several requests run
there at once, because some only wait for a parser, each in a worker that the child
forked. The order of requests, and how many run and wait, is decided for the whole site
(`placement/plans/site_slots.py`): the User with the fewest running requests is next,
and among those the one served longest ago. While the broker is away, each web process
counts only its own.
"""

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import IO, Any

from django.conf import settings
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.utils import translation

from gpuportal.http import problems
from placement.plans.site_slots import (
    OUTAGES,
    POLL_SECONDS,
    SiteSlots,
    SlotLimits,
    SlotTicket,
    SlotVerdict,
)
from telemetry.protocol.request_refusal import RequestRefused
from telemetry.protocol.sentences import sentence
from telemetry.web.error_answers import problem_response

PLANNED = re.compile(
    r"/plan/.*|/serve/new/|/api/v1/(plans|models)(/.*)?|/api/v1/serve/files"
)
"""Addresses that plan, or that parse a model."""
SLOTS = 8
"""Requests that run at once on the site, and so at most in one child."""
MOST_RUNNING_PER_USER = 2
MOST_PER_USER = 4
"""Requests of one User that run or wait."""
MOST_WAITING = 48
MOST_WAIT_SECONDS = 40.0
"""Longest wait for a turn. A proxy gives up on an answer after 60 s."""
MOST_ANSWER_SECONDS = 150.0
"""Longest time of one request: two parsers' limits, and a plan. Then its worker is
ended."""
SPARE_SECONDS = 15.0
"""Time for the child to end the worker. A child that does not is ended itself."""
USUAL_SECONDS = 2.0
"""Assumed time of a request, until it is measured."""
CHILD = "gpuportal.http.planner_process"
ANSWERED, ENDED, TOO_LONG = b"!", b"x", b"t"
"""The child's reply: an answer with its file, or a note that the worker has ended."""
HTTP_SCOPE = (
    *("http_version", "method", "scheme", "path", "query_string", "root_path"),
    *("client", "server"),
)


PART_TEMPLATES = {
    "plan-result": "placement/plans/_plan_busy.html",
    "plan-now": "placement/plans/_plan_now_busy.html",
}
"""Target of a request for a part of a page to the part that reports that it is busy."""


class PlannerBusy(RequestRefused):
    """There is no turn for this request now."""

    def __init__(self, detail: str, retry_seconds: int) -> None:
        super().__init__("planner-busy", detail, retry_seconds=retry_seconds)


class PlannerLost(RequestRefused):
    """The worker or the child ended before it answered."""

    def __init__(self) -> None:
        words = sentence(
            "The planner had to restart. Nothing was saved. Please try again."
        )
        super().__init__("planner-lost", words)


class PlannerTooLong(PlannerLost):
    """The request took longer than `MOST_ANSWER_SECONDS`."""

    def __init__(self) -> None:
        words = sentence(
            "This took longer than {seconds} seconds and was stopped. Nothing was "
            "saved. Try a smaller model or fewer choices.",
            seconds=round(MOST_ANSWER_SECONDS),
        )
        RequestRefused.__init__(self, "planner-too-long", words)


@dataclass(eq=False)
class _Slot:
    """One connection to the child: one request at a time."""

    child: subprocess.Popen[bytes]
    sock: socket.socket


@dataclass
class Planners:
    """The turns and the child of one web process. For its event loop only."""

    _child: subprocess.Popen[bytes] | None = None
    _free: list[_Slot] = field(default_factory=list)
    _waiting: list[SlotTicket] = field(default_factory=list)
    """Requests that wait in this process, in order of arrival."""
    _running: Counter[int] = field(default_factory=Counter)
    _seconds: float = USUAL_SECONDS
    """Average time of requests."""
    _site: SiteSlots = field(default_factory=lambda: SiteSlots("planner"))
    _left: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a request of this process is done, for waiting requests."""

    async def answer(self, request: ASGIRequest, user_pk: int) -> HttpResponse:
        """Return the child's answer to a request.

        Raises:
            PlannerBusy: no turn, and when to try again.
            PlannerLost: its worker, or the child, ended.
        """
        ticket = SlotTicket(user_pk)
        slot = await self._wait_for_slot(ticket)
        try:
            _ask(slot.sock, request, MOST_ANSWER_SECONDS)
        except (OSError, ValueError) as error:
            # The child is gone, or the client left and the body is closed.
            await asyncio.shield(self._release_slot(slot, ticket))
            raise PlannerLost from error
        running = asyncio.ensure_future(self._run(slot, ticket))
        # A client that leaves cancels this, but the slot stays occupied until the child
        # has answered. Nobody may be left to get that answer.
        running.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(running)

    def close(self) -> None:
        """End the child and its workers."""
        if self._child is not None:
            self._end(self._child)

    # --- turns ----------------------------------------------------------------

    async def _wait_for_slot(self, ticket: SlotTicket) -> _Slot:
        """Wait for a turn. Raises PlannerBusy."""
        user_pk = ticket.user_pk
        until = time.monotonic() + MOST_WAIT_SECONDS
        self._waiting.append(ticket)
        try:
            while True:
                self._left.clear()
                verdict, count = await self._verdict(ticket)
                if verdict is SlotVerdict.IN:
                    if slot := self._free_slot():
                        self._running[user_pk] += 1
                        return slot
                elif verdict is SlotVerdict.USER_FULL:
                    raise PlannerBusy(
                        sentence(
                            "{n} of your plans are being computed already. Wait until "
                            "they are done, then try again.",
                            n=MOST_PER_USER,
                        ),
                        self._retry_seconds(count),
                    )
                if verdict is SlotVerdict.ALL_FULL or time.monotonic() >= until:
                    raise self._busy(count)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._left.wait(), POLL_SECONDS)
        except BaseException:
            await asyncio.shield(self._site.leave(ticket))
            raise
        finally:
            self._waiting.remove(ticket)

    async def _verdict(self, ticket: SlotTicket) -> tuple[SlotVerdict, int]:
        """Ask the site for a slot or, while the broker is away, this process."""
        bounds = SlotLimits(
            slots=SLOTS,
            running_per_user=MOST_RUNNING_PER_USER,
            per_user=MOST_PER_USER,
            waiting=MOST_WAITING,
        )
        try:
            return await self._site.enter(ticket, bounds)
        except OUTAGES:
            own = self._running[ticket.user_pk]
            waiting = len(self._waiting) - 1
            # Later requests do not count, so a request that waits is never refused.
            until_this = self._waiting[: self._waiting.index(ticket) + 1]
            of_user = sum(one.user_pk == ticket.user_pk for one in until_this)
            if own + of_user > MOST_PER_USER:
                return SlotVerdict.USER_FULL, own
            if own < MOST_RUNNING_PER_USER and self._running.total() < SLOTS:
                return SlotVerdict.IN, waiting
            return SlotVerdict.WAIT, waiting

    def _busy(self, waiting: int) -> PlannerBusy:
        seconds = self._retry_seconds(waiting)
        return PlannerBusy(
            sentence(
                "The planner is busy with other plans. Try again in {seconds} seconds.",
                seconds=seconds,
            ),
            seconds,
        )

    def _retry_seconds(self, waiting: int) -> int:
        return round(min(60, max(2, self._seconds * (waiting + 1) / SLOTS)))

    def _free_slot(self) -> _Slot | None:
        """Return a connection to the child; None if all are in use."""
        if self._child is None or self._child.poll() is not None:
            self._start()
        # Prefer the one used last, because its worker has loaded everything.
        return self._free.pop() if self._free else None

    async def _release_slot(self, slot: _Slot, ticket: SlotTicket) -> None:
        self._running[ticket.user_pk] -= 1
        self._running += Counter()
        if slot.child is self._child:
            self._free.append(slot)
        await self._site.leave(ticket)
        self._left.set()

    # --- the child ------------------------------------------------------------

    def _start(self) -> None:
        pairs = [socket.socketpair() for _ in range(SLOTS)]
        theirs = [there.fileno() for _, there in pairs]
        self._child = subprocess.Popen(
            [sys.executable, "-m", CHILD, *map(str, theirs)],
            cwd=settings.BASE_DIR,
            stdin=subprocess.DEVNULL,
            pass_fds=theirs,
            start_new_session=True,
        )
        for here, there in pairs:
            there.close()
            here.setblocking(False)
        # The first connection's worker stays, so it is the first to be used.
        self._free = [_Slot(self._child, here) for here, _ in reversed(pairs)]

    def _end(self, child: subprocess.Popen[bytes]) -> None:
        if child is self._child:
            self._child, self._free = None, []
        if child.poll() is None:
            # Signal the child and its workers: they share a session.
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()

    async def _run(self, slot: _Slot, ticket: SlotTicket) -> HttpResponse:
        begun = time.monotonic()
        try:
            async with asyncio.timeout(MOST_ANSWER_SECONDS + SPARE_SECONDS):
                answer = await _receive(slot.sock)
        except (OSError, EOFError, ValueError) as error:
            # TimeoutError is an OSError, too. The child itself failed, so it is ended.
            self._end(slot.child)
            raise PlannerLost from error
        else:
            self._seconds += 0.1 * (time.monotonic() - begun - self._seconds)
            return answer
        finally:
            await self._release_slot(slot, ticket)


def _ask(
    sock: socket.socket, request: ASGIRequest, seconds: float | None = None
) -> None:
    """Send a request over a connection. Return the answer.

    Args:
        sock: the connection.
        request: the request with its body.
        seconds: time after which its worker is ended; None: never.

    Raises:
        OSError: the other side is gone.
        ValueError: the request's body is closed.
    """
    head = {name: request.scope.get(name) for name in HTTP_SCOPE}
    head["seconds"] = seconds
    head["query_string"] = request.scope.get("query_string", b"").decode("latin1")
    head["headers"] = [
        [name.decode("latin1"), value.decode("latin1")]
        for name, value in request.scope["headers"]
    ]
    with tempfile.TemporaryFile() as about:
        about.write(json.dumps(head).encode())
        about.flush()
        body = _file_of(request)
        with contextlib.suppress(BlockingIOError):
            # The worker ended after its answer, which went unnoticed.
            sock.recv(1)
        socket.send_fds(sock, [b"?"], [about.fileno(), body.fileno()])


async def _receive(sock: socket.socket) -> HttpResponse:
    """Return the answer from a connection.

    Raises:
        PlannerLost: the request's worker ended; PlannerTooLong: it took too long.
        EOFError, OSError: the other side is gone.
    """
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(sock, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(sock)
    told, descriptors, _, _ = socket.recv_fds(sock, 1, 1)
    if not told:
        raise EOFError
    if told != ANSWERED or not descriptors:
        raise PlannerTooLong if told == TOO_LONG else PlannerLost
    with os.fdopen(descriptors[0], "rb") as answer:
        answer.seek(0)
        return _response(json.loads(answer.readline()), answer.read())


def _file_of(request: ASGIRequest) -> IO[bytes]:
    """Return a request's body as a file that another process can read."""
    body: Any = request._stream  # type: ignore[attr-defined]
    body.rollover()
    body.flush()
    return body  # type: ignore[no-any-return]


def _response(head: dict[str, Any], content: bytes) -> HttpResponse:
    response = HttpResponse(content, status=head["status"])
    for name in list(response.headers):
        del response.headers[name]
    for name, value in head["headers"]:
        response.headers[name] = value
    for name, value, attributes in head["cookies"]:
        response.cookies[name] = value
        response.cookies[name].update(attributes)
    # The child has logged it if necessary.
    response._has_been_logged = True  # type: ignore[attr-defined]
    return response


def refused_response(request: HttpRequest, refused: RequestRefused) -> HttpResponse:
    """Answer in words: to a program, for a part of a page, or as a page."""
    with translation.override(translation.get_language_from_request(request)):
        response: HttpResponse = problem_response(refused)
        if not problems.wants_problem(request):
            part = request.headers.get("X-Fragment", "")
            busy = isinstance(refused, PlannerBusy)
            template = PART_TEMPLATES.get(part, "429.html") if busy else "429.html"
            words = {"words": refused.detail, "code": refused.status}
            page = HttpResponse(
                render_to_string(template, words), status=refused.status
            )
            page["Retry-After"] = response["Retry-After"]
            response = page
        return _safe(response)


def _safe(response: HttpResponse) -> HttpResponse:
    """Add the headers that Django's chain would have added. It did not run."""
    response["Cache-Control"] = "no-store"
    response["X-Content-Type-Options"] = "nosniff"
    response["Content-Security-Policy"] = (
        "default-src 'self'; object-src 'none'; base-uri 'none'; frame-ancestors 'none'"
    )
    return response
