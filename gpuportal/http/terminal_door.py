"""`/ws/terminal/<reservation>/`: the terminal in a reservation's page.

An ASGI application, because it carries bytes in both directions. The page shows its
session. Websockets of other origins were refused before (``origin.py``). Binary
messages are keys in one direction, and what the terminal prints in the other. Text
messages of the page are JSON: ``{"size": [columns, rows]}``, which comes first, and
``{"shown": bytes}``, by which it reports what it has drawn. The only text message to
the page is ``{"end": seconds}`` (Unix time), when the reservation has another end. At
most `MOST_UNSHOWN_BYTES` are on their way to a page, so that Ctrl+C stops a flood at
once.

The handshake is accepted before anything is checked, because a page learns nothing of a
refused one. A refusal is a close code and its sentence.
"""

import asyncio
import contextlib
import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any

from channels.db import database_sync_to_async
from django.utils import timezone
from msgspec import Meta

from gpuportal.http.bodies import Receive, Scope
from gpuportal.http.concurrent_work import until_first_ends
from gpuportal.http.socket_close import (
    LOST,
    NORMAL,
    OVER,
    SIGNED_OUT,
    close_socket,
)
from placement.access.access_guard import until_access_ends
from placement.access.access_target import AccessTarget
from placement.access.stream_broker import stream_broker
from placement.planner.launch.workspace_apps import TERMINAL
from placement.protocol.byte_stream import ByteStream
from placement.protocol.stream_refusal import ENDED, StreamRefused
from placement.protocol.terminal_messages import (
    FEWEST,
    KEYS,
    KEYS_BYTES,
    MOST,
    SIZE,
    pack_message,
    pack_size,
)
from placement.workspace.service import VisitTarget, terminal_target
from reservations.accounts.second_factors.sign_in import door_user
from telemetry.protocol.codec import Malformed, decode
from telemetry.protocol.coded_error import CodedError
from telemetry.protocol.request_refusal import RequestRefused
from telemetry.protocol.sentences import sentence
from telemetry.web.error_answers import message_of

MOST_OF_USER = 3
MOST_UNSHOWN_BYTES = 64 * 1024
MOST_WAITING_BYTES = 256 * 1024
"""Typed or pasted bytes that the terminal's program has not read."""
IDLE_SECONDS = 4 * 3600.0


@dataclass(frozen=True, slots=True)
class PageMessage:
    """A text message of the page."""

    size: (
        tuple[
            Annotated[int, Meta(ge=FEWEST, le=MOST)],
            Annotated[int, Meta(ge=FEWEST, le=MOST)],
        ]
        | None
    ) = None
    shown: Annotated[int, Meta(ge=0, le=MOST_UNSHOWN_BYTES)] = 0


async def terminal_door(scope: Scope, receive: Receive, send: Any) -> None:
    """Carry the terminal of one page until either end closes it or access ends."""
    await receive()
    await send({"type": "websocket.accept"})
    session = scope.get("session")
    key = session.session_key if session else None
    pk = int(scope["url_route"]["kwargs"]["pk"])
    try:
        visit = await database_sync_to_async(_visit)(key, pk)
        async with stream_broker().open(
            visit.access,
            TERMINAL,
            most=MOST_OF_USER,
            options={"folder": visit.folder},
            window_bytes=MOST_UNSHOWN_BYTES,
        ) as stream:
            page = _Page(stream, receive, send)

            def access() -> AccessTarget:
                return _visit(key, pk).access

            await until_first_ends(
                page.receive_all(),
                page.pass_keys(),
                page.pass_output(),
                page.until_idle(),
                until_access_ends(visit.access, access, page.tell_end),
            )
            await close_socket(send, NORMAL, "")
    except CodedError as refused:
        if refused.code == ENDED:
            await close_socket(send, NORMAL, "")
        elif refused.code == "signed-out":
            await close_socket(send, SIGNED_OUT, message_of(refused))
        else:
            over = refused.status is not None and refused.status < 500
            await close_socket(send, OVER if over else LOST, message_of(refused))


def _visit(session_key: str | None, pk: int) -> VisitTarget:
    """Return the terminal, by the rows of now.

    Raises:
        CodedError: the user is signed out or has no terminal that runs.
    """
    now = timezone.now()
    user = door_user(session_key, now)
    if user is None:
        raise RequestRefused("signed-out", sentence("Sign in again."))
    return terminal_target(user, pk, now)


@dataclass(slots=True)
class _Page:
    """Both directions of one page's terminal."""

    stream: ByteStream
    receive: Receive
    send: Any
    waiting: bytearray = field(default_factory=bytearray)
    """Messages for the terminal that were not sent yet."""
    unshown_bytes: int = 0
    until: datetime | None = None
    """The end of the reservation that the page knows."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    shown: asyncio.Event = field(default_factory=asyncio.Event)
    typed_at: float = field(default_factory=lambda: asyncio.get_running_loop().time())

    async def receive_all(self) -> None:
        """Take what the page sends. Returns when it has left.

        Raises:
            RequestRefused: it sent something else, or more than the terminal reads.
        """
        while (message := await self.receive())["type"] != "websocket.disconnect":
            if keys := message.get("bytes"):
                self.typed_at = asyncio.get_running_loop().time()
                for start in range(0, len(keys), KEYS_BYTES):
                    self._queue(KEYS, keys[start : start + KEYS_BYTES])
            else:
                self._take(message.get("text") or "")

    def _take(self, text: str) -> None:
        try:
            told = decode(PageMessage, text)
        except Malformed:
            raise RequestRefused(
                "bad-request", sentence("The page sent an invalid message. Reload it.")
            ) from None
        if told.size is not None:
            self._queue(SIZE, pack_size(*told.size))
        self.unshown_bytes = max(0, self.unshown_bytes - told.shown)
        self.shown.set()

    def _queue(self, kind: bytes, content: bytes) -> None:
        if len(self.waiting) > MOST_WAITING_BYTES:
            raise RequestRefused(
                "too-large",
                sentence("The program in the terminal does not read what you paste."),
            )
        self.waiting += pack_message(kind, content)
        self.changed.set()

    async def pass_keys(self) -> None:
        """Pass on what waits, in order. Never returns."""
        while True:
            await self.changed.wait()
            self.changed.clear()
            while self.waiting:
                data = bytes(self.waiting[:KEYS_BYTES])
                await self.stream.write(data)
                del self.waiting[: len(data)]

    async def pass_output(self) -> None:
        """Send what the terminal prints until it ends."""
        with contextlib.suppress(OSError):
            while piece := await self.stream.read():
                data = piece.data
                while self.unshown_bytes + len(data) > MOST_UNSHOWN_BYTES:
                    self.shown.clear()
                    await self.shown.wait()
                self.unshown_bytes += len(data)
                await self.send({"type": "websocket.send", "bytes": data})

    async def tell_end(self, target: AccessTarget) -> None:
        """Send the end of the reservation to the page if it has changed."""
        if self.until is not None and self.until != target.until:
            text = json.dumps({"end": target.until.timestamp()})
            await self.send({"type": "websocket.send", "text": text})
        self.until = target.until

    async def until_idle(self) -> None:
        """Wait until nobody has typed for hours.

        Raises:
            StreamRefused: it is so long. The programs go on in tmux.
        """
        loop = asyncio.get_running_loop()
        while (left := self.typed_at + IDLE_SECONDS - loop.time()) > 0:
            await asyncio.sleep(left)
        raise StreamRefused("access-over", sentence("Nobody typed here for hours."))
