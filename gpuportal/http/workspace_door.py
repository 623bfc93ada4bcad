"""The hosts of workspaces: HTTP and websockets to a program on a node.

This ASGI application is before everything else. A request for a host below
``WORKSPACE_ORIGIN`` never reaches the portal's pages, and every other request never
reaches a workspace. A browser enters with a code that the portal made for a signed-in
User, and gets a cookie for that one host. Everybody else is answered 404. Each request
and each websocket has a separate stream to the node (docs/access.md#workspaces).
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

import h11
from channels.db import database_sync_to_async
from django.template.loader import render_to_string
from django.utils import timezone, translation

from gpuportal.http.bodies import Receive, Scope
from gpuportal.http.concurrent_work import until_first_ends
from gpuportal.http.socket_language import language_of_browser
from gpuportal.http.workspace_banner import (
    SCRIPT,
    SCRIPT_PATH,
    STATE_PATH,
    PageStart,
    end_state,
    is_page,
    opens_page,
    without_compression,
)
from gpuportal.http.workspace_headers import (
    COOKIE,
    MOST_HEADER_BYTES,
    Header,
    WorkspaceRequest,
    check_origin,
    checked_request,
    other_origin,
    to_browser,
    to_program,
)
from gpuportal.http.workspace_socket import WorkspaceSocket
from placement.access.access_guard import RECHECK_SECONDS, until_access_ends
from placement.access.access_target import AccessTarget
from placement.access.stream_broker import stream_broker
from placement.protocol.byte_stream import ByteStream
from placement.protocol.stream_refusal import ENDED, StreamRefused
from placement.workspace.queries import workspace_origin
from placement.workspace.rules import WorkspaceOrigin
from placement.workspace.service import (
    ENTER_PATH,
    VisitTarget,
    use_code,
    visit_target,
)
from reservations.rules.errors import NotFound
from telemetry.protocol.coded_error import CodedError
from telemetry.protocol.request_refusal import RequestRefused
from telemetry.protocol.sentences import sentence
from telemetry.web.error_answers import message_of

SERVICE = "workspace"
MOST_OF_USER = 64
"""Streams of one User at once, websockets included."""
MOST_REQUESTS = 12
"""Requests of one cookie at once in one web process. More of them wait."""
ANSWER_SECONDS = 120.0
"""How long a program may take to begin its answer."""
STALL_SECONDS = 60.0
MOST_VISITS = 4096
OVER, LOST = 4410, 4502
MOST_REASON_BYTES = 123
"""Of a close frame (RFC 6455)."""
SAFE_HEADERS: list[Header] = [
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
]
"""Of the door's own answers."""


@dataclass(slots=True)
class _CookieVisit:
    """The rights of one cookie at one host, as they were read last."""

    cookie: str
    label: str
    seats: asyncio.Semaphore
    found: VisitTarget | None = None
    checked_at: float = 0.0

    def find(self) -> VisitTarget:
        """Read from the database whether it may go on. Raises CodedError."""
        return visit_target(self.cookie, self.label, now=timezone.now())

    def find_access(self) -> AccessTarget:
        """Return the node, by the rows of now. Raises CodedError."""
        return self.find().access

    async def target(self) -> VisitTarget:
        """Return the workspace. Its rows are read again every few seconds.

        Raises:
            CodedError: the cookie opens nothing here now.
        """
        now = asyncio.get_running_loop().time()
        fresh = now - self.checked_at < RECHECK_SECONDS
        if self.found is None or not fresh or self.found.access.until <= timezone.now():
            self.found = None
            self.found = await database_sync_to_async(self.find)()
            self.checked_at = now
        return self.found


class WorkspaceDoor:
    """Answers requests for hosts of workspaces. ``portal`` gets all others."""

    def __init__(self, portal: Any) -> None:
        self.portal = portal
        self._visits: dict[tuple[str, str], _CookieVisit] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Any) -> None:
        """Answer one request or websocket."""
        if scope["type"] not in ("http", "websocket"):
            await self.portal(scope, receive, send)
            return
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        origin = workspace_origin()
        owned = [h for h in hosts if origin and origin.owns(h.decode("latin1"))]
        if not owned and len(hosts) <= 1:
            await self.portal(scope, receive, send)
            return
        answer = _Answer(scope, receive, send)
        try:
            if len(hosts) != 1 or origin is None:
                raise RequestRefused(
                    "bad-request", sentence("The request names more than one host.")
                )
            await self._answer(origin, hosts[0].decode("latin1"), answer)
        except CodedError as refused:
            await answer.refuse(refused)

    async def _answer(
        self, origin: WorkspaceOrigin, host: str, answer: "_Answer"
    ) -> None:
        label = origin.label_of(host)
        request = answer.request()
        if label is None:
            raise NotFound(what=sentence("workspace"))
        own = origin.origin_of(label)
        if answer.is_websocket:
            # A browser always sends the origin of the page that opens a websocket.
            if request.first(b"origin") != own.encode():
                raise other_origin()
        elif request.target.partition(b"?")[0] == ENTER_PATH.encode():
            await self._enter(request, label, answer)
            return
        check_origin(request, own)
        visit = self._visit(request.cookie, label)
        target = await visit.target()
        if not answer.is_websocket and request.target in (SCRIPT_PATH, STATE_PATH):
            await answer.tell_end(target.access, request.target)
            return
        headers = to_program(
            request, host=host, scheme=origin.scheme, websocket=answer.is_websocket
        )
        if answer.is_websocket:
            work = _socket_work(request, headers, answer, target.access)
            await self._carry(visit, target, work)
            return
        async with visit.seats:
            await self._carry(visit, target, _exchange_work(request, headers, answer))

    def _visit(self, cookie: str, label: str) -> _CookieVisit:
        if not cookie:
            raise NotFound(what=sentence("workspace"))
        if len(self._visits) > MOST_VISITS:
            self._visits.clear()
        key = (cookie, label)
        if key not in self._visits:
            seats = asyncio.Semaphore(MOST_REQUESTS)
            self._visits[key] = _CookieVisit(cookie, label, seats)
        return self._visits[key]

    async def _enter(
        self, request: WorkspaceRequest, label: str, answer: "_Answer"
    ) -> None:
        """Take a code, and give the cookie for this host."""
        if request.method != "GET":
            raise RequestRefused(
                "method", sentence("This method is not accepted here.")
            )
        query = parse_qs(request.target.partition(b"?")[2].decode("ascii"))
        code = query.get("code", [""])[0]
        use = database_sync_to_async(use_code)
        cookie = await use(code, label, now=timezone.now())
        if cookie is None:
            raise NotFound(what=sentence("workspace"))
        target = await self._visit(cookie, label).target()
        words = f"{COOKIE}={cookie}; Path=/; Secure; HttpOnly; SameSite=Lax"
        headers = [
            (b"location", target.start_path.encode()),
            (b"set-cookie", words.encode()),
        ]
        await answer.begin(303, [*headers, *SAFE_HEADERS])
        await answer.finish()

    async def _carry(
        self,
        visit: _CookieVisit,
        target: VisitTarget,
        work: Callable[[ByteStream], Any],
    ) -> None:
        """Do work with a stream to the program, while the User may.

        Raises:
            CodedError: access or the stream has ended.
        """
        opened = stream_broker().open(
            target.access, SERVICE, most=MOST_OF_USER, options={"folder": target.folder}
        )
        async with opened as stream:
            await until_first_ends(
                work(stream), until_access_ends(target.access, visit.find_access)
            )


class _Answer:
    """The browser's side of one request or websocket."""

    def __init__(self, scope: Scope, receive: Receive, send: Any) -> None:
        self.scope, self.receive, self.send = scope, receive, send
        self.is_websocket = scope["type"] == "websocket"
        self.begun = False

    def request(self) -> WorkspaceRequest:
        """Return the request. Raises RequestRefused if it is ambiguous."""
        return checked_request(
            self.scope.get("method", "GET"),
            self.scope.get("raw_path") or self.scope["path"].encode(),
            self.scope.get("query_string", b""),
            self.scope["headers"],
        )

    async def begin(self, status: int, headers: list[Header]) -> None:
        """Send status and headers."""
        self.begun = True
        start = {"type": "http.response.start", "status": status, "headers": headers}
        await self.send(start)

    async def pass_body(self, data: bytes) -> None:
        """Send a part of the body."""
        await self.send({"type": "http.response.body", "body": data, "more_body": True})

    async def finish(self, body: bytes = b"") -> None:
        """Send the rest of the body."""
        await self.send({"type": "http.response.body", "body": body})

    async def tell_end(self, access: AccessTarget, path: bytes) -> None:
        """Answer the script that warns before the end, or what it asks."""
        kind, body = b"text/javascript; charset=utf-8", SCRIPT
        if path == STATE_PATH:
            kind = b"application/json"
            with translation.override(language_of_browser(self.scope)):
                body = end_state(access.until, timezone.now())
        headers = [
            (b"content-type", kind),
            (b"content-length", str(len(body)).encode()),
            *SAFE_HEADERS,
        ]
        await self.begin(200, headers)
        await self.finish(b"" if self.scope["method"] == "HEAD" else body)

    async def refuse(self, refused: CodedError) -> None:
        """Answer with the reason; after the beginning only the end can tell."""
        if self.begun:
            if self.is_websocket:
                await self._close(refused)
            return
        if self.is_websocket:
            # The server answers 403. A page cannot read more of a failed handshake.
            await self.send({"type": "websocket.close", "code": OVER})
            return
        status = int(refused.status or 500)
        body = self._page(refused, status)
        headers = [
            (b"content-type", b"text/html; charset=utf-8"),
            (b"content-length", str(len(body)).encode()),
            *SAFE_HEADERS,
        ]
        await self.begin(status, headers)
        await self.finish(b"" if self.scope["method"] == "HEAD" else body)

    def _page(self, refused: CodedError, status: int) -> bytes:
        with translation.override(language_of_browser(self.scope)):
            words = {"text": message_of(refused), "wait": status in (503, 504)}
            return render_to_string("placement/workspace/door.html", words).encode()

    async def _close(self, refused: CodedError) -> None:
        over = refused.status is not None and refused.status < 500
        reason = message_of(refused).encode()[:MOST_REASON_BYTES]
        # The browser may have left already.
        with contextlib.suppress(OSError, RuntimeError):
            await self.send(
                {
                    "type": "websocket.close",
                    "code": OVER if over and refused.code != ENDED else LOST,
                    "reason": reason.decode(errors="ignore"),
                }
            )


def _exchange_work(
    request: WorkspaceRequest, headers: list[Header], answer: _Answer
) -> Callable[[ByteStream], Any]:
    async def work(stream: ByteStream) -> None:
        await _Exchange(request, headers, answer, stream).run()

    return work


def _socket_work(
    request: WorkspaceRequest,
    headers: list[Header],
    answer: _Answer,
    access: AccessTarget,
) -> Callable[[ByteStream], Any]:
    async def work(stream: ByteStream) -> None:
        socket = WorkspaceSocket(access, stream, answer.receive, answer.send)
        wanted = answer.scope.get("subprotocols") or []
        await socket.open(request.target, headers, wanted)
        answer.begun = True
        await socket.run()

    return work


def _bad_answer() -> RequestRefused:
    words = sentence("The workspace’s answer cannot be read.")
    return RequestRefused("bad-answer", words)


class _Exchange:
    """One request and its answer over a stream."""

    def __init__(
        self,
        request: WorkspaceRequest,
        headers: list[Header],
        answer: _Answer,
        stream: ByteStream,
    ) -> None:
        self.request, self.headers = request, headers
        self.with_banner = opens_page(request)
        if self.with_banner:
            self.headers = without_compression(headers)
        self.answer, self.stream = answer, stream
        self.http = h11.Connection(
            h11.CLIENT, max_incomplete_event_size=2 * MOST_HEADER_BYTES
        )

    async def run(self) -> None:
        """Carry both until the answer is complete or the browser leaves.

        Raises:
            CodedError: the stream has ended, or the answer cannot be read.
        """
        try:
            await until_first_ends(self._send_request(), self._pass_answer())
        except TimeoutError:
            raise RequestRefused(
                "no-answer", sentence("The workspace gave no answer in time.")
            ) from None
        except h11.ProtocolError:
            raise _bad_answer() from None

    async def _send_request(self) -> None:
        """Send the request with its body. Returns when the browser has left.

        A program may answer and close before it has read the whole body.
        """
        try:
            await self._send_whole_request()
        except StreamRefused as refused:
            if refused.code != ENDED:
                raise
            await asyncio.get_running_loop().create_future()

    async def _send_whole_request(self) -> None:
        await self._write(
            h11.Request(
                method=self.request.method.encode(),
                target=self.request.target,
                headers=self.headers,
            )
        )
        whole = False
        while True:
            message: Mapping[str, Any] = await self.answer.receive()
            if message["type"] == "http.disconnect":
                return
            if whole:
                continue
            if body := message.get("body", b""):
                await self._write(h11.Data(data=body))
            if not message.get("more_body"):
                whole = True
                await self._write(h11.EndOfMessage())

    async def _write(self, event: Any) -> None:
        data = self.http.send(event)
        try:
            async with asyncio.timeout(STALL_SECONDS):
                await self.stream.write(data or b"")
        except TimeoutError:
            raise StreamRefused(
                "stream-lost", sentence("The node has taken nothing for a minute.")
            ) from None

    async def _pass_answer(self) -> None:
        page: PageStart | None = None
        async with asyncio.timeout(ANSWER_SECONDS) as deadline:
            while True:
                event = self.http.next_event()
                # A part in memory awaits nothing, and others must get a turn.
                await asyncio.sleep(0)
                if event is h11.NEED_DATA:
                    piece = await self._read()
                    self.http.receive_data(piece)
                elif isinstance(event, h11.Response):
                    if event.status_code >= 600:
                        # HTTP does not define it (RFC 9110, 15).
                        raise _bad_answer()
                    deadline.reschedule(None)
                    headers = to_browser(event.headers.raw_items())
                    if self.with_banner and is_page(event.status_code, headers):
                        page = PageStart(headers)
                    else:
                        await self.answer.begin(event.status_code, headers)
                elif isinstance(event, h11.Data):
                    data = bytes(event.data)
                    if page is None:
                        await self.answer.pass_body(data)
                    elif start := page.add(data):
                        page = None
                        await self._pass_start(*start)
                elif isinstance(event, h11.EndOfMessage):
                    if page and (start := page.add(b"", whole=True)):
                        await self._pass_start(*start)
                    await self.answer.finish()
                    return

    async def _pass_start(self, headers: list[Header], body: bytes) -> None:
        await self.answer.begin(200, headers)
        await self.answer.pass_body(body)

    async def _read(self) -> bytes:
        """Return what the program sent next; b"": the end.

        Raises:
            StreamRefused: the stream has ended, or the program closed it without a
                word, because it is not ready.
        """
        piece = await self.stream.read()
        if piece is None and not self.answer.begun:
            raise StreamRefused(
                "not-ready", sentence("The workspace does not answer yet.")
            )
        return piece.data if piece else b""
