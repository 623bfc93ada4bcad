"""The node's end of streams: one outbound websocket to the portal, always open.

It is another websocket than the one that carries calls to served models, so that a
large call delays no keystroke. All streams of the node share it. Each has its own
credit, so a stream that nobody reads delays no other.

One thread of the node worker, with its own event loop. See
docs/design/placement.md#streams.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import random
import threading
import time
from collections.abc import Mapping

import uvloop
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import InvalidStatus, WebSocketException

from placement.agent.access.kept_connections import kept_connections
from placement.agent.access.services import SERVICES, Service
from placement.agent.job_folder import NodeView
from placement.agent.portal_socket import OlderSockets, serve_until_renewal
from placement.protocol import signing
from placement.protocol.byte_stream import ByteStream
from placement.protocol.commands import check_order
from placement.protocol.node_refusals import OrderRefused
from placement.protocol.serving_frames import MOST_HEAD_BYTES, FrameInvalid
from placement.protocol.stream_frames import (
    PIECE_BYTES,
    CloseFrame,
    Frame,
    OpenFrame,
    StreamOrder,
    pack_frame,
    parse_stream_order,
    unpack_frame,
)
from placement.protocol.stream_refusal import ENDED, LOST, StreamRefused, refusal_of
from placement.protocol.stream_state import FrameQueue
from telemetry.protocol.back_off import BackOff

ADDRESS = "/ws/node/streams/"
MOST_STREAMS = 256
"""Streams of one node at once."""
BACK_OFF_SECONDS = (0.3, 0.5, 1.0, 2.0, 5.0)
OLD_PORTAL_SECONDS = 60.0
"""Pause after a portal that does not know streams. Nodes are upgraded before it."""
STOP_SECONDS = 0.2
MOST_MESSAGE_BYTES = 4 + MOST_HEAD_BYTES + PIECE_BYTES

logger = logging.getLogger(__name__)


class _Link:
    """The services and the outgoing frames of one websocket."""

    def __init__(self) -> None:
        self.tasks: dict[asyncio.Task[None], str] = {}
        """The services that run, with the names of their streams."""
        self.outbox = FrameQueue()
        self.filled = asyncio.Event()

    def push(self, frames: list[Frame]) -> None:
        for frame in frames:
            self.outbox.put(frame)
        self.filled.set()

    async def send_all(self, socket: ClientConnection) -> None:
        while True:
            await self.filled.wait()
            self.filled.clear()
            while frame := self.outbox.take():
                await socket.send(pack_frame(frame))


class NodeStreams:
    """The streams of one node; ``run`` is a thread's whole life."""

    def __init__(
        self, node: NodeView, services: Mapping[str, Service] = SERVICES
    ) -> None:
        self.node = node
        self.services = services
        self.streams: dict[str, ByteStream] = {}
        self._used: set[str] = set()
        """Streams that were opened, until their orders expire: none opens twice."""
        self._expiries: list[tuple[float, str]] = []
        """A heap with the expiry of their orders (Unix time)."""

    def run(self, stop: threading.Event) -> None:
        """Serve until `stop` is set. An error is logged and does not end the loop."""
        while not stop.is_set():
            try:
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    runner.run(self._main(stop))
            except Exception:
                logger.exception("streams failed; they begin again")
                stop.wait(1)

    async def _main(self, stop: threading.Event) -> None:
        work = asyncio.create_task(self._keep_connected())
        while not stop.is_set() and not work.done():
            await asyncio.wait({work}, timeout=STOP_SECONDS)
        work.cancel()
        await asyncio.wait({work})
        kept_connections().close()
        if not work.cancelled():
            work.result()

    async def _keep_connected(self) -> None:
        back_off = BackOff(BACK_OFF_SECONDS, jitter=(0.7, 1.3), between=random.uniform)
        older = OlderSockets()

        async def serve(socket: ClientConnection) -> None:
            back_off.succeeded()
            await self._serve(socket)

        while True:
            pause_seconds = None
            try:
                await serve_until_renewal(
                    self.node,
                    ADDRESS,
                    serve,
                    most_bytes=MOST_MESSAGE_BYTES,
                    older=older,
                )
            except InvalidStatus as error:
                logger.info("the portal takes no streams: %s", error)
                pause_seconds = OLD_PORTAL_SECONDS
            except (OSError, TimeoutError, WebSocketException, ValueError) as error:
                logger.info("the connection for streams is closed: %s", error)
            again_seconds = back_off.failed()
            await asyncio.sleep(pause_seconds or again_seconds)

    async def _serve(self, socket: ClientConnection) -> None:
        """Carry all streams of one websocket until it closes."""
        link = _Link()
        sending = asyncio.create_task(link.send_all(socket))
        try:
            async for message in socket:
                try:
                    self._take(
                        unpack_frame(
                            message if isinstance(message, bytes) else message.encode()
                        ),
                        link,
                    )
                except FrameInvalid as error:
                    logger.warning("a frame of the portal is invalid: %s", error)
        finally:
            mine = dict(link.tasks)
            for name in mine.values():
                if stream := self.streams.get(name):
                    # A service may keep its connection for the client.
                    stream.lose(refusal_of(LOST, ""))
            for task in (sending, *mine):
                task.cancel()
            await asyncio.gather(sending, *mine, return_exceptions=True)
            for name in mine.values():
                self.streams.pop(name, None)

    def _take(self, frame: Frame, link: _Link) -> None:
        if not isinstance(frame, OpenFrame):
            if stream := self.streams.get(frame.stream):
                stream.deliver(frame)
            return
        try:
            order = self._checked_order(frame)
            service = self.services.get(order.service)
            if service is None:
                raise StreamRefused(
                    "no-service", f"{self.node.name} does not offer {order.service}."
                )
            if len(self.streams) >= MOST_STREAMS:
                raise StreamRefused(
                    "streams-full", f"{self.node.name} has too many open connections."
                )
        except (OrderRefused, StreamRefused) as refused:
            logger.warning("a stream is refused (%s): %s", refused.code, refused)
            link.push([_close(frame.stream, refused)])
            return
        stream = self.streams[frame.stream] = ByteStream(frame.stream, link.push)
        task = asyncio.create_task(self._run_service(service, order, stream))
        link.tasks[task] = frame.stream
        task.add_done_callback(link.tasks.pop)

    def _checked_order(self, frame: OpenFrame) -> StreamOrder:
        """Return the order of an opening frame.

        Raises:
            OrderRefused: the portal did not sign it for this stream and this moment, or
                it was used before.
        """
        now = time.time()
        try:
            public_pem = self.node.order_key_pem().decode()
        except ValueError as error:
            raise OrderRefused("no-key", str(error)) from error
        signing.verify(frame.order, frame.signature, public_pem)
        order = parse_stream_order(frame.order)
        check_order(order, node=self.node.name, now=now)
        if order.stream != frame.stream:
            raise OrderRefused("malformed", "the order is for another stream")
        while self._expiries and self._expiries[0][0] <= now:
            self._used.discard(heapq.heappop(self._expiries)[1])
        if order.stream in self._used:
            raise OrderRefused("replayed", "this order was received before")
        self._used.add(order.stream)
        heapq.heappush(self._expiries, (order.expires_at, order.stream))
        return order

    async def _run_service(
        self, service: Service, order: StreamOrder, stream: ByteStream
    ) -> None:
        """Run a service until it returns, or its stream is over."""
        serving = asyncio.ensure_future(service(self.node, order, stream))
        over = asyncio.ensure_future(stream.wait_until_over())
        try:
            await asyncio.wait({serving, over}, return_when=asyncio.FIRST_COMPLETED)
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            if not serving.cancelled() and (error := serving.exception()):
                raise error
        except StreamRefused as refused:
            stream.abort(refused.code, str(refused))
        except Exception:
            logger.exception("service %s failed", order.service)
            stream.abort("service-failed", f"{order.service} failed on the node.")
        finally:
            serving.cancel()
            over.cancel()
            stream.finish()
            stream.abort(ENDED)
            self.streams.pop(order.stream, None)


def _close(stream: str, refused: OrderRefused | StreamRefused) -> CloseFrame:
    code = refused.code if isinstance(refused, StreamRefused) else "service-failed"
    detail = "".join(c if c.isprintable() else " " for c in str(refused)[:300])
    return CloseFrame(stream, code, detail)
