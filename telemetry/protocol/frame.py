"""The live frame: every Gpu of the cluster in one small binary message.

One frame a second goes to every open page, so it is fixed in layout, without
names (those are in the roster, found by `roster_id`), and 12 bytes a Gpu; JSON
of the same facts is 16 times larger. No deltas: any frame alone is the whole
truth, so a slow browser may skip as many as it likes.

Layout, little-endian, no padding. `static/js/telemetry/frame.js` mirrors it.

| offset | bytes | type | field                                               |
| ------ | ----- | ---- | --------------------------------------------------- |
| 0      | 1     | u8   | magic, always 0x47 ("G")                            |
| 1      | 1     | u8   | version, 1                                          |
| 2      | 4     | u32  | roster_id: row i describes entry i of that roster   |
| 6      | 8     | f64  | server_at: Unix seconds, the server's clock         |
| 14     | 2     | u16  | count of rows                                       |
| 16     | 12 n  |      | rows                                                |

A row:

| offset | bytes | type | field               | unknown    | unit and range       |
| ------ | ----- | ---- | ------------------- | ---------- | -------------------- |
| 0      | 1     | u8   | state               | 0          | code of `GpuState`   |
| 1      | 1     | u8   | util_pct            | 255        | 0 to 100             |
| 2      | 4     | u32  | memory_used_mib     | 0xFFFFFFFF | MiB, rounded down    |
| 6      | 1     | u8   | temperature_celsius | 255        | 0 to 254             |
| 7      | 2     | u16  | power_watts         | 0xFFFF     | W, rounded           |
| 9      | 2     | u16  | sm_clock_mhz        | 0xFFFF     | MHz                  |
| 11     | 1     | u8   | age                 | 255        | 100 ms; 254: or more |

`age` is the time since the newest sample of that Gpu arrived; 255 = never.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from telemetry.protocol.errors import FrameRefused
from telemetry.protocol.gpu_state import GpuState, state_of_code
from telemetry.protocol.reading import GpuReading
from telemetry.protocol.units import mib

MAGIC = 0x47
VERSION = 1
HEADER = struct.Struct("<BBIdH")
ROW = struct.Struct("<BBIBHHB")
MAX_ROWS = 65_535

UNKNOWN_U8 = 0xFF
UNKNOWN_U16 = 0xFFFF
UNKNOWN_U32 = 0xFFFFFFFF
AGE_STEP_SECONDS = 0.1
AGE_MOST = 254
"""Largest age a frame can tell: 25.4 s "or more". 255 means never seen."""


@dataclass(frozen=True, slots=True)
class FrameRow:
    """One Gpu in a frame. `None` means unknown, never zero."""

    state: GpuState
    util_pct: int | None = None
    memory_used_mib: int | None = None
    temperature_celsius: int | None = None
    power_watts: int | None = None
    sm_clock_mhz: int | None = None
    age_seconds: float | None = None
    """Seconds since the newest sample arrived; `None` = never."""

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


@dataclass(frozen=True, slots=True)
class Frame:
    """The whole cluster at one instant."""

    roster_id: int
    """Which roster the rows are in the order of; 32 bits."""
    server_at: float
    """Unix seconds on the server's clock when the frame was made."""
    rows: tuple[FrameRow, ...]


def encode(frame: Frame) -> bytes:
    """Frame to bytes. Raises FrameRefused for more than 65,535 rows.

    Values above a field's range are clamped to its largest known value, values
    that make no sense (negative, not a number) become unknown: a frame is drawn
    once a second and must never fail for one odd Gpu.
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
            _fit(row.util_pct, 100, UNKNOWN_U8),
            _fit(row.memory_used_mib, UNKNOWN_U32 - 1, UNKNOWN_U32),
            _fit(row.temperature_celsius, UNKNOWN_U8 - 1, UNKNOWN_U8),
            _fit(row.power_watts, UNKNOWN_U16 - 1, UNKNOWN_U16),
            _fit(row.sm_clock_mhz, UNKNOWN_U16 - 1, UNKNOWN_U16),
            _age(row.age_seconds),
        )


def decode(data: bytes) -> Frame:
    """Bytes to frame. Raises FrameRefused for anything that is not one."""
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


def _row(fields: tuple[int, ...]) -> FrameRow:
    state, util, memory, temperature, power, clock, age = fields
    return FrameRow(
        state=state_of_code(state),
        util_pct=None if util > 100 else util,
        memory_used_mib=_known(memory, UNKNOWN_U32),
        temperature_celsius=_known(temperature, UNKNOWN_U8),
        power_watts=_known(power, UNKNOWN_U16),
        sm_clock_mhz=_known(clock, UNKNOWN_U16),
        age_seconds=None if age == UNKNOWN_U8 else age * AGE_STEP_SECONDS,
    )


def _fit(value: float | None, most: int, unknown: int) -> int:
    """A whole number the field can hold, or its word for "unknown"."""
    if value is None or not math.isfinite(value) or value < 0:
        return unknown
    return min(round(value), most)


def _age(age_seconds: float | None) -> int:
    """Age in steps of 100 ms; a sample from the future is brand new."""
    if age_seconds is None or math.isnan(age_seconds):
        return UNKNOWN_U8
    return int(min(max(age_seconds, 0.0) / AGE_STEP_SECONDS, AGE_MOST))


def _known(value: int, unknown: int) -> int | None:
    return None if value == unknown else value
