"""Jobs attached to a waiting request: a Job to launch, or those of a displaced booking.

Jobs belong to placement, above this app. placement registers how they are validated,
stored and moved, and queues them once the request is placed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reservations.models import Reservation, User, WaitingRequest
from reservations.rules.errors import NotFound
from telemetry.protocol.sentences import sentence

Launch = dict[str, Any]


@dataclass(frozen=True)
class JobChoices:
    """The Jobs that a User may attach to a request, as choices of a page."""

    recipes: Sequence[tuple[str, str, str]]
    """Recipes: name, title, and their settings with the defaults, one per line."""
    plans: Sequence[tuple[int, str, int]]
    """The User's saved Plans: number, title, and how many Gpus each needs."""


@dataclass(frozen=True)
class WaitingJobHooks:
    """Functions of placement for Jobs that wait. Call them in a transaction."""

    check: Callable[[User, Mapping[str, Any]], Launch]
    """Return the stored form of a requested Job, or refuse it."""
    attach: Callable[[WaitingRequest, Launch], None]
    """Store it with a request."""
    follow: Callable[[Reservation, WaitingRequest], bool]
    """Move the Jobs of a displaced Reservation to the request. Return whether there are
    any.
    """
    choices: Callable[[User], JobChoices]
    """Return the choices for a User."""
    starts: Callable[[Reservation], bool]
    """Return whether a Job waits in a Reservation and starts with it."""


CARRIERS: list[WaitingJobHooks] = []


def checked(user: User, job: Mapping[str, Any]) -> Launch:
    """Return the stored form of a Job.

    Raises:
        NotFound: this site runs no Jobs. The registered app may raise its refusals.
    """
    if not CARRIERS:
        raise NotFound(what=sentence("anything that runs jobs"))
    return CARRIERS[0].check(user, job)


def choices(user: User) -> JobChoices | None:
    """Return the choices for a page. None: this site runs no Jobs."""
    return CARRIERS[0].choices(user) if CARRIERS else None


def attach(row: WaitingRequest, launch: Launch) -> None:
    """Store a checked Job with its request."""
    CARRIERS[0].attach(row, launch)


def transfer_jobs(displaced: Reservation, again: WaitingRequest) -> bool:
    """Move the Jobs of a displaced Reservation to the request. Return whether there are
    any.
    """
    return any([carrier.follow(displaced, again) for carrier in CARRIERS])


def starts_with(row: Reservation) -> bool:
    """Return whether a Job starts as soon as this Reservation begins."""
    return any(carrier.starts(row) for carrier in CARRIERS)
