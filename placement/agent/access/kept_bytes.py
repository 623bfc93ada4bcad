"""The bytes of one direction that the other end has not reported as received.

For connections that outlive the portal (``kept_connections.py``).
"""

from __future__ import annotations

from collections import deque

from placement.protocol.stream_state import StreamViolation

KEPT_BYTES = 1024 * 1024
"""Most bytes of one direction that were sent and not reported as received."""
SMALL_BYTES = 4 * 1024
"""Smaller pieces are joined, so that many of them take no more memory than one."""


class KeptBytes:
    """The bytes of one direction that the other end has not reported as received."""

    def __init__(self) -> None:
        self.total_bytes = 0
        """Bytes that were appended since the beginning."""
        self._kept: deque[bytes | bytearray] = deque()
        """Large pieces as they came, without a copy, and small ones joined."""
        self._kept_bytes = 0

    @property
    def received_bytes(self) -> int:
        """Bytes that the other end has, by its last report."""
        return self.total_bytes - self._kept_bytes

    @property
    def room_bytes(self) -> int:
        """Bytes that may be appended now."""
        return KEPT_BYTES - self._kept_bytes

    def append(self, data: bytes) -> None:
        """Keep bytes that are sent now.

        Raises:
            ValueError: they are more than `room_bytes`.
        """
        if len(data) > self.room_bytes:
            raise ValueError(f"{len(data)} bytes, at most {self.room_bytes}")
        if len(data) >= SMALL_BYTES:
            self._kept.append(data)
        elif self._kept and isinstance(self._kept[-1], bytearray):
            self._kept[-1].extend(data)
        else:
            self._kept.append(bytearray(data))
        self._kept_bytes += len(data)
        self.total_bytes += len(data)

    def received(self, count_bytes: int) -> None:
        """Accept a report of the other end, and forget what it has.

        Raises:
            StreamViolation: it reports fewer bytes than before, or more than were sent.
        """
        if not self.received_bytes <= count_bytes <= self.total_bytes:
            raise StreamViolation(
                f"{count_bytes} bytes reported, not {self.received_bytes} "
                f"to {self.total_bytes}"
            )
        new_bytes = count_bytes - self.received_bytes
        self._kept_bytes -= new_bytes
        while new_bytes and len(self._kept[0]) <= new_bytes:
            new_bytes -= len(self._kept.popleft())
        if new_bytes:
            first = self._kept[0]
            if isinstance(first, bytes):
                first = self._kept[0] = bytearray(first)
            del first[:new_bytes]

    def rest(self) -> bytes:
        """Return what the other end does not have."""
        return b"".join(self._kept)
