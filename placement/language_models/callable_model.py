"""The rights to call a served language model, and the node of a call."""

from dataclasses import dataclass, replace
from datetime import datetime

from placement.access.access_target import AccessTarget, access_target
from placement.models import Job, LanguageModelEndpoint
from placement.protocol.call_refusal import CallRefused
from reservations.models import User
from reservations.rules.errors import NotFound
from telemetry.protocol.sentences import sentence


@dataclass(frozen=True, slots=True)
class CallableModel:
    """A served model that a User may call now."""

    access: AccessTarget
    folder: str
    """Name of its Job's folder on the node."""
    job: int
    name: str
    owner: str
    """Login of the owner of its Job."""
    started_at: datetime


def callable_model(user: User, job_id: int, now: datetime) -> CallableModel:
    """Return the served model of a Job that a User may call.

    Raises:
        NotFound: there is none, or the User may not call it.
        CallRefused: it has not begun, or it is over.
        StreamRefused: its reservation is not active.
    """
    found = (
        LanguageModelEndpoint.objects.callable_by(user)
        .select_related("job__node", "job__owner")
        .filter(job_id=job_id)
        .first()
    )
    if found is None:
        raise NotFound(what=sentence("language model at job #{job_id}", job_id=job_id))
    job: Job = found.job
    state = Job.State(job.state)
    if state not in Job.State.live():
        words = sentence("Job #{job} is over: {state}.", job=job.pk, state=state.label)
        raise CallRefused("endpoint-over", words)
    if state != Job.State.RUNNING:
        words = sentence(
            "Job #{job} does not run yet: {state}.", job=job.pk, state=state.label
        )
        raise CallRefused("not-ready", words)
    access = access_target(job.owner, job.reservation_id, now, node_name=job.node.name)
    return CallableModel(
        # The connections are counted for the caller.
        access=replace(access, user_pk=user.pk),
        folder=f"{job.pk}-{job.attempt}-{job.key}",
        job=job.pk,
        name=found.name,
        owner=job.owner.username,
        started_at=job.started_at or job.created_at,
    )
