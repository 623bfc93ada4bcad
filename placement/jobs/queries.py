"""Jobs for pages and programs."""

from collections import Counter
from datetime import datetime, timedelta
from typing import TypedDict

from django.db.models import Q, QuerySet
from django.utils import timezone

from placement.jobs import job_broadcast
from placement.jobs.site_clock import clock_text
from placement.models import Job, JobEvent, MoveDecision, ResultFile, StoredPlan
from placement.planner.values.errors import PlanInvalid
from placement.planner.values.plan import Plan
from placement.rules.rebalance_policy import RestartMode
from placement.rules.rebalance_review import GpuTrouble
from reservations.models import Reservation
from reservations.rules.booking_alerts import INTRUDER
from reservations.rules.figures import time_text
from telemetry.models import Alert
from telemetry.protocol.sentences import sentence
from telemetry.protocol.units import format_duration
from telemetry.rules.alert_rules import SILENT, breaking_rules
from telemetry.web.answer_types import UtcInstant

SILENT_SECONDS = 15.0
_PATH = (Job.State.QUEUED, Job.State.STARTING, Job.State.RUNNING)


class JobReservation(TypedDict):
    """The reservation of a job."""

    id: int
    start: UtcInstant
    end: UtcInstant


class JobStep(TypedDict):
    """A step in the life of a job."""

    word: str
    at: UtcInstant | None
    """Null: not reached."""
    current: bool


class JobAnswer(TypedDict):
    """A job."""

    id: int
    name: str
    kind: str
    """recipe, script, serve or workspace."""
    recipe: str
    state: str
    """queued, starting, running, stopping, moving, done, failed, stopped or lost."""
    reason: str
    """Why it is in this state. May be empty."""
    waits: str
    """What a queued job waits for. Empty: nothing."""
    after: int | None
    """The job that must be done before it."""
    owner: str
    """Login."""
    node: str
    attempt: int
    exit_code: int | None
    exit_signal: int | None
    created_at: UtcInstant
    started_at: UtcInstant | None
    stop_at: UtcInstant | None
    """When it was told to stop."""
    ended_at: UtcInstant | None
    log_bytes: int
    """Size of its stored log."""
    silent_since: UtcInstant | None
    """Since when its node has not reported it. Null: it has."""
    progress: job_broadcast.ProgressAnswer | None
    """Null: its log has none."""
    reservation: JobReservation
    steps: list[JobStep]


class JobPartAnswer(TypedDict):
    """What a job over several nodes runs on one of them."""

    part: int
    node: str
    ranks: str
    state: str
    reason: str
    log_bytes: int


class JobChange(TypedDict):
    """A change of a job's state."""

    at: UtcInstant
    old: str
    new: str
    actor: str
    reason: str


class JobFile(TypedDict):
    """A file in a job's results folder."""

    id: int
    path: str
    size_bytes: int
    received_bytes: int
    """How much of it the portal has."""
    sha256: str
    state: str
    """In words."""
    reason: str
    """Why it was left out. Empty: it was not."""


class MoveAnswer(TypedDict):
    """One review of a running job: predicted and actual gain."""

    id: int
    job: int
    next_job: int | None
    """The job that continued it elsewhere."""
    at: UtcInstant
    seen_at: UtcInstant
    """The last review with the same result."""
    looks: int
    """Reviews with the same result."""
    cause: str
    state: str
    reason: str
    from_gpus: list[str]
    """node:index, by rank."""
    to_gpus: list[str]
    step_seconds_now: float | None
    step_seconds_new: float | None
    steps_left: int | None
    gain_seconds: float | None
    cost_seconds: float | None
    realised_step_seconds: float | None
    realised_gain_seconds: float | None
    realised_cost_seconds: float | None
    automatic: bool
    by: str | None
    """Login of the person who answered."""
    predicted: str
    """In words."""
    realised: str
    """In words."""


class MoveProposal(MoveAnswer):
    """A proposed move that waits for an answer."""

    words: str
    """What would happen to the job."""
    can_accept: bool


def job_facts(job: Job) -> JobAnswer:
    """Return the facts that change while a Job lives, as JSON values."""
    reservation = job.reservation
    return {
        "id": job.pk,
        "name": job.name,
        "kind": job.kind,
        "recipe": job.recipe,
        "state": job.state,
        "reason": job.reason,
        "waits": waiting_reason(job),
        "after": job.after_id,
        "owner": job.owner.username,
        "node": job.node.name,
        "attempt": job.attempt,
        "exit_code": job.exit_code,
        "exit_signal": job.exit_signal,
        "created_at": _utc(job.created_at),
        "started_at": iso(job.started_at),
        "stop_at": iso(job.stop_at),
        "ended_at": iso(job.ended_at),
        "log_bytes": job.log_bytes,
        "silent_since": iso(silent_since(job, timezone.now())),
        "progress": job_broadcast.progress_facts(job),
        "reservation": {
            "id": reservation.pk,
            "start": _utc(reservation.start),
            "end": _utc(reservation.end),
        },
        "steps": [
            {"word": word, "at": iso(at), "current": word == job.state}
            for word, at in _step_times(job)
        ],
    }


def waiting_reason(job: Job) -> str:
    """Return what a queued Job waits for. "": nothing."""
    if job.state != Job.State.QUEUED:
        return ""
    reservation = job.reservation
    ahead = reservation.start > timezone.now()
    start = clock_text(reservation.start) if ahead else ""
    if job.after_id is not None and not job.after_done:
        if ahead:
            return sentence(
                "waits until job {before} is done and reservation {reservation} "
                "begins, {start}",
                before=job.after_id,
                reservation=reservation.pk,
                start=start,
            )
        return sentence("waits until job {before} is done", before=job.after_id)
    if ahead:
        return sentence(
            "waits for reservation {reservation}, which begins {start}",
            reservation=reservation.pk,
            start=start,
        )
    return job.reason or sentence(
        "waits for the portal to start it, within a few seconds"
    )


def job_parts(job: Job) -> list[JobPartAnswer]:
    """Return what runs on each node of a Job over several. []: it has one node."""
    return [
        {
            "part": row.number,
            "node": row.node.name,
            "ranks": row.info().rank_words,
            "state": row.state,
            "reason": row.reason,
            "log_bytes": row.log_bytes,
        }
        for row in job.parts.select_related("node")
    ]


def silent_since(job: Job, now: datetime) -> datetime | None:
    """Return since when the node of a running Job has not reported it.

    The Job itself goes on, because its shim supervises it and its end without the
    portal.
    """
    if job.state not in Job.State.ending() | {Job.State.RUNNING} or job.seen_at is None:
        return None
    silent = now - job.seen_at > timedelta(seconds=SILENT_SECONDS)
    return job.seen_at if silent else None


def job_steps(job: Job) -> list[dict[str, object]]:
    """Return the steps of a Job: word, time (None: not reached), and whether it is
    now.
    """
    return [
        {"word": word, "at": at, "current": word == job.state}
        for word, at in _step_times(job)
    ]


def _step_times(job: Job) -> list[tuple[str, datetime | None]]:
    times = {
        Job.State.QUEUED: job.created_at,
        Job.State.STARTING: job.started_at if job.attempt == 0 else _first_order(job),
        Job.State.RUNNING: job.started_at,
    }
    words: list[tuple[str, datetime | None]] = [
        (state.value, times[state]) for state in _PATH
    ]
    ended = job.state not in Job.State.live()
    if job.stop_at is not None:
        moved = any(event.new == Job.State.MOVING for event in job.events.all())
        told = Job.State.MOVING if moved else Job.State.STOPPING
        words.append((told.value, job.stop_at))
    last = job.state if ended else Job.State.DONE.value
    if job.state in Job.State.ending() or (job.stop_at and not ended):
        last = Job.State.STOPPED.value
    words.append((last, job.ended_at if ended else None))
    return words


def _first_order(job: Job) -> datetime | None:
    # In Python, so that a list that has loaded the events needs no query.
    times = [event.at for event in job.events.all() if event.new == Job.State.STARTING]
    return times[-1] if times else None


def job_events(job: Job) -> list[JobChange]:
    """Return every state change of a Job as JSON values."""
    rows: QuerySet[JobEvent] = job.events.all()
    return [
        {
            "at": _utc(row.at),
            "old": row.old,
            "new": row.new,
            "actor": row.actor,
            "reason": row.reason,
        }
        for row in rows
    ]


def job_results(job: Job) -> list[JobFile]:
    """Return the files in a Job's results folder: names, sizes, and states."""
    rows = job.results.filter(attempt=job.attempt)
    return [
        {
            "id": row.pk,
            "path": row.path,
            "size_bytes": row.size_bytes,
            "received_bytes": row.received_bytes,
            "sha256": row.sha256,
            "state": _result_state(row),
            "reason": row.refused,
        }
        for row in rows
    ]


def _result_state(row: ResultFile) -> str:
    if row.refused:
        return sentence("left out")
    if row.dropped_at:
        return sentence("deleted")
    return sentence("here") if row.complete_at else sentence("on its way")


MOST_MOVES = 50


def job_moves(job: Job) -> list[MoveAnswer]:
    """Return the newest reviews of a Job, including the move that created it."""
    return [move_facts(row) for row in reviews_of(job)[:MOST_MOVES]]


def reviews_of(job: Job) -> QuerySet[MoveDecision]:
    """Return all reviews of a Job, newest first."""
    rows = MoveDecision.objects.filter(Q(job=job) | Q(next_job=job))
    return rows.select_related("decided_by").order_by("-at", "-pk")


def move_facts(row: MoveDecision) -> MoveAnswer:
    """Return one decision: numbers for programs, words for people."""
    realised = None
    if row.realised_gain_seconds is not None:
        realised = row.realised_gain_seconds - (row.realised_cost_seconds or 0.0)
    return {
        "id": row.pk,
        "job": row.job_id,
        "next_job": row.next_job_id,
        "at": _utc(row.at),
        "seen_at": _utc(row.seen_at),
        "looks": row.looks,
        "cause": row.cause,
        "state": row.state,
        "reason": row.reason,
        "from_gpus": row.from_gpus,
        "to_gpus": row.to_gpus,
        "step_seconds_now": row.step_seconds_now,
        "step_seconds_new": row.step_seconds_new,
        "steps_left": row.steps_left,
        "gain_seconds": row.gain_seconds,
        "cost_seconds": row.cost_seconds,
        "realised_step_seconds": row.realised_step_seconds,
        "realised_gain_seconds": row.realised_gain_seconds,
        "realised_cost_seconds": row.realised_cost_seconds,
        "automatic": row.automatic,
        "by": row.decided_by.username if row.decided_by else None,
        "predicted": _net_gain_text(row.gain_seconds, row.cost_seconds),
        "realised": _signed(realised),
    }


def _net_gain_text(gain_seconds: float | None, cost_seconds: float | None) -> str:
    if gain_seconds is None:
        return ""
    return sentence(
        "{gain} for {cost}",
        gain=_signed(gain_seconds),
        cost=format_duration(cost_seconds),
    )


def _signed(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{'−' if seconds < 0 else ''}{format_duration(abs(seconds))}"


RESTART_WORDS = {
    RestartMode.NOT: sentence(
        "The portal does not copy the state of the job. Choose first how it may be "
        "restarted."
    ),
    RestartMode.FRESH: sentence(
        "The job is stopped and starts again from the beginning. The portal does "
        "not copy its state."
    ),
    RestartMode.RESUMES: sentence(
        "The job is stopped, and then resumes from its own checkpoint. The portal "
        "does not copy its state."
    ),
}


def job_proposal(job: Job) -> MoveProposal | None:
    """Return the proposed move that waits for an answer, with its consequences."""
    row = job.moves.filter(state=MoveDecision.State.PROPOSED).first()
    if row is None:
        return None
    return {
        **move_facts(row),
        "words": RESTART_WORDS[RestartMode(job.restart)],
        "can_accept": job.restart != RestartMode.NOT,
    }


def plan_table(stored: StoredPlan) -> str:
    """Return a stored Plan as a text table. A Plan of an old form is reported as
    such.
    """
    try:
        return Plan.from_json(stored.plan).table()
    except PlanInvalid as error:
        return sentence("This plan can no longer be read: {error}", error=error)


def reservation_label(reservation: Reservation) -> str:
    """Return one line that distinguishes a Reservation from others of its holder."""
    start, end = (timezone.localtime(at) for at in (reservation.start, reservation.end))
    nodes = Counter(
        row.gpu.node.name for row in reservation.allocations.all() if row.live
    )
    gpus = ", ".join(f"{count} × {name}" for name, count in sorted(nodes.items()))
    same_day = start.date() == end.date()
    zone = timezone.get_current_timezone()
    until = f"{end:%H:%M}" if same_day else time_text(end, zone)
    purpose = f" · {reservation.purpose}" if reservation.purpose else ""
    when = sentence(
        "{start} to {until}",
        start=time_text(start, zone),
        until=until,
    )
    return sentence(
        "#{number} · {when} · {gpus}{purpose}",
        number=reservation.pk,
        when=when,
        gpus=gpus or sentence("no GPU"),
        purpose=purpose,
    )


def iso(at: datetime | None) -> str | None:
    """Return an instant in UTC with a Z."""
    return _utc(at) if at else None


def _utc(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")


def gpu_troubles() -> dict[str, list[tuple[GpuTrouble, datetime]]]:
    """Return the problems of each Gpu. A finding of a Node counts for all its Gpus."""
    found: dict[str, list[tuple[GpuTrouble, datetime]]] = {}
    breaks = breaking_rules()
    alerts = Alert.objects.open().filter(rule__in=[INTRUDER, *breaks])
    for alert in alerts.select_related("gpu__node", "node").order_by("opened_at", "pk"):
        gpus = [alert.gpu] if alert.gpu else []
        if alert.gpu is None and alert.node is not None:
            gpus = list(alert.node.gpus.filter(retired=False).select_related("node"))
        for gpu in gpus:
            trouble = GpuTrouble(
                rule=alert.rule,
                gpu_label=str(gpu),
                breaks=alert.rule in breaks,
                unheard=alert.rule == SILENT,
            )
            found.setdefault(gpu.uuid, []).append((trouble, alert.opened_at))
    return found
