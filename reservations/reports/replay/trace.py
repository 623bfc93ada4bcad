"""A recorded trace of jobs: a CSV file with one job per line and the columns NEEDED."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TextIO

from telemetry.protocol.coded_error import CodedError

NEEDED = ("job_id", "user", "group", "submit_s", "gpus", "duration_s", "req_s")
MOST_JOBS = 1_000_000
MOST_SECONDS = 100 * 366 * 86_400
MOST_GPUS = 1_000_000
NAME_LENGTH = 200
MOST_LINE = 64 * 1024
"""Characters of one line."""
MOST_CHARACTERS = 512 * 2**20
"""Of all lines together. A million jobs need a fifth of it."""


class TraceInvalid(CodedError):
    """The file is not a trace of jobs. The sentence says where."""

    code = "trace-invalid"


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job of a trace. It needs all its Gpus at once."""

    number: int
    """Position in the file, which orders equal jobs."""
    job_id: str
    user: str
    group: str
    submit_s: int
    """Seconds after the start of the trace."""
    gpus: int
    duration_s: int
    """Seconds it ran, at most the requested ones."""
    req_s: int
    """Requested seconds, the only length that a scheduler may know beforehand."""

    @property
    def member(self) -> tuple[str, str]:
        """Return the Membership. A person in two groups has two."""
        return self.group, self.user


def bounded_lines(lines: TextIO) -> Iterator[str]:
    """Yield lines of bounded length. A compressed file may contain any amount.

    Raises:
        TraceInvalid: a line, or all of them together, is too long for a trace.
    """
    left = MOST_CHARACTERS
    while line := lines.readline(MOST_LINE + 1):
        left -= len(line)
        if len(line) > MOST_LINE or left < 0:
            what = "a line" if len(line) > MOST_LINE else "the trace"
            raise TraceInvalid(f"{what} is too long")
        yield line


def read_trace(lines: Iterable[str]) -> list[TraceJob]:
    """Read a trace, in order of submission (then of the file).

    Raises:
        TraceInvalid: a column is missing, a cell is no whole number in range, a line
            has too few cells, or there is no job.
    """
    reader = csv.DictReader(lines)
    try:
        missing = [name for name in NEEDED if name not in (reader.fieldnames or ())]
        if missing:
            raise TraceInvalid(f"no column {', '.join(missing)}")
        jobs = [_job(number, row) for number, row in enumerate(reader)]
    except (csv.Error, UnicodeDecodeError) as error:
        raise TraceInvalid(f"line {reader.line_num}: {error}") from error
    if not jobs:
        raise TraceInvalid("no job")
    jobs.sort(key=lambda job: (job.submit_s, job.number))
    return jobs


def _job(number: int, row: dict[str, str | None]) -> TraceJob:
    where = f"line {number + 2}"
    if number >= MOST_JOBS:
        raise TraceInvalid(f"more than {MOST_JOBS:,} jobs")
    texts = {name: row.get(name) for name in NEEDED}
    for name, text in texts.items():
        if text is None:
            raise TraceInvalid(f"{where}: no {name}")
        if len(text) > NAME_LENGTH:
            raise TraceInvalid(f"{where}: {name} is too long")
    duration_s = _whole_number(where, "duration_s", texts, 0, MOST_SECONDS)
    req_s = _whole_number(where, "req_s", texts, 1, MOST_SECONDS)
    return TraceJob(
        number=number,
        job_id=str(texts["job_id"]),
        user=str(texts["user"]),
        group=str(texts["group"]),
        submit_s=_whole_number(where, "submit_s", texts, 0, MOST_SECONDS),
        gpus=_whole_number(where, "gpus", texts, 1, MOST_GPUS),
        duration_s=min(duration_s, req_s),
        req_s=req_s,
    )


def _whole_number(
    where: str, name: str, texts: dict[str, str | None], least: int, most: int
) -> int:
    text = str(texts[name]).strip()
    if not (text.isascii() and text.isdigit()) or len(text) > 15:
        raise TraceInvalid(f"{where}: {name} is not a whole number: {text[:20]!r}")
    if not least <= int(text) <= most:
        raise TraceInvalid(f"{where}: {name} is {text}, not {least} to {most}")
    return int(text)
