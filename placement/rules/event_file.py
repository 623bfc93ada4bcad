"""Read the scalars of a TensorBoard event file, without TensorBoard.

A file is a row of records: their length (8 bytes), a checksum (4), a message, a
checksum (4). A message is an ``Event`` of tensorflow/core/util/event.proto, whose
``Summary`` has values with a tag and a number (framework/summary.proto), or a tensor of
one number (framework/tensor.proto). The file is a student's, so every length is
checked, what is not understood is left out, and the work has a limit. The whole file
has a checksum already (`ResultFile.sha256`), so those of the records are not read.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

MOST_RECORD_BYTES = 64 * 1024
"""Longer records, such as images and graphs, are skipped."""
MOST_TAGS = 64
MOST_TAG_CHARACTERS = 100
MOST_POINTS = 1000
"""Of one tag, after thinning."""
MOST_CHART_BYTES = 2 * 2**20
"""Of the curves of a Job as JSON."""
_POINT_BYTES = 60
"""Of one point as JSON, without its tag: step, value and brackets, at most."""
_HEAD = struct.Struct("<QI")
_CHECKSUM_BYTES = 4
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_EVENT_STEP, _EVENT_SUMMARY = 2, 5
_SUMMARY_VALUE = 1
_VALUE_TAG, _VALUE_NUMBER, _VALUE_TENSOR = 1, 2, 8
_TENSOR_TYPE, _TENSOR_SHAPE, _TENSOR_CONTENT = 1, 2, 4
_TENSOR_FLOATS, _TENSOR_DOUBLES = 5, 6
_NUMBERS = {1: "<f", 2: "<d"}
"""DT_FLOAT and DT_DOUBLE of framework/types.proto."""

Curves = dict[str, list[tuple[int, float]]]
"""Tag -> (step, value) in the order of the file."""


class _Garbled(Exception):
    """A message that is no message."""


class _Spent(Exception):
    """The budget is used up."""


@dataclass
class ReadBudget:
    """What may still be read of the event files of one Job."""

    bytes: int = 4 * 2**20
    """Skipped records are not counted."""
    fields: int = 500_000
    """Fields of messages, and records."""
    is_spent: bool = False
    """Something was left out."""

    def take(self, *, bytes: int = 0, fields: int = 0) -> None:
        """Subtract what is read next. Raises _Spent."""
        self.bytes -= bytes
        self.fields -= fields
        if self.bytes < 0 or self.fields < 0:
            self.is_spent = True
            raise _Spent


def read_scalars(file: BinaryIO, curves: Curves, budget: ReadBudget) -> None:
    """Add the scalars of an event file to curves.

    A cut or spoiled file ends early, and so does one that exceeds the budget.
    """
    try:
        _read_records(file, curves, budget)
    except (_Garbled, _Spent):
        return


def thinned(curves: Curves) -> Curves:
    """Return curves that are small enough for a chart.

    At most MOST_TAGS tags of MOST_POINTS points, evenly taken, and fewer if their JSON
    would exceed MOST_CHART_BYTES. The first and the last point of a curve stay.

    >>> thinned({"loss": [(0, 2.5), (1, 2.0)]})
    {'loss': [(0, 2.5), (1, 2.0)]}
    """
    kept = dict(list(curves.items())[:MOST_TAGS])
    most = MOST_POINTS
    while most > 2 and _json_bytes(kept, most) > MOST_CHART_BYTES:
        most //= 2
    return {tag: _evenly(points, most) for tag, points in kept.items()}


def _json_bytes(curves: Curves, most: int) -> int:
    """Return an upper bound of the bytes of curves with at most so many points."""
    return sum(
        (len(json.dumps(tag)) + _POINT_BYTES) * min(len(points), most)
        for tag, points in curves.items()
    )


def _evenly(points: list[tuple[int, float]], most: int) -> list[tuple[int, float]]:
    if len(points) <= most:
        return points
    last = len(points) - 1
    return [points[at * last // (most - 1)] for at in range(most)]


def _read_records(file: BinaryIO, curves: Curves, budget: ReadBudget) -> None:
    while True:
        head = file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            return
        budget.take(bytes=_HEAD.size, fields=1)
        (length, _) = _HEAD.unpack(head)
        if length > MOST_RECORD_BYTES:
            file.seek(min(length, 2**40) + _CHECKSUM_BYTES, 1)
            continue
        budget.take(bytes=length + _CHECKSUM_BYTES)
        record = file.read(length + _CHECKSUM_BYTES)
        if len(record) < length:
            return
        _add_event(record[:length], curves, budget)


def _add_event(record: bytes, curves: Curves, budget: ReadBudget) -> None:
    step, summaries = 0, []
    for field, value in _fields(record, budget):
        if field == _EVENT_STEP and isinstance(value, int):
            step = value
        elif field == _EVENT_SUMMARY and isinstance(value, bytes):
            summaries.append(value)
    if not 0 <= step < 2**53:
        return
    for summary in summaries:
        for field, value in _fields(summary, budget):
            if field == _SUMMARY_VALUE and isinstance(value, bytes):
                _add_value(value, step, curves, budget)


def _add_value(record: bytes, step: int, curves: Curves, budget: ReadBudget) -> None:
    tag, number = "", None
    for field, value in _fields(record, budget):
        if not isinstance(value, bytes):
            continue
        if field == _VALUE_TAG:
            tag = value.decode(errors="replace")
        elif field == _VALUE_NUMBER and len(value) == struct.calcsize("<f"):
            number = struct.unpack("<f", value)[0]
        elif field == _VALUE_TENSOR:
            number = _single_number(value, budget)
    usable = tag.isprintable() and 0 < len(tag) <= MOST_TAG_CHARACTERS
    if not usable or number is None or not math.isfinite(number):
        return
    if tag not in curves and len(curves) >= MOST_TAGS:
        return
    curves.setdefault(tag, []).append((step, float(f"{number:.7g}")))


def _single_number(record: bytes, budget: ReadBudget) -> float | None:
    """Return the number of a tensor without dimensions. None: it is another one."""
    kind, content = 0, b""
    for field, value in _fields(record, budget):
        if field == _TENSOR_TYPE and isinstance(value, int):
            kind = value
        elif field == _TENSOR_SHAPE and value:
            return None
        elif isinstance(value, bytes) and field in (
            _TENSOR_CONTENT,
            _TENSOR_FLOATS,
            _TENSOR_DOUBLES,
        ):
            content = value
    form = _NUMBERS.get(kind)
    if form is None or len(content) != struct.calcsize(form):
        return None
    found: float = struct.unpack(form, content)[0]
    return found


def _fields(record: bytes, budget: ReadBudget) -> Iterator[tuple[int, int | bytes]]:
    """Yield (number of the field, its value) of a protobuf message.

    Fields of fixed size are yielded as bytes. Raises _Garbled and _Spent.

    >>> list(_fields(bytes([0x10, 0x96, 0x01]), ReadBudget()))
    [(2, 150)]
    """
    at = 0
    while at < len(record):
        budget.take(fields=1)
        key, at = _varint(record, at)
        kind = key & 7
        if kind == _VARINT:
            number, at = _varint(record, at)
            yield key >> 3, number
            continue
        if kind == _BYTES:
            size, at = _varint(record, at)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise _Garbled
        if at + size > len(record):
            raise _Garbled
        yield key >> 3, record[at : at + size]
        at += size


def _varint(record: bytes, at: int) -> tuple[int, int]:
    """Return a number of 7 bits a byte, and the place behind it. Raises _Garbled."""
    number = 0
    for shift in range(0, 70, 7):
        if at >= len(record):
            break
        byte = record[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise _Garbled
