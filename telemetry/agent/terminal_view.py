"""A Sample as lines for a terminal, in the manner of gpustat.

    atlas  2 GPUs  driver 570.124.06  CUDA 12.8  read in 70 ms
         GPU                          util           memory    temp        power
    [0]  NVIDIA A100-SXM4-80GB        93 %    10.0 / 80 GiB   71 °C  350 / 400 W
         slowed down: sw thermal
         alice  python train.py  pid 4242  10 GiB  70 %  since 3 h
    [1]  NVIDIA A100-SXM4-80GB      lost: the driver does not find it

A dash stands for a value that the card cannot report. Names of machines and processes
are printed without control characters. Nothing is shown by colour alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum

from telemetry.protocol.hardware import GpuInfo, NodeInfo
from telemetry.protocol.sample import (
    HARM,
    GpuAnswer,
    GpuReading,
    NodeSample,
    ProcessReading,
    Throttle,
)
from telemetry.protocol.units import (
    GIB_BYTES,
    UNKNOWN,
    format_bytes,
    format_duration,
    format_pct,
)

BUSY_PCT = 60
NEAR_SLOWDOWN_CELSIUS = 8
FULL_RATIO = 0.9
MOST_PROCESSES_SHOWN = 12
COLUMNS = "{:<4} {:<26.26} {:>6}  {:>15}  {:>6}  {:>11}  {:>8}"


class TerminalColours(StrEnum):
    """ANSI colours (ECMA-48, SGR)."""

    BOLD = "1"
    DIM = "2"
    RED = "31"
    GREEN = "32"
    YELLOW = "33"
    CYAN = "36"


Paint = Callable[[str, TerminalColours | None], str]


def uncoloured(text: str, ink: TerminalColours | None) -> str:
    """No colour."""
    del ink
    return text


def coloured(text: str, ink: TerminalColours | None) -> str:
    """Return the text in a colour."""
    return text if ink is None else f"\x1b[{ink.value}m{text}\x1b[0m"


def lines(
    info: NodeInfo,
    sample: NodeSample,
    *,
    unnamed: Iterable[int] = (),
    paint: Paint = uncoloured,
) -> Iterator[str]:
    """Yield a Sample line by line. `unnamed`: indices of Gpus that were lost
    before.
    """
    yield _head(info, sample, paint)
    titles = ("", "GPU", "util", "memory", "temp", "power", "clock")
    yield paint(COLUMNS.format(*titles).rstrip(), TerminalColours.DIM)
    by_uuid = {gpu.uuid: gpu for gpu in info.gpus}
    for reading in sample.gpus:
        gpu = by_uuid.get(reading.uuid)
        if gpu is not None:
            yield from _gpu_lines(gpu, reading, sample.at, paint)
    for index in unnamed:
        slot = f"[{index}]"
        words = paint(
            "lost: the driver lists it and gives no name", TerminalColours.RED
        )
        yield f"{slot:<4} {'?':<26} {words}"


def printable(text: str) -> str:
    """Return a text without control characters."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _head(info: NodeInfo, sample: NodeSample, paint: Paint) -> str:
    count = len(sample.gpus)
    parts = [paint(printable(sample.node), TerminalColours.BOLD)]
    parts.append(f"{count} GPU{'' if count == 1 else 's'}")
    if info.driver_version:
        parts.append(f"driver {printable(info.driver_version)}")
    if info.cuda_version:
        parts.append(f"CUDA {printable(info.cuda_version)}")
    parts.append(f"read in {sample.took_seconds * 1000:.0f} ms")
    return "  ".join(parts)


def _gpu_lines(
    gpu: GpuInfo, reading: GpuReading, at: float, paint: Paint
) -> Iterator[str]:
    slot = f" └{gpu.index}" if gpu.mig_parent else f"[{gpu.index}]"
    if not reading.answers:
        words = {
            GpuAnswer.LOST: "lost: the driver does not find it",
            GpuAnswer.HUNG: "hung: the driver does not answer for it",
        }.get(reading.state, "answers with nothing but errors")
        name = f"{slot:<4} {_name(gpu):<26.26} "
        yield name + paint(words, TerminalColours.RED)
        return
    yield _figures(slot, gpu, reading, paint)
    for note, ink in _warning_notes(gpu, reading):
        yield f"     {paint(note, ink)}"
    processes = reading.processes
    if processes is None and not gpu.mig:
        yield f"     {paint('who is on it: the card cannot say', TerminalColours.DIM)}"
    for process in (processes or ())[:MOST_PROCESSES_SHOWN]:
        yield f"     {_process(process, at, paint)}"
    more = len(processes or ()) - MOST_PROCESSES_SHOWN
    if more > 0:
        yield f"     {paint(f'and {more} more processes', TerminalColours.DIM)}"


def _figures(slot: str, gpu: GpuInfo, reading: GpuReading, paint: Paint) -> str:
    cells = COLUMNS.format(
        slot,
        _name(gpu),
        format_pct(reading.util_pct),
        _memory(gpu, reading),
        _with_unit(reading.temperature_celsius, "°C"),
        _power(reading),
        _with_unit(reading.sm_clock_mhz, "MHz"),
    )
    # Coloured after padding, because colour codes have no width.
    columns = (
        (0, 31, None),
        (31, 39, _busy_ink(reading)),
        (39, 56, _memory_ink(gpu, reading)),
        (56, 64, _heat_ink(gpu, reading)),
        (64, len(cells), None),
    )
    return "".join(paint(cells[a:b], ink) for a, b, ink in columns).rstrip()


def _name(gpu: GpuInfo) -> str:
    """Return the Gpu's name and, for an instance, which part of its card it is."""
    name = printable(gpu.name)
    start = name.find("MIG ") if gpu.mig_parent else -1
    return name[max(start, 0) :]


def _memory(gpu: GpuInfo, reading: GpuReading) -> str:
    total = reading.memory_total_bytes or gpu.memory_total_bytes
    used = reading.memory_used_bytes
    shown = UNKNOWN if used is None else f"{used / GIB_BYTES:.1f}"
    return f"{shown} / {total / GIB_BYTES:.0f} GiB"


def _power(reading: GpuReading) -> str:
    drawn, limit = (
        UNKNOWN if value is None else f"{value:.0f}"
        for value in (reading.power_watts, reading.power_limit_watts)
    )
    return f"{drawn} / {limit} W"


def _with_unit(value: float | None, unit: str) -> str:
    return UNKNOWN if value is None else f"{value:.0f} {unit}"


def _busy_ink(reading: GpuReading) -> TerminalColours | None:
    if reading.util_pct is None:
        return TerminalColours.DIM
    return (
        TerminalColours.YELLOW
        if reading.util_pct >= BUSY_PCT
        else TerminalColours.GREEN
    )


def _heat_ink(gpu: GpuInfo, reading: GpuReading) -> TerminalColours | None:
    celsius, limit = reading.temperature_celsius, gpu.slowdown_celsius
    if celsius is None or limit is None:
        return None
    return TerminalColours.RED if celsius > limit - NEAR_SLOWDOWN_CELSIUS else None


def _memory_ink(gpu: GpuInfo, reading: GpuReading) -> TerminalColours | None:
    total, used = gpu.memory_total_bytes, reading.memory_used_bytes
    full = bool(total and used is not None and used > FULL_RATIO * total)
    return TerminalColours.YELLOW if full else None


def _warning_notes(
    gpu: GpuInfo, reading: GpuReading
) -> Iterator[tuple[str, TerminalColours | None]]:
    """Yield warnings, and reasons for missing values."""
    slowed = [x for x in reading.throttle or () if x in HARM]
    if slowed:
        yield f"slowed down: {_throttle_text(slowed)}", TerminalColours.RED
    elif Throttle.SW_POWER_CAP in (reading.throttle or ()):
        yield "at its power limit", TerminalColours.DIM
    if reading.ecc_uncorrected:
        yield (
            f"{reading.ecc_uncorrected} uncorrected memory errors",
            TerminalColours.RED,
        )
    if reading.remap_failure:
        yield "a memory row could not be remapped", TerminalColours.RED
    if reading.remap_pending or reading.retired_pages_pending:
        yield "memory repairs wait for a reset", TerminalColours.YELLOW
    for event in reading.xids:
        yield f"XID {event.code}", TerminalColours.RED
    if gpu.mig:
        yield "split (MIG): its instances are below", TerminalColours.CYAN


def _throttle_text(reasons: list[Throttle]) -> str:
    return ", ".join(x.value.replace("_", " ") for x in reasons)


def _process(process: ProcessReading, at: float, paint: Paint) -> str:
    who = printable(process.user or "?")
    what = printable(process.command) or "?"
    parts = [paint(who, TerminalColours.CYAN), what, f"pid {process.pid}"]
    if process.job is not None:
        parts.append(f"job {process.job}")
    parts.append(format_bytes(process.memory_bytes))
    parts.append(format_pct(process.sm_pct))
    if process.started_at is not None:
        parts.append(f"since {format_duration(max(0.0, at - process.started_at))}")
    return "  ".join(parts)
