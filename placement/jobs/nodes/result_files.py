"""Results of Jobs: listed by their node, stored here, deleted by the policy.

Files are under MEDIA_ROOT by number, never by a name that a Job chose. A file is
complete when all bytes have arrived and its SHA-256 equals the one in the list.
"""

import fcntl
import hashlib
import logging
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Sum

from placement.jobs import job_broadcast
from placement.models import Job, PlacementPolicy, ResultFile
from placement.planner.values.errors import BadInput
from placement.protocol.node_refusals import LogConflict
from placement.rules.tracked_runs import event_files
from telemetry.protocol.coded_error import CodedError
from telemetry.protocol.sentences import sentence
from telemetry.protocol.units import format_bytes
from telemetry.web.json_values import text_problem

logger = logging.getLogger(__name__)
MOST_PATH = 220
MOST_LISTED = 2000
MOST_SIZE = 2**50
DROPPED_A_LOOK = 100
_SHA256 = re.compile(r"[0-9a-f]{64}")


class ResultMisplaced(LogConflict):
    """A piece of a file does not begin where the stored part ends."""

    code = "result-misplaced"
    title = sentence("The file does not continue here")
    words = sentence("the file has {size} bytes")


class ResultSpoiled(CodedError):
    """The uploaded bytes differ from the list, and are deleted."""

    code = "result-spoiled"
    title = sentence("The file is not the listed one")
    status = HTTPStatus.UNPROCESSABLE_ENTITY


@dataclass(frozen=True)
class ResultLimits:
    """The site's limits for one Job."""

    most_files: int
    most_bytes: int
    keep_days: int
    person_bytes: int
    """Of all Jobs of one person. 0: no limit."""


def limits() -> ResultLimits:
    """Return the site's limits."""
    row = PlacementPolicy.objects.filter(pk=1).first() or PlacementPolicy()
    return ResultLimits(
        row.results_most_files,
        row.results_most_bytes,
        row.results_keep_days,
        row.results_person_bytes,
    )


def kept_bytes(owner_id: int) -> int:
    """Return the size of the stored results of one person's Jobs."""
    rows = ResultFile.objects.filter(job__owner=owner_id, refused="", dropped_at=None)
    return rows.aggregate(total=Sum("size_bytes"))["total"] or 0


def path_of(file: ResultFile) -> Path:
    """Return the path of a file's bytes."""
    return _folder(file.job_id, file.attempt) / str(file.pk)


def curves_path(job_id: int, attempt: int) -> Path:
    """Return the path of the curves that were read from an attempt's event files."""
    return _folder(job_id, attempt) / "curves.json"


def curves_due_folder() -> Path:
    """Return the folder with a mark for each attempt whose event files are to be read.

    A mark is an empty file, ``<job>-<attempt>``.
    """
    return Path(settings.MEDIA_ROOT) / "curves-due"


def _mark_curves(file: ResultFile) -> None:
    """Let the worker read the event files of a Job, if this is one of them."""
    if not event_files([file.path]):
        return
    folder = curves_due_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o750)
        (folder / f"{file.job_id}-{file.attempt}").touch()
    except OSError as error:
        logger.warning("no curves of job %s: %s", file.job_id, error)


def _folder(job_id: int, attempt: int) -> Path:
    return Path(settings.MEDIA_ROOT) / "results" / f"{job_id}-{attempt}"


def of_job(job: Job) -> Sequence[ResultFile]:
    """Return the results of a Job's last attempt."""
    return list(job.results.filter(attempt=job.attempt))


def stored_file(job: Job, file_id: int) -> ResultFile | None:
    """Return a file of a Job whose bytes are stored. None: they are not."""
    row = job.results.filter(
        pk=file_id, complete_at__isnull=False, dropped_at=None
    ).first()
    return row if row is not None and path_of(row).is_file() else None


@transaction.atomic(durable=True)
def store_list(
    *, job: Job, attempt: int, said: object, now: datetime
) -> Sequence[ResultFile]:
    """Store a node's list. Return the files that are wanted and missing. Idempotent.

    Raises:
        BadInput: it is not a valid list.
    """
    files, left_out = _checked(said)
    known = {row.path: row for row in job.results.filter(attempt=attempt)}
    policy, fresh = limits(), []
    count = sum(not row.refused for row in known.values())
    total = sum(row.size_bytes for row in known.values() if not row.refused)
    kept = kept_bytes(job.owner_id)
    for one in files:
        if one["path"] in known:
            continue
        over = count >= policy.most_files or total + one["size"] > policy.most_bytes
        why = sentence("more than the site stores for one job") if over else ""
        if not over and 0 < policy.person_bytes < kept + one["size"]:
            over = True
            why = sentence(
                "your results hold {kept} of {person}: delete those of old jobs",
                kept=format_bytes(kept),
                person=format_bytes(policy.person_bytes),
            )
        fresh.append(_row(job, attempt, one, why, now))
        taken = 0 if over else one["size"]
        count, total, kept = count + (not over), total + taken, kept + taken
    fresh += [
        _row(job, attempt, one, one["why"], now)
        for one in left_out
        if one["path"] not in known
    ]
    ResultFile.objects.bulk_create(fresh, ignore_conflicts=True)
    if fresh:
        job_broadcast.publish_job(job.pk)
    return list(
        job.results.filter(
            attempt=attempt,
            refused="",
            complete_at=None,
            dropped_at=None,
        )
    )


def _row(
    job: Job, attempt: int, one: Mapping[str, Any], why: str, now: datetime
) -> ResultFile:
    return ResultFile(
        job=job,
        attempt=attempt,
        path=one["path"],
        size_bytes=one["size"],
        sha256=one.get("sha256", ""),
        refused=why[:120],
        listed_at=now,
    )


def _checked(said: object) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Read a node's list, which is not trusted."""
    if not isinstance(said, dict):
        raise BadInput({"results": sentence("must be an object")})
    parts: list[list[dict[str, Any]]] = []
    for name in ("files", "left_out"):
        rows = said.get(name, [])
        if not isinstance(rows, list) or len(rows) > MOST_LISTED:
            raise BadInput(
                {
                    name: sentence(
                        "must be a list of at most {most_listed}",
                        most_listed=MOST_LISTED,
                    )
                }
            )
        if not all(_is_valid_row(row, name == "files") for row in rows):
            raise BadInput(
                {name: sentence("has an entry without a valid path, size or checksum")}
            )
        parts.append(list({row["path"]: row for row in rows}.values()))
    return parts[0], parts[1]


def _is_valid_row(row: object, whole: bool) -> bool:
    if not isinstance(row, dict):
        return False
    path, size = row.get("path"), row.get("size")
    named = isinstance(path, str) and 0 < len(path) <= MOST_PATH
    sized = type(size) is int and 0 <= size <= MOST_SIZE
    if not (named and sized):
        return False
    if not whole:
        why = row.get("why")
        return isinstance(why, str) and not (text_problem(str(path) + why))
    clean = str(path).isprintable() and all(
        part not in ("", ".", "..") for part in str(path).split("/")
    )
    return clean and bool(_SHA256.fullmatch(str(row.get("sha256", ""))))


def append(*, file: ResultFile, offset: int, data: bytes, now: datetime) -> int:
    """Append a piece. Return the new size. After the last one the hash is checked.

    Raises:
        ResultMisplaced: it does not begin where the stored part ends.
        ResultSpoiled: the complete file differs from the list.
        OSError: it cannot be stored.
    """
    path = path_of(file)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
    with os.fdopen(handle, "rb+") as stored:
        fcntl.flock(stored, fcntl.LOCK_EX)
        have = os.fstat(stored.fileno()).st_size
        if offset != have:
            raise ResultMisplaced(have)
        if have + len(data) > file.size_bytes:
            raise ResultSpoiled(sentence("it is larger than its listed size"))
        stored.write(data)
        stored.flush()
        have += len(data)
        fields: dict[str, object] = {"received_bytes": have}
        if have == file.size_bytes:
            stored.seek(0)
            if hashlib.file_digest(stored, "sha256").hexdigest() != file.sha256:
                path.unlink()
                why = sentence("it changed during the upload")
                ResultFile.objects.filter(pk=file.pk).update(
                    refused=why, received_bytes=0
                )
                raise ResultSpoiled(why)
            fields["complete_at"] = now
    ResultFile.objects.filter(pk=file.pk).update(**fields)
    if "complete_at" in fields:
        _mark_curves(file)
        job_broadcast.publish_job(file.job_id)
    return have


# --- deleting -----------------------------------------------------------------------


def drop_due(now: datetime) -> int:
    """Delete files past the policy's retention. Return their number."""
    until = now - timedelta(days=limits().keep_days)
    due = ResultFile.objects.filter(
        refused="",
        dropped_at=None,
        listed_at__lte=until,
        job__ended_at__lte=until,
    ).order_by("listed_at", "pk")[:DROPPED_A_LOOK]
    return drop(due, now=now)


def drop(files: Iterable[ResultFile], *, now: datetime) -> int:
    """Delete the bytes of some files. Their names stay listed. Return how many."""
    done = 0
    for file in files:
        if ResultFile.objects.filter(pk=file.pk, dropped_at=None).update(
            dropped_at=now
        ):
            path_of(file).unlink(missing_ok=True)
            _mark_curves(file)
            done += 1
    return done


def forget(job_ids: Iterable[int]) -> None:
    """Delete all results of Jobs, bytes and names. The bytes go on commit."""
    numbers = list(job_ids)
    ResultFile.objects.filter(job__in=numbers).delete()
    transaction.on_commit(lambda: remove_folders(numbers))


def remove_folders(job_ids: Iterable[int]) -> None:
    """Remove the bytes of Jobs whose rows are deleted."""
    above = Path(settings.MEDIA_ROOT) / "results"
    for number in job_ids:
        for folder in above.glob(f"{int(number)}-*"):
            shutil.rmtree(folder)
