"""The live frame's bytes."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.protocol.errors import FrameRefused
from telemetry.protocol.frame import (
    AGE_MOST,
    HEADER,
    LAYOUT,
    MAX_ROWS,
    ROW,
    Frame,
    FrameRow,
    decode,
    encode,
)
from telemetry.protocol.gpu_state import GpuState

pytestmark = pytest.mark.pure

BUSY = FrameRow(
    state=GpuState.BUSY,
    util_pct=93,
    memory_used_mib=61_440,
    temperature_celsius=71,
    power_watts=350,
    sm_clock_mhz=1395,
    age_seconds=0.8,
)


def test_the_layout_is_the_one_that_the_browser_knows() -> None:
    data = encode(Frame(roster_id=0x01020304, server_at=1.5, rows=(BUSY,)))
    assert data.hex() == (
        "47"  # magic
        "01"  # version
        "04030201"  # roster_id
        "000000000000f83f"  # server_at
        "0100"  # count
        "03"  # busy
        "5d"  # 93 %
        "00f00000"  # MiB
        "47"  # 71 degrees
        "5e01"  # W
        "7305"  # MHz
        "08"  # 0.8 s
    )
    assert (HEADER.size, ROW.size) == (16, 12)


def test_the_layout_that_the_pages_get_reads_the_bytes() -> None:
    data = encode(Frame(1, 2.0, (BUSY, FrameRow(GpuState.LOST))))
    formats = {"Uint8": "<B", "Uint16": "<H", "Uint32": "<I"}
    told = []
    for start in (HEADER.size, HEADER.size + LAYOUT["row_bytes"]):
        row = {}
        for name, width, offset, most, step in LAYOUT["fields"]:
            (value,) = struct.unpack_from(formats[width], data, start + offset)
            row[name] = None if value > most else value * step
        told.append(row)
    assert told[0] == {
        "state": GpuState.BUSY,
        "util_pct": 93,
        "memory_used_bytes": 61_440 * 2**20,
        "temperature_celsius": 71,
        "power_watts": 350,
        "sm_clock_mhz": 1395,
        "age_seconds": pytest.approx(0.8),
    }
    assert told[1] == dict.fromkeys(told[0]) | {"state": GpuState.LOST}


def test_unknown_is_never_zero_on_the_wire() -> None:
    data = encode(Frame(1, 2.0, (FrameRow(GpuState.LOST),)))
    assert data[16:].hex() == "08" + "ff" + "ffffffff" + "ff" + "ffff" + "ffff" + "ff"
    assert decode(data).rows == (FrameRow(GpuState.LOST),)


def test_a_thousand_gpus_fit_into_thirteen_kilobytes() -> None:
    assert len(encode(Frame(1, 2.0, (BUSY,) * 1000))) == 12_016


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (FrameRow(GpuState.BUSY, util_pct=250), FrameRow(GpuState.BUSY, util_pct=100)),
        (FrameRow(GpuState.BUSY, util_pct=-3), FrameRow(GpuState.BUSY)),
        (
            FrameRow(GpuState.BUSY, power_watts=10**9),
            FrameRow(GpuState.BUSY, power_watts=65_534),
        ),
        (FrameRow(GpuState.BUSY, age_seconds=float("nan")), FrameRow(GpuState.BUSY)),
        (
            FrameRow(GpuState.BUSY, age_seconds=-4.0),
            FrameRow(GpuState.BUSY, age_seconds=0.0),
        ),
        (
            FrameRow(GpuState.STALE, age_seconds=9e9),
            FrameRow(GpuState.STALE, age_seconds=AGE_MOST * 0.1),
        ),
    ],
)
def test_one_odd_value_never_stops_the_frame(row, told) -> None:
    assert decode(encode(Frame(1, 2.0, (row,)))).rows == (told,)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "0 bytes"),
        (b"H" + bytes(15), "magic"),
        (b"\x47\x02" + bytes(14), "version"),
        (HEADER.pack(0x47, 1, 0, 1.0, 2) + bytes(12), "2 rows need"),
        (HEADER.pack(0x47, 1, 0, 1.0, 0) + b"x", "0 rows need"),
        (HEADER.pack(0x47, 1, 0, float("nan"), 0), "time"),
    ],
)
def test_what_is_not_a_frame_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(FrameRefused, match=why):
        decode(data)


def test_too_many_rows_are_refused() -> None:
    with pytest.raises(FrameRefused, match="rows"):
        encode(Frame(1, 2.0, (BUSY,) * (MAX_ROWS + 1)))


def test_a_state_of_a_newer_version_is_unknown() -> None:
    data = bytearray(encode(Frame(1, 2.0, (BUSY,))))
    data[16] = 200
    assert decode(bytes(data)).rows[0].state is GpuState.UNKNOWN


ROWS = st.builds(
    FrameRow,
    state=st.sampled_from(GpuState),
    util_pct=st.none() | st.integers(0, 100),
    memory_used_mib=st.none() | st.integers(0, 2**32 - 2),
    temperature_celsius=st.none() | st.integers(0, 254),
    power_watts=st.none() | st.integers(0, 65_534),
    sm_clock_mhz=st.none() | st.integers(0, 65_534),
    age_seconds=st.none() | st.integers(0, 254).map(lambda n: n * 0.1),
)


@given(st.integers(0, 2**32 - 1), st.floats(0, 4e9), st.lists(ROWS, max_size=20))
def test_every_frame_reads_back_as_it_was_written(roster_id, server_at, rows) -> None:
    told = decode(encode(Frame(roster_id, server_at, tuple(rows))))
    assert (told.roster_id, told.server_at, len(told.rows)) == (
        roster_id,
        server_at,
        len(rows),
    )
    for one, other in zip(told.rows, rows, strict=True):
        assert one.age_seconds == pytest.approx(other.age_seconds, abs=0.11)
        assert (
            one.__class__(**{**_known(one), "age_seconds": other.age_seconds}) == other
        )


def _known(row: FrameRow) -> dict:
    return {name: getattr(row, name) for name in FrameRow.__slots__}


@given(st.binary(max_size=64))
def test_random_bytes_are_refused_or_read_and_nothing_else(data: bytes) -> None:
    try:
        decode(data)
    except FrameRefused:
        return
    assert struct.unpack_from("<BB", data) == (0x47, 1)
