"""The waitlist's page. Requests and answers go through the API."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from reservations.models import WaitingRequest
from reservations.rules.calendar import CalendarGpu
from reservations.store import attached_jobs
from reservations.store.access import reader
from reservations.store.booking_facts import site_policy
from reservations.store.calendar_queries import Reader
from reservations.store.gpu_rows import calendar_gpus
from reservations.store.membership_rights import payers
from reservations.waitlist.forms import OVER, WaitForm
from reservations.waitlist.queries import OwnRequest, own_rows, queue_of
from reservations.web.forms import wall
from telemetry.web.query_filters import read_filters

PAGE_ROWS = 10
WEEK = timedelta(days=7)
GIB_BYTES = 2**30


@dataclass(frozen=True, slots=True)
class WaitlistCard:
    """One of the User's requests with the names of its Gpus."""

    request: OwnRequest
    where: str
    """Its estimated or actual place."""
    offered_on: str


@require_safe
def waiting(request: HttpRequest) -> HttpResponse:
    """Show the User's requests and a form. The address may fill the form."""
    user = reader(request)
    now, policy = timezone.now(), site_policy()
    asked = read_filters(WaitForm, request.GET)
    seen_by = Reader.of(user, policy)
    waits = own_rows(user).filter(state=WaitingRequest.State.WAITING)
    over = own_rows(user).exclude(state=WaitingRequest.State.WAITING)
    if state := asked.values.get("state"):
        over = over.filter(state=state)
    page = Paginator(over, PAGE_ROWS).get_page(asked.values.get("page") or 1)
    queue = queue_of(user, reader=seen_by, policy=policy, now=now, own=list(waits))
    past = queue_of(
        user, reader=seen_by, policy=policy, now=now, own=list(page.object_list)
    )
    gpus = calendar_gpus()
    choices = [gpu for gpu in gpus if not gpu.engine or gpu.of_node]
    return render(
        request,
        "reservations/waitlist/waiting_show.html",
        {
            "queue": queue,
            "cards": _cards(queue.requests, gpus),
            "past": _cards(past.requests, gpus),
            "page": page,
            "state": state or "",
            "states": OVER,
            "asked": asked,
            "draft": _draft(asked.values, now),
            "memberships": payers(user),
            "classes": sorted({gpu.gpu_class for gpu in choices}),
            "sizes": _sizes(choices),
            "policy": policy,
            "longest_hours": policy.longest_seconds / 3600,
            "freeze_hours": policy.freeze_seconds // 3600,
            "jobs": attached_jobs.choices(user),
            "config": {"zone": timezone.get_current_timezone_name()},
            "full": len(queue.requests) >= policy.waiting_requests,
        },
    )


def _cards(
    requests: Sequence[OwnRequest], gpus: Sequence[CalendarGpu]
) -> list[WaitlistCard]:
    labels = {gpu.pk: gpu.label for gpu in gpus}

    def names(pks: Sequence[int]) -> str:
        return ", ".join(labels[pk] for pk in pks if pk in labels)

    return [
        WaitlistCard(one, names(one.row.expected_gpu_ids), names(one.row.offer_gpu_ids))
        for one in requests
    ]


def _sizes(gpus: list[CalendarGpu]) -> list[int]:
    sizes = {gpu.memory_total_bytes // GIB_BYTES for gpu in gpus}
    return sorted(sizes - {0})


def _draft(values: dict[str, Any], now: datetime) -> dict[str, Any]:
    return {
        "count": values.get("count") or 1,
        "hours": f"{values.get('hours') or 8:g}",
        "min_gib": values.get("min_gib") or 0,
        "gpu_class": values.get("gpu_class") or "",
        "earliest": wall(values.get("earliest") or now),
        "latest": wall(values.get("latest") or now + WEEK),
        "membership": values.get("membership"),
        "purpose": values.get("purpose") or "",
    }
