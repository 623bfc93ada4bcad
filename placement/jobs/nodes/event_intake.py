"""Apply the facts that nodes report about their own Jobs.

A fact about a Job of another node, about another attempt or about an unknown Job is
logged and ignored. A fact may arrive twice: a transition is a compare-and-set from the
table of legal ones, so the second fact changes nothing.
"""

import logging
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from signal import SIGTERM, Signals
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Q
from redis import Redis

from placement.jobs.job_transitions import instant, move, record_note
from placement.jobs.nodes import (
    checkpoint_relay,
    command_queue,
    job_nodes,
    job_worker,
)
from placement.models import Job, JobPart, JobQuerySet
from placement.protocol.events import (
    Belief,
    ChannelFact,
    JobEventKind,
    JobFact,
    Running,
    parse_fact,
)
from placement.protocol.node_refusals import FactRefused
from placement.rules.log_text import error_of
from placement.rules.rebalance_policy import RestartMode
from reservations.presence.check_in import check_in, note_work
from reservations.store.co_users import may_use
from telemetry.inventory.enrollment import record_channel
from telemetry.models import Node
from telemetry.protocol.sentences import sentence

ABSENT_SECONDS = 15.0
CLOCK_SECONDS = 300.0
"""A belief from before a start counts after this long without the Job."""
STRANGER_SECONDS = 60.0
"""An unknown Job is stopped after this time, because its row may be new."""
MOST_STRANGERS = 64
"""Stop orders of that kind for one node in `STRANGER_AGAIN_SECONDS`."""
STRANGER_AGAIN_SECONDS = 30
"""After this time a stop order for the same unknown job is sent again."""
REPLAYED = "replayed"
PASSING = {
    "storage": "",
    "busy": "",
    "expired": sentence(
        "its clock differs from the portal's, or the command took too long to arrive"
    ),
    "clock": sentence("its clock differs from the portal's"),
}
"""Temporary refusals: the Job keeps its state and is ordered again."""
SHOULD_SHOW = Job.State.ending() | {Job.State.RUNNING}
"""States in which a Job must be in its node's belief, or it is lost."""

logger = logging.getLogger(__name__)


def record_fact(node_name: str, fact: dict[str, Any], now: datetime) -> bool:
    """Process one message of ``facts.<node_name>``. Return whether it changed
    anything.
    """
    try:
        said = parse_fact(fact)
    except FactRefused as refusal:
        logger.warning("fact of %s refused: %s", node_name, refusal)
        return False
    if isinstance(said, Belief):
        return _take_belief(node_name, said, now)
    if isinstance(said, ChannelFact):
        return record_channel(
            name=node_name, state=said.state.value, detail=said.detail
        )
    job = _jobs().filter(pk=said.job).first()
    if job is not None and said.key not in (None, job.key):
        job = None  # another one of that number, from before a restore
    part = None if job is None else job_nodes.of_node(job, node_name)
    if job is not None and part is not None and job.attempt == said.attempt:
        return _take_part(job, part, said, now)
    worker = "" if job is None else job_worker.worker_name(job.node)
    if job is None or worker != node_name or job.attempt != said.attempt:
        logger.warning(
            "fact of %s about job %s attempt %s, which is not its own, ignored",
            node_name,
            said.job,
            said.attempt,
        )
        return False
    return _take(job, said, now)


def _jobs() -> JobQuerySet:
    return Job.objects.select_related("node", "reservation")


def _take(job: Job, fact: JobFact, now: datetime) -> bool:
    """Apply one fact of the Job's own node."""
    if job.state not in Job.State.live():
        if fact.code in PASSING:  # of an order to bring its checkpoint
            checkpoint_relay.held_up(
                Q(job=job, node=job.node), _temporary_reason(job.node.name, fact)
            )
        return False
    if fact.event is JobEventKind.REFUSED and not _answers_last_order(job, fact, now):
        return False
    started_at = fact.started_at or (
        fact.at if fact.event is JobEventKind.STARTED else None
    )
    fields: dict[str, Any] = {"seen_at": now}
    if started_at is not None and job.started_at is None:
        fields["started_at"] = instant(started_at, earliest=job.created_at, now=now)
    with transaction.atomic():
        if fact.event is JobEventKind.STARTED:
            moved = move(
                job, Job.State.RUNNING, now=now, actor=job.node.name, fields=fields
            )
            if not moved and len(fields) > 1:
                Job.objects.filter(pk=job.pk).update(**fields)
        else:
            moved = _end(job, fact, now, fields)
    if started_at is not None:
        _check_in(job, now)
    return moved


def _take_part(job: Job, part: JobPart, fact: JobFact, now: datetime) -> bool:
    """Apply one fact about the part of a Job on one of its nodes."""
    own = fact.event is not JobEventKind.REFUSED or _answers_last_order(
        job, fact, now, part
    )
    moved = job_nodes.apply_fact(part, fact, now, believed=own)
    if fact.event is JobEventKind.STARTED or fact.started_at is not None:
        _check_in(job, now)
    return moved


def _answers_last_order(
    job: Job, fact: JobFact, now: datetime, part: JobPart | None = None
) -> bool:
    """Return whether a refusal ends the Job: it answers the order that was sent last.

    An attacker who can write into a node's queue can make the node refuse a forged
    order. That must not end a Job. (A refusal by the shim has no code.) The refusal of
    an order that only gave a running Job a new end does not end it either.
    """
    if not fact.code:
        return True
    if fact.code == REPLAYED or fact.nonce != (part or job).order_nonce:
        logger.warning(
            "job %s: %s refused an order that is not the last one: %s",
            job.pk,
            (part or job).node.name,
            fact.reason,
        )
        return False
    if (part or job).started_at is not None:
        return False
    if fact.code in PASSING:
        _store_wait_reason(job, _temporary_reason((part or job).node.name, fact), now)
        return False
    return True


def _temporary_reason(node_name: str, fact: JobFact) -> str:
    return f"{node_name}: {PASSING[fact.code] or fact.reason}"


def _store_wait_reason(job: Job, why: str, now: datetime) -> None:
    """Store why a Job does not start. The tick orders it again."""
    same = Job.objects.filter(pk=job.pk, state=Job.State.STARTING)
    with transaction.atomic():
        if not same.exclude(reason=why).update(reason=why):
            return
        record_note(job, now=now, actor=job.node.name, reason=why)


def _end(job: Job, fact: JobFact, now: datetime, fields: dict[str, Any]) -> bool:
    stopped = job.state in Job.State.ending()
    if fact.event is JobEventKind.LOST:
        new = Job.State.LOST
    elif stopped or fact.stopped:
        new = Job.State.STOPPED
    elif (
        fact.event is JobEventKind.EXITED
        and fact.exit_code == 0
        and fact.signal is None
    ):
        new = Job.State.DONE
    else:
        new = Job.State.FAILED
    started = job.started_at or fields.get("started_at") or job.created_at
    return move(
        job,
        new,
        now=now,
        actor=job.node.name,
        reason=_moved_on(job, fact)
        or (job.reason if stopped else "")
        or fact.reason
        or _exit_text(fact),
        fields={
            **fields,
            "exit_code": fact.exit_code,
            "exit_signal": fact.signal,
            "last_lines": list(fact.last_lines),
            "log_bytes": max(job.log_bytes, fact.log_bytes),
            "ended_at": instant(fact.at, earliest=started, now=now),
        },
    )


def _moved_on(job: Job, fact: JobFact) -> str:
    """Return a warning if a moving Job may not have saved its state, else "".

    Decided by exit codes: a Job that saves on TERM exits with 0 or by TERM.
    """
    well = fact.signal in (None, SIGTERM) and fact.exit_code in (None, 0, 128 + SIGTERM)
    moves = job.state == Job.State.MOVING and job.restart == RestartMode.RESUMES
    if well or not moves or fact.event is not JobEventKind.EXITED:
        return ""
    how = fact.reason.removeprefix(job.reason).removeprefix("; ") or _exit_text(fact)
    kept = sentence("the next run resumes from the last complete checkpoint")
    return sentence(
        "{reason}, {how} before it had saved: {kept}",
        reason=job.reason,
        how=how,
        kept=kept,
    )


def _exit_text(fact: JobFact) -> str:
    if fact.signal is not None:
        try:
            return sentence("ended by {signal}", signal=Signals(fact.signal).name)
        except ValueError:
            return sentence("ended by signal {signal}", signal=fact.signal)
    if not fact.exit_code:
        return ""
    if error := error_of(fact.last_lines):
        return sentence(
            "exit code {exit_code}: {error}", exit_code=fact.exit_code, error=error
        )
    return sentence("exit code {exit_code}", exit_code=fact.exit_code)


def _check_in(job: Job, now: datetime) -> None:
    """Check in the holder by a running Job. A co-user's Job does not count, nor does
    one without Gpus.
    """
    if job.owner_id != job.reservation.user_id or not job.uses_gpus:
        return
    if job.reservation.checked_in_at is None:
        check_in(reservation_id=job.reservation_id, now=now, by="job")


# --- beliefs of nodes -----------------------------------------------------------------


def _take_belief(node_name: str, belief: Belief, now: datetime) -> bool:
    """Compare the Jobs that a node reports as running with those that should run."""
    moved = False
    belief = _without_strangers(node_name, belief, now)
    for pk in job_nodes.take_belief(node_name, belief, now):
        _check_in(_jobs().get(pk=pk), now)
    known = {job.pk: job for job in _of_node(node_name, belief)}
    for fact in belief.ended:
        job = known.get(fact.job)
        if job is not None and job.attempt == fact.attempt:
            moved |= _take(job, fact, now)
    running = {(item.job, item.attempt): item for item in belief.running}
    seen = []
    for job in known.values():
        item = running.get((job.pk, job.attempt))
        if item is not None:
            # Ended Jobs too: the tick then stops those that should not run.
            seen.append(job.pk)
            moved |= _mark_job_seen(job, item, now)
            _note_work(job, item, belief, now)
        elif job.state in SHOULD_SHOW:
            moved |= _mark_job_missing(job, belief, now)
    Job.objects.filter(pk__in=seen).update(seen_at=now)
    return moved


def _without_strangers(node_name: str, belief: Belief, now: datetime) -> Belief:
    """Return a belief without Jobs that only have the number of one of ours.

    A portal that was restored from a backup reuses numbers that a node knows as other
    Jobs. Jobs that the portal does not know hold Gpus that it believes to be free. Both
    are stopped.
    """
    told: list[Running | JobFact] = [*belief.running, *belief.ended]
    named = {item.job for item in told}
    keys = dict(Job.objects.filter(pk__in=named).values_list("pk", "key"))

    def ours(item: Running | JobFact) -> bool:
        return item.key is None or keys.get(item.job) == item.key

    newest = now.timestamp() - STRANGER_SECONDS
    strangers = [
        item
        for item in belief.running
        if not ours(item) and item.started_at is not None and item.started_at < newest
    ]
    if strangers:
        _stop_strangers(node_name, strangers, now)
    return replace(
        belief,
        running=tuple(filter(ours, belief.running)),
        ended=tuple(filter(ours, belief.ended)),
    )


def _stop_strangers(
    node_name: str, strangers: Sequence[Running], now: datetime
) -> None:
    """Send stop orders for what a node should not run, within a bound.

    A node may name any number of jobs in every message. So there are at most
    `MOST_STRANGERS` orders for one node in `STRANGER_AGAIN_SECONDS`, and at most one
    for each of its jobs. Which ones is left to chance, so that none waits for ever.
    """
    key = f"strangers.{node_name}"
    newest = now.timestamp()
    with Redis.from_url(settings.REDIS_URL) as client:
        client.zremrangebyscore(key, "-inf", newest - STRANGER_AGAIN_SECONDS)
        sent = {member.decode() for member in client.zrange(key, 0, -1)}
        due = {f"{item.job}-{item.attempt}-{item.key}": item for item in strangers}
        names = sorted(due.keys() - sent)
        names = random.sample(names, len(names))[: max(0, MOST_STRANGERS - len(sent))]
        for name in names:
            order = command_queue.stranger_order(node_name, due[name], now=now)
            command_queue.send(order)
            client.zadd(key, {name: newest})
        client.expire(key, int(STRANGER_AGAIN_SECONDS))
    if names or len(strangers) > MOST_STRANGERS:
        logger.warning(
            "%s runs %d jobs that the portal does not know: %d stop orders sent (%s), "
            "at most %d in %d s",
            *(node_name, len(strangers), len(names)),
            ", ".join(str(due[name].job) for name in names[:8]) or "none",
            *(MOST_STRANGERS, STRANGER_AGAIN_SECONDS),
        )


def _of_node(node_name: str, belief: Belief) -> Iterable[Job]:
    named = {item.job for item in belief.running} | {fact.job for fact in belief.ended}
    own = _jobs().filter(job_worker.served_by(node_name), parts=None)
    return own.filter(pk__in=named) | own.filter(state__in=SHOULD_SHOW)


def _mark_job_seen(job: Job, item: Running, now: datetime) -> bool:
    """Mark a Job as running there. Its start may have been lost on the way."""
    if job.state not in Job.State.live():
        return False
    end = job.reservation.end.timestamp()
    if item.deadline_at is not None and abs(item.deadline_at - end) > 1:
        # The node does not know the Reservation's end, so the tick sends it again.
        Job.objects.filter(pk=job.pk).update(told_end=None)
    if item.started_at is None:
        if job.node.engine == Node.Engine.SLURM:
            # It waits in Slurm, so the holder has come.
            _check_in(job, now)
        return False
    if job.state == Job.State.STARTING:
        started = JobFact(
            job=job.pk,
            attempt=job.attempt,
            event=JobEventKind.STARTED,
            at=item.started_at,
        )
        return _take(job, started, now)
    _check_in(job, now)
    return False


def _note_work(job: Job, item: Running, belief: Belief, now: datetime) -> None:
    """Note when a workspace worked, by the age that its node reports.

    One that has computed nothing since the Job began has no such time. One
    without Gpus does not count, nor does one of a person who no longer shares the
    Reservation.
    """
    if item.worked_at is None or job.started_at is None or not job.uses_gpus:
        return
    age_seconds = max(0.0, belief.at - item.worked_at)
    runs = job.kind == Job.Kind.WORKSPACE and job.state == Job.State.RUNNING
    if not runs or age_seconds >= (now - job.started_at).total_seconds():
        return
    if may_use(job.reservation, job.owner_id):
        note_work(job.reservation, at=now - timedelta(seconds=age_seconds))


def _mark_job_missing(job: Job, belief: Belief, now: datetime) -> bool:
    """Mark a Job as lost if the node has not named it for 15 s.

    A belief from before its start may arrive late, and does not count. But a node whose
    clock is behind is not believed for ever.
    """
    if job.seen_at is None or job.started_at is None:
        return False
    silent_seconds = (now - job.seen_at).total_seconds()
    if belief.at < job.started_at.timestamp() and silent_seconds < CLOCK_SECONDS:
        return False
    if silent_seconds < 0:  # the portal's own clock went back
        Job.objects.filter(pk=job.pk).update(seen_at=now)
    if silent_seconds < ABSENT_SECONDS:
        return False
    lost = JobFact(
        job=job.pk,
        attempt=job.attempt,
        event=JobEventKind.LOST,
        at=now.timestamp(),
        reason=sentence("{node} no longer has this job", node=job.node.name),
    )
    return _take(job, lost, now)
