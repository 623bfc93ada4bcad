"""The tick of Jobs. Each second it derives from the database what should run.

0. request the checkpoints of Jobs that resume on other nodes
1. free Jobs whose predecessor is done, and end those whose predecessor is not
2. order due Jobs: QUEUED, Reservation ACTIVE, first in order, Gpus free. For a Job over
   several nodes, order the other nodes once the first one has reported the rendezvous
3. send the order again if the node has not confirmed it for 20 s (same attempt: the
   node executes it once)
4. send shims the new end of a Reservation
5. stop Jobs without a running Reservation, or without the right to run in it
6. order the stop, and again each 5 s, until the node reports the end; also for a Job
   that has ended in the database and still runs on the node
7. warn owners ten minutes and one minute before the Reservation's end
8. restart Jobs that were lost with their node, up to their limit
9. give up Jobs whose node is silent a minute after the Reservation's end: the
   shim has already stopped them
10. check that Gpus are free after Jobs; notify the next holder if one is not

Safe to run twice and at the same time: a row is taken by compare-and-set before
its order is sent. One bad row is logged and skipped.
"""

import logging
from collections.abc import Iterable
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q

from placement.jobs import predecessor
from placement.jobs.job_transitions import PORTAL, end_before_start, move
from placement.jobs.nodes import checkpoint_relay, command_queue, job_nodes
from placement.jobs.tick import (
    end_warnings,
    gpu_assignment,
    gpu_release_check,
    job_retry,
)
from placement.models import Job, JobPart, JobQuerySet
from reservations.models import CoUser, SitePolicy
from reservations.rules.lifecycle import State
from telemetry.models import Node
from telemetry.protocol.sentences import sentence
from telemetry.rules.isolated_steps import RowSteps

AGAIN_SECONDS = 20.0
STOP_AGAIN_SECONDS = 5.0
GIVE_UP_SECONDS = 60.0
STRAY_SECONDS = 10.0
UNWATCHED_SECONDS = 30.0
"""After this long without a tick, the portal was down or its clock was set."""
MOST_ROWS = 200

logger = logging.getLogger(__name__)
_each = RowSteps(logger, "job")
_WORDS = {
    State.ENDED: sentence("the reservation's end"),
    State.RELEASED: sentence("the reservation was released"),
    State.CANCELLED: sentence("the reservation was cancelled"),
    State.DISPLACED: sentence("the reservation went to another person"),
    State.REFUNDED: sentence("the reservation was refunded: its GPUs were not usable"),
}


def tick(now: datetime) -> dict[str, int]:
    """Run every step once. Return how many rows each step changed."""
    return {
        "carried": _request_checkpoints(now),
        "settled": _each(predecessor.waiting(), predecessor.settle, now),
        "ordered": _each(_jobs_to_start(now), _order, now),
        "joined": _each(job_nodes.joining(now), _send_start, now),
        "ordered_again": _each(_unheard(now), _order_again, now),
        "told": _each(_end_moved(), _tell_end, now),
        "stopped": _each(_without_reservation(), _stop_job, now),
        "stops_sent": _each(_to_stop(now), _send_stop, now),
        "warned": _each(end_warnings.due(now), end_warnings.warn, now),
        "retried": _each(job_retry.due(now), job_retry.queue_retry, now),
        "given_up": _each(_jobs_to_give_up(now), _give_up, now),
        "checkpoints_dropped": checkpoint_relay.delete_unneeded_bytes(),
        "still_held": gpu_release_check.update_alerts(now),
        "next_told": gpu_release_check.notify_next_holders(now),
    }


def _request_checkpoints(now: datetime) -> int:
    """Request checkpoints from nodes, for Jobs that resume on other nodes."""
    sent = 0
    for row in checkpoint_relay.due(now):
        if checkpoint_relay.claim_transfer(row, now):
            order = command_queue.carry_order(row, now=now)
            sent += command_queue.send(order, request=row.job.request_id)
    return sent


def _jobs() -> JobQuerySet:
    return Job.objects.select_related(
        "node", "owner", "plan", "reservation", "resume_from"
    )


# --- 2 and 3: start orders ---


def _jobs_to_start(now: datetime) -> Iterable[Job]:
    return (
        _jobs()
        .filter(
            predecessor.FREE,
            state=Job.State.QUEUED,
            reservation__state=State.ACTIVE,
            reservation__end__gt=now,
        )
        .order_by("created_at", "pk")[:MOST_ROWS]
    )


def _order(job: Job, now: datetime) -> bool:
    ready = checkpoint_relay.ready(job, now)
    if ready.refuses:
        with transaction.atomic():
            fields = {"ended_at": now}
            return move(
                job,
                Job.State.FAILED,
                now=now,
                actor=PORTAL,
                reason=ready.refuses,
                fields=fields,
            )
    turn = gpu_assignment.gpus_for_due_job(job, command_queue.planned_uuids(job))
    if waits := turn.waits or ready.waits:
        Job.objects.filter(pk=job.pk, state=Job.State.QUEUED).exclude(
            reason=waits
        ).update(reason=waits)
        return False
    with transaction.atomic():
        if not move(
            job,
            Job.State.STARTING,
            now=now,
            actor=PORTAL,
            fields={
                "attempt": job.attempt + 1,
                "log_cut_at": None,
                "gpu_ids": list(turn.gpu_ids),
                "order_nonce": command_queue.new_nonce(),
                "ordered_at": now,
                "told_end": job.reservation.end,
            },
        ):
            return False
        if why := job_nodes.begin(job):
            fields = {"ended_at": now}
            return move(
                job, Job.State.FAILED, now=now, actor=PORTAL, reason=why, fields=fields
            )
    return _send_start(job, now)


def _send_start(job: Job, now: datetime, again: bool = False) -> bool:
    """Send the start order to a Job's node, or to each node with a due part."""
    if not job.parts.exists():
        order = command_queue.start_order(job, now=now)
        return command_queue.send(order, request=job.request_id)
    before = now - timedelta(seconds=AGAIN_SECONDS) if again else None
    return _send_parts(job, job_nodes.to_order(job, again_before=before), now)


def _send_parts(job: Job, due: Iterable[JobPart], now: datetime) -> bool:
    sent = False
    for part in due:
        if job_nodes.take_to_order(part, command_queue.new_nonce(), now):
            order = command_queue.start_order(job, now=now, part=part)
            sent |= command_queue.send(order, request=job.request_id)
    return sent


def _long_ago(now: datetime, seconds: float) -> Q:
    """Ordered long ago, or in a future from before the clock was set back."""
    span = timedelta(seconds=seconds)
    return Q(ordered_at__lt=now - span) | Q(ordered_at__gt=now + span)


def _unheard(now: datetime) -> Iterable[Job]:
    """Return the Jobs whose node has not said that it has them.

    A Job that waits in Slurm is starting for long, and its agent has it.
    """
    unheard = _jobs().filter(
        _long_ago(now, AGAIN_SECONDS),
        state=Job.State.STARTING,
        reservation__state=State.ACTIVE,
        reservation__end__gt=now,
    )
    known = Q(node__engine=Node.Engine.SLURM, seen_at__gt=F("ordered_at"))
    recent = Q(seen_at__gt=now - timedelta(seconds=AGAIN_SECONDS))
    return unheard.exclude(known & recent)[:MOST_ROWS]


def _order_again(job: Job, now: datetime) -> bool:
    """Send the same attempt with a new nonce and a new date."""
    nonce = command_queue.new_nonce()
    taken = Job.objects.filter(
        pk=job.pk, state=Job.State.STARTING, ordered_at=job.ordered_at
    ).update(ordered_at=now, order_nonce=nonce, told_end=job.reservation.end)
    if not taken:
        return False
    job.order_nonce = nonce
    return _send_start(job, now, again=True)


# --- 4: a new end ---


def _end_moved() -> Iterable[Job]:
    return (
        _jobs()
        .filter(state=Job.State.RUNNING, reservation__state=State.ACTIVE)
        .filter(Q(told_end=None) | ~Q(told_end=F("reservation__end")))[:MOST_ROWS]
    )


def _tell_end(job: Job, now: datetime) -> bool:
    """Send the order again. A running shim takes only its new deadline."""
    if job.reservation.end <= now:
        return False
    nonce = command_queue.new_nonce()
    taken = Job.objects.filter(
        pk=job.pk, state=Job.State.RUNNING, told_end=job.told_end
    ).update(told_end=job.reservation.end, order_nonce=nonce)
    if not taken:
        return False
    job.order_nonce = nonce
    if runs := job_nodes.running(job):
        return _send_parts(job, runs, now)
    order = command_queue.start_order(job, now=now)
    return command_queue.send(order, request=job.request_id)


# --- 5 and 6: stop orders ---


_WITHOUT_RIGHT = ~Q(owner=F("reservation__user")) & ~Q(
    Exists(
        CoUser.objects.sharing().filter(
            reservation=OuterRef("reservation"), user=OuterRef("owner")
        )
    )
)
"""Neither the Reservation's owner nor a co-user owns it."""


def _without_reservation() -> Iterable[Job]:
    begun = Q(state__in=[Job.State.STARTING, Job.State.RUNNING])
    return (
        _jobs()
        .filter(
            (begun & ~Q(reservation__state=State.ACTIVE))
            | (
                # Except Jobs of a displaced Reservation: see ``waitlist_jobs``.
                Q(state=Job.State.QUEUED, waits_with=None)
                & ~Q(reservation__state__in=list(State.live()))
            )
            | (Q(state=Job.State.QUEUED) | begun) & _WITHOUT_RIGHT
        )
        .order_by("pk")[:MOST_ROWS]
    )


def _stop_job(job: Job, now: datetime) -> bool:
    state = State(job.reservation.state)
    usual = (
        sentence("the reservation is no longer shared with its owner")
        if state in State.live()
        else sentence("the reservation is not active")
    )
    why = _WORDS.get(state, usual)
    with transaction.atomic():
        if job.state == Job.State.QUEUED:
            return end_before_start(job, why, now=now)
        return move(
            job,
            Job.State.STOPPING,
            now=now,
            actor=PORTAL,
            reason=why,
            fields={"stop_at": now, "ordered_at": None},
        )


def _to_stop(now: datetime) -> Iterable[Job]:
    due = Q(ordered_at=None) | _long_ago(now, STOP_AGAIN_SECONDS)
    ended_but_runs = ~Q(state__in=list(Job.State.live())) & Q(
        seen_at__gt=F("ended_at") + timedelta(seconds=STRAY_SECONDS)
    )
    lately = Q(seen_at__gt=now - timedelta(seconds=STRAY_SECONDS))
    return _jobs().filter(
        due & (Q(state__in=Job.State.ending()) | (ended_but_runs & lately))
    )[:MOST_ROWS]


def _send_stop(job: Job, now: datetime) -> bool:
    fields = {"ordered_at": now}
    asked_at = job.ordered_at or job.stop_at
    unwatched = timedelta(seconds=UNWATCHED_SECONDS)
    if job.state in Job.State.ending() and asked_at and abs(now - asked_at) > unwatched:
        # Nobody listened meanwhile, so the node's silence counts from now on.
        fields["stop_at"] = now
    taken = Job.objects.filter(
        pk=job.pk, state=job.state, ordered_at=job.ordered_at
    ).update(**fields)
    if not taken:
        return False
    if not job.parts.exists():
        order = command_queue.stop_order(job, now=now)
        return command_queue.send(order, request=job.request_id)
    sent = False
    for part in job_nodes.to_stop(job, now):
        order = command_queue.stop_order(job, now=now, part=part)
        sent |= command_queue.send(order, request=job.request_id)
    return sent


# --- 9: silent nodes ---


def _jobs_to_give_up(now: datetime) -> Iterable[Job]:
    grace = SitePolicy.current().stop_grace_seconds
    over = now - timedelta(seconds=grace + GIVE_UP_SECONDS)
    silent = now - timedelta(seconds=GIVE_UP_SECONDS)
    ended = Q(reservation__end__lt=over)
    unheard = Q(seen_at=None) | Q(seen_at__lt=silent)
    asked = Q(stop_at=None) | Q(stop_at__lt=over)
    return _jobs().filter(
        Q(state__in=gpu_assignment.ON_NODE) & ended & unheard & asked
    )[:MOST_ROWS]


def _give_up(job: Job, now: datetime) -> bool:
    with transaction.atomic():
        names = job_nodes.give_up(job, now) or job.node.name
        why = (
            sentence(
                "{names} has not reported since {seen} UTC; how the job ended is not "
                "known",
                names=names,
                seen=f"{job.seen_at:%H:%M:%S}",
            )
            if job.seen_at
            else sentence(
                "{names} has not reported; how the job ended is not known", names=names
            )
        )
        return move(
            job,
            Job.State.LOST,
            now=now,
            actor=PORTAL,
            reason=why,
            fields={"ended_at": now},
        )
