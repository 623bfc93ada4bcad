"""The live frame: every Gpu of the cluster in one small binary message.

One frame a second goes to every open page. So it has no names and 12 bytes a Gpu. The
names are in the roster, found by `roster_id`. JSON of the same facts is 16 times
larger. There are no deltas: each frame is complete, so a slow browser may skip any
number of them.

The header is little-endian, without padding. Its layout never changes:

| offset | bytes | type | field                                               |
| ------ | ----- | ---- | --------------------------------------------------- |
| 0      | 1     | u8   | magic, always 0x47 ("G")                            |
| 1      | 1     | u8   | version, 1                                          |
| 2      | 4     | u32  | roster_id: row i describes entry i of that roster   |
| 6      | 8     | f64  | server_at: Unix seconds, the server's clock         |
| 14     | 2     | u16  | count of rows                                       |
| 16     |       |      | rows                                                |

The fields of `FrameRow` are the layout of a row, in their order. The roster message
carries it to the pages (`LAYOUT`). So `static/js/telemetry/frame.js` has no copy, and a
page that is open while the portal restarts reads the frames of the new version.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, Literal, TypedDict

from telemetry.protocol.errors import FrameRefused
from telemetry.protocol.gpu_state import GpuState, state_of_code
from telemetry.protocol.reading import GpuReading
from telemetry.protocol.units import MIB_BYTES, mib

MAGIC = 0x47
VERSION = 1
HEADER = struct.Struct("<BBIdH")
ROSTER_ID = slice(2, 6)
"""Position of the roster's id in the header."""
MAX_ROWS = 65_535

UNKNOWN_U8 = 0xFF
UNKNOWN_U32 = 0xFFFFFFFF
AGE_STEP_SECONDS = 0.1
AGE_MOST = 254
"""Largest age in a frame: 25.4 s "or more". 255 means never seen."""
Width = Literal["Uint8", "Uint16", "Uint32"]
"""Width of a number, under the name of JavaScript's DataView."""
_UNKNOWN: dict[Width, tuple[str, int]] = {
    "Uint8": ("B", UNKNOWN_U8),
    "Uint16": ("H", 0xFFFF),
    "Uint32": ("I", UNKNOWN_U32),
}
"""Format of `struct`, and the number that means "unknown"."""


def figure(
    width: Width,
    *,
    most: int | None = None,
    page_name: str = "",
    step: float = 1,
) -> Any:
    """Return the field of a row for a number; None means unknown.

    Args:
        most: largest known value, in steps; None: the largest but the one for unknown.
        page_name: name on the pages; empty: the same name.
        step: the size of one step on the pages.
    """
    if most is None:
        most = _UNKNOWN[width][1] - 1
    return field(
        default=None,
        metadata={"width": width, "most": most, "name": page_name, "step": step},
    )


@dataclass(frozen=True, slots=True)
class FrameRow:
    """One Gpu in a frame. `None` means unknown, never zero."""

    state: GpuState
    util_pct: int | None = figure("Uint8", most=100)
    memory_used_mib: int | None = figure(
        "Uint32", page_name="memory_used_bytes", step=MIB_BYTES
    )
    temperature_celsius: int | None = figure("Uint8")
    power_watts: int | None = figure("Uint16")
    sm_clock_mhz: int | None = figure("Uint16")
    age_seconds: float | None = figure("Uint8", step=AGE_STEP_SECONDS)
    """Seconds since the newest sample arrived; `None`: never. The last field."""

    @classmethod
    def of(cls, reading: GpuReading, state: GpuState, age_seconds: float) -> FrameRow:
        """Return the row of a reading that arrived some seconds ago."""
        used_bytes, watts = reading.memory_used_bytes, reading.power_watts
        return cls(
            state=state,
            util_pct=reading.util_pct,
            memory_used_mib=None if used_bytes is None else mib(used_bytes),
            temperature_celsius=reading.temperature_celsius,
            power_watts=None if watts is None else round(watts),
            sm_clock_mhz=reading.sm_clock_mhz,
            age_seconds=age_seconds,
        )


_NUMBERS = [one for one in fields(FrameRow) if one.metadata]
ROW = struct.Struct(
    "<B" + "".join(_UNKNOWN[one.metadata["width"]][0] for one in _NUMBERS)
)
# The age is packed separately: it is rounded down, and it may be negative.
_FIGURES = _NUMBERS[:-1]
_figures_of = attrgetter(*[one.name for one in _FIGURES])
_MOST = [one.metadata["most"] for one in _FIGURES]
_NOTHING = [_UNKNOWN[one.metadata["width"]][1] for one in _FIGURES]


class FrameLayout(TypedDict):
    """How to read a row, for the pages."""

    row_bytes: int
    fields: list[tuple[str, Width, int, int, float]]
    """Name, width, offset, largest known value and size of one step."""


def _layout() -> FrameLayout:
    told: list[tuple[str, Width, int, int, float]] = [
        ("state", "Uint8", 0, UNKNOWN_U8, 1)
    ]
    offset = 1
    for one in _NUMBERS:
        about = one.metadata
        name, width = about["name"] or one.name, about["width"]
        told.append((name, width, offset, about["most"], about["step"]))
        offset += struct.calcsize(_UNKNOWN[width][0])
    return {"row_bytes": ROW.size, "fields": told}


LAYOUT = _layout()


@dataclass(frozen=True, slots=True)
class Frame:
    """The whole cluster at one instant."""

    roster_id: int
    """The roster that has the order of the rows; 32 bits."""
    server_at: float
    """Unix seconds on the server's clock when the frame was made."""
    rows: tuple[FrameRow, ...]


def encode(frame: Frame) -> bytes:
    """Encode a frame. Raises FrameRefused for more than 65,535 rows.

    Values above a field's range are clamped to its largest known value. Senseless
    values (negative, not a number) become unknown, because a frame is sent once a
    second and must never fail for one odd Gpu.
    """
    if len(frame.rows) > MAX_ROWS:
        raise FrameRefused(why=f"{len(frame.rows)} rows, at most {MAX_ROWS}")
    head = HEADER.pack(
        MAGIC, VERSION, frame.roster_id & UNKNOWN_U32, frame.server_at, len(frame.rows)
    )
    return head + b"".join(_pack_rows(frame.rows))


def _pack_rows(rows: Iterable[FrameRow]) -> Iterator[bytes]:
    for row in rows:
        yield ROW.pack(
            int(row.state) & 0xFF,
            *map(_fit, _figures_of(row), _MOST, _NOTHING),
            _age(row.age_seconds),
        )


def decode(data: bytes) -> Frame:
    """Decode a frame. Raises FrameRefused if the bytes are not one."""
    if len(data) < HEADER.size:
        raise FrameRefused(why=f"{len(data)} bytes, a header has {HEADER.size}")
    magic, version, roster_id, server_at, count = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise FrameRefused(why=f"magic is {magic:#04x}, not {MAGIC:#04x}")
    if version != VERSION:
        raise FrameRefused(why=f"version is {version}, this code reads {VERSION}")
    if not math.isfinite(server_at):
        raise FrameRefused(why="the time is not a number")
    want = HEADER.size + count * ROW.size
    if len(data) != want:
        raise FrameRefused(why=f"{len(data)} bytes, {count} rows need {want}")
    body = memoryview(data)[HEADER.size :]
    rows = tuple(_row(fields) for fields in ROW.iter_unpack(body))
    return Frame(roster_id=roster_id, server_at=server_at, rows=rows)


def _row(numbers: tuple[int, ...]) -> FrameRow:
    state, *figures, age = numbers
    values: list[Any] = [
        None if value > most else value
        for value, most in zip(figures, _MOST, strict=True)
    ]
    age_seconds = None if age == UNKNOWN_U8 else age * AGE_STEP_SECONDS
    return FrameRow(*[state_of_code(state), *values, age_seconds])


def _fit(value: float | None, most: int, unknown: int) -> int:
    """Return a whole number that the field can hold, or the one for "unknown"."""
    if value is None or not math.isfinite(value) or value < 0:
        return unknown
    return min(round(value), most)


def _age(age_seconds: float | None) -> int:
    """Return the age in steps of 100 ms; 0 for a sample from the future."""
    if age_seconds is None or math.isnan(age_seconds):
        return UNKNOWN_U8
    return int(min(max(age_seconds, 0.0) / AGE_STEP_SECONDS, AGE_MOST))
