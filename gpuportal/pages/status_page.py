"""``/status/``: what works now and since when not, for everybody.

It opens without database, broker and workers. It names no person, no machine and no
address. What it reads is read at most once in five seconds by each process, because
strangers can open it.
"""

import threading
import time
from datetime import datetime, timedelta

from django.contrib.auth.decorators import login_not_required
from django.db.models import Count, Max, Min
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from gpuportal import ticks
from gpuportal.http.problems import OUTAGES
from gpuportal.monitoring import health
from gpuportal.monitoring.status_rules import (
    DeliveryFacts,
    StatusFacts,
    headline,
    parts_of,
    worst,
)
from gpuportal.pages.context import frame_age_seconds
from reservations.models import Delivery
from reservations.notifications import mail
from telemetry.models import Node

KEPT_SECONDS = 5.0
SENT_WITHIN = timedelta(days=1)
"""How far back a message that arrived is looked for."""
MESSAGES = (Delivery.Channel.WEBHOOK, Delivery.Channel.GROUP)
_reading = threading.Lock()
_found: tuple[float, StatusFacts] | None = None


@login_not_required
@never_cache
@require_safe
def status_page(request: HttpRequest) -> HttpResponse:
    """Show the parts. Without the database: a page without the top bar."""
    facts = _recent_facts()
    if facts.database:
        try:
            return _page(request, facts, "base.html")
        except OUTAGES:
            # It went away in the last seconds.
            facts = read_facts(timezone.now())
    return _page(request, facts, "gpuportal/pages/_plain.html")


def _page(request: HttpRequest, facts: StatusFacts, layout: str) -> HttpResponse:
    parts = parts_of(facts)
    shown = {
        "layout": layout,
        "parts": parts,
        "headline": headline(parts),
        "worst": worst(parts),
        "at": facts.now,
    }
    return render(request, "gpuportal/pages/status.html", shown)


def _recent_facts() -> StatusFacts:
    global _found
    with _reading:
        if _found is None or time.monotonic() - _found[0] > KEPT_SECONDS:
            _found = (time.monotonic(), read_facts(timezone.now()))
        return _found[1]


def read_facts(now: datetime) -> StatusFacts:
    """Read everything that the page shows. What does not answer is left out."""
    state = health.check_health()
    database = state.database
    nodes: tuple[datetime | None, ...] = ()
    mails, messages = DeliveryFacts(), DeliveryFacts()
    if database:
        try:
            nodes = _nodes_seen_at()
            mails = _deliveries((Delivery.Channel.MAIL,), now)
            messages = _deliveries(MESSAGES, now)
        except OUTAGES:
            database = False
    done = {
        task: now - timedelta(seconds=age)
        for task, age in state.tick_ages.items()
        if age is not None
    }
    frame_age = frame_age_seconds() if state.broker else None
    return StatusFacts(
        now=now,
        database=database,
        upgrading=bool(state.waiting),
        broker=state.broker,
        done_at=tuple(done.values()),
        late_since=tuple(done[task] for task in state.late if task in done),
        stopped=_stopped(state),
        some_late=bool(state.late),
        frame_at=None if frame_age is None else now - timedelta(seconds=frame_age),
        nodes_seen_at=nodes,
        disk_short=not state.disk_enough,
        mail=mails if mail.configured() else None,
        messages=messages,
    )


def _stopped(state: health.PortalHealth) -> bool:
    """Return whether the tasks of every second are late. The others follow them."""
    allowed = ticks.allowed_seconds()
    quickest = min(allowed.values())
    quick = {task for task, seconds in allowed.items() if seconds == quickest}
    return quick <= state.late.keys()


def _nodes_seen_at() -> tuple[datetime | None, ...]:
    nodes = Node.objects.run_by_portal().filter(maintenance=False)
    return tuple(nodes.values_list("last_seen_at", flat=True))


def _deliveries(channels: tuple[str, ...], now: datetime) -> DeliveryFacts:
    rows = Delivery.objects.filter(channel__in=channels)
    waiting = rows.filter(state=Delivery.State.PENDING, tries__gt=0).aggregate(
        number=Count("pk"), since=Min("notice__told_at")
    )
    # An ended row keeps the time of its last attempt in next_at, which has the index.
    sent = rows.filter(state=Delivery.State.SENT, next_at__gt=now - SENT_WITHIN)
    return DeliveryFacts(
        delayed=waiting["number"],
        delayed_since=waiting["since"],
        sent_at=sent.aggregate(at=Max("done_at"))["at"],
    )
