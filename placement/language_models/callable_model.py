"""The rights to call a served language model, and the node of a call."""

from dataclasses import dataclass, replace
from datetime import datetime

from placement.access.access_target import AccessTarget, access_target
from placement.models import Job, LanguageModelEndpoint
from placement.protocol.call_refusal import CallRefused
from reservations.models import User
from reservations.rules.errors import NotFound
from telemetry.protocol.sentences import sentence

_COLUMNS = (
    *("name", "job_id", "job__attempt", "job__key", "job__state", "job__node__name"),
    *("job__reservation_id", "job__created_at", "job__started_at", "job__owner_id"),
)
"""Only what a call needs. Django takes 3 ms of CPU for the query of whole rows."""


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
    rows = LanguageModelEndpoint.objects.filter(job_id=job_id).order_by()
    row = rows.values(*_COLUMNS).first()
    own = row is not None and row["job__owner_id"] == user.pk
    if row is None or not (own or rows.callable_by(user).exists()):
        raise NotFound(what=sentence("language model at job #{job_id}", job_id=job_id))
    state = Job.State(row["job__state"])
    if state not in Job.State.live():
        words = sentence("Job #{job} is over: {state}.", job=job_id, state=state.label)
        raise CallRefused("endpoint-over", words)
    if state != Job.State.RUNNING:
        words = sentence(
            "Job #{job} does not run yet: {state}.", job=job_id, state=state.label
        )
        raise CallRefused("not-ready", words)
    owner = user if own else User.objects.get(pk=row["job__owner_id"])
    node = row["job__node__name"]
    access = access_target(owner, row["job__reservation_id"], now, node_name=node)
    return CallableModel(
        # The connections are counted for the caller.
        access=replace(access, user_pk=user.pk),
        folder=f"{job_id}-{row['job__attempt']}-{row['job__key']}",
        job=job_id,
        name=row["name"],
        owner=owner.username,
        started_at=row["job__started_at"] or row["job__created_at"],
    )
