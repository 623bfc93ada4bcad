"""A user's start page: running, coming, waiting and past reservations and jobs."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.core.paginator import Page, Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from gpuportal.pages.node_access import NodeAccess, node_access
from gpuportal.pages.reservation_page import price_of
from placement.models import Job
from reservations.fairshare.service import standing
from reservations.models import Offer, Reservation, Series, User, WaitingRequest
from reservations.models.calendar import ReservationQuerySet
from reservations.presence.queries import pending_release
from reservations.presence.release_warnings import PendingRelease
from reservations.rules.figures import gpus_title, span_text
from reservations.rules.lifecycle import Kind, State
from reservations.rules.policy import Policy
from reservations.rules.window import grid_ceil
from reservations.series.series_days import rule_of
from reservations.sharing.forms import PastFilterForm
from reservations.sharing.views import offer_row
from reservations.store.access import reader
from reservations.store.booking_facts import site_policy
from reservations.store.calendar_queries import Reader, iso
from reservations.waitlist.queries import own_rows, queue_of
from telemetry.web.query_filters import read_filters

PAST_ROWS = 15
OFFERS_SHOWN = 10
SERIES_SHOWN = 10
JOBS_SHOWN = 50
LONGER = timedelta(hours=1)
OVER = tuple(sorted(state.value for state in set(State) - State.live()))


@dataclass(frozen=True, slots=True)
class OwnBooking:
    """One Reservation of the user, as the page shows it."""

    row: Reservation
    title: str
    span: str
    price_sum: str
    frozen: bool
    nodes: tuple[NodeAccess, ...]
    looming: PendingRelease | None
    jobs: tuple[Job, ...]
    end: str
    """ISO 8601."""
    longer_end: str
    """ISO 8601, the end for "one hour longer"."""

    @property
    def scripts(self) -> bool:
        """Whether students' scripts may run on some of its nodes."""
        return any(node.scripts for node in self.nodes)


@require_safe
def my_reservations_page(request: HttpRequest) -> HttpResponse:
    """Show the user's Reservations, Jobs, quota, waiting requests, Offers and
    Series."""
    user = reader(request)
    now, policy = timezone.now(), site_policy()
    asked = read_filters(PastFilterForm, request.GET)
    live = list(
        _own_reservations(user).live().filter(end__gt=now).order_by("start", "pk")
    )
    jobs = list(
        Job.objects.filter(owner=user)
        .live()
        .select_related("node", "reservation")
        .order_by("-pk")[:JOBS_SHOWN]
    )
    bookings = [_booking(row, jobs, user, now, policy) for row in live]
    running = [one for one in bookings if one.row.state == State.ACTIVE]
    ahead = [one for one in bookings if one.row.state != State.ACTIVE]
    past = _past_page(user, asked.values, now)
    seen_by = Reader.of(user, policy)
    offers = _offers(user, seen_by)
    waits = list(own_rows(user).filter(state=WaitingRequest.State.WAITING))
    listed = {job.pk for one in bookings for job in one.jobs}
    memberships = standing(user=user, now=now).memberships
    page = {
        "running": running,
        "next": ahead[0] if ahead else None,
        "later": ahead[1:],
        "live_count": len(live),
        "live_most": policy.live_reservations,
        "jobs": [job for job in jobs if job.pk not in listed],
        "memberships": memberships,
        "queue": queue_of(user, reader=seen_by, policy=policy, now=now, own=waits)
        if waits
        else None,
        "offers": offers,
        "series": [(row, rule_of(row).words) for row in _series(user)],
        "past": past,
        "past_rows": [(row, _title(row), _span_text(row)) for row in past],
        "state": asked.values.get("state") or "",
        "states": OVER,
        "notices": asked.notices,
        "newcomer": not live and not past.paginator.count and not waits,
        "policy": policy,
        "checkin_minutes": policy.no_show_seconds // 60,
    }
    return render(request, "gpuportal/pages/mine.html", page)


def _series(user: User) -> list[Series]:
    running = Series.objects.filter(user=user, state=Series.State.RUNNING)
    return list(running.order_by("-pk")[:SERIES_SHOWN])


def _own_reservations(user: User) -> ReservationQuerySet:
    """Return a User's Reservations with their GPUs, in as many queries as tables."""
    return (
        Reservation.objects.filter(user=user)
        .select_related("membership__account")
        .prefetch_related("allocations__gpu__node", "allocations__gpu__pool")
    )


def _booking(
    row: Reservation, jobs: Sequence[Job], user: User, now: datetime, policy: Policy
) -> OwnBooking:
    freezes_at = row.start - timedelta(seconds=policy.freeze_seconds)
    held = list(row.allocations.all())
    return OwnBooking(
        row=row,
        title=_title(row),
        span=_span_text(row),
        price_sum=price_of(row, held),
        frozen=row.kind == Kind.FLEX and now >= freezes_at,
        nodes=node_access(held, user),
        looming=pending_release(row, now),
        jobs=tuple(job for job in jobs if job.reservation_id == row.pk),
        end=iso(row.end),
        longer_end=iso(grid_ceil(row.end + LONGER, policy.grid_seconds)),
    )


def _title(row: Reservation) -> str:
    held = row.allocations.all()
    return gpus_title([(one.gpu.pool.gpu_class, one.gpu.node.name) for one in held])


def _span_text(row: Reservation) -> str:
    return span_text(row.start, row.end, timezone.get_current_timezone())


def _past_page(user: User, asked: dict[str, Any], now: datetime) -> "Page[Reservation]":
    """Return a page of past Reservations, the newest first."""
    rows = _own_reservations(user).exclude(state__in=State.live(), end__gt=now)
    if asked.get("state"):
        rows = rows.filter(state=asked["state"])
    rows = rows.order_by("-start", "-pk")
    return Paginator(rows, PAST_ROWS).get_page(asked.get("page") or 1)


def _offers(user: User, eyes: Reader) -> list[dict[str, Any]]:
    """Return open Offers to and from a User, the first to expire first."""
    rows = Offer.objects.of(user).filter(state=Offer.State.OPEN)
    return [
        offer_row(row, user, eyes) for row in rows.order_by("expires_at")[:OFFERS_SHOWN]
    ]
