"""Replay: what would other rules have done to the site's own past? Before and after."""

import csv
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import (
    require_http_methods,
    require_POST,
    require_safe,
)
from kombu.exceptions import OperationalError

from reservations import tasks
from reservations.domain.errors import NotFound
from reservations.domain.policy import PolicyInvalid
from reservations.domain.replay.compare import EDITABLE, Outcome, trace_rows
from reservations.models import PolicyReplay
from reservations.services import replays
from reservations.snapshots.facts import site_policy
from reservations.views.access import operator_required, reader
from telemetry.domain.sheet import tame
from telemetry.models import Pool

HOUR = 3600
PAGE_ROWS = 20
WIDTH = 1000
DAYS = (30, 7, 90)
TITLES = {
    "quota_gpu_seconds": ("Quota", "weighted GPU-hours a member in any 7 days"),
    "half_life_seconds": ("Half-life", "hours after which past use counts half"),
    "freeze_seconds": ("Freeze", "hours before its start that nobody can take flex"),
    "firm_horizon_seconds": ("Firm horizon", "hours ahead that firm may begin"),
    "flex_horizon_seconds": ("Flex horizon", "hours ahead that flex may begin"),
}


class SpanForm(forms.Form):
    """Which past is looked at, and how."""

    days = forms.TypedChoiceField(
        coerce=int, choices=[(n, f"the last {n} days") for n in DAYS]
    )
    counted_from = forms.ChoiceField(
        choices=[
            ("asked", "from when it was asked for"),
            ("start", "from when it was to start"),
        ]
    )
    pool = forms.ModelChoiceField(
        Pool.objects.order_by("gpu_class"), required=False, empty_label="all together"
    )

    def span(self, now: datetime) -> replays.Span:
        """Return it, to the whole hour."""
        end = now.replace(minute=0, second=0, microsecond=0)
        given = self.cleaned_data
        return replays.Span(
            start=end - timedelta(days=given["days"]),
            end=end,
            counted_from=given["counted_from"],
            pool=given["pool"],
        )


class ReplayForm(SpanForm):
    """The same, with the edited rules: all in hours."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, (title, _unit) in TITLES.items():
            self.fields[name] = forms.FloatField(
                label=title, min_value=0, max_value=10_000_000
            )

    def seconds(self) -> dict[str, int]:
        """Return the edited rules in seconds."""
        return {name: round(self.cleaned_data[name] * HOUR) for name in EDITABLE}


@require_http_methods(["GET", "HEAD", "POST"])
@operator_required
def home(request: HttpRequest) -> HttpResponseBase:
    """Ask for a replay; list those of the past."""
    now = timezone.now()
    form = ReplayForm(request.POST or None, initial=_present())
    if request.method == "POST" and form.is_valid():
        row = _asked(request, form, now)
        if row is not None:
            return redirect("manage-replay-one", row.pk)
    replays.fail_stale(now=now)
    past = PolicyReplay.objects.select_related("asked_by", "pool")
    page = Paginator(past, PAGE_ROWS).get_page(request.GET.get("page"))
    return render(
        request,
        "reservations/replay_list.html",
        {
            "tab": "replay",
            "form": form,
            "rules": [(form[name], *TITLES[name]) for name in EDITABLE],
            "present": _present(),
            "page": page,
        },
        status=422 if form.errors else 200,
    )


def _present() -> dict[str, object]:
    """Return the form as it is first shown: the rules of now."""
    policy = site_policy()
    rules = {name: getattr(policy, name) / HOUR for name in EDITABLE}
    return {
        "days": DAYS[0],
        "counted_from": "asked",
        **{n: int(v) if v == int(v) else round(v, 3) for n, v in rules.items()},
    }


def _asked(
    request: HttpRequest, form: ReplayForm, now: datetime
) -> PolicyReplay | None:
    """Keep the question and send it; None: the form says what is wrong."""
    user = reader(request)
    try:
        row = replays.ask_replay(
            user=user, span=form.span(now), fields=form.seconds(), now=now
        )
    except PolicyInvalid as invalid:
        form.add_error(invalid.field if invalid.field in TITLES else None, invalid.why)
        return None
    except replays.TooManyReplays as error:
        form.add_error(None, str(error))
        return None
    try:
        tasks.replay_past.delay(row.pk)
    except OperationalError:
        replays.cancel_replay(pk=row.pk, user=user, now=now)
        form.add_error(None, "The broker does not answer: try again in a minute.")
        return None
    return row


@require_safe
@operator_required
def one(request: HttpRequest, pk: int) -> HttpResponseBase:
    """Show how far a replay is, then before and after."""
    replays.fail_stale(now=timezone.now())
    rows = PolicyReplay.objects.select_related("asked_by", "pool")
    row = get_object_or_404(rows, pk=pk)
    part = request.headers.get("HX-Request") == "true"
    answer = render(
        request,
        "reservations/_replay.html" if part else "reservations/replay_show.html",
        {"tab": "replay", "row": row, **shown(row)},
    )
    answer["Vary"] = "HX-Request"
    return answer


@require_POST
@operator_required
def cancel(request: HttpRequest, pk: int) -> HttpResponseBase:
    """Cancel a replay that waits or runs."""
    get_object_or_404(PolicyReplay, pk=pk)
    try:
        done = replays.cancel_replay(pk=pk, user=reader(request), now=timezone.now())
    except NotFound:
        done = False
    if not done:
        messages.info(request, "That replay had ended already.")
    return redirect("manage-replay-one", pk)


@require_safe
@operator_required
def trace_csv(request: HttpRequest) -> HttpResponseBase:
    """The past as a trace: `manage.py replay` reads it."""
    form = SpanForm({**_present(), **request.GET.dict()})
    if not form.is_valid():
        return redirect("manage-replay")
    span = form.span(timezone.now())
    answer = HttpResponse(
        content_type="text/csv; charset=utf-8",
        headers={
            "Content-Disposition": f'attachment; filename="trace-{span.end:%F}.csv"'
        },
    )
    sheet = csv.writer(answer)
    sheet.writerows(map(tame, row) for row in trace_rows(span.trace().jobs))
    return answer


# --- before and after --------------------------------------------------------------


@dataclass(frozen=True)
class Figure:
    """One measure under both rules; ``better``: 1 if more is better, -1 if less is."""

    title: str
    before: float
    after: float
    unit: str
    better: int

    @property
    def words(self) -> tuple[str, str]:
        """Both values as the page shows them."""
        if self.unit == "ratio":
            return f"{100 * self.before:.1f} %", f"{100 * self.after:.1f} %"
        unit = f" {self.unit}" if self.unit else ""
        return f"{self.before:,.2f}{unit}", f"{self.after:,.2f}{unit}"

    @property
    def verdict(self) -> str:
        """Say which way it went, if it did."""
        change = self.after - self.before
        if abs(change) < 5e-4 * max(1.0, abs(self.before)):
            return "same"
        return "better" if change * self.better > 0 else "worse"


MEASURES = (
    ("Mean wait", "wait_mean_hours", "h", -1),
    ("Median wait", "wait_p50_hours", "h", -1),
    ("99 % waited at most", "wait_p99_hours", "h", -1),
    ("Worst person's mean wait", "worst_user_wait_hours", "h", -1),
    ("Utilization", "utilization", "ratio", 1),
    ("Jain's index by groups", "jain_tree", "", 1),
    ("Jain's index by people", "jain_flat", "", 1),
    ("Unserved entitlement", "unserved_entitlement", "ratio", -1),
)


@dataclass(frozen=True)
class GroupBars:
    """A group's mean wait under both rules; widths in thousandths of the longest."""

    group: str
    jobs: int
    before_hours: float
    after_hours: float
    before: int
    after: int


def shown(row: PolicyReplay) -> dict[str, Any]:
    """Return the rules of both sides, and where it is done, what they led to."""
    rules = [
        (title, unit, row.present[name] / HOUR, row.edited[name] / HOUR)
        for name, (title, unit) in TITLES.items()
    ]
    found: dict[str, Any] = {
        "rules": [(*rule, rule[2] != rule[3]) for rule in rules],
        "done_permille": round(WIDTH * row.done_ratio),
        "open": row.state in PolicyReplay.OPEN,
    }
    if row.before is None or row.after is None:
        return found
    before, after = Outcome.from_json(row.before), Outcome.from_json(row.after)
    found["figures"] = [
        Figure(title, before.measures[name], after.measures[name], unit, better)
        for title, name, unit, better in MEASURES
    ]
    found["groups"] = _groups(before, after)
    found["idle"] = all(
        bar.before_hours == bar.after_hours == 0 for bar in found["groups"]
    )
    return found


def _groups(before: Outcome, after: Outcome) -> list[GroupBars]:
    later = {one.group: one for one in after.groups}
    waits = [one.wait_mean_hours for one in (*before.groups, *after.groups)]
    most = max(waits, default=0.0) or 1.0
    return [
        GroupBars(
            one.group,
            one.jobs,
            one.wait_mean_hours,
            later[one.group].wait_mean_hours,
            round(WIDTH * one.wait_mean_hours / most),
            round(WIDTH * later[one.group].wait_mean_hours / most),
        )
        for one in sorted(before.groups, key=lambda g: -g.wait_mean_hours)
    ]
