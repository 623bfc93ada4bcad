"""A person's calendar for other programs: a secret, read-only address without names."""

from collections.abc import Iterator
from datetime import timedelta

from django.contrib import messages
from django.contrib.auth.decorators import login_not_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe
from icalendar import Event

from reservations.models import Reservation, User
from reservations.rules.lifecycle import Kind, State
from reservations.sharing import calendar_feed
from reservations.sharing.ical import calendar_text, event_of
from reservations.store.access import reader
from telemetry.protocol.sentences import counted, joined, known
from telemetry.web.translation import translated

KEPT = timedelta(days=30)
"""How long an ended reservation stays in the calendar."""
MOST_EVENTS = 500


@login_not_required
@never_cache
@require_safe
def feed(request: HttpRequest, address: str) -> HttpResponse:
    """Answer with the calendar of the address's owner, or 404 if it is unknown."""
    user = calendar_feed.reader_of(address, now=timezone.now())
    if user is None:
        raise Http404(
            gettext(
                "There is no calendar at this address. The link may have been deleted."
            )
        )
    text = calendar_text(_events(user, request.get_host()), name="GPU Portal")
    response = HttpResponse(text, content_type="text/calendar; charset=utf-8")
    response["Content-Disposition"] = 'attachment; filename="gpuportal.ics"'
    response["Referrer-Policy"] = "no-referrer"
    response["X-Robots-Tag"] = "noindex"
    return response


def _events(user: User, host: str) -> Iterator[Event]:
    now = timezone.now()
    rows = Reservation.objects.filter(
        user=user, state__in=State.holding(), end__gt=now - KEPT
    ).prefetch_related("allocations__gpu__node")
    for row in rows.order_by("-start")[:MOST_EVENTS]:
        if row.end <= row.start:
            continue
        gpus = sorted(str(a.gpu) for a in row.allocations.all())
        number = counted("{n} GPU", "{n} GPUs", len(gpus))
        yield event_of(
            uid=f"reservation-{row.pk}@{host}",
            start=row.start,
            end=row.end,
            summary=translated(joined([number, known(row.kind)], by=", ")),
            location=", ".join(gpus),
            changed_at=now,
            sequence=row.version,
            tentative=row.kind == Kind.FLEX and row.state == State.CONFIRMED,
        )


@require_POST
@never_cache
def feed_make(request: HttpRequest) -> HttpResponse:
    """Make an address and answer with a page. No other page shows the address."""
    address = calendar_feed.make_feed(user=reader(request), now=timezone.now())
    url = request.build_absolute_uri(f"/ical/{address}.ics")
    return render(request, "reservations/sharing/feed_show.html", {"url": url})


@require_POST
def feed_revoke(request: HttpRequest) -> HttpResponse:
    """Revoke the address: programs that use it get 404 from now on."""
    if calendar_feed.revoke_feed(user=reader(request), now=timezone.now()):
        messages.success(request, gettext("The calendar link no longer works."))
    return redirect("me")
