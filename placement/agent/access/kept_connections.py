"""Connections to a service that this node keeps while their client is away.

A client that asked for it (``protocol/stream_frames.py``) finds its connection again
after a restart of the portal: this process holds the TCP connection to the service.
The portal signs an order for each attempt, after it has checked the user's access. The
order names user and reservation, and a connection is found under these and the client's
secret number. So another user's order with the same number finds nothing.

A connection is dropped when the service or the client ends it, when the portal ends it
because access is over, and otherwise after `HOLD_SECONDS` without a client. During this
time it is dropped at the end of access, and when the node's list for ssh no longer has
the user.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from weakref import WeakKeyDictionary

from placement.agent.access import ssh_principals
from placement.agent.access.kept_bytes import KeptBytes
from placement.agent.access.socket_splice import CopyPace
from placement.agent.job_folder import NodeView
from placement.protocol.byte_stream import ByteStream
from placement.protocol.stream_frames import (
    AGAIN,
    HOLDER,
    PIECE_BYTES,
    SESSION,
    SESSION_ID,
    UNTIL,
    StreamOrder,
    StreamReport,
)
from placement.protocol.stream_refusal import BROKEN, ENDED, LOST, StreamRefused
from placement.protocol.stream_state import StreamPiece, StreamViolation
from telemetry.protocol.codec import Malformed, decode

MOST_KEPT = 256
"""Connections of this node, with those whose client is there."""
MOST_OF_USER = 32
HOLD_SECONDS = 120.0
"""How long a connection is kept without a client."""
REPORT_BYTES = 256 * 1024
"""Bytes of a client are reported to it after so many. Earlier clients keep 512 KiB."""
LOOK_SECONDS = 1.0
"""Between two looks whether a connection without a client is still kept."""

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[], Awaitable[Ends]]
Key = tuple[str, int, str]
"""Login, reservation, and the client's number."""
_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, KeptConnections] = (
    WeakKeyDictionary()
)


def kept_connections() -> KeptConnections:
    """Return those of the running loop."""
    loop = asyncio.get_running_loop()
    if loop not in _of_loops:
        _of_loops[loop] = KeptConnections()
    return _of_loops[loop]


class KeptConnections:
    """The connections of one node worker that can be resumed."""

    def __init__(self) -> None:
        self.connections: dict[Key, KeptConnection] = {}

    async def carry(
        self, node: NodeView, order: StreamOrder, stream: ByteStream, connect: Connect
    ) -> None:
        """Carry a connection over a stream until it ends, or the stream is lost.

        Args:
            node: whose list for ssh names the users.
            order: with the options of ``protocol/stream_frames.py``.
            stream: to the client.
            connect: opens the connection to the service, if it is a new one.

        Raises:
            StreamRefused: there are too many, the one to resume is not here, or the
                stream was ended with a reason.
        """
        key = (order.user, order.reservation, str(order.options[SESSION]))
        if not SESSION_ID.match(key[2]):
            raise StreamRefused("bad-request", "The connection's number is invalid.")
        again = AGAIN in order.options
        kept = self._known(key, node) if again else await self._opened(key, connect)
        with contextlib.suppress(ValueError):
            kept.until = float(order.options.get(UNTIL, kept.until))
        try:
            await kept.carry(stream, again=again)
        finally:
            if kept.stream is stream:
                if stream.end_code == LOST:
                    self._hold(key, kept, node, order)
                else:
                    self._drop(key)

    def close(self) -> None:
        """Close all."""
        for key in list(self.connections):
            self._drop(key)

    def _known(self, key: Key, node: NodeView) -> KeptConnection:
        kept = self.connections.get(key)
        if kept is None:
            raise StreamRefused(ENDED, f"{node.name} no longer has this connection.")
        kept.leave_hold()
        return kept

    async def _opened(self, key: Key, connect: Connect) -> KeptConnection:
        self._make_room(key)
        reader, writer = await connect()
        try:
            # Others may have come meanwhile.
            self._make_room(key)
        except StreamRefused:
            writer.close()
            raise
        kept = self.connections[key] = KeptConnection(reader, writer)
        return kept

    def _make_room(self, key: Key) -> None:
        """Drop the oldest connection without a client where there are too many.

        Raises:
            StreamRefused: all have a client, or this one exists already.
        """
        if key in self.connections:
            raise StreamRefused("bad-request", "This connection exists already.")
        for login, most in ((key[0], MOST_OF_USER), (None, MOST_KEPT)):
            group = [one for one in self.connections if login in (None, one[0])]
            if len(group) >= most:
                away = [one for one in group if self.connections[one].away]
                if not away:
                    raise StreamRefused(
                        "streams-full", "There are too many open connections."
                    )
                self._drop(away[0])

    def _hold(
        self, key: Key, kept: KeptConnection, node: NodeView, order: StreamOrder
    ) -> None:
        """Keep a connection without a client for a while, then drop it."""
        end = min(time.time() + HOLD_SECONDS, kept.until)
        holder = str(order.options.get(HOLDER, ""))

        def is_listed() -> bool:
            return ssh_principals.is_listed(node, order.unix_user, holder)

        was_listed = is_listed()

        def look() -> None:
            left_seconds = end - time.time()
            if left_seconds <= 0 or (was_listed and not is_listed()):
                self._drop(key)
                return
            kept.hold(min(LOOK_SECONDS, left_seconds), look)

        look()

    def _drop(self, key: Key) -> None:
        kept = self.connections.pop(key, None)
        if kept is not None:
            kept.leave_hold()
            kept.writer.close()


class KeptConnection:
    """One connection to a service, and what its client does not have yet."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.reader, self.writer = reader, writer
        self.sent = KeptBytes()
        self.taken_bytes = 0
        """Bytes of the client that were given to the service."""
        self.input_ended = False
        """Whether the client sends no more."""
        self.output_ended = False
        """Whether the service sends no more."""
        self.until = float("inf")
        """End of access, as the portal said last (Unix time)."""
        self.stream: ByteStream | None = None
        """The newest stream to the client."""
        self._holding: asyncio.TimerHandle | None = None
        self._turn = asyncio.Lock()
        """The streams of a connection use its ends one after the other."""

    @property
    def away(self) -> bool:
        """Whether there is no client."""
        return self._holding is not None

    def hold(self, seconds: float, look: Callable[[], None]) -> None:
        """Call a function after so many seconds, unless a client comes."""
        self._holding = asyncio.get_running_loop().call_later(seconds, look)

    def leave_hold(self) -> None:
        """A client has come, or it is dropped."""
        if self._holding is not None:
            self._holding.cancel()
            self._holding = None

    async def carry(self, stream: ByteStream, *, again: bool) -> None:
        """Carry it over a stream until both directions have ended.

        Raises:
            StreamRefused: the stream was ended, or a newer one took its place.
        """
        earlier, self.stream = self.stream, stream
        if earlier is not None:
            # The portal may not know yet that this one is lost.
            earlier.abort(LOST)
        async with self._turn:
            if self.stream is not stream:
                raise StreamRefused(LOST, "A newer connection took its place.")
            await _Carriage(self, stream, again=again).run()


class _Carriage:
    """A kept connection over one stream."""

    def __init__(
        self, kept: KeptConnection, stream: ByteStream, *, again: bool
    ) -> None:
        self.kept, self.stream = kept, stream
        self.pace = CopyPace()
        self._reported_bytes = 0
        """Of what the service took, as the client knows."""
        self._unknown = again
        """Whether the client has not said yet how much it has."""
        self._plain = False
        """Whether the client counts nothing."""
        self._due, self._changed = asyncio.Event(), asyncio.Event()

    async def run(self) -> None:
        """Carry both directions until both have ended.

        Raises:
            StreamRefused: the stream was ended with a reason.
        """
        # The client takes a node that sends data first for one that counts nothing.
        await self._report()
        tasks = [
            asyncio.create_task(one())
            for one in (self._read_socket, self._write_socket, self._report_all)
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
        except StreamViolation as violation:
            self.stream.abort(BROKEN, f"The client broke the protocol: {violation}.")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _report(self) -> None:
        """Report what the service took."""
        taken_bytes = self.kept.taken_bytes
        await self.stream.write_control({"received": taken_bytes})
        self._reported_bytes = taken_bytes

    async def _report_all(self) -> None:
        """Report after many bytes. Never returns.

        It has a task, so that the service goes on to take while the client reads
        nothing.
        """
        while True:
            await self._due.wait()
            self._due.clear()
            await self._report()

    async def _write_socket(self) -> None:
        """Copy from the stream to the socket. Never returns."""
        while piece := await self.stream.read():
            if piece.control:
                self._take(piece)
                continue
            if self.kept.input_ended:
                raise StreamViolation("data after the end")
            data = piece.data
            self.pace.moved_bytes += len(data)
            # Nothing may come between the two: a task can be cancelled while it waits.
            self.kept.taken_bytes += len(data)
            self.kept.writer.write(data)
            if self.kept.taken_bytes - self._reported_bytes >= REPORT_BYTES:
                self._due.set()
            with contextlib.suppress(OSError):
                await self.kept.writer.drain()
        self._plain = True
        self._changed.set()
        self._end_input()
        await asyncio.Event().wait()

    def _take(self, piece: StreamPiece) -> None:
        """Accept a report of the client, or of the portal."""
        try:
            report = decode(StreamReport, piece.data)
        except Malformed as error:
            raise StreamViolation(str(error)) from None
        if report.until is not None:
            self.kept.until = report.until
        if report.received is not None:
            self.kept.sent.received(report.received)
            self._unknown = False
        if report.ended is not None:
            if report.ended != self.kept.taken_bytes:
                raise StreamViolation(f"{report.ended} bytes, others came")
            self._end_input()
        self._changed.set()

    def _end_input(self) -> None:
        if not self.kept.input_ended:
            self.kept.input_ended = True
            with contextlib.suppress(OSError):
                self.kept.writer.write_eof()

    async def _read_socket(self) -> None:
        """Copy from the socket to the stream, until the client has everything."""
        kept = self.kept
        await self._until(lambda: not self._unknown)
        if rest := kept.sent.rest():
            await self.stream.write(rest)
        while not kept.output_ended:
            await self._until(lambda: kept.sent.room_bytes > 0)
            size_bytes = min(PIECE_BYTES, kept.sent.room_bytes)
            try:
                data = await kept.reader.read(size_bytes)
            except OSError:
                data = b""
            if not data:
                kept.output_ended = True
                break
            kept.sent.append(data)
            if self._plain:
                kept.sent.received(kept.sent.total_bytes)
            await self.stream.write(data)
            await self.pace.rest_after(len(data))
        if not self._plain:
            total_bytes = kept.sent.total_bytes
            await self.stream.write_control({"ended": total_bytes})
            await self._until(lambda: kept.sent.received_bytes == total_bytes)
        self.stream.finish()

    async def _until(self, reached: Callable[[], bool]) -> None:
        while not (reached() or self._plain):
            self._changed.clear()
            await self._changed.wait()
