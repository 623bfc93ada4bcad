"""The list of Alerts: live, filtered, sorted, paged and as CSV. The address has all
choices."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.contrib import messages
from django.core.paginator import Paginator
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as lazy
from django.utils.translation import gettext_noop as noop
from django.views.decorators.http import require_POST, require_safe

from gpuportal.alerts import service as alert_acts
from gpuportal.alerts.queries import (
    SEVERITIES,
    STATES,
    WORST_FIRST,
    AlertRow,
    by_severity,
    in_state,
    rows_for,
    visible_alerts,
)
from gpuportal.board.board_snapshot import viewer_of
from placement.jobs.number_fields import whole_number_field
from reservations.models import Membership, SitePolicy, User
from reservations.presence import adoption
from reservations.web.refusal_form import add_refusal
from telemetry.alerts.service import LONGEST_SNOOZE
from telemetry.models import AlertQuerySet, Gpu, Node
from telemetry.protocol.coded_error import CodedError
from telemetry.rules.alert_rules import alert_rules
from telemetry.web.csv_answer import csv_answer
from telemetry.web.local_time_field import LocalTimeField, clock_notes
from telemetry.web.plain_forms import PlainForm
from telemetry.web.query_filters import whole_number

PAGE_ROWS = 25
CSV_ROWS = 10_000
SORTS = {
    "severity": (noop("worst first"), WORST_FIRST),
    "newest": (noop("newest first"), ("-opened_at",)),
    "oldest": (noop("oldest first"), ("opened_at",)),
    "place": (noop("by place"), ("gpu__node__name", "node__name", "gpu__index")),
    "rule": (noop("by rule"), ("rule", "-opened_at")),
}
COLUMNS = (
    *("alert", "rule", "severity", "place", "state", "opened", "last_seen", "closed"),
    *("openings", "reservation", "acknowledged_by", "facts"),
)
SNOOZES = {"1": "1 h", "8": "8 h"}


class AlertFilterForm(PlainForm):
    """The filters of the address. Unknown words are ignored."""

    rule = forms.ChoiceField(required=False)
    severity = forms.ChoiceField(
        required=False, choices=[(word, word) for word in SEVERITIES]
    )
    node = forms.ChoiceField(required=False)
    state = forms.ChoiceField(required=False, choices=[(x, x) for x in STATES])
    sort = forms.ChoiceField(required=False, choices=[(x, x) for x in SORTS])

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.nodes = list(Node.objects.values_list("name", flat=True))
        self.rules = sorted(alert_rules())
        for name, words in (("rule", self.rules), ("node", self.nodes)):
            field = self.fields[name]
            assert isinstance(field, forms.ChoiceField)
            field.choices = [(word, word) for word in words]


class AdoptForm(PlainForm):
    """The booking of what runs without one. The service checks the node."""

    node = forms.CharField(max_length=64)
    hours = whole_number_field(1, adoption.MOST_HOURS)
    membership = forms.ModelChoiceField(Membership.objects.none(), required=False)

    def __init__(self, user: User, *args: Any) -> None:
        super().__init__(*args)
        field = self.fields["membership"]
        assert isinstance(field, forms.ModelChoiceField)
        own = user.memberships.filter(active=True, account__archived_at=None)
        field.queryset = own.select_related("account")


@require_safe
def alert_list(request: HttpRequest) -> HttpResponse:
    """List the Alerts that the user may see."""
    return _page(request, AdoptForm(_user(request)))


@require_POST
def adopt(request: HttpRequest) -> HttpResponse:
    """Book the Gpus of a node that the user's processes use without a booking."""
    form = AdoptForm(_user(request), request.POST)
    status = 422
    if form.is_valid():
        try:
            made = adoption.adopt(
                user=_user(request), now=timezone.now(), **form.cleaned_data
            )
            return redirect("reservation", pk=made.pk)
        except CodedError as error:
            status = add_refusal(form, error)
    return _page(request, form, status)


def _page(request: HttpRequest, adopt_form: AdoptForm, status: int = 200) -> Any:
    user, now = _user(request), timezone.now()
    form = AlertFilterForm(request.GET)
    form.is_valid()
    asked = {name: word for name, word in form.cleaned_data.items() if word}
    visible = visible_alerts(user, now)
    # An unfolded alert stays in the list after it closes, until the reader folds it.
    unfolded = request.GET.getlist("unfolded")[:PAGE_ROWS]
    read = visible.filter(pk__in=[whole_number(text) for text in unfolded])
    rows = _filtered(visible, asked, now)
    if unfolded:
        rows = rows | read
    rows = by_severity(rows).order_by(*SORTS[asked.get("sort", "severity")][1], "-pk")
    viewer = viewer_of(user, names_visible=SitePolicy.current().names_visible)
    if request.GET.get("format") == "csv":
        found = rows_for(rows[:CSV_ROWS], viewer, now)
        return csv_answer("alerts.csv", _csv_rows(found))
    page = Paginator(rows, PAGE_ROWS).get_page(request.GET.get("page"))
    fragment = "X-Fragment" in request.headers
    return render(
        request,
        "gpuportal/alerts/_alert_list.html"
        if fragment
        else "gpuportal/alerts/alert_list.html",
        {
            "form": form,
            "page": page,
            "rows": rows_for(page, viewer, now),
            "viewer": viewer,
            "filtered": bool(asked.keys() - {"sort"}),
            "states": STATES,
            "severities": SEVERITIES,
            "sorts": [(word, gettext(title)) for word, (title, _) in SORTS.items()],
            "here": _query(asked, page=page.number if page.number > 1 else None),
            "page_query": _query(asked),
            "csv_query": _query(asked, format="csv"),
            "snoozes": SNOOZES.items(),
            "uses": () if fragment else adoption.unbooked_use(user),
            "adopt_form": adopt_form,
        },
        status=status,
    )


def _query(asked: dict[str, str], **more: object) -> str:
    return urlencode(asked | {k: v for k, v in more.items() if v is not None})


def _filtered(
    rows: AlertQuerySet, asked: dict[str, str], now: datetime
) -> AlertQuerySet:
    rows = in_state(rows, asked.get("state", "open"), now)
    for name in ("rule", "severity"):
        if name in asked:
            rows = rows.filter(**{name: asked[name]})
    if "node" in asked:
        node = asked["node"]
        rows = rows.filter(Q(gpu__node__name=node) | Q(node__name=node))
    return rows


def _csv_rows(rows: list[AlertRow]) -> Iterator[tuple[object, ...]]:
    yield COLUMNS
    for row in rows:
        alert = row.alert
        times = (alert.opened_at, alert.last_seen_at, alert.closed_at)
        opened, seen, closed = (
            at.astimezone(UTC).isoformat(timespec="seconds") if at else None
            for at in times
        )
        facts = "; ".join(f"{label}: {text}" for label, text in row.facts)
        yield (
            *(alert.pk, alert.rule, alert.severity, alert.place, row.state),
            *(opened, seen, closed, alert.openings),
            *(row.booking.pk if row.booking else None, alert.acknowledged_by, facts),
        )


class AlertActForm(PlainForm):
    """The operator's action on one Alert."""

    act = forms.ChoiceField(
        required=False, choices=[(x, x) for x in ("acknowledge", "until", "wake")]
    )
    hours = forms.ChoiceField(required=False, choices=list(SNOOZES.items()))
    until = LocalTimeField(
        required=False, error_messages={"invalid": lazy("Enter a date and a time.")}
    )
    back = forms.CharField(required=False, max_length=500)

    def snooze_until(self, now: datetime) -> datetime | None:
        """Return when a snooze ends; None if no valid time was sent."""
        data = self.cleaned_data
        if data["hours"]:
            return now + timedelta(hours=int(data["hours"]))
        until: datetime | None = data["until"]
        if until is None or not now < until <= now + LONGEST_SNOOZE:
            return None
        return until


@require_POST
def alert_act(request: HttpRequest, pk: int) -> HttpResponse:
    """Acknowledge, snooze or wake one Alert, and return to it in the same list."""
    user, now = _user(request), timezone.now()
    form = AlertActForm(request.POST)
    back = f"/alerts/?{request.POST.get('back', '')[:500]}#alert-{pk}"
    if not form.is_valid():
        said = (str(text) for texts in form.errors.values() for text in texts)
        messages.error(request, "; ".join(said))
        return redirect(back)
    act = form.cleaned_data["act"]
    if act == "acknowledge":
        done = alert_acts.acknowledge(alert_id=pk, user=user, now=now)
    elif act == "wake":
        done = alert_acts.wake(alert_id=pk, user=user, now=now)
    else:
        until = form.snooze_until(now)
        if until is None:
            text = gettext("A snooze ends in the future, within %(days)s days.") % {
                "days": LONGEST_SNOOZE.days
            }
            messages.error(request, text)
            return redirect(back)
        done = alert_acts.snooze(alert_id=pk, until=until, user=user, now=now)
        for note in clock_notes(form):
            messages.info(request, note)
    if not done:
        messages.info(
            request, gettext("Nothing to do: the alert has closed or changed.")
        )
    return redirect(back)


@require_POST
def xids_clear(request: HttpRequest, pk: int) -> HttpResponse:
    """Clear a Gpu's XIDs, or one code of them."""
    gpu = get_object_or_404(Gpu.objects.select_related("node"), pk=pk)
    text = request.POST.get("code", "")
    code = int(text) if text.isdecimal() and len(text) < 6 else None
    alert_acts.clear_xids(gpu=gpu, user=_user(request), now=timezone.now(), code=code)
    return redirect("gpu", pk=pk)


def _user(request: HttpRequest) -> User:
    """Return the signed-in User. LoginRequiredMiddleware lets only signed-in users
    through."""
    assert isinstance(request.user, User)
    return request.user
