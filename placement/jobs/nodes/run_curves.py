"""The curves of a Job: the numbers in its log and in its TensorBoard event files.

Event files are results, so their curves are there once the node has sent them. The
worker reads them once, within limits, and stores the thinned curves beside them. The
web reads only the stored curves.
"""

import contextlib
import fcntl
import json
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from placement.jobs.nodes import log_store, result_files
from placement.models import Job, ResultFile
from placement.rules.event_file import (
    MOST_TAG_CHARACTERS,
    Curves,
    ReadBudget,
    read_scalars,
    thinned,
)
from placement.rules.tracked_runs import event_files, run_names

MOST_FILES = 32
JOBS_A_LOOK = 2
"""Jobs whose event files are read in one run. Each takes less than a second."""
_MARK = re.compile(r"(\d{1,18})-(\d{1,9})(\.taken)?")
_TAKEN = ".taken"
RETRY = timedelta(minutes=10)

logger = logging.getLogger(__name__)


def numbers(job: Job, most: int = log_store.PAGE_BYTES) -> log_store.CurveRows:
    """Return the numbers of a Job by step, thinned for a chart.

    Those of the log come first. A tag that the log has too is left to the log.

    Args:
        most: bytes of the log to read now.
    """
    found = log_store.numbers(job, most)
    rows = found.rows
    known = {name for row in rows for name in row} - {"step"}
    added = []
    for row in _stored(job).get("rows", ()):
        left = {name: value for name, value in row.items() if name not in known}
        if len(left) > 1:
            added.append(left)
    return replace(found, rows=[*rows, *added])


def is_cut(job: Job) -> bool:
    """Return whether event files of the Job exceed the limits of reading."""
    return bool(_stored(job).get("is_cut"))


def read_due(now: datetime) -> int:
    """Read the event files that have arrived or were deleted. Return of how many Jobs.

    One process reads at a time, so that no older curves replace newer ones. What cannot
    be read now is read again after RETRY.
    """
    folder = result_files.curves_due_folder()
    if not folder.is_dir():
        return 0
    with (folder / "turn").open("w") as turn:
        try:
            fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return 0
        return sum(_take(mark, now) for mark in _due_marks(folder, now)[:JOBS_A_LOOK])


def _take(mark: Path, now: datetime) -> bool:
    again = (now + RETRY).timestamp()
    job_id, attempt = mark.stem.split("-")
    taken = mark.with_suffix(_TAKEN)
    try:
        # A file that arrives while these are read makes another mark. This one is due
        # later if the read fails in any way.
        mark.replace(taken)
        os.utime(taken, (again, again))
        done = _store(int(job_id), int(attempt))
        taken.unlink(missing_ok=True)
    except OSError as error:
        logger.warning("event files of job %s wait: %s", mark.stem, error)
        return False
    return done


def _due_marks(folder: Path, now: datetime) -> list[Path]:
    """Return the marks whose time has come, the oldest first."""
    due = []
    for mark in folder.iterdir():
        if _MARK.fullmatch(mark.name):
            with contextlib.suppress(FileNotFoundError):
                due.append((mark.stat().st_mtime, mark))
    # A mark may be written in the same second.
    until = now.timestamp() + 1
    return [mark for at, mark in sorted(due) if at <= until]


def _store(job_id: int, attempt: int) -> bool:
    """Read the event files of an attempt, and store their curves. Raises OSError."""
    job = Job.objects.filter(pk=job_id).first()
    if job is None:
        return False
    files = _event_files(job, attempt)
    kept = result_files.curves_path(job_id, attempt)
    if not files:
        kept.unlink(missing_ok=True)
        return False
    budget = ReadBudget()
    curves = thinned(_read(files, budget))
    rows: dict[int, dict[str, float]] = {}
    for tag, points in curves.items():
        for step, value in points:
            rows.setdefault(step, {"step": step})[tag] = value
    told = {
        "files": [[row.pk, row.sha256] for row in files.values()],
        "is_cut": budget.is_spent or len(files) > MOST_FILES,
        "rows": [rows[step] for step in sorted(rows)],
    }
    draft = kept.with_suffix(f".{os.getpid()}.part")
    try:
        draft.write_text(json.dumps(told))
        draft.replace(kept)
    finally:
        draft.unlink(missing_ok=True)
    return True


def _event_files(job: Job, attempt: int) -> dict[str, ResultFile]:
    """Return the stored event files of an attempt by path, in the order of reading."""
    rows = job.results.filter(
        attempt=attempt, complete_at__isnull=False, dropped_at=None, refused=""
    )
    stored = {row.path: row for row in rows}
    return {path: stored[path] for path in event_files(stored)}


def _read(files: Mapping[str, ResultFile], budget: ReadBudget) -> Curves:
    """Return the curves by tag and, of several runs, by run. Raises OSError."""
    wanted = list(files)[:MOST_FILES]
    folders = [path.rpartition("/")[0] or "." for path in wanted]
    names = run_names(folders)
    found: Curves = {}
    for path, folder in zip(wanted, folders, strict=True):
        curves: Curves = {}
        with result_files.path_of(files[path]).open("rb") as file:
            read_scalars(file, curves, budget)
        for tag, points in curves.items():
            name = f"{names[folder]}/{tag}" if names[folder] else tag
            found.setdefault(name[-MOST_TAG_CHARACTERS:], []).extend(points)
        if budget.is_spent:
            break
    found.pop("step", None)
    return found


def _stored(job: Job) -> dict[str, Any]:
    """Return the stored curves of a Job's last attempt. {}: there are none.

    Those of files that have been deleted since are not returned.
    """
    kept = result_files.curves_path(job.pk, job.attempt)
    try:
        told: dict[str, Any] = json.loads(kept.read_text())
    except (OSError, ValueError):
        return {}
    here = {(row.pk, row.sha256) for row in _event_files(job, job.attempt).values()}
    return told if here.issuperset(map(tuple, told["files"])) else {}
