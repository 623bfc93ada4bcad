"""The live view of a log: small, steady, with holes when it must.

At most 64 KiB a message and about 256 KiB a second for each Job. A Job that
writes faster loses the middle of the live view, never of the file, which goes
whole over the HTTPS channel. Nothing is kept in memory.
"""

from __future__ import annotations

from typing import Any

from placement.agent.job_folder import JobFolder

MESSAGE_BYTES = 48 * 1024
RATE_BYTES_PER_SECOND = 256 * 1024
BACKLOG_BYTES = 256 * 1024
"""More than this unsent: go on near the end."""
TAIL_BYTES = 32 * 1024


class LogPump:
    """Cuts the new part of one log into messages."""

    def __init__(self, folder: JobFolder) -> None:
        self.folder = folder
        # After a restart the worker continues near the end. The browser recognises
        # text that it has by the offsets.
        self.offset = max(0, folder.log_bytes() - TAIL_BYTES)
        self.tokens = float(BACKLOG_BYTES)
        self.filled_at: float | None = None

    def next_message(self, now: float, *, ended: bool) -> dict[str, Any] | None:
        """Return the next message, or None: nothing new or too fast.

        `now` is monotonic. An incomplete character at the end waits for the rest
        unless the Job has ended.
        """
        size = self.folder.log_bytes()
        # A Job may truncate its own log.
        self.offset = min(self.offset, size)
        if size == self.offset:
            return None
        self._fill(now)
        backlog = size - self.offset
        skipped = backlog > BACKLOG_BYTES
        if skipped:
            self.offset, backlog = size - TAIL_BYTES, TAIL_BYTES
        wanted = min(backlog, MESSAGE_BYTES, int(self.tokens))
        if wanted < min(backlog, 4096):
            return None
        with self.folder.log.open("rb") as file:
            file.seek(self.offset)
            data = file.read(wanted)
        if skipped:
            # From the start of a line, unless that would leave nothing.
            head = data.find(b"\n") + 1
            if head < len(data):
                self.offset, data = self.offset + head, data[head:]
        if len(data) < size - self.offset:
            data = data[: data.rfind(b"\n") + 1] or data
        if not ended:
            data = without_partial_character(data)
        if not data:
            return None
        self.tokens -= len(data)
        message = {
            "v": 1,
            "job": self.folder.job,
            "attempt": self.folder.attempt,
            "offset": self.offset,
            "bytes": len(data),
            "data": data.decode(errors="replace"),
        }
        self.offset += len(data)
        return message

    def _fill(self, now: float) -> None:
        if self.filled_at is not None:
            new = (now - self.filled_at) * RATE_BYTES_PER_SECOND
            self.tokens = min(float(BACKLOG_BYTES), self.tokens + new)
        self.filled_at = now


def without_partial_character(data: bytes) -> bytes:
    """Return the data up to its last whole UTF-8 character.

    Bytes that can be no beginning of one are left: they are shown replaced.

    >>> without_partial_character("ä".encode()[:1])
    b''
    """
    for back in range(1, min(4, len(data) + 1)):
        lead = data[-back]
        if lead & 0b1100_0000 == 0b1000_0000:
            continue
        needs = 4 if lead >= 0xF0 else 3 if lead >= 0xE0 else 2 if lead >= 0xC0 else 1
        return data[:-back] if needs > back else data
    return data
