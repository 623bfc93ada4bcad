"""Stored logs: appended by the nodes' uploads, read by pages.

One file per attempt, ``MEDIA_ROOT/logs/<job>-<attempt>-<key>.log``, the same bytes as
on the node. Text is cleaned when it is read. The file itself is not changed.
"""

import contextlib
import fcntl
import json
import logging
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.utils import timezone
from django.utils.formats import date_format

from placement.models import Job, LogDropped, PlacementPolicy
from placement.protocol.node_refusals import LogConflict, LogTooLarge
from placement.rules.log_text import clean
from placement.rules.training_output import TrainingOutput
from telemetry.protocol.sentences import sentence
from telemetry.protocol.units import format_bytes

logger = logging.getLogger(__name__)
MOST_BYTES = 2**33
"""Limit of one stored log, in case a node lies. Eight times the size at which a shim
ends a Job, because the Job may still print during its grace.
"""
TAIL_BYTES = 64 * 1024
MOST_READ_BYTES = 2**20
MOST_POINTS = 1000
MOST_KINDS = 50
"""Sets of names whose rows are thinned apart. A log that has more thins the others
together."""
OTHER_KINDS = ""
DROPPED_A_LOOK = 50
"""Jobs whose logs are deleted in one run. Each costs a listing of the folder."""
MOST_QUERIED = 1000
"""Jobs per query."""
_FILE = re.compile(r"(\d{1,18})-\d{1,9}(?:-([0-9a-f]{1,32}))?\..+")
PAGE_BYTES = 2 * 2**20
"""Bytes of a log that one request reads for numbers: a third of a second. The next
request continues, and so does the tick.
"""
NUMBERS_BLOCK_BYTES = 2**17
"""Bytes that are read for numbers at once. No line with numbers is as long."""
SCAN_BYTES = 2 * 2**20
"""Bytes that one tick reads for numbers, of all logs together. Other ticks share its
processes.
"""
SEARCH_BYTES = 256 * 2**20
"""Bytes of a log that one search reads. The next search continues."""
BLOCK_BYTES = 2**20
"""Bytes of a log in memory at once."""
MOST_HITS = 100
MOST_LINE_BYTES = 400
MOST_WANTED_CHARACTERS = 200


@dataclass(frozen=True)
class LogPiece:
    """A part of a log: raw bytes [offset, offset + bytes) as clean text."""

    offset: int
    bytes: int
    data: str
    size: int
    """Of the whole file."""


@dataclass(frozen=True)
class LogMatch:
    """A line of a log that contains the searched text."""

    offset: int
    """Of the line, or of the shown part of a long one."""
    data: str


@dataclass(frozen=True)
class CurveRows:
    """The numbers in a log as far as it has been read for them."""

    rows: list[dict[str, float]]
    """Names and values of one line each, thinned for a chart."""
    new_bytes: int
    """Bytes that were read now."""
    left_bytes: int
    """Bytes to read. 0 if only the start of a line is left."""
    not_finite: dict[str, float] = field(default_factory=dict)
    """Names that were NaN or infinite, with the first step at which they were."""


@dataclass(frozen=True)
class LogSearch:
    """The result of one search."""

    hits: tuple[LogMatch, ...]
    next_offset: int | None
    """The offset of the next search. None: there is no more."""
    size: int


class UpToNow:
    """A log up to its length when it was opened, so that an answer with a declared
    length does not grow while the Job prints.
    """

    def __init__(self, path: Path) -> None:
        """Open it."""
        self._file = path.open("rb")
        self.size = self._left = os.fstat(self._file.fileno()).st_size

    def read(self, most: int) -> bytes:
        """Return the next bytes. Empty at the end."""
        data = self._file.read(min(most, self._left))
        self._left -= len(data)
        return data

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def path_of(job: Job, attempt: int | None = None, *, part: int = 0) -> Path:
    """Return the path of the log of an attempt (default: the last one).

    Args:
        part: of a Job over several nodes. The other logs are beside the first one.
    """
    number = job.attempt if attempt is None else attempt
    own = f"-{job.key}" if job.key else ""
    name = f"{job.pk}-{number}{own}"
    name = f"{name}.{part}.log" if part else f"{name}.log"
    return Path(settings.MEDIA_ROOT) / "logs" / name


def size(job: Job, *, part: int = 0) -> int:
    """Return how many bytes of the log are stored."""
    try:
        return path_of(job, part=part).stat().st_size
    except FileNotFoundError:
        return 0


def written_at(job: Job) -> float | None:
    """Return when the log last grew, in Unix seconds. None: there is no log."""
    try:
        return path_of(job).stat().st_mtime
    except FileNotFoundError:
        return None


def append(job: Job, *, attempt: int, offset: int, data: bytes, part: int = 0) -> int:
    """Append a piece from a node. Return the new size.

    Raises:
        LogConflict: it does not start where the stored part ends.
        LogTooLarge: the log would exceed its limit, or no more of it is stored.
    """
    if job.log_dropped_at or job.log_cut_at:
        raise LogTooLarge(note(job))
    path = path_of(job, attempt, part=part)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
    with os.fdopen(handle, "ab") as file:
        # Two web processes may hold pieces of one log: a retry after a time-out.
        fcntl.flock(file, fcntl.LOCK_EX)
        have = os.fstat(file.fileno()).st_size
        if offset != have:
            raise LogConflict(have)
        if have + len(data) > MOST_BYTES:
            raise LogTooLarge(f"a log may have {MOST_BYTES} bytes")
        file.write(data)
        file.flush()
        return have + len(data)


def drop_due(now: datetime) -> int:
    """Delete logs after the policy's number of days. Return the number of Jobs."""
    row = PlacementPolicy.objects.filter(pk=1).first() or PlacementPolicy()
    if not row.logs_keep_days:
        return 0
    due = Job.objects.filter(
        ended_at__lte=now - timedelta(days=row.logs_keep_days), log_dropped_at=None
    ).order_by("ended_at", "pk")[:DROPPED_A_LOOK]
    for job in due:
        _drop(job, LogDropped.AGE, now)
    return len(due)


def _drop(job: Job, why: LogDropped, now: datetime) -> None:
    """Delete the logs of all attempts and nodes, with the numbers read from them."""
    # First the row, so that nothing more is appended.
    Job.objects.filter(pk=job.pk).update(log_dropped_at=now, log_dropped_for=why)
    own = f"-{job.key}" if job.key else ""
    for attempt in range(1, job.attempt + 1):
        name = f"{job.pk}-{attempt}{own}"
        for path in path_of(job).parent.glob(f"{name}.*"):
            path.unlink(missing_ok=True)


def limit_each_person(now: datetime) -> dict[str, int]:
    """Keep each person's logs within the policy's bytes.

    The logs of Jobs that ended first are deleted first. If running Jobs alone exceed
    the limit, those with more than an equal part are cut. It costs a listing of the
    folder, so it runs once a minute.

    Returns:
        How many Jobs' logs were deleted (``dropped``) and cut (``cut``).
    """
    row = PlacementPolicy.objects.filter(pk=1).first() or PlacementPolicy()
    most, done = row.logs_person_bytes, {"dropped": 0, "cut": 0}
    if not most:
        return done
    for jobs in _by_owner().values():
        total = sum(jobs.values())
        ended = [job for job in jobs if job.ended_at is not None]
        for job in sorted(ended, key=lambda job: (job.ended_at, job.pk)):
            if total <= most:
                break
            _drop(job, LogDropped.ROOM, now)
            total -= jobs[job]
            done["dropped"] += 1
        if total <= most:
            continue
        running = [job for job in jobs if job.ended_at is None]
        for job in running:
            if jobs[job] * len(running) > most and not job.log_cut_at:
                _cut(job, total, most, now)
                done["cut"] += 1
    return done


def _by_owner() -> dict[int, dict[Job, int]]:
    """Return the bytes of the stored logs of each Job, by its owner."""
    sizes: dict[tuple[int, str], int] = defaultdict(int)
    folder = Path(settings.MEDIA_ROOT) / "logs"
    for path in folder.iterdir() if folder.is_dir() else ():
        if found := _FILE.fullmatch(path.name):
            with contextlib.suppress(FileNotFoundError):
                sizes[int(found[1]), found[2] or ""] += path.stat().st_size
    numbers = sorted({number for number, _ in sizes})
    owners: dict[int, dict[Job, int]] = defaultdict(dict)
    for at in range(0, len(numbers), MOST_QUERIED):
        rows = Job.objects.filter(pk__in=numbers[at : at + MOST_QUERIED])
        for job in rows.only("key", "owner", "ended_at", "attempt", "log_cut_at"):
            # A file of another Job with the same number, from before a restore, is not
            # counted.
            if size_bytes := sizes.get((job.pk, job.key), 0):
                owners[job.owner_id][job] = size_bytes
    return owners


def _cut(job: Job, held: int, most: int, now: datetime) -> None:
    """Store no more of a Job's log, and add a line about that."""
    Job.objects.filter(pk=job.pk).update(log_cut_at=now)
    line = (
        f"\ngpuportal: the log is cut here: the logs of your jobs hold "
        f"{format_bytes(held)}, and may hold {format_bytes(most)}. The job runs on.\n"
    )
    first = path_of(job)
    for path in (first, *first.parent.glob(f"{first.stem}.*.log")):
        # Only if there is one, because the note must not be the first line.
        with contextlib.suppress(FileNotFoundError), path.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0, os.SEEK_END)
            file.write(line.encode())


def note(job: Job) -> str:
    """Return why a log is missing or incomplete. "": it is complete."""
    if job.log_dropped_at:
        day = date_format(timezone.localtime(job.log_dropped_at), "j F Y")
        why = sentence("the lab keeps logs for a limited time")
        if job.log_dropped_for == LogDropped.ROOM:
            why = sentence(
                "the logs of this person's jobs exceeded the limit together, and the "
                "oldest are deleted first"
            )
        return sentence("This log was deleted on {day}: {why}.", day=day, why=why)
    if job.log_cut_at:
        at = date_format(timezone.localtime(job.log_cut_at), "j F Y, H:i")
        return sentence(
            "This log is not stored from {at} on: the logs of this person's running "
            "jobs exceed the limit together.",
            at=at,
        )
    return ""


def read(job: Job, *, offset: int, length: int = TAIL_BYTES, part: int = 0) -> LogPiece:
    """Return a range of the log, at most 1 MiB. Negative offset: from the end."""
    total = size(job, part=part)
    start = max(0, total + offset) if offset < 0 else min(offset, total)
    data = _bytes(job, start, min(length, MOST_READ_BYTES), part=part)
    return LogPiece(start, len(data), clean(data.decode(errors="replace")), total)


def tail(job: Job, length: int = TAIL_BYTES, *, part: int = 0) -> LogPiece:
    """Return the end of the log, from the start of a line if possible."""
    piece = read(job, offset=-length, length=length, part=part)
    if piece.offset == 0:
        return piece
    data = _bytes(job, piece.offset, piece.bytes, part=part)
    head = data.find(b"\n") + 1
    text = clean(data[head:].decode(errors="replace"))
    return LogPiece(piece.offset + head, len(data) - head, text, piece.size)


def last_lines(job: Job, count: int, *, part: int = 0) -> list[str]:
    """Return the last lines of the stored log, or those that the node sent live.

    After the end the log is stored later than those, which may be in several pieces.
    """
    late = job.ended_at is not None and size(job, part=part) < job.log_bytes
    if size(job, part=part) and not (late and part == 0 and job.last_lines):
        return tail(job, 16 * 1024, part=part).data.splitlines()[-count:]
    return [clean(line) for line in job.last_lines][-count:]


def numbers(job: Job, most: int = PAGE_BYTES) -> CurveRows:
    """Read on for numbers, and return those that have been read.

    Earlier results are stored beside the log, so only the new part of a long log is
    read. When there are too many points, every second one is dropped. One process reads
    a log at a time. The others return what is stored.

    Args:
        most: bytes to read now, or up to a block more.
    """
    path = path_of(job)
    if not path.is_file():
        return CurveRows([], 0, 0)
    kept = path.with_suffix(".numbers.json")
    state = _read_state(kept)
    total = size(job)
    left, new = max(0, total - state["offset"]), 0
    if state["offset"] != total:
        with path.with_suffix(".numbers.turn").open("w") as turn:
            try:
                fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return CurveRows(state["rows"], 0, left)
            # Another process may have read on before this one had its turn.
            state = _read_state(kept)
            if state["offset"] > total:
                state = _fresh()
            before = state["offset"]
            left = _read_on(job, state, total, most)
            _put_by(kept, state)
            if left:
                # Older than the log, so that the tick reads on.
                with contextlib.suppress(FileNotFoundError):
                    os.utime(kept, (0, 0))
            new = state["offset"] - before
    not_finite = state["output"].get("not_finite", {})
    return CurveRows(state["rows"], new, left, not_finite)


@contextlib.contextmanager
def numbers_turn() -> Iterator[bool]:
    """Take the tick's turn to read for numbers. False: another process has it."""
    folder = Path(settings.MEDIA_ROOT) / "logs"
    folder.mkdir(parents=True, exist_ok=True, mode=0o750)
    with (folder / "numbers.turn").open("w") as turn:
        try:
            fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def has_unread_numbers(job: Job) -> bool:
    """Return whether a part of the log was not read for numbers."""
    path = path_of(job)
    try:
        return path.stat().st_mtime >= path.with_suffix(".numbers.json").stat().st_mtime
    except FileNotFoundError:
        return path.is_file()


def _read_on(job: Job, state: dict[str, Any], total: int, most: int) -> int:
    """Read about `most` bytes into the state. Return how many bytes are left."""
    until = min(total, state["offset"] + most)
    output = TrainingOutput(**state["output"])
    left = True
    while state["offset"] < until:
        block = min(NUMBERS_BLOCK_BYTES, total - state["offset"])
        data = _bytes(job, state["offset"], block)
        whole = len(data) if len(data) == NUMBERS_BLOCK_BYTES else 0
        # Bars are redrawn after a carriage return.
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1 or whole
        if end == 0:  # half a line waits for its rest
            left = False
            break
        for line in data[:end].decode(errors="replace").splitlines():
            found = output.read(line if line.isprintable() else clean(line))
            if found is not None:
                _add_point(state, found)
        state["offset"] += end
    state["output"] = asdict(output)
    return total - state["offset"] if left else 0


def _put_by(kept: Path, state: dict[str, Any]) -> None:
    draft = kept.with_suffix(f".{os.getpid()}.part")
    try:
        draft.write_text(json.dumps(state))
        draft.replace(kept)
    except OSError as error:
        # On a full disk the next run reads this part again.
        draft.unlink(missing_ok=True)
        logger.warning("%s is not kept: %s", kept.name, error)


def search(job: Job, wanted: str, *, offset: int = 0, part: int = 0) -> LogSearch:
    """Return the lines from a byte offset on that contain a text, ignoring ASCII case.

    Reads at most 256 MiB, a mebibyte at a time, and finds at most 100 lines. A gigabyte
    takes seconds, in several calls, with the same little memory.
    """
    total = size(job, part=part)
    needle = wanted.encode(errors="replace").lower()
    if not needle:
        return LogSearch((), None, total)
    hits: list[LogMatch] = []
    until = min(total, offset + SEARCH_BYTES)
    while offset < until and len(hits) < MOST_HITS:
        block = _bytes(job, offset, BLOCK_BYTES, part=part)
        if not block:
            return LogSearch(tuple(hits), None, total)
        low = block.lower()
        at, passed = low.find(needle), 0
        while at >= 0 and len(hits) < MOST_HITS:
            hit = _line_at(job, offset + at, len(needle), part)
            if not hits or hits[-1].offset != hit.offset:
                hits.append(hit)
            passed = low.find(b"\n", at + len(needle)) + 1 or len(block)
            at = low.find(needle, passed)
        if at < 0:
            # The searched text may cross the end of the block.
            across = len(block) - (
                len(needle) - 1 if offset + len(block) < total else 0
            )
            passed = max(passed, across, 1)
        offset += passed
    return LogSearch(tuple(hits), offset if offset < total else None, total)


def _line_at(job: Job, at: int, length: int, part: int) -> LogMatch:
    """Return the line around a match, or a limited part of a long one."""
    first = max(0, at - MOST_LINE_BYTES // 2)
    near = _bytes(job, first, MOST_LINE_BYTES + length, part=part)
    start = near.rfind(b"\n", 0, at - first) + 1
    line, _, _ = near[start:].partition(b"\n")
    return LogMatch(first + start, clean(line.decode(errors="replace")))


def _add_point(state: dict[str, Any], row: dict[str, float]) -> None:
    """Keep a row, or only every second, fourth and so on of those with its names.

    So a curve of few points, as that of an evaluation, keeps them all.
    """
    kinds, kind = state["kinds"], _names(row)
    if kind not in kinds and len(kinds) >= MOST_KINDS:
        kind = OTHER_KINDS
    stride, seen = kinds.get(kind, (1, 0))
    kinds[kind] = [stride, seen + 1]
    if seen % stride == 0:
        state["rows"].append(row)
    if len(state["rows"]) > MOST_POINTS:
        _thin(state)


def _thin(state: dict[str, Any]) -> None:
    """Drop every second row of each kind that has more than half of its share."""
    kinds = state["kinds"]
    of_rows = [
        kind if kind in kinds else OTHER_KINDS
        for kind in (_names(row) for row in state["rows"])
    ]
    counts = Counter(of_rows)
    share = len(of_rows) / len(counts)
    kept, passed = [], Counter[str]()
    for kind, row in zip(of_rows, state["rows"], strict=True):
        if counts[kind] <= share / 2 or passed[kind] % 2 == 0:
            kept.append(row)
        passed[kind] += 1
    state["rows"] = kept
    for kind, count in counts.items():
        if count > share / 2:
            kinds[kind][0] *= 2


def _names(row: dict[str, float]) -> str:
    return " ".join(sorted(row))


def _fresh() -> dict[str, Any]:
    output = asdict(TrainingOutput())
    return {"offset": 0, "kinds": {}, "rows": [], "output": output}


def _read_state(path: Path) -> dict[str, Any]:
    fresh = _fresh()
    try:
        state = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return fresh
    return state if set(state) == set(fresh) else fresh


def _bytes(job: Job, offset: int, length: int, *, part: int = 0) -> bytes:
    try:
        with path_of(job, part=part).open("rb") as file:
            file.seek(offset)
            return file.read(length)
    except FileNotFoundError:
        return b""
