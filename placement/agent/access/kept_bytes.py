"""The bytes of one direction that the other end has not reported as received.

For connections that outlive the portal (``kept_connections.py``).
"""

from __future__ import annotations

from placement.protocol.stream_state import StreamViolation

KEPT_BYTES = 512 * 1024
"""Most bytes of one direction that were sent and not reported as received."""


class KeptBytes:
    """The bytes of one direction that the other end has not reported as received."""

    def __init__(self) -> None:
        self.total_bytes = 0
        """Bytes that were appended since the beginning."""
        self._kept = bytearray()

    @property
    def received_bytes(self) -> int:
        """Bytes that the other end has, by its last report."""
        return self.total_bytes - len(self._kept)

    @property
    def room_bytes(self) -> int:
        """Bytes that may be appended now."""
        return KEPT_BYTES - len(self._kept)

    def append(self, data: bytes) -> None:
        """Keep bytes that are sent now.

        Raises:
            ValueError: they are more than `room_bytes`.
        """
        if len(data) > self.room_bytes:
            raise ValueError(f"{len(data)} bytes, at most {self.room_bytes}")
        self._kept += data
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
        del self._kept[: count_bytes - self.received_bytes]

    def rest(self) -> bytes:
        """Return what the other end does not have."""
        return bytes(self._kept)
