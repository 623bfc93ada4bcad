"""A person's calendar for other programs: a secret, read-only address without names."""

from django.contrib import messages
from django.contrib.auth.decorators import login_not_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from reservations.sharing import calendar_feed
from reservations.sharing.ical import calendar_text
from reservations.store.access import reader


@login_not_required
@never_cache
@require_safe
def feed(request: HttpRequest, address: str) -> HttpResponse:
    """Answer with the calendar of the address's owner, or 404 if it is unknown."""
    now = timezone.now()
    user = calendar_feed.reader_of(address, now=now)
    if user is None:
        raise Http404(
            gettext(
                "There is no calendar at this address. The link may have been deleted."
            )
        )
    events = calendar_feed.events_of(user, request.get_host(), now=now)
    text = calendar_text(events, name="GPU Portal")
    response = HttpResponse(text, content_type="text/calendar; charset=utf-8")
    response["Content-Disposition"] = 'attachment; filename="gpuportal.ics"'
    response["Referrer-Policy"] = "no-referrer"
    response["X-Robots-Tag"] = "noindex"
    return response


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
