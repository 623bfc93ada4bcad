"""Notices, their settings, and the link that unsubscribes from mails."""

from urllib.parse import urlencode

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_not_required
from django.core import signing
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST, require_safe

from reservations.models import Delivery, Notice, User
from reservations.notifications import mail, preferences
from reservations.notifications.channels import settings_of
from reservations.notifications.delivery_rules import channels_of
from reservations.notifications.forms import (
    MuteForm,
    NoticeChoiceForm,
    NoticeFilterForm,
    WebhookForm,
)
from reservations.notifications.message_rendering import ALL_KINDS, UNSUBSCRIBE_SALT
from reservations.notifications.queries import notices_with_text
from reservations.notifications.service import read_all
from reservations.notifications.text.notice_forms import CHANNELS
from reservations.notifications.webhook_rules import WebhookRefused
from reservations.store.access import reader
from telemetry.protocol.sentences import counted, sentence
from telemetry.web.error_answers import add_errors
from telemetry.web.query_filters import read_filters

PAGE_ROWS = 25
DELIVERY_ROWS = 10


@require_safe
def notices(request: HttpRequest) -> HttpResponse:
    """List the User's Notices, newest first, filtered by kind and read state."""
    user = reader(request)
    asked = read_filters(NoticeFilterForm, request.GET)
    rows = Notice.objects.filter(user=user)
    if kind := asked.values.get("kind"):
        rows = rows.filter(kind=kind)
    if asked.values.get("unread"):
        rows = rows.filter(read_at=None)
    page = Paginator(rows, PAGE_ROWS).get_page(asked.values.get("page") or 1)
    known = Notice.objects.filter(user=user).order_by()
    kinds = set(known.values_list("kind", flat=True).distinct())
    filters = {"kind": kind or "", "unread": "on" if asked.values.get("unread") else ""}
    return render(
        request,
        "reservations/notifications/notice_list.html",
        {
            "page": page,
            "rows": notices_with_text(page.object_list, user),
            "kinds": [one for one in Notice.Kind if one.value in kinds],
            "asked": asked,
            "query": urlencode({k: v for k, v in filters.items() if v}),
            "unread": Notice.objects.unread(user).count(),
        },
    )


@require_POST
def notices_read(request: HttpRequest) -> HttpResponse:
    """Mark all of the User's Notices as read."""
    count = read_all(user=reader(request), now=timezone.now())
    told = counted("{n} notice marked as read.", "{n} notices marked as read.", count)
    messages.success(request, told)
    return redirect("notices")


@require_safe
def notice_settings(request: HttpRequest) -> HttpResponse:
    """Show by which channel each kind goes out, quiet hours, mute, webhook."""
    return _settings_page(request)


@require_POST
def notice_choose(request: HttpRequest) -> HttpResponse:
    """Store the table of kinds and the quiet hours."""
    user = reader(request)
    form = NoticeChoiceForm(request.POST)
    if not form.is_valid():
        return _settings_page(request, choice=form, status=422)
    preferences.choose(
        user=user,
        chosen=form.chosen(),
        quiet_from=form.cleaned_data["quiet_from"],
        quiet_until=form.cleaned_data["quiet_until"],
        now=timezone.now(),
    )
    messages.success(request, gettext("Saved."))
    return redirect("notice-settings")


@require_POST
def notice_mute(request: HttpRequest) -> HttpResponse:
    """Mute everything but the page for a while, or unmute it."""
    user, now = reader(request), timezone.now()
    form = MuteForm(request.POST)
    if not form.is_valid():
        raise Http404(gettext("Choose a length of time from the list."))
    preferences.mute(user=user, until=form.until(now), now=now)
    return redirect("notice-settings")


@require_POST
@never_cache
def notice_webhook(request: HttpRequest) -> HttpResponse:
    """Set, switch on again, or remove the webhook. A new secret is shown once."""
    user, now = reader(request), timezone.now()
    act = request.POST.get("act", "")
    if act == "drop":
        preferences.drop_webhook(user=user, now=now)
        return redirect("notice-settings")
    if act == "enable":
        preferences.enable_webhook(user=user, now=now)
        return redirect("notice-settings")
    form = WebhookForm(request.POST)
    if form.is_valid():
        try:
            secret = preferences.set_webhook(
                user=user,
                url=form.cleaned_data["url"],
                format_name=form.cleaned_data["format"],
                now=now,
            )
        except WebhookRefused as error:
            add_errors(form, error)
        else:
            if not secret:
                messages.success(
                    request, gettext("Saved. Send a test message to try it.")
                )
                return redirect("notice-settings")
            return _settings_page(request, secret=secret)
    return _settings_page(request, hook=form, status=422)


@require_POST
def notice_try(request: HttpRequest) -> HttpResponse:
    """Send a test by every channel that is on."""
    sent = preferences.try_channels(user=reader(request), now=timezone.now())
    if sent:
        messages.success(
            request,
            gettext("The test message is on its way. The result appears below."),
        )
    else:
        messages.info(
            request, gettext("A test message was sent less than a minute ago.")
        )
    return redirect("notice-settings")


def _settings_page(
    request: HttpRequest,
    *,
    choice: NoticeChoiceForm | None = None,
    hook: WebhookForm | None = None,
    secret: str = "",
    status: int = 200,
) -> HttpResponse:
    user, now = reader(request), timezone.now()
    how = settings_of(user)
    choice = choice or NoticeChoiceForm(
        initial={"quiet_from": how.quiet_from, "quiet_until": how.quiet_until}
    )
    chosen = choice.chosen() if choice.is_bound else how.chosen
    sent = Delivery.objects.filter(notice__user=user).select_related("notice")
    return render(
        request,
        "reservations/notifications/notice_settings.html",
        {
            "how": how,
            "choice": choice,
            "kinds": [
                {
                    "kind": kind.value,
                    "label": kind.label,
                    **{
                        channel: channel in channels_of(kind.value, chosen)
                        for channel in CHANNELS
                    },
                }
                for kind in Notice.Kind
                if kind not in (Notice.Kind.TRIAL, Notice.Kind.WEBHOOK_OFF)
            ],
            "muted": how.muted_until is not None and how.muted_until > now,
            "mute": MuteForm(),
            "hook": hook
            or WebhookForm(
                initial={"url": how.webhook_url, "format": how.webhook_format}
            ),
            "webhook_name": how.get_webhook_format_display(),
            "secret": secret,
            "mail_configured": mail.configured(),
            "networks": settings.WEBHOOK_ALLOWED_NETWORKS,
            "deliveries": sent.order_by("-pk")[:DELIVERY_ROWS],
        },
        status=status,
    )


@csrf_exempt
@login_not_required
@never_cache
def notices_off(request: HttpRequest, token: str) -> HttpResponse:
    """End mails of a kind: confirmed by GET, done by POST (RFC 8058), without a login.

    Mail programs open links to scan them, so a GET must change nothing. The signed
    token authorises the change.
    """
    if request.method not in ("GET", "HEAD", "POST"):
        return HttpResponse(status=405, headers={"Allow": "GET, POST"})
    try:
        pk, kind = signing.loads(token, salt=UNSUBSCRIBE_SALT)
    except (signing.BadSignature, ValueError) as error:
        raise Http404(
            gettext("This link is not valid. Copy the whole address from the mail.")
        ) from error
    user = User.objects.filter(pk=pk, is_active=True).first()
    if user is None:
        raise Http404(gettext("This link belongs to an account that is switched off."))
    if request.method == "POST":
        preferences.unsubscribe(user=user, kind=kind, now=timezone.now())
    what = (
        gettext("all mails")
        if kind == ALL_KINDS
        else sentence("“{kind}”", kind=Notice.Kind(kind).label)
    )
    page = {"done": request.method == "POST", "what": what, "whose": user.username}
    return render(request, "reservations/notifications/notice_off.html", page)
