"""The waitlist of one User: their requests, positions, offers and estimates."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypedDict

from django.db.models import QuerySet

from reservations.models import Reservation, User, WaitingRequest
from reservations.rules.calendar import CalendarGpu
from reservations.rules.decision import Decision
from reservations.rules.fairness.preemption import FairTree
from reservations.rules.lifecycle import Kind, State
from reservations.rules.policy import Policy
from reservations.rules.window import HOUR_SECONDS, Window
from reservations.store.calendar_queries import Reader, iso
from reservations.store.gpu_rows import calendar_gpus
from reservations.store.usage import fair_tree, usage_by_membership
from reservations.waitlist.flex_risk import FlexRisk, chance_of
from reservations.waitlist.openings import WaitingRequestInfo
from reservations.waitlist.rules import in_order
from reservations.waitlist.waitlist_snapshot import MOST_LOOKED, waiting_request_info
from telemetry.protocol.sentences import sentence
from telemetry.web.answer_types import UtcInstant

WAITING = WaitingRequest.State.WAITING
PLACED = WaitingRequest.State.PLACED
MOST_MEASURED = 50
"""The newest placements, from which the error of estimates is measured."""
MOST_SHOWN = 50
GIB_BYTES = 2**30


class WaitingAhead(TypedDict):
    """Requests of one group that are served first."""

    account: str
    hue: int
    """Colour of the group: the angle on the colour wheel, in degrees."""
    count: int
    users: list[str] | None
    """Names. Null: the caller may not see them."""


class ExpectedPlace(TypedDict):
    """Where and when a waiting request is expected to be placed."""

    id: int
    """Of the request."""
    gpu_ids: list[int]
    start: UtcInstant
    end: UtcInstant | None
    planned: bool
    """Whether this start is held for it."""


class WaitingOffer(TypedDict):
    """A time that the waitlist offers."""

    gpu_ids: list[int]
    start: UtcInstant | None
    end: UtcInstant | None
    until: UtcInstant | None
    """It can be accepted until then."""


class WaitingAnswer(TypedDict):
    """A request of the waitlist."""

    id: int
    state: str
    """waiting, placed, declined, cancelled or expired."""
    account: str
    """Name of the group that pays."""
    count: int
    """Number of GPUs."""
    gpu_class: str | None
    """Null: any."""
    min_memory_gib: float
    """Least memory of each GPU."""
    hours: float
    earliest: UtcInstant
    latest: UtcInstant
    """It ends by then."""
    purpose: str
    any_notice: bool
    """Whether it may be booked at short notice without asking."""
    has_job: bool
    """Whether a job starts with it."""
    asked_at: UtcInstant
    position: int | None
    """1 is served first. Null: it does not wait."""
    ahead: list[WaitingAhead]
    expected: ExpectedPlace | None
    offer: WaitingOffer | None
    reservation: int | None
    """The reservation that was made for it."""
    displaced_from: int | None
    """The reservation whose loss put it on the waitlist."""
    decline_until: UtcInstant | None
    """Its reservation can be declined until then. Null: it cannot."""


@dataclass(frozen=True, slots=True)
class RequestsAhead:
    """How many requests of one group are ahead, with names if the reader may see
    them.
    """

    account: str
    hue: int
    count: int
    users: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OwnRequest:
    """One of the User's requests with its position."""

    row: WaitingRequest
    position: int | None
    """1 is served first. None: it does not wait."""
    ahead: tuple[RequestsAhead, ...]
    offered: bool
    decline_until: datetime | None
    """Until then its placement can be declined. None: it cannot."""


@dataclass(frozen=True, slots=True)
class PastError:
    """The error of first estimates, over the newest placements."""

    n: int
    off_seconds: float
    """Mean absolute error."""
    later_seconds: float
    """Mean of start minus estimate. Above zero: it came later than estimated."""

    @property
    def text(self) -> str:
        """Return it as a sentence."""
        if not self.n:
            return sentence("No estimate could be checked yet.")
        off = f"{self.off_seconds / HOUR_SECONDS:.1f} h"
        if self.off_seconds < HOUR_SECONDS / 20:
            template = sentence("Estimates were off by {off} on average ({n} checked).")
        elif self.later_seconds > 0:
            template = sentence(
                "Estimates were off by {off} on average, mostly too early ({n} "
                "checked)."
            )
        else:
            template = sentence(
                "Estimates were off by {off} on average, mostly too late ({n} checked)."
            )
        return sentence(template, off=off, n=self.n)


@dataclass(frozen=True, slots=True)
class PersonalWaitlist:
    """The waitlist of one person."""

    requests: tuple[OwnRequest, ...]
    waiting: int
    error: PastError


def queue_of(
    user: User,
    *,
    reader: Reader,
    policy: Policy,
    now: datetime,
    own: Sequence[WaitingRequest] | None = None,
) -> PersonalWaitlist:
    """Return the User's requests with their positions.

    Args:
        own: which ones. None: the waiting ones, then the newest others.
    """
    if own is None:
        own = waiting_first(own_rows(user)[:MOST_SHOWN])
    order = ordered(now, policy) if any(r.state == WAITING for r in own) else []
    waiting = WaitingRequest.objects.waiting().count()
    place = {row.pk: number for number, row in enumerate(order)}
    return PersonalWaitlist(
        requests=tuple(
            OwnRequest(
                row=row,
                position=place[row.pk] + 1 if row.pk in place else None,
                ahead=_ahead(order[: place.get(row.pk, 0)], reader),
                offered=row.offer_until is not None and row.offer_until > now,
                decline_until=_decline_until(row, now=now, policy=policy),
            )
            for row in own
        ),
        waiting=waiting,
        error=past_error(),
    )


def waiting_first(rows: Iterable[WaitingRequest]) -> list[WaitingRequest]:
    """Return the waiting ones, then the others, each in the given order."""
    return sorted(rows, key=lambda row: row.state != WAITING)


def own_rows(user: User) -> QuerySet[WaitingRequest]:
    """Return the User's requests, newest first."""
    rows = WaitingRequest.objects.filter(user=user)
    related = rows.select_related("membership__account", "reservation")
    return related.order_by("-created_at", "-pk")


def ordered(now: datetime, policy: Policy) -> list[WaitingRequest]:
    """Return all waiting requests in the order of service."""
    rows = {row.pk: row for row in _rows()}
    queue, _tree = _queue(list(rows.values()), now, policy)
    return [rows[one.pk] for one in queue]


def _rows() -> list[WaitingRequest]:
    rows = WaitingRequest.objects.waiting().filter(
        membership__active=True, user__is_active=True
    )
    return list(rows.select_related("user", "membership__account")[:MOST_LOOKED])


def _queue(
    rows: Sequence[WaitingRequest], now: datetime, policy: Policy
) -> tuple[tuple[WaitingRequestInfo, ...], FairTree | None]:
    waiting = [waiting_request_info(row, now=now, quiet=None) for row in rows]
    usage = usage_by_membership(now, policy)
    also = {*usage, *(one.member_pk for one in waiting)}
    tree = fair_tree(usage, now, policy, also=also)
    return in_order(waiting, tree.ranked().ranks if tree else {}), tree


def _ahead(rows: Sequence[WaitingRequest], reader: Reader) -> tuple[RequestsAhead, ...]:
    groups: dict[int, list[WaitingRequest]] = defaultdict(list)
    for row in rows:
        groups[row.membership.account_id].append(row)
    return tuple(
        RequestsAhead(
            account=str(inside[0].membership.account),
            hue=inside[0].membership.account.hue,
            count=len(inside),
            users=tuple(
                str(row.user) for row in inside if reader.sees_name(row.user_id, pk)
            ),
        )
        for pk, inside in groups.items()
    )


def _decline_until(
    row: WaitingRequest, *, now: datetime, policy: Policy
) -> datetime | None:
    booked = row.reservation
    if row.state != PLACED or booked is None or booked.state != State.CONFIRMED:
        return None
    until = booked.start - timedelta(seconds=policy.freeze_seconds)
    return until if until > now else None


def past_error() -> PastError:
    """Compare the first estimates with the actual placements."""
    rows = (
        WaitingRequest.objects.filter(reservation__isnull=False)
        .exclude(first_estimate=None)
        .order_by("-placed_at", "-pk")
        .values_list("first_estimate", "expected_start")[:MOST_MEASURED]
    )
    late = [
        (start - told).total_seconds()
        for told, start in rows
        if told is not None and start is not None
    ]
    n = len(late)
    if not n:
        return PastError(0, 0.0, 0.0)
    return PastError(n, sum(abs(x) for x in late) / n, sum(late) / n)


def request_json(one: OwnRequest) -> WaitingAnswer:
    """Return one of the User's requests as the API sends it."""
    row = one.row
    return {
        "id": row.pk,
        "state": row.state,
        "account": row.membership.account.name,
        "count": row.count,
        "gpu_class": row.gpu_class or None,
        "min_memory_gib": row.min_memory_bytes / GIB_BYTES,
        "hours": row.duration_seconds / HOUR_SECONDS,
        "earliest": iso(row.earliest),
        "latest": iso(row.latest),
        "purpose": row.purpose,
        "any_notice": row.any_notice,
        "has_job": row.has_job,
        "asked_at": iso(row.created_at),
        "position": one.position,
        "ahead": [
            {
                "account": group.account,
                "hue": group.hue,
                "count": group.count,
                "users": list(group.users) or None,
            }
            for group in one.ahead
        ],
        "expected": landing_json(row),
        "offer": {
            "gpu_ids": row.offer_gpu_ids,
            "start": _iso(row.offer_start),
            "end": _iso(row.offer_end),
            "until": _iso(row.offer_until),
        }
        if one.offered
        else None,
        "reservation": row.reservation_id,
        "displaced_from": row.displaced_from_id,
        "decline_until": _iso(one.decline_until),
    }


def landing_json(row: WaitingRequest) -> ExpectedPlace | None:
    """Return the estimated place of a waiting request. ``planned``: its start is
    held.
    """
    if row.state != WAITING or row.expected_start is None:
        return None
    return {
        "id": row.pk,
        "gpu_ids": row.expected_gpu_ids,
        "start": iso(row.expected_start),
        "end": _iso(row.expected_end),
        "planned": row.planned,
    }


def _iso(at: datetime | None) -> str | None:
    return iso(at) if at is not None else None


def expected_placements(
    user_pk: int, start: datetime, end: datetime
) -> list[ExpectedPlace]:
    """Return the estimated places of the User's requests within a span."""
    rows = WaitingRequest.objects.waiting().filter(
        user_id=user_pk, expected_start__lt=end, expected_end__gt=start
    )
    found = (landing_json(row) for row in rows)
    return [one for one in found if one is not None]


# --- the chance that flex is displaced ------------------------------------------------


def chance_of_decision(
    decision: Decision,
    gpu_ids: Sequence[int],
    window: Window,
    *,
    member_pk: int,
    user_pk: int,
    now: datetime,
    policy: Policy,
) -> FlexRisk | None:
    """Return the chance that a previewed flex booking is displaced. None:
    impossible.
    """
    if decision.kind is not Kind.FLEX or decision.taken_until is None:
        return None
    queue, tree = _queue(_rows(), now, policy)
    gpus = [gpu for gpu in calendar_gpus() if gpu.pk in set(gpu_ids)]
    if tree is None or not gpus:
        return None
    return chance_of(
        gpus,
        window,
        member_pk=member_pk,
        user_pk=user_pk,
        cost_gpu_seconds=decision.cost_gpu_seconds,
        queue=queue,
        tree=tree,
        held=False,
    )


def own_chances(user_pk: int, *, policy: Policy, now: datetime) -> dict[int, FlexRisk]:
    """Return, by Reservation, the risk of each unfrozen flex of the User."""
    freeze = timedelta(seconds=policy.freeze_seconds)
    rows = list(
        Reservation.objects.filter(
            user_id=user_pk,
            state=State.CONFIRMED,
            kind=Kind.FLEX,
            start__gt=now + freeze,
        ).prefetch_related("allocations")
    )
    if not rows:
        return {}
    queue, tree = _queue(_rows(), now, policy)
    known = {gpu.pk: gpu for gpu in calendar_gpus()}
    if tree is None:
        return {}
    found = {}
    for row in rows:
        gpus = _gpus(row, known)
        if gpus:
            found[row.pk] = chance_of(
                gpus,
                Window(row.start, row.end),
                member_pk=row.membership_id,
                user_pk=user_pk,
                cost_gpu_seconds=row.cost_gpu_seconds,
                queue=queue,
                tree=tree,
                held=True,
            )
    return found


def _gpus(row: Reservation, known: dict[int, CalendarGpu]) -> list[CalendarGpu]:
    pks = [allocation.gpu_id for allocation in row.allocations.all()]
    return [known[pk] for pk in pks if pk in known]
