"""Walk a protobuf message without loading it: only numbers and spans.

Wire format: https://protobuf.dev/programming-guides/encoding. A length-delimited field
is given by its offsets, so gigabytes of weights are skipped and never read. Memory does
not grow with the file.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from placement.planner.values.errors import SpecInvalid
from telemetry.protocol.sentences import sentence

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
MAX_VARINT_BYTES = 10


@dataclass(frozen=True, slots=True)
class ByteSpan:
    """Bytes [start, end) of the file."""

    start: int
    end: int

    @property
    def length(self) -> int:
        """Return the number of bytes."""
        return self.end - self.start


class Wire:
    """A file read as protobuf, one field at a time."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._size = size

    def whole(self) -> ByteSpan:
        """Return the span of the whole file."""
        return ByteSpan(0, self._size)

    def fields(self, within: ByteSpan) -> Iterator[tuple[int, int | ByteSpan]]:
        """Yield (field number, number or span) of a message, in the file's order.

        Raises SpecInvalid if it is no protobuf or is cut off.
        """
        at = within.start
        while at < within.end:
            key, at = self._varint(at, within.end)
            number, kind = key >> 3, key & 7
            if not 1 <= number < 2**29:
                raise _broken(at)
            if kind == VARINT:
                value, at = self._varint(at, within.end)
                yield number, value
            elif kind == BYTES:
                length, at = self._varint(at, within.end)
                if length > within.end - at:
                    raise SpecInvalid(
                        {
                            "file": sentence(
                                "is cut off: byte {at} starts a part of {length} "
                                "bytes, {end} are there",
                                at=f"{at:,}",
                                length=f"{length:,}",
                                end=f"{within.end - at:,}",
                            )
                        }
                    )
                yield number, ByteSpan(at, at + length)
                at += length
            elif kind in (FIXED32, FIXED64):
                width = 4 if kind == FIXED32 else 8
                if width > within.end - at:
                    raise _broken(at)
                at += width
            else:
                raise _broken(at)

    def text(self, span: ByteSpan, most: int) -> str:
        """Return a short text. Raises SpecInvalid for one of more than `most` bytes."""
        if span.length > most:
            raise SpecInvalid(
                {
                    "file": sentence(
                        "has a name of {length} bytes", length=f"{span.length:,}"
                    )
                }
            )
        self._file.seek(span.start)
        return self._file.read(span.length).decode("utf-8", "replace")

    def numbers(self, span: ByteSpan, most: int) -> list[int]:
        """Return packed whole numbers, at most `most` of them."""
        found: list[int] = []
        at = span.start
        while at < span.end:
            if len(found) >= most:
                raise SpecInvalid(
                    {
                        "file": sentence(
                            "has a list of more than {most} sizes", most=most
                        )
                    }
                )
            value, at = self._varint(at, span.end)
            found.append(value)
        return found

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        """Return (number, position of the next byte); two's complement of 64 bits."""
        self._file.seek(at)
        data = self._file.read(min(MAX_VARINT_BYTES, end - at))
        value = 0
        for index, byte in enumerate(data):
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                value &= 2**64 - 1
                signed = value - 2**64 if value >= 2**63 else value
                return signed, at + index + 1
        raise _broken(at)


def _broken(at: int) -> SpecInvalid:
    return SpecInvalid(
        {
            "file": sentence(
                "is not ONNX (protobuf), or is damaged, at byte {at}", at=f"{at:,}"
            )
        }
    )
