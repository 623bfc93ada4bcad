"""Who may call a served model, who may see it, and where a call goes."""

from dataclasses import dataclass

from placement.models import Endpoint, Job, ServedModel
from placement.protocol.call_refusal import CallRefused
from placement.protocol.job_lifecycle import JobState
from reservations.models import User
from reservations.rules.errors import NotFound
from telemetry.protocol.sentences import sentence

MOST_MOVES = 64
"""So often an address is followed to where its models are now."""


@dataclass(frozen=True)
class CallTarget:
    """Where a call goes and whose it is: a registered node, a Job's own endpoint."""

    node: str
    job: int
    attempt: int
    user: int
    key: str


def call_target(user: User, job_id: int, model: str | None) -> CallTarget:
    """Return where a User's request goes.

    The endpoint's owner may ask every model there, who brought one that one.

    Args:
        model: its name; None: health and metadata of the server.

    Raises:
        NotFound: no such endpoint, or not theirs to ask.
        CallRefused: it has not begun, or it is over.
    """
    endpoint = _endpoint(job_id)
    if endpoint is None or not _owns_or_brought(user, endpoint, model):
        raise NotFound(what=sentence("served model at job #{job_id}", job_id=job_id))
    return _target(endpoint.job, user)


def stats_target(user: User, job_id: int) -> CallTarget:
    """Return where a User's question for figures goes; heads and operators too.

    Raises:
        NotFound: no such endpoint, or not for this User's eyes.
        CallRefused: it has not begun, or it is over.
    """
    endpoint = _endpoint(job_id)
    seen = Endpoint.objects.visible_to(user).filter(job_id=job_id)
    if endpoint is None or not seen.exists():
        raise NotFound(what=sentence("served model at job #{job_id}", job_id=job_id))
    return _target(endpoint.job, user)


def _endpoint(job_id: int) -> Endpoint | None:
    """Return the endpoint that answers for a Job: where its models moved, that one."""
    rows = Endpoint.objects.select_related("job__node", "job__owner")
    found: Endpoint | None = rows.filter(job_id=job_id).first()
    for _ in range(MOST_MOVES):
        if found is None:
            return None
        after = rows.filter(follows=found, took_over_at__isnull=False)
        later = after.order_by("-took_over_at").first()
        if later is None:
            return found
        found = later
    return found


def _owns_or_brought(user: User, endpoint: Endpoint, model: str | None) -> bool:
    if endpoint.job.owner_id == user.pk:
        return True
    brought = ServedModel.objects.filter(
        endpoint=endpoint, added_by=user, removed_at=None
    )
    return (brought if model is None else brought.filter(name=model)).exists()


def _target(job: Job, user: User) -> CallTarget:
    state = JobState(job.state)
    if state not in JobState.live():
        raise CallRefused(
            "endpoint-over",
            sentence("Job #{job} is over: {state}.", job=job.pk, state=state.label),
        )
    if state != JobState.RUNNING:
        raise CallRefused(
            "not-ready",
            sentence(
                "Job #{job} does not run yet: {state}.", job=job.pk, state=state.label
            ),
        )
    return CallTarget(job.node.name, job.pk, job.attempt, user.pk, job.key)
