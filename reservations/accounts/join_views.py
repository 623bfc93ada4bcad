"""The page behind a link to join a group."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from reservations.accounts import group_members
from reservations.rules.errors import NotFound
from reservations.store.access import reader
from telemetry.protocol.coded_error import CodedError
from telemetry.web.error_answers import message_of


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def join(request: HttpRequest, token: str) -> HttpResponseBase:
    """Ask a signed-in person whether to join, and let them join."""
    user, now, text = reader(request), timezone.now(), token[:100]
    try:
        link = group_members.link_of(text, now=now)
    except NotFound:
        return render(
            request, "reservations/accounts/join.html", {"link": None}, status=404
        )
    account = link.account
    member = account.memberships.filter(user=user, active=True).exists()
    page = {"link": link, "account": account, "member": member}
    if request.method != "POST" or member:
        return render(request, "reservations/accounts/join.html", page)
    try:
        group_members.join(text=text, user=user, now=now)
    except NotFound:
        return render(
            request, "reservations/accounts/join.html", {"link": None}, status=404
        )
    except CodedError as error:
        page["error"] = message_of(error)
        return render(request, "reservations/accounts/join.html", page, status=409)
    messages.success(
        request,
        gettext("You joined %(account)s. You can book GPUs now.")
        % {"account": account},
    )
    return redirect("calendar")
