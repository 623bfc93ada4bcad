"""Jobs over several nodes: their parts, the nodes' facts, and the combined state.

A Job on one node has no parts and is not handled here. Facts from two nodes may be
applied at the same time: the writer of a part locks the Job's row and combines the
Job's state from all parts under that lock.
"""

import logging
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Q
from django.utils.crypto import salted_hmac

from placement.jobs.job_transitions import (
    MOST_REASON,
    PORTAL,
    instant,
    move,
    record_note,
)
from placement.models import Job, JobPart, StoredPlan
from placement.planner.launch.recipes import BY_TORCHRUN, runs_by_plan
from placement.protocol.events import Belief, JobEventKind, JobFact, Running
from placement.protocol.job_parts import (
    BAD,
    ENDS,
    PartInfo,
    final_state,
    first_failed_part,
    gpus_by_node,
    reason_of,
)
from placement.protocol.launchers import Launcher
from placement.protocol.rendezvous import Meeting
from telemetry.models import Gpu, Node
from telemetry.protocol.sentences import sentence

ABSENT_SECONDS = 15.0
OF_NODES = tuple(Launcher)[1:]
"""All except the script that starts itself, which begins on one node."""
ON_NODE = (Job.State.STARTING, Job.State.RUNNING)

logger = logging.getLogger(__name__)


# --- the nodes ------------------------------------------------------------------------


def planned_nodes(
    plan: StoredPlan | None, *, kind: str, recipe: str, launcher: str
) -> list[str]:
    """Return the nodes of a launch by its Plan. []: one node."""
    if plan is None:
        return []
    by_recipe = recipe in BY_TORCHRUN and runs_by_plan(plan.plan)
    by_launcher = launcher in OF_NODES
    if not (by_recipe if kind == Job.Kind.RECIPE else by_launcher):
        return []
    nodes = [name for name, _ in gpus_by_node(plan.plan)]
    return nodes if len(nodes) > 1 else []


def divide(job: Job, names: Iterable[str]) -> None:
    """Store the parts of a new Job, its first node first."""
    nodes = {node.name: node for node in Node.objects.filter(name__in=list(names))}
    JobPart.objects.bulk_create(
        JobPart(job=job, number=number, node=nodes[name])
        for number, name in enumerate(names)
    )


def of_node(job: Job, node_name: str) -> JobPart | None:
    """Return the part of a Job on a node. None: none, or the Job has no parts."""
    found: JobPart | None = (
        job.parts.select_related("node").filter(node__name=node_name).first()
    )
    return found


# --- the order to each node -------------------------------------------------------


def begin(job: Job) -> str:
    """Distribute a Job's Gpus to its parts. Return why that is impossible, or ""."""
    where = dict(Gpu.objects.filter(pk__in=job.gpu_ids).values_list("pk", "node_id"))
    first = 0
    for part in job.parts.select_related("node"):
        own = [pk for pk in job.gpu_ids if where.get(pk) == part.node_id]
        if not own:
            return sentence(
                "the reservation holds no GPU of its plan on {node} now",
                node=part.node.name,
            )
        JobPart.objects.filter(pk=part.pk).update(gpu_ids=own, first_rank=first)
        first += len(own)
    return ""


def rendezvous_of(job: Job, part: JobPart) -> Meeting:
    """Return the rank of one part among the others, and their rendezvous."""
    parts = list(job.parts.select_related("node"))
    first = parts[0]
    token = salted_hmac("placement.meeting", f"{job.pk}:{job.attempt}")
    return Meeting(
        node_rank=part.number,
        counts=tuple(len(one.gpu_ids) for one in parts),
        # The operator's setting, otherwise the first node's report.
        address=first.node.address or (first.address if part.number else ""),
        port=(first.port or 0) if part.number else 0,
        token=token.hexdigest()[:32],
    )


def to_order(job: Job, *, again_before: datetime | None = None) -> list[JobPart]:
    """Return the parts for which a start order is due.

    The first at once, the others when it has reported the rendezvous. With
    ``again_before`` also those that were ordered before that and have not answered.
    """
    parts = list(job.parts.select_related("node"))
    meets = parts[0].state == Job.State.RUNNING and parts[0].port is not None
    return [
        part
        for part in parts
        if (part.state == Job.State.QUEUED and (part.number == 0 or meets))
        or (
            again_before is not None
            and part.state == Job.State.STARTING
            and part.ordered_at is not None
            and part.ordered_at < again_before
        )
    ]


def joining(now: datetime) -> Iterable[Job]:
    """Return Jobs whose first node waits and whose others were not ordered yet."""
    return (
        Job.objects.select_related("node", "owner", "plan", "reservation")
        .select_related("resume_from")
        .filter(
            state=Job.State.STARTING,
            parts__number=0,
            parts__state=Job.State.RUNNING,
            parts__port__isnull=False,
            pk__in=JobPart.objects.filter(state=Job.State.QUEUED).values("job"),
            reservation__end__gt=now,
        )
    )


def take_to_order(part: JobPart, nonce: str, now: datetime) -> bool:
    """Mark a part as ordered. False: another worker was first."""
    old, before = part.state, part.ordered_at
    taken = JobPart.objects.filter(pk=part.pk, state=old, ordered_at=before).update(
        state=Job.State.STARTING if old == Job.State.QUEUED else old,
        ordered_at=now,
        order_nonce=nonce,
    )
    part.order_nonce = nonce
    return taken == 1


def running(job: Job) -> list[JobPart]:
    """Return the parts that may be on their nodes."""
    return list(job.parts.select_related("node").filter(state__in=ON_NODE))


def to_stop(job: Job, now: datetime) -> list[JobPart]:
    """Return the parts to stop. Those that never began end here."""
    if job.state not in Job.State.live():
        return list(job.parts.select_related("node").filter(seen_at__gt=job.ended_at))
    with transaction.atomic():
        locked = Job.objects.select_for_update().get(pk=job.pk)
        never = locked.parts.filter(state=Job.State.QUEUED)
        if never.update(
            state=Job.State.STOPPED, reason=sentence("never started"), ended_at=now
        ):
            _apply_part_states(locked, now)
    return running(job)


# --- facts of nodes -------------------------------------------------------------------


def apply_fact(part: JobPart, fact: JobFact, now: datetime, *, believed: bool) -> bool:
    """Apply one fact of a part's own node. Return whether it changed the Job.

    Args:
        believed: of a refusal, whether it answers the order that was sent last.
    """
    with transaction.atomic():
        job = Job.objects.select_for_update().get(pk=part.job_id)
        part = job.parts.select_related("node").get(pk=part.pk)
        if job.state not in Job.State.live() or part.state in ENDS or not believed:
            return False
        before = part.state
        _write(job, part, fact, now)
        if part.state != before:
            _record_part_event(job, part, now)
        return _apply_part_states(job, now)


def _write(job: Job, part: JobPart, fact: JobFact, now: datetime) -> None:
    started = fact.event is JobEventKind.STARTED
    part.seen_at = now
    if part.started_at is None and (started or fact.started_at is not None):
        at = fact.started_at or fact.at
        part.started_at = instant(at, earliest=job.created_at, now=now)
    if fact.meeting_port:
        part.address, part.port = fact.meeting_address, fact.meeting_port
    part.pid = fact.pid or part.pid
    if started:
        part.state = Job.State.RUNNING
    else:
        part.state = _end_of(job, fact)
        part.exit_code, part.exit_signal = fact.exit_code, fact.signal
        part.reason = (fact.reason or _exit_text(fact))[:MOST_REASON]
        part.last_lines = list(fact.last_lines)
        part.log_bytes = max(part.log_bytes, fact.log_bytes)
        earliest = part.started_at or job.created_at
        part.ended_at = instant(fact.at, earliest=earliest, now=now)
    part.save()


def _end_of(job: Job, fact: JobFact) -> Job.State:
    if fact.event is JobEventKind.LOST:
        return Job.State.LOST
    failing = job.parts.filter(state__in=list(BAD)).exists()
    if fact.stopped or (job.state in Job.State.ending() and not failing):
        return Job.State.STOPPED
    good = (
        fact.event is JobEventKind.EXITED
        and fact.exit_code == 0
        and fact.signal is None
    )
    return Job.State.DONE if good else Job.State.FAILED


def _exit_text(fact: JobFact) -> str:
    if fact.signal is not None:
        return sentence("ended by signal {signal}", signal=fact.signal)
    return (
        sentence("exit code {exit_code}", exit_code=fact.exit_code)
        if fact.exit_code
        else ""
    )


def _record_part_event(job: Job, part: JobPart, now: datetime) -> None:
    """Record a part's change in the Job's history."""
    ranks = part.info().rank_words
    why = f": {part.reason}" if part.reason else ""
    words = f"{part.node.name} ({ranks}) {part.state}{why}"[:MOST_REASON]
    record_note(job, now=now, actor=part.node.name, reason=words)


def _apply_part_states(job: Job, now: datetime) -> bool:
    """Change the Job's state according to its parts. Its row is locked."""
    rows = list(job.parts.select_related("node"))
    parts = [row.info() for row in rows]
    end = final_state([part.state for part in parts])
    bad = first_failed_part(parts)
    if end is not None:
        return _end(job, rows, end, bad, now)
    off = bad or next((p for p in parts if p.state is Job.State.STOPPED), None)
    if off is not None and job.state in ON_NODE:
        return move(
            job,
            Job.State.STOPPING,
            now=now,
            actor=off.node,
            reason=reason_of(off) if bad else off.reason,
            fields={"stop_at": now, "ordered_at": None, "seen_at": now},
        )
    started = [row.started_at for row in rows if row.started_at is not None]
    if job.state == Job.State.STARTING and len(started) == len(rows):
        fields = {"started_at": max(started), "seen_at": now}
        return move(job, Job.State.RUNNING, now=now, actor=PORTAL, fields=fields)
    return False


def _end(
    job: Job, rows: list[JobPart], end: Job.State, bad: PartInfo | None, now: datetime
) -> bool:
    row = rows[bad.number if bad else 0]
    ended = [one.ended_at for one in rows if one.ended_at is not None]
    started = [one.started_at for one in rows if one.started_at is not None]
    fields: dict[str, Any] = {
        "seen_at": now,
        "exit_code": row.exit_code,
        "exit_signal": row.exit_signal,
        "last_lines": row.last_lines,
        "log_bytes": max(job.log_bytes, rows[0].log_bytes),
        "ended_at": max(ended, default=now),
    }
    if job.started_at is None and started:
        fields["started_at"] = min(started)
    reason = (
        reason_of(bad) if bad else (job.reason if end is not Job.State.DONE else "")
    )
    actor = bad.node if bad else row.node.name
    return move(job, end, now=now, actor=actor, reason=reason, fields=fields)


def give_up(job: Job, now: datetime) -> str:
    """End the parts whose nodes are silent. Return their names."""
    silent = job.parts.select_related("node").exclude(state__in=list(ENDS))
    names = ", ".join(part.node.name for part in silent)
    silent.update(
        state=Job.State.LOST, reason=sentence("its node does not report"), ended_at=now
    )
    return names


# --- beliefs of nodes -----------------------------------------------------------------


def take_belief(node_name: str, belief: Belief, now: datetime) -> set[int]:
    """Compare a node's report of running Jobs with the parts that should be there.

    Returns the Jobs that it named as running.
    """
    named = {item.job for item in belief.running} | {fact.job for fact in belief.ended}
    rows = list(
        JobPart.objects.select_related("job__reservation", "node").filter(
            Q(job__in=named) | Q(state=Job.State.RUNNING), node__name=node_name
        )
    )
    if not rows:
        return set()
    ended = {(fact.job, fact.attempt): fact for fact in belief.ended}
    runs = {(item.job, item.attempt): item for item in belief.running}
    seen = set()
    for part in rows:
        key = (part.job_id, part.job.attempt)
        if (fact := ended.get(key)) is not None:
            apply_fact(part, fact, now, believed=not fact.code)
        elif (item := runs.get(key)) is not None:
            seen.add(part.pk)
            _mark_part_seen(part, item, now)
        elif part.state == Job.State.RUNNING:
            _mark_part_missing(part, belief, now)
    JobPart.objects.filter(pk__in=seen).update(seen_at=now)
    jobs = {part.job_id for part in rows if part.pk in seen}
    Job.objects.filter(pk__in=jobs).update(seen_at=now)
    return jobs


def _mark_part_seen(part: JobPart, item: Running, now: datetime) -> None:
    """Mark a part as running there. Its start may have been lost on the way."""
    job = part.job
    if job.state not in Job.State.live():
        return
    end = job.reservation.end.timestamp()
    if item.deadline_at is not None and abs(item.deadline_at - end) > 1:
        Job.objects.filter(pk=job.pk).update(told_end=None)
    if item.started_at is None or part.state == Job.State.RUNNING:
        return
    started = JobFact(
        job=job.pk,
        attempt=job.attempt,
        event=JobEventKind.STARTED,
        at=item.started_at,
        meeting_address=item.meeting_address,
        meeting_port=item.meeting_port,
    )
    apply_fact(part, started, now, believed=True)


def _mark_part_missing(part: JobPart, belief: Belief, now: datetime) -> None:
    """Mark a part as lost if the node has not named it for 15 s."""
    if part.seen_at is None or part.started_at is None:
        return
    if belief.at < part.started_at.timestamp():
        return
    if now - part.seen_at < timedelta(seconds=ABSENT_SECONDS):
        return
    lost = JobFact(
        job=part.job_id,
        attempt=part.job.attempt,
        event=JobEventKind.LOST,
        at=now.timestamp(),
        reason=sentence("{node} no longer has this job", node=part.node.name),
    )
    apply_fact(part, lost, now, believed=True)
