"""Replays of the site's own past under other rules: form, results before and after."""

from datetime import datetime

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.utils.translation import gettext
from django.views.decorators.http import (
    require_http_methods,
    require_POST,
    require_safe,
)
from kombu.exceptions import OperationalError

from reservations.models import PolicyReplay
from reservations.reports.replay import service as replays
from reservations.reports.replay import tasks
from reservations.reports.replay.comparison import EDITABLE, trace_rows
from reservations.reports.replay.forms import (
    DAYS,
    HOUR,
    TITLES,
    AccountsForm,
    ReplayForm,
    SpanForm,
    accounts_named,
)
from reservations.reports.replay.pictures import shown
from reservations.rules.errors import NotFound
from reservations.store.access import operator_required, reader
from reservations.store.booking_facts import site_policy
from telemetry.rules.policy_declaration import PolicyInvalid
from telemetry.web.csv_answer import csv_answer
from telemetry.web.error_answers import add_errors

PAGE_ROWS = 20


@require_http_methods(["GET", "HEAD", "POST"])
@operator_required
def home(request: HttpRequest) -> HttpResponseBase:
    """Show the form, and the list of replays."""
    now = timezone.now()
    form = ReplayForm(request.POST or None, initial=_present())
    asked_for = request.GET.get("accounts", "")[:200]
    found, left_off = accounts_named(asked_for)
    edits = AccountsForm(found, request.POST or None)
    # Both forms are validated, so that the page shows all errors at once.
    if request.method == "POST" and form.is_valid() & edits.is_valid():
        row = _store_replay(request, form, edits, now)
        if row is not None:
            return redirect("manage-replay-one", row.pk)
    replays.fail_stale(now=now)
    past = PolicyReplay.objects.select_related("asked_by", "pool")
    page = Paginator(past, PAGE_ROWS).get_page(request.GET.get("page"))
    return render(
        request,
        "reservations/reports/replay/replay_list.html",
        {
            "tab": "replay",
            "form": form,
            "rules": [(form[name], *TITLES[name]) for name in EDITABLE],
            "present": _present(),
            "accounts": edits,
            "accounts_filter": asked_for,
            "accounts_left_off": left_off,
            "accounts_open": bool(asked_for)
            or (edits.is_bound and edits.has_changed()),
            "page": page,
        },
        status=422 if form.errors or edits.errors else 200,
    )


def _present() -> dict[str, object]:
    """Return the initial form, with the present rules."""
    policy = site_policy()
    rules = {name: getattr(policy, name) / HOUR for name in EDITABLE}
    return {
        "days": DAYS[0],
        "counted_from": "asked",
        **{n: int(v) if v == int(v) else round(v, 3) for n, v in rules.items()},
    }


def _store_replay(
    request: HttpRequest, form: ReplayForm, edits: AccountsForm, now: datetime
) -> PolicyReplay | None:
    """Store the request and queue it. None: the form has errors."""
    user = reader(request)
    try:
        row = replays.ask_replay(
            user=user,
            span=form.span(now),
            fields=form.seconds(),
            accounts=edits.edits(),
            now=now,
        )
    except PolicyInvalid as invalid:
        form.add_error(
            invalid.field if invalid.field in TITLES else None, invalid.detail
        )
        return None
    except replays.TooManyReplays as error:
        add_errors(form, error)
        return None
    try:
        tasks.replay_past.delay(row.pk)
    except OperationalError:
        replays.cancel_replay(pk=row.pk, user=user, now=now)
        form.add_error(
            None, gettext("The broker does not answer: try again in a minute.")
        )
        return None
    return row


@require_safe
@operator_required
def replay_page(request: HttpRequest, pk: int) -> HttpResponseBase:
    """Show the progress of a replay, then its results."""
    replays.fail_stale(now=timezone.now())
    rows = PolicyReplay.objects.select_related("asked_by", "pool")
    row = get_object_or_404(rows, pk=pk)
    part = "X-Fragment" in request.headers
    answer = render(
        request,
        "reservations/reports/replay/_replay.html"
        if part
        else "reservations/reports/replay/replay_show.html",
        {"tab": "replay", "row": row, **shown(row)},
    )
    answer["Vary"] = "X-Fragment"
    return answer


@require_POST
@operator_required
def cancel(request: HttpRequest, pk: int) -> HttpResponseBase:
    """Cancel a waiting or running replay."""
    get_object_or_404(PolicyReplay, pk=pk)
    try:
        done = replays.cancel_replay(pk=pk, user=reader(request), now=timezone.now())
    except NotFound:
        done = False
    if not done:
        messages.info(request, gettext("That replay had ended already."))
    return redirect("manage-replay-one", pk)


@require_safe
@operator_required
def trace_csv(request: HttpRequest) -> HttpResponseBase:
    """Send the past as a trace that `manage.py replay` reads."""
    form = SpanForm({**_present(), **request.GET.dict()})
    if not form.is_valid():
        return redirect("manage-replay")
    span = form.span(timezone.now())
    return csv_answer(f"trace-{span.end:%F}.csv", trace_rows(span.trace().jobs))
