"""`/ws/ssh/<reservation>/`: an ssh connection through the portal, for ``gp tunnel``.

An ASGI application, because it carries bytes in both directions. A program shows an API
token with scope ``job``, a page its session. Websockets of other origins were refused
before (``origin.py``). The messages are binary pieces of the connection. The text
message "end" is the end of the sender's direction. One that begins with "warning: " is
for the user's eyes. ``?node=`` names one of several nodes.

A refusal answers the handshake with problem details. A connection that ends later gets
a close code and the sentence. Whether the user may still connect is looked at every few
seconds and when the reservation ends.
"""

import asyncio
import contextlib
import json
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
from placement.access.stream_broker import stream_broker
from placement.protocol.byte_stream import ByteStream
from placement.protocol.end_notice import due_warning
from placement.protocol.stream_refusal import ENDED, StreamRefused
from reservations.accounts.second_factors.sign_in import door_user
from reservations.models import User
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


@dataclass(frozen=True, slots=True)
class _Visit:
    """A request for a connection: the user's credentials, and the node."""

    token: str
    session_key: str | None
    reservation: int
    node: str

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
        async with stream_broker().open(target, "ssh", most=MOST_OF_USER) as stream:
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
    # When the node has ended, nobody reads what the client still sends.
    await until_first_ends(
        _from_client(receive, stream),
        _to_client(stream, send),
        until_access_ends(target, visit.target, _EndWarnings(send).look),
    )


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


async def _from_client(receive: Receive, stream: ByteStream) -> None:
    """Pass on what the client sends. Returns when the client has left.

    One message is read ahead, to notice that the client has left while the node does
    not read. Messages after the stream's end are dropped, and `_to_client` gives the
    reason when everything is read.

    Raises:
        RequestRefused: the client sent something else, or the node takes nothing.
    """
    message = await receive()
    while message["type"] != "websocket.disconnect":
        if stream.takes_now(len(message.get("bytes") or b"")):
            await _pass_on(message, stream)
            message = await receive()
            continue
        passing = asyncio.ensure_future(_pass_on(message, stream))
        following = asyncio.ensure_future(receive())
        both = {passing, following}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if following.done() and following.result()["type"] != MESSAGE:
                return
            await passing
            message = await following
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)


async def _pass_on(message: Mapping[str, Any], stream: ByteStream) -> None:
    data = message.get("bytes")
    if not data and message.get("text") != END:
        raise RequestRefused(
            "bad-request", sentence("Only bytes and “end” can be sent here.")
        )
    try:
        if not data:
            stream.finish()
        elif stream.takes_now(len(data)):
            await stream.write(data)
        else:
            async with asyncio.timeout(STALL_SECONDS):
                await stream.write(data)
    except StreamRefused:
        return
    except TimeoutError:
        raise StreamRefused(
            "stream-lost", sentence("The node has taken nothing for a minute.")
        ) from None


async def _to_client(stream: ByteStream, send: Any) -> None:
    with contextlib.suppress(OSError):
        while piece := await stream.read():
            await send({"type": "websocket.send", "bytes": piece.data})
        await send({"type": "websocket.send", "text": END})


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
