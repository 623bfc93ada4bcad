"""The web's end of a node's streams: ``/ws/node/streams/``, an ASGI application.

It passes frames between the node's websocket and the lists of the broker (see
``frame_lists.py``). A frame of the node is accepted only for a stream that was opened
over the same websocket, and only within its credit.
"""

import asyncio
import logging
import secrets
from dataclasses import dataclass, field
from typing import Any

import redis.asyncio
from django.conf import settings

from placement.access.frame_lists import (
    DOWN,
    NODE,
    UP,
    WAIT_SECONDS,
    FrameLists,
    dead,
    forget_node,
    forget_reader,
    frames_of,
    leave,
    note_node,
    read_here,
    stay_alive,
)
from placement.jobs.nodes.node_socket import (
    OUTAGES,
    NodeSocket,
    Receive,
    Scope,
    Send,
    accepted_socket,
)
from placement.protocol.serving_frames import FrameInvalid
from placement.protocol.stream_frames import (
    CloseFrame,
    DataFrame,
    Frame,
    OpenFrame,
    pack_frame,
    unpack_frame,
)
from placement.protocol.stream_refusal import BROKEN, LOST
from placement.protocol.stream_state import CreditCheck, FrameQueue, StreamViolation

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Passing:
    """A stream that passes here."""

    reply: str
    """The web process at its other end."""
    credit: CreditCheck = field(default_factory=CreditCheck)
    ended_by_node: bool = False
    ended_by_web: bool = False


async def relay_streams(scope: Scope, receive: Receive, send: Send) -> None:
    """Carry one websocket of a node until it closes."""
    socket = await accepted_socket(scope, receive, send)
    if socket is not None:
        async with redis.asyncio.Redis.from_url(settings.REDIS_URL) as client:
            await _Relay(socket, client).run()


class _Relay:
    def __init__(self, socket: NodeSocket, client: Any) -> None:
        self.socket, self.redis = socket, client
        self.id = secrets.token_hex(8)
        self.lists = FrameLists(client)
        self.streams: dict[str, _Passing] = {}
        self._outbox = FrameQueue()
        self._filled = asyncio.Event()

    async def run(self) -> None:
        """Carry streams until the node leaves, its token is invalid, or the broker is
        unreachable.
        """
        read_here(DOWN + self.id, self._pass_down)
        try:
            await stay_alive(self.redis, self.id)
            # The newest websocket of a node gets its new streams.
            await note_node(self.redis, self.socket.node, self.id)
            await self.socket.run(
                self._receive_frames(),
                self._receive_far_frames(),
                self._send_frames(),
                self._keep_alive(),
                self.lists.run(),
            )
            for stream, passing in self.streams.items():
                self.lists.put(UP + passing.reply, [CloseFrame(stream, LOST)])
            await self.lists.flush()
        except OUTAGES as error:
            logger.warning("streams of %s are lost: %s", self.socket.node, error)
        finally:
            forget_reader(DOWN + self.id)
        await forget_node(self.redis, self.socket.node, self.id)
        await leave(self.redis, self.id)

    async def _keep_alive(self) -> None:
        key = NODE + self.socket.node
        while True:
            await stay_alive(self.redis, self.id)
            if self.socket.ended.is_set():
                await forget_node(self.redis, self.socket.node, self.id)
                if not self.streams:
                    return
            elif await self.redis.get(key) in (None, self.id.encode()):
                await note_node(self.redis, self.socket.node, self.id)
            gone = await dead(
                self.redis, {passing.reply for passing in self.streams.values()}
            )
            for stream, passing in list(self.streams.items()):
                if passing.reply in gone:
                    self._send(CloseFrame(stream, LOST))
                    self.streams.pop(stream, None)
            await asyncio.sleep(WAIT_SECONDS)

    async def _receive_far_frames(self) -> None:
        async for data in frames_of(self.redis, DOWN + self.id):
            self._pass_down(unpack_frame(data))

    async def _send_frames(self) -> None:
        while True:
            await self._filled.wait()
            self._filled.clear()
            while frame := self._outbox.take():
                data = pack_frame(frame)
                await self.socket.send({"type": "websocket.send", "bytes": data})

    def _pass_down(self, frame: Frame) -> None:
        if isinstance(frame, OpenFrame):
            if self.socket.ended.is_set():
                self.lists.put(UP + frame.reply, [CloseFrame(frame.stream, LOST)])
                return
            self.streams[frame.stream] = _Passing(frame.reply)
            frame = OpenFrame(frame.stream, frame.order, frame.signature)
        passing = self.streams.get(frame.stream)
        if passing is None:
            return
        passing.credit.passed_to_node(frame)
        if isinstance(frame, CloseFrame):
            passing.ended_by_web = True
            self._forget_ended(frame, passing)
        self._send(frame)

    def _send(self, frame: Frame) -> None:
        self._outbox.put(frame)
        self._filled.set()

    async def _receive_frames(self) -> None:
        while True:
            message = await self.socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            try:
                frame = unpack_frame(message.get("bytes") or b"")
            except FrameInvalid as error:
                logger.warning("%s sent an invalid frame: %s", self.socket.node, error)
                continue
            passing = self.streams.get(frame.stream)
            if passing is not None:
                self._pass_up(frame, passing)

    def _pass_up(self, frame: Frame, passing: _Passing) -> None:
        try:
            passing.credit.came_from_node(frame)
            if passing.ended_by_node and _goes_on(frame):
                raise StreamViolation("data or a second end after the end")
        except StreamViolation as violation:
            logger.warning("%s broke a stream: %s", self.socket.node, violation)
            frame = CloseFrame(frame.stream, BROKEN)
            self._send(frame)
        if isinstance(frame, CloseFrame):
            passing.ended_by_node = True
            self._forget_ended(frame, passing)
        self.lists.put(UP + passing.reply, [frame])

    def _forget_ended(self, frame: CloseFrame, passing: _Passing) -> None:
        if frame.code or (passing.ended_by_node and passing.ended_by_web):
            self.streams.pop(frame.stream, None)


def _goes_on(frame: Frame) -> bool:
    """Return whether it can only come before the end of its sender's direction."""
    return isinstance(frame, DataFrame) or (
        isinstance(frame, CloseFrame) and not frame.code
    )
