"""`/ws/ssh/<reservation>/`: an ssh connection through the portal, for ``gp tunnel``.

An ASGI application, because it carries bytes in both directions. A program shows an API
token with scope ``job``, a page its session. Websockets of other origins were refused
before (``origin.py``). The messages are binary pieces of the connection. The text
message "end" is the end of the sender's direction. One that begins with "warning: " is
for the user's eyes. ``?node=`` names one of several nodes.

A client that sends ``?session=`` with a secret number can resume its connection: with
the same number and ``&again=1``, after this process or its own network was away. The
reports of ``placement/protocol/stream_frames.py`` pass here between the client and the
node, which counts the bytes. This process keeps nothing.

A refusal answers the handshake with problem details. A connection that ends later gets
a close code and the sentence. Whether the user may still connect is looked at every few
seconds and when the reservation ends.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import parse_qs

from channels.db import database_sync_to_async
from django.utils import timezone

from gpuportal.http.bodies import Receive, Scope
from gpuportal.http.concurrent_work import until_first_ends
from gpuportal.http.socket_close import LOST, NORMAL, OVER, close_socket
from gpuportal.http.token_auth import user_of
from placement.access.access_guard import until_access_ends
from placement.access.access_target import AccessTarget, access_target
from placement.access.end_messages import message_text
from placement.access.ssh_authority import principal_start
from placement.access.stream_broker import stream_broker
from placement.protocol.byte_stream import ByteStream
from placement.protocol.end_notice import due_warning
from placement.protocol.stream_frames import (
    AGAIN,
    CONTROL_COST_BYTES,
    HOLDER,
    SESSION,
    SESSION_ID,
    UNTIL,
    StreamReport,
    report_of,
    text_of,
)
from placement.protocol.stream_refusal import (
    BROKEN,
    ENDED,
    StreamRefused,
    refusal_of,
)
from placement.protocol.stream_refusal import LOST as STREAM_LOST
from reservations.accounts.second_factors.sign_in import door_user
from reservations.models import User
from telemetry.protocol.codec import Malformed, decode
from telemetry.protocol.coded_error import PROBLEM_TYPE, CodedError
from telemetry.protocol.request_refusal import RequestRefused
from telemetry.protocol.sentences import sentence
from telemetry.web.error_answers import message_of, problem_of

SCOPE = "job"
"""An ssh connection runs code, like a job."""
MOST_OF_USER = 16
STALL_SECONDS = 60.0
END = "end"
WARNING = "warning: "
"""Before the words that the client prints."""
MESSAGE = "websocket.receive"
FAREWELLS = (1000, 1001)
"""Codes with which a client closes that needs the connection no more (RFC 6455, 7.4).
"""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Visit:
    """A request for a connection: the user's credentials, and the node."""

    token: str
    session_key: str | None
    reservation: int
    node: str
    session: str = ""
    """The client's number of a connection that it can resume; "": it cannot."""
    again: bool = False

    def options(self, target: AccessTarget) -> dict[str, str | int]:
        """Return what the node needs to know of a connection that can be resumed.

        Raises:
            RequestRefused: the client's number is invalid.
        """
        if not self.session:
            return {}
        if not SESSION_ID.match(self.session):
            raise RequestRefused(
                "bad-request", sentence("The number of the connection is invalid.")
            )
        known: dict[str, str | int] = {
            SESSION: self.session,
            HOLDER: principal_start(target.reservation, target.user_pk),
            UNTIL: str(target.until.timestamp()),
        }
        return known | ({AGAIN: 1} if self.again else {})

    def target(self) -> AccessTarget:
        """Return the node, by the rows of now.

        Raises:
            CodedError: the user is unknown or may not connect.
        """
        return access_target(
            self._user(), self.reservation, timezone.now(), node_name=self.node
        )

    def _user(self) -> User:
        if self.token:
            user = user_of(self.token, scopes=[SCOPE])
            if user is None:
                raise RequestRefused(
                    "signed-out", sentence("Send a token that is valid.")
                )
            return user
        user = door_user(self.session_key, timezone.now())
        if user is None:
            raise RequestRefused(
                "signed-out", sentence("Sign in, or send a token that is valid.")
            )
        return user


async def ssh_door(scope: Scope, receive: Receive, send: Any) -> None:
    """Carry one ssh connection until either end closes it or access ends."""
    await receive()
    visit = _visit_of(scope)
    accepted = False
    try:
        target = await database_sync_to_async(visit.target)()
        options = visit.options(target)
        async with stream_broker().open(
            target, "ssh", most=MOST_OF_USER, options=options
        ) as stream:
            await send({"type": "websocket.accept"})
            accepted = True
            await _carry(visit, target, stream, receive, send)
            await close_socket(send, NORMAL, "")
    except CodedError as refused:
        if not accepted:
            await _deny(scope, send, refused)
        elif refused.code == ENDED:
            await close_socket(send, NORMAL, "")
        else:
            over = refused.status is not None and refused.status < 500
            await close_socket(send, OVER if over else LOST, message_of(refused))


async def _carry(
    visit: _Visit,
    target: AccessTarget,
    stream: ByteStream,
    receive: Receive,
    send: Any,
) -> None:
    """Carry both directions until both have ended or the client leaves.

    Raises:
        CodedError: access or the stream has ended.
    """
    passage = _Passage(stream, receive, send, resumable=bool(visit.session))
    warnings = _EndWarnings(send)

    async def look(now: AccessTarget) -> None:
        await warnings.look(now)
        await passage.report_end(now.until)

    over = False
    try:
        # When the node has ended, nobody reads what the client still sends.
        await until_first_ends(
            passage.from_client(),
            passage.to_client(),
            until_access_ends(target, visit.target, look),
        )
        over = not passage.client_lost
    except CodedError as refused:
        over = refused.status is not None and refused.status < 500
        raise
    finally:
        if not over:
            # The node keeps what can be resumed.
            stream.abort(STREAM_LOST)


class _EndWarnings:
    """The warnings before the end, as text messages that ``gp`` prints.

    If the portal knows the user's name on the node, the node writes the warning to the
    terminal (``placement/access/end_messages.py``). Otherwise this class sends it.
    """

    def __init__(self, send: Any) -> None:
        self.send = send
        self.until: datetime | None = None
        self.told_seconds: int | None = None

    async def look(self, target: AccessTarget) -> None:
        """Send the warning that is due, if any. A new end has its own warnings."""
        if target.until != self.until:
            self.until, self.told_seconds = target.until, None
        left_seconds = (target.until - timezone.now()).total_seconds()
        step = due_warning(left_seconds, self.told_seconds)
        if step is None or target.unix_user:
            return
        self.told_seconds = step
        words = message_text(target.reservation, target.node, left_seconds)
        await self.send({"type": "websocket.send", "text": WARNING + words})


class _Passage:
    """The messages between a client and a stream."""

    def __init__(
        self, stream: ByteStream, receive: Receive, send: Any, *, resumable: bool
    ) -> None:
        self.stream, self.receive, self.send = stream, receive, send
        self.client_lost = False
        """Whether the client's websocket broke without a goodbye."""
        self._resumable = resumable
        self._counting = False
        """Whether the node counts the bytes. An older one does not."""
        self._until: datetime | None = None

    async def report_end(self, until: datetime) -> None:
        """Send the node the new end of access, without waiting."""
        known, self._until = self._until, until
        if self._counting and known not in (None, until):
            report = {UNTIL: until.timestamp()}
            if self.stream.takes_now(CONTROL_COST_BYTES):
                await self.stream.write_control(report)
            else:
                self._until = known

    async def from_client(self) -> None:
        """Pass on what the client sends. Returns when the client has left.

        One message is read ahead, to notice that the client has left while the node
        does not read. Messages after the stream's end are dropped, and `to_client`
        gives the reason when everything is read.

        Raises:
            RequestRefused: the client sent something else, or the node takes nothing.
        """
        message = await self.receive()
        while message["type"] == MESSAGE:
            if self.stream.takes_now(_cost_bytes(message)):
                await self._pass_on(message)
                message = await self.receive()
                continue
            passing = asyncio.ensure_future(self._pass_on(message))
            following = asyncio.ensure_future(self.receive())
            both = {passing, following}
            try:
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                if following.done() and following.result()["type"] != MESSAGE:
                    message = following.result()
                    break
                await passing
                message = await following
            finally:
                for task in both:
                    task.cancel()
                await asyncio.gather(*both, return_exceptions=True)
        self.client_lost = message.get("code") not in FAREWELLS

    async def _pass_on(self, message: Mapping[str, Any]) -> None:
        data, text = message.get("bytes"), message.get("text")
        report = report_of(text) if text and self._counting else None
        if not data and text != END and report is None:
            raise RequestRefused(
                "bad-request", sentence("Only bytes and “end” can be sent here.")
            )
        try:
            if not data and report is None:
                self.stream.finish()
            elif self.stream.takes_now(_cost_bytes(message)):
                await self._write(data, report)
            else:
                async with asyncio.timeout(STALL_SECONDS):
                    await self._write(data, report)
        except StreamRefused:
            return
        except TimeoutError:
            raise StreamRefused(
                "stream-lost", sentence("The node has taken nothing for a minute.")
            ) from None

    async def _write(self, data: bytes | None, report: dict[str, int] | None) -> None:
        if data:
            await self.stream.write(data)
        elif report is not None:
            await self.stream.write_control(report)

    async def to_client(self) -> None:
        """Pass on what the node sends. Returns when it has ended.

        Raises:
            StreamRefused: the stream has ended for another reason.
        """
        with contextlib.suppress(OSError):
            while piece := await self.stream.read():
                if not piece.control:
                    await self.send({"type": "websocket.send", "bytes": piece.data})
                elif text := self._report(piece.data):
                    await self.send({"type": "websocket.send", "text": text})
            await self.send({"type": "websocket.send", "text": END})

    def _report(self, data: bytes) -> str:
        """Return a node's report as text, or "" if this client takes no reports.

        Raises:
            StreamRefused: it is invalid.
        """
        try:
            text = text_of(decode(StreamReport, data)) if self._resumable else ""
        except Malformed as error:
            logger.warning("a report of a node is invalid: %s", error)
            raise refusal_of(BROKEN, "") from None
        self._counting = self._counting or bool(text)
        return text


def _cost_bytes(message: Mapping[str, Any]) -> int:
    """Return the credit that a message takes."""
    return len(message.get("bytes") or b"") or CONTROL_COST_BYTES


def _visit_of(scope: Scope) -> _Visit:
    headers = {bytes(name): bytes(value) for name, value in scope["headers"]}
    kind, _, token = headers.get(b"authorization", b"").decode("latin1").partition(" ")
    query: Mapping[str, list[str]] = parse_qs(
        scope.get("query_string", b"").decode("latin1")
    )
    session = scope.get("session")
    return _Visit(
        token=token.strip() if kind.lower() == "bearer" else "",
        session_key=session.session_key if session else None,
        reservation=int(scope["url_route"]["kwargs"]["pk"]),
        node=query.get("node", [""])[0][:64],
        session=query.get("session", [""])[0][:64],
        again="again" in query,
    )


async def _deny(scope: Scope, send: Any, refused: CodedError) -> None:
    """Answer the handshake with problem details, or a close code where the server
    cannot.
    """
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 4000 + int(refused.status or 0)})
        return
    body = json.dumps(problem_of(refused)).encode()
    await send(
        {
            "type": "websocket.http.response.start",
            "status": int(refused.status or 500),
            "headers": [
                (b"content-type", PROBLEM_TYPE.encode()),
                (b"content-length", str(len(body)).encode()),
                (b"cache-control", b"no-store"),
            ],
        }
    )
    await send({"type": "websocket.http.response.body", "body": body})
