"""A websocket between a browser and the program of a workspace, over a stream."""

import asyncio
from collections.abc import Sequence
from typing import Any

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidURI
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from gpuportal.http.bodies import Receive
from gpuportal.http.concurrent_work import until_first_ends
from gpuportal.http.workspace_headers import Header
from placement.access.access_target import AccessTarget
from placement.access.message_turns import FREE_BYTES, message_turn
from placement.protocol.byte_stream import ByteStream
from placement.protocol.stream_refusal import StreamRefused
from telemetry.protocol.request_refusal import RequestRefused
from telemetry.protocol.sentences import sentence

MOST_MESSAGE_BYTES = 32 * 2**20
"""Of one message of the program, such as the picture that a cell shows."""
PARSED_BYTES = 4 * 1024
"""Bytes parsed before other connections get a turn: at most 2048 empty frames."""
HANDSHAKE_SECONDS = 90.0
STALL_SECONDS = 60.0
NORMAL, RESTART = 1000, 1012
OWN_CODES = range(3000, 5000)
PASSED_CODES = frozenset((1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012))
"""Close codes that an endpoint may send (RFC 6455, section 7.4.1)."""


class WorkspaceSocket:
    """One websocket of a browser, and its other half to the program."""

    def __init__(
        self, target: AccessTarget, stream: ByteStream, receive: Receive, send: Any
    ) -> None:
        self.target = target
        self.stream, self.receive, self.send = stream, receive, send
        self._writing = asyncio.Lock()
        self._message = bytearray()
        """The frames of the program's message that have arrived."""
        self._text = False
        self._unparsed_bytes = 0
        """At most so many bytes of the next frame have arrived."""

    async def open(
        self, target: bytes, headers: Sequence[Header], subprotocols: Sequence[str]
    ) -> None:
        """Open both halves, with the subprotocol that the program chose.

        Raises:
            RequestRefused: the program refuses it.
            StreamRefused: the stream has ended.
        """
        host = dict(headers)[b"host"].decode()
        try:
            uri = parse_uri(f"ws://{host}{target.decode('ascii')}")
        except InvalidURI:
            raise RequestRefused(
                "bad-address", sentence("The address cannot be read.")
            ) from None
        wanted = [Subprotocol(word) for word in subprotocols]
        self.there = ClientProtocol(
            uri, subprotocols=wanted or None, max_size=MOST_MESSAGE_BYTES
        )
        request = self.there.connect()
        del request.headers["Host"]
        for name, value in headers:
            request.headers[name.decode("latin1")] = value.decode("latin1")
        self.there.send_request(request)
        async with asyncio.timeout(HANDSHAKE_SECONDS):
            await self._flush()
            early = await self._handshake()
        await self.receive()
        accept = {"type": "websocket.accept", "subprotocol": self.there.subprotocol}
        await self.send(accept)
        for event in early:
            await self._pass_event(event)

    async def _handshake(self) -> list[Any]:
        """Read the program's answer. Return the frames that came with it."""
        while True:
            events = self.there.events_received()
            if events and isinstance(events[0], Response):
                if self.there.handshake_exc is None:
                    return events[1:]
                break
            if self.there.handshake_exc is not None:
                break
            piece = await self.stream.read()
            if piece is None:
                break
            self.there.receive_data(piece.data)
        raise RequestRefused(
            "bad-answer", sentence("The workspace refuses the connection.")
        )

    async def run(self) -> None:
        """Carry messages until either half has ended.

        Raises:
            StreamRefused: the stream has ended, or the node reads nothing.
        """
        await until_first_ends(self._from_browser(), self._from_program())

    async def _from_browser(self) -> None:
        while True:
            message = await self.receive()
            if message["type"] == "websocket.disconnect":
                code = message.get("code") or NORMAL
                if self.there.state is State.OPEN:
                    self.there.send_close(code if _may_be_sent(code) else NORMAL)
                    await self._flush()
                return
            if self.there.state is not State.OPEN:
                continue
            text = message.get("text")
            if text is not None:
                self.there.send_text(text.encode())
            else:
                self.there.send_binary(message.get("bytes") or b"")
            await self._flush()

    async def _from_program(self) -> None:
        more = True
        while more:
            more = await self._pass_piece()
            if more and self._kept_bytes > FREE_BYTES:
                async with message_turn(self.target):
                    while more and self._kept_bytes > FREE_BYTES:
                        more = await self._pass_piece()

    @property
    def _kept_bytes(self) -> int:
        """Most bytes of the program's messages that are in memory now."""
        return len(self._message) + self._unparsed_bytes

    async def _pass_piece(self) -> bool:
        """Read from the program, and pass on what is complete. Return whether there can
        be more.
        """
        piece = await self.stream.read()
        if piece is None:
            await self.send({"type": "websocket.close", "code": RESTART})
            return False
        for start in range(0, len(piece.data), PARSED_BYTES):
            part = piece.data[start : start + PARSED_BYTES]
            self.there.receive_data(part)
            events = self.there.events_received()
            # The frame that is not complete began in this part, or earlier.
            self._unparsed_bytes = len(part) + (0 if events else self._unparsed_bytes)
            for event in events:
                if await self._pass_event(event):
                    return False
            if events:
                await asyncio.sleep(0)
        await self._flush()
        if self.there.state is not State.OPEN and self.there.close_sent:
            # The program broke the protocol, or its message is too long.
            code = self.there.close_sent.code
            await self.send({"type": "websocket.close", "code": code})
            return False
        return True

    async def _pass_event(self, event: Any) -> bool:
        """Pass a frame of the program to the browser. Return whether it was the
        last.
        """
        if not isinstance(event, Frame):
            return False
        if event.opcode is Opcode.CLOSE:
            code = self.there.close_rcvd.code if self.there.close_rcvd else NORMAL
            known = code if _may_be_sent(code) else NORMAL
            await self.send({"type": "websocket.close", "code": known})
            return True
        if event.opcode in (Opcode.TEXT, Opcode.BINARY):
            self._text = event.opcode is Opcode.TEXT
        elif event.opcode is not Opcode.CONT:
            return False  # the library answers pings
        self._message += event.data
        if event.fin:
            data, self._message = self._message, bytearray()
            if self._text:
                words = data.decode(errors="replace")
                await self.send({"type": "websocket.send", "text": words})
            else:
                await self.send({"type": "websocket.send", "bytes": bytes(data)})
        return False

    async def _flush(self) -> None:
        """Send to the program what the protocol has to send.

        Raises:
            StreamRefused: the stream has ended, or the node reads nothing.
        """
        async with self._writing:
            try:
                async with asyncio.timeout(STALL_SECONDS):
                    for data in self.there.data_to_send():
                        if data:  # b"" is the end, and the stream ends with the block
                            await self.stream.write(data)
            except TimeoutError:
                raise StreamRefused(
                    "stream-lost", sentence("The node has taken nothing for a minute.")
                ) from None


def _may_be_sent(code: int) -> bool:
    return code in PASSED_CODES or code in OWN_CODES
