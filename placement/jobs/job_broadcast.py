"""Channel groups, messages and senders for the pages of Jobs.

| group              | message     | handler     | when                        |
| ------------------ | ----------- | ----------- | --------------------------- |
| placement.job.<id> | job.changed | job_changed | after each move, on commit  |
| placement.job.<id> | job.log     | job_log     | as the node sends log lines |
| the same, jobs.*   | job.progress | job_progress | as its own log tells      |
| placement.jobs.*   | jobs.changed | jobs_changed | as job.changed            |
| placement.refinement.<key> | refinement.changed | refinement_changed | progress, end |

`placement.jobs.*` are `user.<id>` (its owner), `account.<id>` (heads) and `all`.
Each Job has a group. Access is checked when a page joins, not for each message.
"""

import logging
import time
from typing import Any, Literal, TypedDict

import redis
from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from django.db import transaction

from placement.jobs.nodes import job_worker
from placement.models import Job, JobPart, Refinement
from placement.planner.memory.estimate import interval
from placement.planner.values.workload import Workload
from placement.rules.log_progress import ProgressCount, ProgressReading
from placement.rules.log_text import clean
from telemetry.web.answer_types import UtcInstant

MOST_LOG_BYTES = 64 * 1024
CACHE_SECONDS = 10.0
MOST_CACHED = 2000

logger = logging.getLogger(__name__)
_OUTAGES = (redis.ConnectionError, redis.TimeoutError, OSError)


class JobChanged(TypedDict):
    """A Job changed its state. The page requests the parts that it shows."""

    type: Literal["job.changed"]
    job: dict[str, object]


class JobLog(TypedDict):
    """A piece of a Job's log at a byte offset of the file."""

    type: Literal["job.log"]
    attempt: int
    offset: int
    bytes: int
    data: str
    part: int
    """The part of a Job over several nodes that wrote it."""


class ProgressAnswer(TypedDict):
    """The progress of a running job, read from its log."""

    done: float
    """In the unit of the program, steps for example."""
    total: float
    at: UtcInstant | None
    left_seconds: float | None
    """Estimated. Null: unknown."""


class JobProgress(TypedDict):
    """The progress of a Job, from its log."""

    type: Literal["job.progress"]
    job: int
    progress: ProgressAnswer


class JobsChanged(TypedDict):
    """A Job in a list changed or was launched. The page fetches its rows again."""

    type: Literal["jobs.changed"]
    job: int
    state: str


ALL_JOBS = "placement.jobs.all"
"""The group of users who may see every Job."""


def group_of(job_id: int) -> str:
    """Return the name of a Job's group."""
    return f"placement.job.{job_id}"


def owner_group(user_id: int) -> str:
    """Return the group of a person's own Jobs."""
    return f"placement.jobs.user.{user_id}"


def account_group(account_id: int) -> str:
    """Return the group of the Jobs that are charged to an Account, for its heads."""
    return f"placement.jobs.account.{account_id}"


def list_groups(job: Job) -> tuple[str, ...]:
    """Return the groups of all whose list has this Job."""
    account = job.reservation.membership.account_id
    return ALL_JOBS, owner_group(job.owner_id), account_group(account)


def last_progress(job: Job) -> ProgressReading | None:
    """Return the last known progress of a Job. None: its log has none."""
    at, first_at = job.progress_at, job.progress_from_at
    if at is None or first_at is None or not job.progress_total:
        return None
    return ProgressReading(
        ProgressCount(job.progress_done or 0.0, job.progress_total),
        at.timestamp(),
        job.progress_from or 0.0,
        first_at.timestamp(),
    )


def progress_facts(job: Job) -> ProgressAnswer | None:
    """Return the progress of a Job. None: its log has none, or it has not begun."""
    seen = last_progress(job)
    if seen is None:
        return None
    return {
        "done": seen.told.done,
        "total": seen.told.total,
        "at": _iso(job.progress_at),
        "left_seconds": seen.left_seconds,
    }


def publish_progress(job: Job) -> None:
    """Send the progress to a Job's page and to lists. Its Membership must be loaded."""
    facts = progress_facts(job)
    if facts is None:
        return
    message = JobProgress(type="job.progress", job=job.pk, progress=facts)
    for group in (group_of(job.pk), *list_groups(job)):
        _send_to(group, dict(message))


def job_message(job: Job) -> JobChanged:
    """Return the message about a Job's state."""
    return JobChanged(
        type="job.changed",
        job={
            "id": job.pk,
            "name": job.name,
            "state": job.state,
            "reason": job.reason,
            "attempt": job.attempt,
            "exit_code": job.exit_code,
            "exit_signal": job.exit_signal,
            "started_at": _iso(job.started_at),
            "stop_at": _iso(job.stop_at),
            "ended_at": _iso(job.ended_at),
            "log_bytes": job.log_bytes,
        },
    )


class RefinementChanged(TypedDict):
    """The state of a symbolic Estimate, and its answer once it is done."""

    type: Literal["refinement.changed"]
    refinement: dict[str, object]


def refinement_group(key: str) -> str:
    """Return the name of a Refinement's group."""
    # Group names have at most 99 characters.
    return f"placement.refinement.{key}"


def refinement_message(row: Refinement) -> RefinementChanged:
    """Return the message about a Refinement's state."""
    return RefinementChanged(
        type="refinement.changed",
        refinement={
            "key": row.key,
            "state": row.state,
            "doing": row.doing,
            "done_ratio": row.done_ratio,
            "answer": row.answer,
            "interval": _interval(row),
            "problem": row.problem,
        },
    )


def _interval(row: Refinement) -> dict[str, int] | None:
    """Return the interval for a refined peak, or None while there is no peak."""
    peak = (row.answer or {}).get("peak_bytes")
    if peak is None:
        return None
    workload = Workload(accelerator=row.case.get("accelerator", "cuda"))
    low, likely, high = interval(peak, workload)
    return {"low_bytes": low, "likely_bytes": likely, "high_bytes": high}


def publish_refinement(refinement_id: int) -> None:
    """Send a Refinement's state to the waiting pages, once it is committed."""

    def send() -> None:
        row = Refinement.objects.filter(pk=refinement_id).first()
        if row is None:
            return
        message = dict(refinement_message(row))
        layer = get_channel_layer()
        try:
            async_to_sync(layer.group_send)(refinement_group(row.key), message)
        except _OUTAGES as error:
            # A page requests it again when its socket reconnects.
            logger.warning("%s: nobody was told: %s", row, error)

    transaction.on_commit(send, robust=True)


def publish_job(job_id: int) -> None:
    """Send a Job's state to its pages once the transaction is committed."""

    def send() -> None:
        rows = Job.objects.select_related("reservation__membership")
        job = rows.filter(pk=job_id).first()
        if job is None:
            return
        _send(job_id, dict(job_message(job)))
        changed = JobsChanged(type="jobs.changed", job=job_id, state=job.state)
        for group in list_groups(job):
            _send_to(group, dict(changed))

    transaction.on_commit(send, robust=True)


class LogGate:
    """Passes on log pieces of a node's own Jobs only.

    It remembers for ten seconds which attempt of a Job runs where, so that a busy log
    does not cost a query per piece.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], tuple[float, int, int]] = {}

    def publish(self, node: str, message: dict[str, Any]) -> bool:
        """Send one message of ``log.<node>`` to the Job's pages. False: refused."""
        try:
            job, attempt = (
                _natural_number(message, "job"),
                _natural_number(message, "attempt"),
            )
            offset, size = (
                _natural_number(message, "offset"),
                _natural_number(message, "bytes"),
            )
            data = message["data"]
            if not isinstance(data, str) or size > MOST_LOG_BYTES:
                raise ValueError("data")
        except (KeyError, ValueError) as error:
            logger.warning("log message of %s refused: %s", node, error)
            return False
        place = self._attempt_and_part(job, node)
        if place is None or place[0] != attempt:
            logger.warning("%s sent log of job %s, which is not its own", node, job)
            return False
        piece = JobLog(
            type="job.log",
            attempt=attempt,
            offset=offset,
            bytes=size,
            # Halves of surrogate pairs cannot be sent.
            data=clean(data[:MOST_LOG_BYTES].encode(errors="replace").decode()),
            part=place[1],
        )
        _send(job, dict(piece))
        return True

    def _attempt_and_part(self, job: int, node: str) -> tuple[int, int] | None:
        """Return attempt and part of a Job that runs on a node. None: it does not."""
        now, key = time.monotonic(), (job, node)
        known = self._known.get(key)
        if known is None or now - known[0] > CACHE_SECONDS:
            row = _runs_on(job, node)
            if row is None:
                return None
            if len(self._known) >= MOST_CACHED:
                self._known.clear()
            known = self._known[key] = (now, *row)
        return known[1], known[2]


def _runs_on(job: int, node: str) -> tuple[int, int] | None:
    part = JobPart.objects.filter(job=job, node__name=node)
    found = part.values_list("job__attempt", "number").first()
    if found is not None:
        return int(found[0]), int(found[1])
    one = Job.objects.filter(job_worker.served_by(node), pk=job, parts=None)
    attempt = one.values_list("attempt", flat=True).first()
    return None if attempt is None else (attempt, 0)


_gate = LogGate()


def publish_log(node: str, message: dict[str, Any]) -> bool:
    """Send one message of ``log.<node>`` to the Job's pages. False: refused."""
    return _gate.publish(node, message)


def _natural_number(message: dict[str, Any], name: str) -> int:
    value = message[name]
    if type(value) is not int or not 0 <= value < 2**53:
        raise ValueError(name)
    return value


def _iso(at: Any) -> str | None:
    return at.isoformat().replace("+00:00", "Z") if at else None


def _send(job_id: int, message: dict[str, Any]) -> None:
    _send_to(group_of(job_id), message)


def _send_to(group: str, message: dict[str, Any]) -> None:
    try:
        async_to_sync(get_channel_layer().group_send)(group, message)
    except _OUTAGES as error:
        # Pages read the state again when their socket reconnects.
        logger.warning("%s: nobody was told: %s", group, error)
