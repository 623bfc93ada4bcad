"""`/ws/board/`: the live board, one socket a page.

The browser gets, in this order, the roster (names of the rows), the holders, and then a
binary frame each second. Details of processes come only after it asks: `{"watch":
"<node>"}`, `{"watch": "*"}` for all nodes, `{"watch": null}` for none; a new request
replaces the old one. With an additional `"gpu": "<uuid>"` the Gpu's node reads rates
that are too expensive to read all the time (PCIe and NVLink) while the page is open.
"""

import asyncio
import contextlib
import json
import logging
import re
import time
from collections import Counter
from typing import Any

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer

from gpuportal.board.board_snapshot import Viewer, viewer_of
from gpuportal.board.shared_state import HOLDERS, board_state
from reservations.models import SitePolicy
from reservations.web.session_consumer import NOT_JSON, SIGNED_OUT, user_of_session
from telemetry.live.broadcast import WATCHED_AGAIN_SECONDS
from telemetry.live.hub import DETAIL, DETAIL_ALL, FRAME, ROSTER, Mailbox, hub
from telemetry.protocol.hardware import NODE_NAME

ClientGone = OSError
"""Errors of an ASGI server whose browser left in the middle of a message (uvicorn's
ClientDisconnected is an OSError)."""
CLOSED_ALREADY = "after sending 'websocket.close'"
"""Text of uvicorn's RuntimeError if it closed the socket itself, for example after a
message that is too long, and has not reported it yet."""
TOO_MANY = 4429
FAILED = 1011
SOCKETS_PER_USER = 30
LONGEST_WISH = 300
GPU_UUID = re.compile(r"[A-Za-z0-9-]{1,80}")
"""Longest message from the browser, in characters."""
DETAILS_PER_FRAME = 8
"""Most nodes whose details go to one browser in a second. With `*` on a large site they
take turns, so that a page costs the same on every site."""

logger = logging.getLogger(__name__)


class BoardConsumer(AsyncWebsocketConsumer):
    """Sends the messages of the Mailbox as fast as the browser takes them."""

    # No channel layer: it would hold another connection to the broker for each page,
    # and nothing here uses it.
    channel_layer_alias = "none"
    recheck_seconds = 60.0
    refused_code = SIGNED_OUT
    """Raised to close the socket of a viewer who may not see the board, or no longer
    may."""
    open_sockets: Counter[int] = Counter()

    viewer: Viewer | None = None

    async def connect(self) -> None:
        """Accept, check the session, then join and send."""
        self.box = Mailbox()
        self.tasks: list[asyncio.Task[None]] = []
        self.watched: str | None = None
        self.looked_at: str | None = None
        self.look_again_at = 0.0
        self.pending: dict[str, bytes] = {}
        self.told_at: dict[str, float] = {}
        self.details_left = DETAILS_PER_FRAME
        # A browser gets a close code only after the socket was accepted.
        await self.accept()
        self.viewer = await self._current_viewer()
        if self.viewer is None:
            await self.close(code=self.refused_code)
            return
        if self.open_sockets[self.viewer.user_pk] >= SOCKETS_PER_USER:
            self.viewer = None
            await self.close(code=TOO_MANY)
            return
        self.open_sockets[self.viewer.user_pk] += 1
        hub().subscribe(self.box, [ROSTER, FRAME])
        board_state().join(self.box)
        self.tasks = [
            asyncio.create_task(self._close_on_failure(self._send_all())),
            asyncio.create_task(self._close_on_failure(self._keep_checking())),
        ]

    async def disconnect(self, code: int) -> None:
        """Leave the hub and the shared state."""
        others = [task for task in self.tasks if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        # Their result does not matter. The following must happen.
        await asyncio.gather(*others, return_exceptions=True)
        hub().unsubscribe(self.box)
        board_state().leave(self.box)
        if self.viewer is not None:
            self.open_sockets[self.viewer.user_pk] -= 1
            if not self.open_sockets[self.viewer.user_pk]:
                del self.open_sockets[self.viewer.user_pk]

    async def receive(
        self, text_data: str | None = None, bytes_data: bytes | None = None
    ) -> None:
        """Handle a subscription request. An invalid one closes the socket."""
        try:
            if not text_data or len(text_data) > LONGEST_WISH:
                raise ValueError("no wish")
            said = json.loads(text_data)
            wish, gpu = said["watch"], said.get("gpu")
            if wish not in (None, "*") and not NODE_NAME.fullmatch(wish):
                raise ValueError("no name of a node")
            if gpu is not None and not GPU_UUID.fullmatch(gpu):
                raise ValueError("no UUID of a Gpu")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            await self.close(code=NOT_JSON)
            return
        if self.viewer is not None:
            self.looked_at, self.look_again_at = gpu, 0.0
            self._watch(wish)

    def _watch(self, wish: str | None) -> None:
        channel = wish and (DETAIL_ALL if wish == "*" else DETAIL + wish)
        if self.watched is not None and self.watched != channel:
            hub().unsubscribe(self.box, [self.watched])
        if channel is not None and channel != self.watched:
            hub().subscribe(self.box, [channel])
        if channel != self.watched:
            self.pending.clear()
            self.told_at.clear()
        self.watched = channel

    async def _current_viewer(self) -> Viewer | None:
        """Return the session's present user and what they may see."""
        session = self.scope.get("session")
        key = session.session_key if session else None
        return await database_sync_to_async(_viewer_of_session)(key)

    async def _keep_checking(self) -> None:
        """Check the session again until it is over. A lost role counts at once."""
        while True:
            await asyncio.sleep(self.recheck_seconds)
            viewer = await self._current_viewer()
            if viewer is None or (
                self.viewer and viewer.user_pk != self.viewer.user_pk
            ):
                await self.close(code=self.refused_code)
                return
            if viewer != self.viewer:
                self.viewer = viewer
                self.box.put(HOLDERS, b"")

    async def _send_all(self) -> None:
        """Send until cancelled. A slow browser makes this wait, but not the Mailbox, so
        missed messages are skipped."""
        while True:
            messages = await self.box.get()
            roster = messages.pop(ROSTER, None)
            frame = messages.pop(FRAME, None)
            if roster is not None:
                await self.send(text_data='{"type":"roster",' + roster.decode()[1:])
            if messages.pop(HOLDERS, None) is not None and self.viewer:
                holders = board_state().holders(self.viewer)
                if holders is not None:
                    await self.send(text_data=holders)
            if frame is not None:
                await self.send(bytes_data=frame)
                self.details_left = DETAILS_PER_FRAME
                await self._renew_watched_gpu()
            self.pending.update(messages)
            await self._send_details()

    async def _renew_watched_gpu(self) -> None:
        """Report again, with each frame, that the page of a Gpu is open."""
        if self.looked_at is not None and time.monotonic() >= self.look_again_at:
            self.look_again_at = time.monotonic() + WATCHED_AGAIN_SECONDS
            await hub().watch_gpu(self.looked_at)

    async def _send_details(self) -> None:
        """Send every node's details once, then those that were not sent for longest."""
        new = [name for name in self.pending if name not in self.told_at]
        old = sorted(self.pending.keys() & self.told_at, key=self.told_at.__getitem__)
        for name in [*new, *old[: self.details_left]]:
            raw = self.pending.pop(name, None)
            if raw is None or self.viewer is None or self.watched is None:
                continue
            if name in self.told_at:
                self.details_left -= 1
            self.told_at[name] = time.monotonic()
            await self.send(
                text_data=await board_state().detail(name, raw, self.viewer)
            )

    async def _close_on_failure(self, work: Any) -> None:
        """A failure closes the socket. The browser connects again."""
        try:
            await work
        except ClientGone:
            return  # disconnect() is called next
        except Exception as error:
            if CLOSED_ALREADY in str(error):
                return
            logger.exception("a board socket failed")
            with contextlib.suppress(ClientGone, RuntimeError):
                await self.close(code=FAILED)


def _viewer_of_session(session_key: str | None) -> Viewer | None:
    user = user_of_session(session_key)
    if user is None:
        return None
    return viewer_of(user, names_visible=SitePolicy.current().names_visible)
