"""The curves of a Job: the numbers in its log and in its TensorBoard event files.

Event files are results, so their curves are there once the node has sent them.
"""

from functools import lru_cache
from pathlib import Path

from placement.jobs.nodes import log_store, result_files
from placement.models import Job
from placement.rules.event_file import Curves, read_scalars
from placement.rules.tracked_runs import event_files, run_names

MOST_FILES = 32
MOST_BYTES = 32 * 2**20
"""Of all event files of a Job. Larger ones are left to TensorBoard."""


def numbers(job: Job) -> list[dict[str, float]]:
    """Return the numbers of a Job by step, thinned for a chart.

    Those of the log come first. A tag that the log has too is left to the log.
    """
    rows = log_store.numbers(job)
    known = {name for row in rows for name in row}
    added: dict[int, dict[str, float]] = {}
    for tag, points in _scalars(job).items():
        if tag not in known:
            for step, value in points:
                added.setdefault(step, {"step": step})[tag] = value
    return [*rows, *(added[step] for step in sorted(added))]


def _scalars(job: Job) -> Curves:
    """Return the curves in a Job's event files, by tag and, of several, by run."""
    stored = {
        row.path: row
        for row in result_files.of_job(job)
        if row.complete_at and not row.dropped_at and not row.refused
    }
    wanted, left = [], MOST_BYTES
    for path in event_files(stored)[:MOST_FILES]:
        left -= stored[path].size_bytes
        if left >= 0:
            wanted.append(path)
    folders = [path.rpartition("/")[0] or "." for path in wanted]
    names = run_names(folders) if wanted else {}
    found: Curves = {}
    for path, folder in zip(wanted, folders, strict=True):
        row = stored[path]
        for tag, points in _of_file(result_files.path_of(row), row.sha256):
            name = f"{names[folder]}/{tag}" if names[folder] else tag
            found.setdefault(name, []).extend(points)
    return found


@lru_cache(maxsize=64)
def _of_file(
    path: Path, _sha256: str
) -> tuple[tuple[str, tuple[tuple[int, float], ...]], ...]:
    """Return the curves of one stored file. Its bytes never change."""
    curves: Curves = {}
    try:
        with path.open("rb") as file:
            read_scalars(file, curves)
    except OSError:
        return ()
    return tuple((tag, tuple(points)) for tag, points in curves.items())
