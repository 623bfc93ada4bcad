"""``/status/``: what works now and since when not, for everybody.

It opens without database, broker and workers. It names no person, no machine and no
address. Strangers can open it, so one thread of a process reads at a time, and five
seconds pass between two readings. Other requests get the facts that were read before.
"""

import threading
import time
from datetime import datetime, timedelta

from django.contrib.auth.decorators import login_not_required
from django.db.models import Count, Max, Min
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext
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
STALE_SECONDS = 60.0
"""A state that is older is not shown, even while a new one is being read."""
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
    facts = _recent_facts(KEPT_SECONDS)
    if facts is None:
        return _not_read_yet()
    if facts.database:
        try:
            return _page(request, facts, "base.html")
        except OUTAGES:
            # It went away in the last seconds.
            facts = _recent_facts(0) or facts
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


def _not_read_yet() -> HttpResponse:
    return HttpResponse(
        gettext("The portal reads its state. Load this page again in some seconds."),
        content_type="text/plain; charset=utf-8",
        status=503,
        headers={"Retry-After": "5", "Refresh": "5"},
    )


def _recent_facts(kept_seconds: float) -> StatusFacts | None:
    """Read the facts if the last ones are older. While another thread reads, return
    the last ones; None: this process has none, or only old ones."""
    global _found
    if _is_recent(kept_seconds):
        return _found[1] if _found else None
    if not _reading.acquire(blocking=False):
        # A reading that hangs must not leave an old "everything works".
        return _found[1] if _found and _is_recent(STALE_SECONDS) else None
    try:
        # Another thread may have read since.
        if not _is_recent(kept_seconds):
            facts = read_facts(timezone.now())
            # A reading may be slow, so its end counts.
            _found = (time.monotonic(), facts)
        return _found[1] if _found else None
    finally:
        _reading.release()


def _is_recent(kept_seconds: float) -> bool:
    return _found is not None and time.monotonic() - _found[0] < kept_seconds


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
