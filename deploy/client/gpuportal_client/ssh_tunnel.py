"""`gp tunnel`: one ssh connection through the portal, as ssh's ProxyCommand.

Portal and node may let the connection go on after the portal was away, or this
machine's network. Then this program and the node each keep the bytes that they sent
until the other one reports them as received. On the next websocket both say how much
they have, and each sends the rest.
"""

import os
import re
import select
import signal
import socket
import struct
import sys
import threading
import time
import urllib.parse
from pathlib import Path

from gpuportal_client import program
from gpuportal_client.listing import text
from gpuportal_client.portal_api import Refused
from gpuportal_client.saved_login import portal
from gpuportal_client.websocket import BINARY, CLOSE, PING, PONG, TEXT, Socket

HOST = re.compile(r"r([1-9][0-9]{0,17})(?:\.([A-Za-z0-9_-]+))?\.gpuportal")
"""Host of a reservation: r17.gpuportal, or r17.node-a.gpuportal."""
PIECE_BYTES = 240 * 1024
"""As much as the portal passes on in one piece."""
PIPE_BYTES = 256 * 1024
"""As much as ssh can write ahead, where the system allows it."""
COPY_BYTES = 16 * 1024
"""If so much was sent and received since the last piece, it is a copy."""
REST_SECONDS = 0.001
"""In a copy ssh's input is left so long, so that it is read in large pieces."""
ANSWERS_BYTES, ANSWERS_SECONDS = 4 * 1024, 0.003
"""A smaller piece in a copy has ssh's answers to what it got. They can wait longer."""
FULL_BYTES = PIECE_BYTES * 3 // 4
"""After a piece of this size the input is read again at once."""
RESTARTS = (1001, 1011, 1012)
"""Codes with which a server closes a connection when it stops or fails (IANA)."""
LOST = 4502
"""Code of the portal: the connection to the node is lost."""
LOST_FILE = "GPUPORTAL_LOST_FILE"
"""Variable with the file in which `tunnel` leaves word that the connection is lost."""
OPEN_NAME = "open"
"""Name of the file beside it that `tunnel` makes when the node has answered."""
WARNING = b"warning: "
"""Begins a message of the portal that is for the user's eyes."""
KEPT_BYTES = 1024 * 1024
"""Most bytes that were sent and not reported as received."""
REPORT_BYTES = 256 * 1024
"""After so many bytes they are reported as received. Earlier nodes keep 512 KiB."""
REPORT = re.compile(rb"(received|ended) ([0-9]{1,18})")
AGAIN_SECONDS = 120
"""How long the node keeps a connection. Later this program gives up."""
PAUSES_SECONDS = (0.3, 0.5, 1.0, 1.5)
"""Before each next attempt. The last one counts for all further ones."""


def tunnel(args):
    """Connect standard input and output to the ssh server of a host's node."""
    try:
        found = HOST.fullmatch(args.host)
        if not found:
            words = f"{args.host!r} is not a host such as r17.gpuportal"
            raise Refused(words, 2)
        with _Connection(portal(), *found.groups()) as connection:
            connection.carry()
    except Refused as refusal:
        file = os.environ.get(LOST_FILE)
        if not file or refusal.status != 3:
            raise
        # The command `ssh` prints it, when ssh has given the terminal back.
        Path(file).write_text(str(refusal), encoding="utf-8")
        sys.exit(refusal.status)


class _Connection:
    """A connection between standard input and output and a node's ssh server."""

    def __init__(self, to, reservation, node):
        self.to = to
        query = {"node": node} if node else {}
        query["session"] = os.urandom(16).hex()
        self.path = f"/ws/ssh/{reservation}/?{urllib.parse.urlencode(query)}"
        self.line = Socket(to, self.path)
        self.here, self.read = _input(0)
        self.pace = Pace()
        self.counts = None
        """Whether the node counts the bytes; None: not known yet."""
        self.sent_bytes, self.kept = 0, bytearray()
        """The bytes that were sent, and those that the node has not acknowledged."""
        self.got_bytes = self.reported_bytes = 0
        self.arrived = []
        """Data that are counted and not written yet."""
        self.typed_all, self.over = False, False
        self.waits = False
        """Whether the node must say first how much it has."""

    def __enter__(self):
        for name in ("SIGHUP", "SIGTERM"):
            if hasattr(signal, name):
                # ssh ends this program so. Then the node need not keep the connection.
                signal.signal(getattr(signal, name), lambda *_: sys.exit(1))
        return self

    def __exit__(self, *_):
        self.line.leave()

    def carry(self):
        """Carry it until either end closes it, over one websocket after the other."""
        while True:
            try:
                self._carry()
                return
            except Refused as refusal:
                if refusal.status != 3 or not self.counts:
                    raise
                self._connect_again(refusal)

    def _carry(self):
        """Carry it over the present websocket."""
        # Only this thread uses the websocket: an encrypted one is not for two.
        while not self.over:
            line = self.line.line
            ready = [line] if self.line.waits() else []
            if not ready:
                typed = (
                    []
                    if self.typed_all or self.waits or not self._room()
                    else [self.here]
                )
                rest_seconds = self.pace.rest_seconds(time.monotonic()) if typed else 0
                wanted = [line, *([] if rest_seconds else typed)]
                ready, _, _ = select.select(wanted, [], [], rest_seconds or None)
            if self.here in ready:
                self._send_typed(self.read(min(PIECE_BYTES, self._room())))
            if line in ready:
                found = self.line.messages()
                self.pace.received(sum(len(data) for _, data in found))
                try:
                    for kind, data in found:
                        self._take(kind, data)
                finally:
                    self._write()

    def _room(self):
        return PIECE_BYTES if self.counts is False else KEPT_BYTES - len(self.kept)

    def _send_typed(self, data):
        if data:
            if self.counts is not False:
                self.sent_bytes += len(data)
                self.kept += data
            self.line.send(BINARY, data)
        else:
            self.typed_all = True
            self._send_end()
        self.pace.sent(len(data), time.monotonic())

    def _send_end(self):
        if self.counts:
            self.line.send(TEXT, b"ended %d" % self.sent_bytes)
        else:
            self._count_nothing()
            self.line.send(TEXT, b"end")

    def _count_nothing(self):
        """Portal or node cannot resume this connection."""
        self.counts, self.kept = False, bytearray()

    def _take(self, kind, data):
        """Handle one message of the portal."""
        if kind == BINARY:
            # A node that counts says so first.
            if self.waits:
                raise Refused("the connection has ended: the node counts nothing")
            if self.counts is None:
                self._count_nothing()
            if not self.got_bytes and (file := os.environ.get(LOST_FILE)):
                Path(file).with_name(OPEN_NAME).touch()
            self.got_bytes += len(data)
            self.arrived.append(data)
        elif kind == TEXT and (found := REPORT.fullmatch(data)):
            if self.counts is not False:
                self.counts = True
                self._take_report(found[1], int(found[2]))
        else:
            self.over = passed_on(self.line, kind, data) or self.over

    def _write(self):
        """Write what arrived: at once, because each write wakes ssh."""
        if self.arrived:
            data = b"".join(self.arrived)
            self.arrived.clear()
            written(data)
            if self.counts and self.got_bytes - self.reported_bytes >= REPORT_BYTES:
                self._report()

    def _take_report(self, name, count):
        if name == b"ended":
            if count != self.got_bytes:
                raise Refused("the connection has ended: bytes are missing")
            self._report()
            self.over = True
            return
        known = count - (self.sent_bytes - len(self.kept))
        if not 0 <= known <= len(self.kept):
            raise Refused("the connection has ended: the node counts other bytes")
        del self.kept[:known]
        if self.waits:
            self.waits = False
            self._report()
            for start in range(0, len(self.kept), PIECE_BYTES):
                self.line.send(BINARY, bytes(self.kept[start : start + PIECE_BYTES]))
            if self.typed_all:
                self._send_end()

    def _report(self):
        self.reported_bytes = self.got_bytes
        self.line.send(TEXT, b"received %d" % self.got_bytes)

    def _connect_again(self, lost):
        """Find the connection again at the portal, for two minutes."""
        os.write(2, f"\r\n{program()}: {waiting(lost)} Connecting again ...".encode())
        self.line.line.close()
        until, tries = time.monotonic() + AGAIN_SECONDS, 0
        while True:
            try:
                self.line = Socket(self.to, self.path + "&again=1")
                self.waits = True
            except Refused as refusal:
                if refusal.code == "stream-ended":
                    os.write(2, b"\r\n")
                    raise Refused(f"the connection has ended: {refusal}", 3) from None
                if refusal.status != 3 and refusal.code != "too-many":
                    os.write(2, b"\r\n")
                    raise
                if time.monotonic() > until:
                    os.write(2, b"\r\n")
                    raise lost from None
                time.sleep(PAUSES_SECONDS[min(tries, len(PAUSES_SECONDS) - 1)])
                tries += 1
            else:
                os.write(2, b" connected.\r\n")
                return


def waiting(lost):
    """Return why a connection waits, as one sentence for the user."""
    return (
        "the portal restarts." if "restarts" in str(lost) else "the connection is lost."
    )


class Pace:
    """How long the input of a tunnel is left alone.

    In a copy ssh writes 32 KiB at a time, and a few bytes for each 32 KiB that it gets.
    Each message takes time at the portal and on the node, so they are read together.
    A key that is typed is sent at once.
    """

    def __init__(self):
        self._moved_bytes, self._until = 0, 0.0

    def received(self, size):
        """Note bytes from the portal."""
        self._moved_bytes += size

    def sent(self, size, now):
        """Note a piece that was read and sent. The clock is monotonic, in seconds."""
        moved_bytes, self._moved_bytes = self._moved_bytes + size, 0
        rests = moved_bytes >= COPY_BYTES and size < FULL_BYTES
        seconds = ANSWERS_SECONDS if size < ANSWERS_BYTES else REST_SECONDS
        self._until = now + seconds if rests else 0.0

    def rest_seconds(self, now):
        """Return the seconds until the input may be read again."""
        return max(0.0, self._until - now)


def _input(descriptor):
    """Return what select can wait for, and the function that reads from it."""
    if os.name != "nt":
        for pipe in (descriptor, 1):
            _widen(pipe)
        return descriptor, lambda size: os.read(descriptor, size)
    here = _copied(descriptor)
    return here, here.recv


def _widen(descriptor):
    """Let a pipe hold more, where the system allows it (Linux: fcntl(2))."""
    try:
        import fcntl

        fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    except (ImportError, AttributeError, OSError):
        pass


def _copied(descriptor):
    """Return a socket with what comes from a descriptor. Windows' select takes no
    other.
    """
    here, there = socket.socketpair()

    def copy():
        with there:
            while data := os.read(descriptor, PIECE_BYTES):
                there.sendall(data)

    threading.Thread(target=copy, daemon=True).start()
    return here


def written(data):
    """Write all bytes to standard output."""
    while data:
        data = data[os.write(1, data) :]


def passed_on(line, kind, data):
    """Handle one message that is not the node's. Return whether it was the last."""
    if kind == PING:
        line.send(PONG, data)
    elif kind == TEXT and data.startswith(WARNING):
        words = text(data[len(WARNING) :].decode(errors="replace"))
        # ssh has switched off that a line's end also returns to its beginning.
        os.write(2, f"\r\n{program()}: {words}\r\n".encode())
    elif kind == CLOSE:
        code = struct.unpack(">H", data[:2])[0] if len(data) > 1 else 1000
        if code != 1000:
            words = data[2:].decode(errors="replace") or f"it gave the code {code}"
            if code in RESTARTS:
                words = "the portal restarts. What runs in tmux goes on."
            status = 3 if code in (*RESTARTS, LOST) else 1
            raise Refused(f"the connection has ended: {words}", status)
        return True
    return False


def declare(word):
    """Add the command of this module."""
    word(tunnel).add_argument("host", help="r17.gpuportal, or r17.NODE.gpuportal")
