"""Notices to the owner of a Job: it started after a wait, or it ended.

A stop by a user or by the Reservation's end sends no notice. An array sends one notice
when its last Job has ended.
"""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta

from placement.models import Job, ServedModel
from reservations.notifications import service as notices
from telemetry.protocol.sentences import joined, sentence
from telemetry.protocol.units import format_duration

WAITED = timedelta(minutes=5)
"""A Job that was launched longer ago than this has waited."""


def notify_of_move(job: Job, new: Job.State, *, now: datetime) -> None:
    """Notify the owner of a state change, in its transaction."""
    if job.array_id is not None:
        if new not in Job.State.live():
            _notify_array(job, now)
        return
    if new is Job.State.RUNNING and now - job.created_at > WAITED:
        text: str = sentence(
            "Job “{job}” runs on {node}.", job=job.name, node=job.node.name
        )
        notify_owner(job, "job_started", text, now=now)
    elif new is Job.State.DONE:
        took = format_duration((now - (job.started_at or now)).total_seconds())
        text = sentence("Job “{job}” is done after {took}.", job=job.name, took=took)
        notify_owner(job, "job_done", text, now=now)
    elif new in (Job.State.FAILED, Job.State.LOST):
        text = _ended_badly(job, lost=new is Job.State.LOST)
        if job.kind == Job.Kind.SERVE:
            _notify_guests(job, text, now, owner=True)
        else:
            notify_owner(job, "job_failed", text, now=now)
    elif new is Job.State.STOPPED and job.kind == Job.Kind.SERVE:
        # The owner knows, but owners of other models there do not.
        text = (
            sentence(
                "“{job}” no longer serves models: {why}", job=job.name, why=job.reason
            )
            if job.reason
            else sentence("“{job}” no longer serves models.", job=job.name)
        )
        _notify_guests(job, text, now, owner=False)


def _ended_badly(job: Job, *, lost: bool) -> str:
    """Return that a Job failed or was lost, with the reason if it is known."""
    name, why = job.name, job.reason
    if lost and why:
        return sentence("Job “{job}” was lost: {why}", job=name, why=why)
    if lost:
        return sentence("Job “{job}” was lost.", job=name)
    if why:
        return sentence("Job “{job}” failed: {why}", job=name, why=why)
    return sentence("Job “{job}” failed.", job=name)


def _notify_guests(job: Job, text: str, now: datetime, *, owner: bool) -> None:
    """Notify the owners of other models of an endpoint that has ended and did not
    move.
    """
    brought = ServedModel.objects.filter(
        endpoint__job=job, removed_at=None, endpoint__successors__took_over_at=None
    ).select_related("added_by")
    key = f"job:{job.pk}:{job.attempt}"
    notify_model_owners(job, brought, text, key=key, now=now, owner=owner)


def notify_model_owners(
    job: Job,
    models: Iterable[ServedModel],
    text: str,
    *,
    key: str,
    now: datetime,
    kind: str = "serve_down",
    owner: bool = True,
) -> bool:
    """Notify an endpoint's owner and the owners of its models. False: done before."""
    people = {row.added_by.pk: row.added_by for row in models}
    people[job.owner.pk] = job.owner
    if not owner:
        del people[job.owner.pk]
    told = [
        notices.notify(
            user=person,
            kind=kind,
            reservation=job.reservation if person.pk == job.owner_id else None,
            detail={"job": job.pk, "url": f"/serve/{job.pk}/", "text": text},
            now=now,
            key=key,
        )
        for person in people.values()
    ]
    return any(told)


def _notify_array(job: Job, now: datetime) -> None:
    tasks = Job.objects.filter(array_id=job.array_id)
    if tasks.live().exists():
        return
    states = Counter(tasks.values_list("state", flat=True))
    counts = joined(
        (
            sentence("{n} {state}", n=count, state=Job.State(state).label)
            for state, count in sorted(states.items())
        ),
        ", ",
    )
    bad = states[Job.State.FAILED] + states[Job.State.LOST]
    notices.notify(
        user=job.owner,
        kind="job_failed" if bad else "job_done",
        reservation=job.reservation,
        detail={
            "url": f"/jobs/?array={job.array_id}",
            "text": sentence(
                "All jobs of “{array}” have ended: {counts}.",
                array=job.array,
                counts=counts,
            ),
        },
        now=now,
        key=f"array:{job.array_id}:{tasks.count()}",
    )


def notify_owner(
    job: Job, kind: str, text: str, *, now: datetime, key: str = ""
) -> None:
    """Notify the owner of a Job, once for each key. Default: once an attempt."""
    notices.notify(
        user=job.owner,
        kind=kind,
        reservation=job.reservation,
        detail={"job": job.pk, "url": f"/jobs/{job.pk}/", "text": text},
        now=now,
        key=key or f"job:{job.pk}:{job.attempt}:{kind}",
    )
