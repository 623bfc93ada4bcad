"""The rights to call and see a served model, and the target of a call."""

from dataclasses import dataclass

from placement.models import Endpoint, Job, ServedModel
from placement.protocol.call_refusal import CallRefused
from reservations.models import User
from reservations.rules.errors import NotFound
from telemetry.protocol.sentences import sentence

MOST_MOVES = 64
"""How often an address is followed to the present place of its models."""


@dataclass(frozen=True)
class CallTarget:
    """The target of a call and its owner: a registered node, a Job's endpoint."""

    node: str
    job: int
    attempt: int
    user: int
    key: str


def call_target(user: User, job_id: int, model: str | None) -> CallTarget:
    """Return the target of a User's request.

    The endpoint's owner may call every model there, a model's owner that model.

    Args:
        model: its name. None: health and metadata of the server.

    Raises:
        NotFound: no such endpoint, or the User may not call it.
        CallRefused: it has not begun, or it is over.
    """
    endpoint = _endpoint(job_id)
    if endpoint is None or not _owns_or_brought(user, endpoint, model):
        raise NotFound(what=sentence("served model at job #{job_id}", job_id=job_id))
    return _target(endpoint.job, user)


def stats_target(user: User, job_id: int) -> CallTarget:
    """Return the target of a User's request for figures. Heads and operators may, too.

    Raises:
        NotFound: no such endpoint, or the User may not see it.
        CallRefused: it has not begun, or it is over.
    """
    endpoint = _endpoint(job_id)
    seen = Endpoint.objects.visible_to(user).filter(job_id=job_id)
    if endpoint is None or not seen.exists():
        raise NotFound(what=sentence("served model at job #{job_id}", job_id=job_id))
    return _target(endpoint.job, user)


def _endpoint(job_id: int) -> Endpoint | None:
    """Return the endpoint of a Job, or the one to which its models moved."""
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
    state = Job.State(job.state)
    if state not in Job.State.live():
        raise CallRefused(
            "endpoint-over",
            sentence("Job #{job} is over: {state}.", job=job.pk, state=state.label),
        )
    if state != Job.State.RUNNING:
        raise CallRefused(
            "not-ready",
            sentence(
                "Job #{job} does not run yet: {state}.", job=job.pk, state=state.label
            ),
        )
    return CallTarget(job.node.name, job.pk, job.attempt, user.pk, job.key)
