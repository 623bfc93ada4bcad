"""A websocket to the portal (RFC 6455), for one thread."""

import base64
import contextlib
import hashlib
import http.client
import os
import select
import socket
import ssl
import struct
import urllib.parse
from functools import cache

from gpuportal_client.portal_api import (
    JSON,
    TIMEOUT_SECONDS,
    Refused,
    problem_of,
    words_of,
)

MOST_FRAME_BYTES = 2**20
RECEIVED_BYTES = 256 * 1024
"""As much as is taken from the connection at once."""
LARGE_BYTES = 16 * 1024
"""Of a message that is masked in another way, because there are many in a copy."""
ACCEPT = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
"""The GUID that a server appends to the key of a handshake (RFC 6455, 1.3)."""
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


class Socket:
    """A websocket to the portal (RFC 6455), with the token, for one thread."""

    def __init__(self, to, path):
        self.line, self.kept, self.parts = _connected(to), bytearray(), b""
        key = base64.b64encode(os.urandom(16))
        parts = urllib.parse.urlsplit(to.url)
        lines = [
            f"GET {parts.path}{path} HTTP/1.1",
            f"Host: {parts.netloc}",
            f"Origin: {parts.scheme}://{parts.netloc}",
            f"Authorization: Bearer {to.token}",
            f"Accept: {JSON}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {key.decode()}",
            "Sec-WebSocket-Version: 13",
        ]
        try:
            self.line.sendall(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
            answer = http.client.HTTPResponse(Unread(self.line))  # type: ignore[arg-type]
            answer.begin()
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise Refused(f"the portal cannot be reached: {error}", 3) from None
        if answer.status != 101:
            said = problem_of(answer)
            status = 3 if answer.status >= 500 else 1
            raise Refused(words_of(said, answer, to), status, str(said.get("code")))
        digest = hashlib.sha1(key + ACCEPT, usedforsecurity=False).digest()
        if answer.headers["Sec-WebSocket-Accept"] != base64.b64encode(digest).decode():
            raise Refused(f"{to.url} is not a GPU Portal", 2)
        self.line.settimeout(0)

    def send(self, kind, data):
        """Send one message."""
        self._put(_frame(kind, data))

    def leave(self):
        """Send a close frame and close the connection, without waiting."""
        with contextlib.suppress(OSError):
            self.line.send(_frame(CLOSE, struct.pack(">H", 1000)))
        self.line.close()

    def _put(self, data):
        """Send all bytes. Wait while the portal takes none."""
        left = memoryview(data)
        while left:
            try:
                left = left[self.line.send(left) :]
            except (BlockingIOError, ssl.SSLWantWriteError):
                select.select([], [self.line], [])
            except ssl.SSLWantReadError:
                select.select([self.line], [], [])
            except OSError as error:
                raise Refused(f"the connection has ended: {error}", 3) from None

    def messages(self):
        """Return the messages that have come, (kind, data), without waiting."""
        try:
            data = self.line.recv(RECEIVED_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError):
            # Of an encrypted connection: something came that is no data.
            return []
        except OSError as error:
            raise Refused(f"the connection has ended: {error}", 3) from None
        if not data:
            raise Refused("the portal closed the connection", 3)
        self.kept += data
        found = []
        while (frame := self._frame()) is not None:
            last, kind, data = frame
            if kind < CLOSE:
                self.parts += data
                data = self.parts
                if not last:
                    continue
                self.parts = b""
            found.append((kind or BINARY, data))
        return found

    def waits(self):
        """Return whether bytes have come that select does not see."""
        return getattr(self.line, "pending", int)() > 0

    def _frame(self):
        """Return the next whole frame: (whether it is the last, kind, data)."""
        size, start = (self.kept[1] & 0x7F if len(self.kept) > 1 else 0), 2
        for mark, form in ((126, ">H"), (127, ">Q")):
            if size == mark:
                start += struct.calcsize(form)
                if len(self.kept) < start:
                    return None
                (size,) = struct.unpack(form, self.kept[2:start])
                break
        if size > MOST_FRAME_BYTES:
            raise Refused("the portal's answer is not valid", 3)
        if len(self.kept) < start + size:
            return None
        lead = self.kept[0]
        with memoryview(self.kept) as kept, kept[start : start + size] as content:
            data = bytes(content)
        del self.kept[: start + size]
        return bool(lead & 0x80), lead & 0x0F, data


def _frame(kind, data):
    """Return one message as bytes. Clients must mask theirs (RFC 6455, 5.2)."""
    size = len(data)
    if size < 126:
        head = struct.pack(">BB", 0x80 | kind, 0x80 | size)
    elif size < 2**16:
        head = struct.pack(">BBH", 0x80 | kind, 0x80 | 126, size)
    else:
        head = struct.pack(">BBQ", 0x80 | kind, 0x80 | 127, size)
    return b"".join([head, *masked(data)])


@cache
def compiled_mask():
    """Return the function of the package websockets, or None where it is missing.

    It is loaded for the first large message only, because that takes time.
    """
    try:
        from websockets.speedups import apply_mask
    except ImportError:
        return None
    return apply_mask


def masked(data):
    """Return a new mask and the data under it (RFC 6455, 5.3).

    The standard library has no function for it. The package websockets has a compiled
    one. Without it, a large message gets each byte of the mask by a table, which takes
    half the time of a large number.
    """
    size, mask = len(data), os.urandom(4)
    if size >= LARGE_BYTES:
        if (compiled := compiled_mask()) is not None:
            return mask, compiled(data, mask)
        hidden = bytearray(size)
        for at, byte in enumerate(mask):
            hidden[at::4] = data[at::4].translate(_table(byte))
        return mask, hidden
    # A large number is much faster than byte after byte.
    over = int.from_bytes((mask * (size // 4 + 1))[:size], "little")
    number = int.from_bytes(data, "little") ^ over
    return mask, number.to_bytes(size, "little")


@cache
def _table(mask):
    """Return each byte under a mask of one byte."""
    return bytes(byte ^ mask for byte in range(256))


class Unread:
    """Reads an answer to its end and no byte further: behind it are messages."""

    def __init__(self, line):
        self.line = line

    def makefile(self, *_mode):
        """Return what is read from: itself."""
        return self

    def readline(self, most=-1):
        """Return one line, with its end."""
        found = b""
        while not found.endswith(b"\n") and len(found) != most:
            byte = self.line.recv(1)
            if not byte:
                break
            found += byte
        return found

    def read(self, size=-1):
        """Return so many bytes, or all that come."""
        found = b""
        while size < 0 or len(found) < size:
            data = self.line.recv(65_536 if size < 0 else size - len(found))
            if not data:
                break
            found += data
        return found

    def flush(self):
        """Do nothing: there is nothing to write."""

    def close(self):
        """Leave the connection open."""


def _connected(to):
    """Return a connection to the portal, encrypted where its address says so."""
    parts = urllib.parse.urlsplit(to.url)
    secure = parts.scheme == "https"
    try:
        place = (parts.hostname, parts.port or (443 if secure else 80))
        line = socket.create_connection(place, timeout=TIMEOUT_SECONDS)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if secure:
            context = ssl.create_default_context()
            line = context.wrap_socket(line, server_hostname=parts.hostname)
        return line
    except (OSError, ValueError) as error:
        raise Refused(f"the portal cannot be reached: {error}", 3) from None
