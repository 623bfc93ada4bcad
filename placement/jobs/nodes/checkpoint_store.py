"""Checkpoints in transfer between nodes, under MEDIA_ROOT.

``checkpoints/<job>-<attempt>-<key>-<part>.tar``, with ``.part`` while it is incomplete.
"""

import fcntl
import os
from pathlib import Path

from django.conf import settings

from placement.models import CarriedCheckpoint
from placement.protocol.node_refusals import LogConflict


def path_of(row: CarriedCheckpoint) -> Path:
    """Return the path of a complete one."""
    own = f"-{row.job.key}" if row.job.key else ""
    name = f"{row.job_id}-{row.job.attempt}{own}-{row.number}.tar"
    return Path(settings.MEDIA_ROOT) / "checkpoints" / name


def _coming(row: CarriedCheckpoint) -> Path:
    return path_of(row).with_suffix(".tar.part")


def append(row: CarriedCheckpoint, *, offset: int, data: bytes) -> int:
    """Append a piece. Return how many bytes are stored. The last one completes it.

    Raises:
        LogConflict: it does not start where the stored part ends, or exceeds its end.
    """
    path = _coming(row)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
    with os.fdopen(handle, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        have = os.fstat(file.fileno()).st_size
        if offset != have or have + len(data) > row.size_bytes:
            raise LogConflict(have)
        file.write(data)
        file.flush()
        have += len(data)
        if have == row.size_bytes:
            os.fsync(file.fileno())
            path.replace(path_of(row))
        return have


def begin(row: CarriedCheckpoint, *, same: bool) -> int:
    """Return how many bytes are stored; 0 if the content has changed.

    If all bytes are stored the checkpoint is complete, even if the process that stored
    the last piece ended before it recorded that.
    """
    if not same:
        drop(row)
    whole = path_of(row)
    if whole.is_file():
        return whole.stat().st_size
    try:
        have = _coming(row).stat().st_size
    except FileNotFoundError:
        return 0
    if have == row.size_bytes:
        _coming(row).replace(whole)
    return have


def drop(row: CarriedCheckpoint) -> None:
    """Delete its bytes. Missing files are no error."""
    for path in (path_of(row), _coming(row)):
        path.unlink(missing_ok=True)
