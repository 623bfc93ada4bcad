"""Planning in a process of its own, in fair turns.

A plan of a large model is seconds of arithmetic in Python. In the web process it would
hold the interpreter and every page with it. So the web process passes whole requests
for plans, and for files that are parsed, to one child (``planner_process.py``): the
same Django, at a lower priority. Several requests run there at once, because some only
wait for a parser. Which one is next is decided here: the User with the fewest running,
and among those the one who was served longest ago.
"""

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import IO, Any

from django.conf import settings
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.utils import translation

from gpuportal import problems

PLANNED = re.compile(
    r"/plan/.*|/serve/new/|/api/v1/(plans|models)(/.*)?|/api/v1/serve/files"
)
"""Addresses that plan, or that parse a model."""
SLOTS = 8
"""Requests that run at once in the child."""
MOST_RUNNING_PER_USER = 2
MOST_PER_USER = 4
"""Requests of one User that run or wait."""
MOST_WAITING = 48
MOST_WAIT_SECONDS = 40.0
"""For a turn. A proxy gives up on an answer after 60 s."""
MOST_ANSWER_SECONDS = 150.0
"""Of one request in the child: two parsers' limits, and a plan. Then it is ended."""
USUAL_SECONDS = 2.0
"""What a request takes, until it is known."""
CHILD = "gpuportal.planner_process"
HTTP_SCOPE = (
    *("http_version", "method", "scheme", "path", "query_string", "root_path"),
    *("client", "server"),
)


class PlannerBusy(Exception):
    """There is no turn for this request now."""

    def __init__(self, detail: str, retry_seconds: int) -> None:
        self.detail, self.retry_seconds = detail, retry_seconds
        super().__init__(detail)


class PlannerLost(Exception):
    """The child ended, or was ended, before it answered."""


@dataclass(eq=False)
class _Slot:
    """One connection to the child: one request at a time."""

    child: subprocess.Popen[bytes]
    sock: socket.socket


@dataclass(eq=False)
class _Turn:
    user_pk: int
    given: asyncio.Future[_Slot]


@dataclass
class Planners:
    """The queue and the child of one web process; for its event loop only."""

    _child: subprocess.Popen[bytes] | None = None
    _free: list[_Slot] = field(default_factory=list)
    _waiting: OrderedDict[int, deque[_Turn]] = field(default_factory=OrderedDict)
    _running: Counter[int] = field(default_factory=Counter)
    _served: dict[int, float] = field(default_factory=dict)
    _seconds: float = USUAL_SECONDS
    """Average of what requests took."""

    async def answer(self, request: ASGIRequest, user_pk: int) -> HttpResponse:
        """Return the child's answer to a request.

        Raises:
            PlannerBusy: no turn, and when to try again.
            PlannerLost: the child ended.
        """
        slot = await self._turn(user_pk)
        try:
            _ask(slot.sock, request)
        except (OSError, ValueError) as error:
            # The child is gone, or the body: its client left.
            self._leave(slot, user_pk)
            raise PlannerLost from error
        running = asyncio.ensure_future(self._run(slot, user_pk))
        # A client that leaves cancels this, but the slot stays taken until the child
        # has answered. Nobody may be there to hear how that ended.
        running.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(running)

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._end(self._child)

    # --- turns ----------------------------------------------------------------

    async def _turn(self, user_pk: int) -> _Slot:
        own = self._waiting.get(user_pk, ())
        if len(own) + self._running[user_pk] >= MOST_PER_USER:
            raise PlannerBusy(
                f"{MOST_PER_USER} of your plans are being computed already. Wait "
                f"until they are done, then try again.",
                self._retry_seconds(len(own) + 1),
            )
        count = sum(map(len, self._waiting.values()))
        if count >= MOST_WAITING:
            raise self._busy(count)
        turn = _Turn(user_pk, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(user_pk, deque()).append(turn)
        try:
            self._give()
            async with asyncio.timeout(MOST_WAIT_SECONDS):
                return await turn.given
        except BaseException as error:
            self._forget(turn)
            if isinstance(error, TimeoutError):
                raise self._busy(count) from None
            raise

    def _busy(self, waiting: int) -> PlannerBusy:
        seconds = self._retry_seconds(waiting)
        return PlannerBusy(
            f"The planner is busy with other plans. Try again in {seconds} seconds.",
            seconds,
        )

    def _retry_seconds(self, waiting: int) -> int:
        return round(min(60, max(2, self._seconds * (waiting + 1) / SLOTS)))

    def _give(self) -> None:
        """Give free slots to those whose turn it is."""
        if not self._waiting:
            return
        if self._child is None or self._child.poll() is not None:
            self._start()
        while self._free and (user_pk := self._next()) is not None:
            turns = self._waiting[user_pk]
            turn = turns.popleft()
            if not turns:
                del self._waiting[user_pk]
            if turn.given.done():
                # Its client left a moment ago.
                continue
            self._running[user_pk] += 1
            self._served[user_pk] = time.monotonic()
            turn.given.set_result(self._free.pop())

    def _next(self) -> int | None:
        open_ = [
            user_pk
            for user_pk in self._waiting
            if self._running[user_pk] < MOST_RUNNING_PER_USER
        ]
        return min(
            open_,
            key=lambda user_pk: (
                self._running[user_pk],
                self._served.get(user_pk, 0.0),
            ),
            default=None,
        )

    def _forget(self, turn: _Turn) -> None:
        """Take back a turn that nobody waits for any more."""
        if turn.given.done() and not turn.given.cancelled():
            self._leave(turn.given.result(), turn.user_pk)
            return
        turns = self._waiting.get(turn.user_pk)
        if turns and turn in turns:
            turns.remove(turn)
            if not turns:
                del self._waiting[turn.user_pk]

    def _leave(self, slot: _Slot, user_pk: int) -> None:
        self._running[user_pk] -= 1
        if not self._running[user_pk]:
            del self._running[user_pk]
            if len(self._served) > 1000:
                self._served = {
                    pk: at for pk, at in self._served.items() if pk in self._running
                }
        if slot.child is self._child:
            self._free.append(slot)
        self._give()

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
        self._free = [_Slot(self._child, here) for here, _ in pairs]

    def _end(self, child: subprocess.Popen[bytes]) -> None:
        if child is self._child:
            self._child, self._free = None, []
        if child.poll() is None:
            child.kill()
        child.wait()

    async def _run(self, slot: _Slot, user_pk: int) -> HttpResponse:
        begun = time.monotonic()
        try:
            async with asyncio.timeout(MOST_ANSWER_SECONDS):
                answer = await _hear(slot.sock)
        except (OSError, EOFError, ValueError) as error:
            # TimeoutError is an OSError, too: whatever the child does, it is ended.
            self._end(slot.child)
            raise PlannerLost from error
        else:
            self._seconds += 0.1 * (time.monotonic() - begun - self._seconds)
            return answer
        finally:
            self._leave(slot, user_pk)


def _ask(sock: socket.socket, request: ASGIRequest) -> None:
    """Send a request over a connection.

    Raises:
        OSError: the other side is gone.
        ValueError: the request's body is closed.
    """
    head = {name: request.scope.get(name) for name in HTTP_SCOPE}
    head["query_string"] = request.scope.get("query_string", b"").decode("latin1")
    head["headers"] = [
        [name.decode("latin1"), value.decode("latin1")]
        for name, value in request.scope["headers"]
    ]
    with tempfile.TemporaryFile() as about:
        about.write(json.dumps(head).encode())
        about.flush()
        body = _file_of(request)
        socket.send_fds(sock, [b"?"], [about.fileno(), body.fileno()])


async def _hear(sock: socket.socket) -> HttpResponse:
    """Return what comes back over a connection.

    Raises:
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
    if not told or not descriptors:
        raise EOFError
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
    # The child has logged it, where it was worth it.
    response._has_been_logged = True  # type: ignore[attr-defined]
    return response


def busy_response(request: HttpRequest, busy: PlannerBusy) -> HttpResponse:
    """Return 429 in words: to a program, for a part of a page, or as a page."""
    with translation.override(translation.get_language_from_request(request)):
        return _busy_response(request, busy)


def _busy_response(request: HttpRequest, busy: PlannerBusy) -> HttpResponse:
    seconds = str(busy.retry_seconds)
    response: HttpResponse
    if problems.wants_problem(request):
        response = problems.respond(
            problems.problem(
                HTTPStatus.TOO_MANY_REQUESTS, code="planner-busy", detail=busy.detail
            )
        )
    else:
        part = request.headers.get("HX-Target", "")
        template = {
            "plan-result": "placement/_plan_busy.html",
            "plan-now": "placement/_plan_now_busy.html",
        }.get(part, "429.html")
        words = {"words": busy.detail}
        response = HttpResponse(render_to_string(template, words), status=429)
    response["Retry-After"] = seconds
    return _safe(response)


def lost_response(request: HttpRequest) -> HttpResponse:
    """Return 503: the child ended."""
    with translation.override(translation.get_language_from_request(request)):
        return _lost_response(request)


def _lost_response(request: HttpRequest) -> HttpResponse:
    detail = "The planner had to restart. Nothing was saved. Please try again."
    response: HttpResponse
    if problems.wants_problem(request):
        response = problems.respond(
            problems.problem(
                HTTPStatus.SERVICE_UNAVAILABLE, code="planner-lost", detail=detail
            )
        )
    else:
        page = render_to_string("429.html", {"words": detail, "code": 503})
        response = HttpResponse(page, status=503)
        response["Retry-After"] = str(problems.RETRY_AFTER_SECONDS)
    return _safe(response)


def _safe(response: HttpResponse) -> HttpResponse:
    """Add the headers that Django's chain, which did not run, would have added."""
    response["Cache-Control"] = "no-store"
    response["X-Content-Type-Options"] = "nosniff"
    response["Content-Security-Policy"] = (
        "default-src 'self'; object-src 'none'; base-uri 'none'; frame-ancestors 'none'"
    )
    return response
