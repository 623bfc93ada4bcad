"""The rights to call and see a served model, and the target of a call."""

from dataclasses import dataclass
from typing import NamedTuple

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


class _Place(NamedTuple):
    """An endpoint and its Job, as far as a call needs them.

    A call reads only these columns. Django takes 4 ms of CPU for the queries of whole
    rows, with a hundred columns each.
    """

    endpoint: int
    job: int
    owner: int
    state: str
    attempt: int
    key: str
    node: str


_PLACE_FIELDS = (
    *("pk", "job_id", "job__owner_id", "job__state", "job__attempt"),
    *("job__key", "job__node__name"),
)


def call_target(user: User, job_id: int, model: str | None) -> CallTarget:
    """Return the target of a User's request.

    The endpoint's owner may call every model there, a model's owner that model.

    Args:
        model: its name. None: health and metadata of the server.

    Raises:
        NotFound: no such endpoint, or the User may not call it.
        CallRefused: it has not begun, or it is over.
    """
    place = _place(job_id)
    if place is None or not _owns_or_brought(user, place, model):
        raise NotFound(what=sentence("served model at job #{job_id}", job_id=job_id))
    return _target(place, user)


def stats_target(user: User, job_id: int) -> CallTarget:
    """Return the target of a User's request for figures. Heads and operators may, too.

    Raises:
        NotFound: no such endpoint, or the User may not see it.
        CallRefused: it has not begun, or it is over.
    """
    place = _place(job_id)
    seen = Endpoint.objects.visible_to(user).filter(job_id=job_id)
    if place is None or not seen.exists():
        raise NotFound(what=sentence("served model at job #{job_id}", job_id=job_id))
    return _target(place, user)


def _place(job_id: int) -> _Place | None:
    """Return the endpoint of a Job, or the one to which its models moved."""
    rows = Endpoint.objects.order_by("-took_over_at").values_list(*_PLACE_FIELDS)
    found = rows.filter(job_id=job_id)[:1]
    for _ in range(MOST_MOVES):
        if not found:
            return None
        place = _Place(*found[0])
        found = rows.filter(follows=place.endpoint, took_over_at__isnull=False)[:1]
        if not found:
            break
    return place


def _owns_or_brought(user: User, place: _Place, model: str | None) -> bool:
    if place.owner == user.pk:
        return True
    brought = ServedModel.objects.filter(
        endpoint=place.endpoint, added_by=user, removed_at=None
    )
    return (brought if model is None else brought.filter(name=model)).exists()


def _target(place: _Place, user: User) -> CallTarget:
    state = Job.State(place.state)
    if state not in Job.State.live():
        raise CallRefused(
            "endpoint-over",
            sentence("Job #{job} is over: {state}.", job=place.job, state=state.label),
        )
    if state != Job.State.RUNNING:
        raise CallRefused(
            "not-ready",
            sentence(
                "Job #{job} does not run yet: {state}.",
                job=place.job,
                state=state.label,
            ),
        )
    return CallTarget(place.node, place.job, place.attempt, user.pk, place.key)
