"""The audit log inside Manage: actor, action, time and reason."""

from collections.abc import Iterator
from datetime import UTC, datetime, time

from django import forms
from django.core.paginator import Paginator
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext_lazy as lazy
from django.views.decorators.http import require_safe

from gpuportal.manage.audit_text import AREAS, PORTAL, SENTENCES, AuditRow, rows_of
from reservations.models import AuditEntry
from reservations.store.access import operator_required
from telemetry.web.csv_answer import csv_answer
from telemetry.web.plain_forms import PlainForm
from telemetry.web.query_filters import read_filters

PAGE_ROWS = 50
CSV_ROWS = 50_000
COLUMNS = ("at", "who", "login", "verb", "subject", "sentence", "reason")
AREA_WORDS = {
    "reservation": lazy("bookings and waitlist"),
    "people": lazy("people and notices"),
    "groups": lazy("groups and members"),
    "machines": lazy("machines and alerts"),
    "rules": lazy("policies and replays"),
    "jobs": lazy("jobs and served models"),
}


class AuditForm(PlainForm):
    """The requested rows, and the page of them."""

    q = forms.CharField(required=False, max_length=80)
    who = forms.CharField(required=False, max_length=150)
    area = forms.ChoiceField(required=False, choices=[(word, word) for word in AREAS])
    since = forms.DateField(required=False)
    until = forms.DateField(required=False)
    subject = forms.CharField(required=False, max_length=80)
    page = forms.IntegerField(required=False, min_value=1, max_value=10**6)


@require_safe
@operator_required
def audit_log(request: HttpRequest) -> HttpResponse:
    """List the audit log in sentences, newest first, as a page or as CSV."""
    asked = read_filters(AuditForm, request.GET)
    rows = _filtered(AuditEntry.objects.select_related("actor"), asked.values)
    if request.GET.get("format") == "csv":
        return csv_answer("audit.csv", _csv_rows(rows_of(rows[:CSV_ROWS])))
    page = Paginator(rows, PAGE_ROWS).get_page(asked.values.get("page") or 1)
    query = request.GET.copy()
    for name in ("page", "format"):
        query.pop(name, None)
    found = {
        "tab": "audit",
        "asked": asked,
        "areas": AREA_WORDS.items(),
        "page": page,
        "rows": rows_of(page.object_list),
        "query": query.urlencode(),
        "filtered": any(
            value for name, value in asked.values.items() if name != "page"
        ),
    }
    return render(request, "gpuportal/manage/audit_log.html", found)


def _filtered(
    rows: QuerySet[AuditEntry], values: dict[str, object]
) -> QuerySet[AuditEntry]:
    """Return the rows that an address requests."""
    who = str(values.get("who") or "").strip()
    if who.lower() in (PORTAL.lower(), "portal"):
        rows = rows.filter(actor=None)
    elif who:
        rows = rows.filter(
            Q(actor__username__iexact=who) | Q(actor__display_name__icontains=who)
        )
    if values.get("area"):
        begins = Q()
        for start in AREAS[str(values["area"])]:
            begins |= Q(verb__startswith=start)
        rows = rows.filter(begins)
    if values.get("subject"):
        rows = rows.filter(subject=values["subject"])
    q = str(values.get("q") or "").strip()
    if q:
        meant = [verb for verb, words in SENTENCES.items() if q.lower() in words]
        rows = rows.filter(
            Q(verb__icontains=q)
            | Q(subject__icontains=q)
            | Q(reason__icontains=q)
            | Q(verb__in=meant)
        )
    zone = timezone.get_current_timezone()
    for name, ends, lookup in (
        ("since", time.min, "at__gte"),
        ("until", time.max, "at__lte"),
    ):
        day = values.get(name)
        if day is not None:
            at = datetime.combine(day, ends, tzinfo=zone)  # type: ignore[arg-type]
            rows = rows.filter(**{lookup: at})
    return rows


def _csv_rows(rows: list[AuditRow]) -> Iterator[tuple[object, ...]]:
    yield COLUMNS
    for row in rows:
        entry = row.entry
        login = entry.actor.username if entry.actor is not None else ""
        at = entry.at.astimezone(UTC).isoformat(timespec="seconds")
        cells = (at, row.actor, login, entry.verb, entry.subject, row.sentence)
        yield (*cells, entry.reason)
