"""The operator's pages of pools: what they cost, who may book, limits in them."""

from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.utils.translation import gettext
from django.views.decorators.http import (
    require_http_methods,
    require_POST,
    require_safe,
)

from reservations.models import Account, AuditEntry, PoolQuota
from reservations.operations import pools
from reservations.operations.bulk_acts import DeskInvalid
from reservations.operations.forms import NewPoolForm, PoolForm, PoolQuotaForm
from reservations.operations.peak_hours import DAYS, hours_text
from reservations.operations.pools import PoolEdit
from reservations.rules.figures import credits_text
from reservations.rules.prices import PeakHours, read_peak
from reservations.store.access import operator_required, reader
from reservations.store.drains import Drain, drains
from telemetry.models import Node, Pool
from telemetry.protocol.sentences import sentence

CHANGES_SHOWN = 20


@dataclass(frozen=True)
class PoolChange:
    """One act on a Pool, in words."""

    entry: AuditEntry
    lines: list[tuple[str, str, str]]


@require_safe
@operator_required
def listed(request: HttpRequest) -> HttpResponseBase:
    """List the pools, and the nodes that can be drained."""
    return _list(request, NewPoolForm())


def _list(
    request: HttpRequest, form: NewPoolForm, *, status: int = 200
) -> HttpResponse:
    context = {
        "tab": "pools",
        "pools": _pools(),
        "nodes": _nodes(),
        "form": form,
    }
    return render(
        request, "reservations/operations/pool_list.html", context, status=status
    )


def _pools() -> QuerySet[Pool]:
    standing = Q(gpus__retired=False)
    bookable = standing & Q(
        gpus__present=True,
        gpus__lost=False,
        gpus__maintenance=False,
        gpus__draining=False,
        gpus__mig=False,
        gpus__foreign=False,
        gpus__new=False,
        gpus__node__maintenance=False,
        gpus__node__draining=False,
    )
    return (
        Pool.objects.annotate(
            gpu_count=Count("gpus", filter=standing, distinct=True),
            open_count=Count("gpus", filter=bookable, distinct=True),
            quota_count=Count("quotas", distinct=True),
        )
        .select_related("rule")
        .prefetch_related("rule__accounts")
    )


def _nodes() -> list[tuple[Node, Drain | None]]:
    """Return the nodes that have Gpus, with the reason why they take no bookings."""
    standing = Q(gpus__retired=False)
    rows = Node.objects.annotate(
        gpu_count=Count("gpus", filter=standing, distinct=True),
        draining_count=Count(
            "gpus", filter=standing & Q(gpus__draining=True), distinct=True
        ),
    ).filter(gpu_count__gt=0)
    why = drains(node.pk for node in rows if node.draining)
    return [(node, why.get(node.pk)) for node in rows]


@require_POST
@operator_required
def new(request: HttpRequest) -> HttpResponseBase:
    """Make a pool of its own name."""
    form = NewPoolForm(request.POST)
    if form.is_valid():
        try:
            made = pools.add_pool(
                **form.cleaned_data, actor=reader(request), now=timezone.now()
            )
        except DeskInvalid as invalid:
            _put(form, invalid)
        else:
            messages.success(
                request,
                gettext("The pool %(made)s was made. Put GPUs into it.")
                % {"made": made},
            )
            return redirect("manage-pool", made.pk)
    return _list(request, form, status=422)


@require_http_methods(["GET", "HEAD", "POST"])
@operator_required
def one(request: HttpRequest, pk: int) -> HttpResponseBase:
    """Show a pool; set its price and who may book it."""
    pool = get_object_or_404(_pools(), pk=pk)
    if request.method != "POST":
        return _page(request, pool, form=PoolForm(initial=_initial(pool)))
    form = PoolForm(request.POST)
    if form.is_valid():
        values = form.cleaned_data
        edit = PoolEdit(
            values["weight"],
            tuple(a.pk for a in values["accounts"]),
            peak_factor=values["peak_factor"] or 1,
            peak_hours=values["peak_hours"],
        )
        try:
            changed = pools.change_pool(
                pool_id=pk,
                edit=edit,
                actor=reader(request),
                now=timezone.now(),
                reason=values["reason"],
            )
        except DeskInvalid as invalid:
            _put(form, invalid)
        else:
            said = gettext("Saved.") if changed else gettext("Nothing was changed.")
            messages.success(
                request,
                said + " " + gettext("Existing bookings keep their price."),
            )
            return redirect("manage-pool", pk)
    return _page(request, pool, form=form, status=422)


@require_POST
@operator_required
def quota(request: HttpRequest, pk: int) -> HttpResponseBase:
    """Set or lift what an account or a member may hold on a pool."""
    pool = get_object_or_404(_pools(), pk=pk)
    form = PoolQuotaForm(request.POST)
    if form.is_valid():
        values = form.cleaned_data
        member = values.get("member")
        try:
            changed = pools.set_pool_quota(
                pool_id=pk,
                membership_id=member.pk if member else None,
                account_id=None if member else values["account"].pk,
                quota_gpu_seconds=values["quota_gpu_seconds"],
                actor=reader(request),
                now=timezone.now(),
                reason=values["reason"],
            )
        except DeskInvalid as invalid:
            _put(form, invalid)
        else:
            messages.success(
                request,
                gettext("Saved.") if changed else gettext("Nothing was changed."),
            )
            return redirect("manage-pool", pk)
    return _page(
        request,
        pool,
        form=PoolForm(initial=_initial(pool)),
        quota_form=form,
        status=422,
    )


def _put(form: Any, invalid: DeskInvalid) -> None:
    for field, text in invalid.wrong.items():
        form.add_error(field if field in form.fields else None, text)


def _initial(pool: Pool) -> dict[str, Any]:
    rule = getattr(pool, "rule", None)
    peak = _peak(pool)
    return {
        "weight": pool.weight,
        "accounts": [a.pk for a in rule.accounts.all()] if rule else [],
        "peak_factor": peak.factor if peak else 1,
        "peak_hours": hours_text(peak.mask) if peak else "",
    }


def _page(
    request: HttpRequest,
    pool: Pool,
    *,
    form: PoolForm,
    quota_form: PoolQuotaForm | None = None,
    status: int = 200,
) -> HttpResponse:
    quotas = PoolQuota.objects.filter(pool=pool).select_related(
        "account", "membership__user", "membership__account"
    )
    context = {
        "tab": "pools",
        "pool": pool,
        "form": form,
        "quota_form": quota_form or PoolQuotaForm(),
        "quotas": quotas,
        "changes": changes_of(f"pool:{pool.pk}"),
        "peak": _peak(pool),
        "week": _week(_peak(pool)),
    }
    return render(
        request, "reservations/operations/pool_edit.html", context, status=status
    )


_WORDS = {
    "weight": sentence("weight"),
    "accounts": sentence("who may book"),
    "name": sentence("name"),
    "peak": sentence("peak hours"),
}


def _peak(pool: Pool) -> PeakHours | None:
    rule = getattr(pool, "rule", None)
    return read_peak(rule.peak) if rule else None


def _week(peak: PeakHours | None) -> list[tuple[str, str]]:
    """Return each day of the week with its peak hours in words."""
    if peak is None:
        return []
    days = [hours_text(peak.mask & 0xFFFFFF << 24 * day) for day in range(7)]
    return [
        (name, said.partition(" ")[2]) for name, said in zip(DAYS, days, strict=True)
    ]


def changes_of(subject: str) -> list[PoolChange]:
    """Return the newest acts on a Pool, with what was and what is."""
    entries = AuditEntry.objects.filter(subject=subject).select_related("actor")
    newest = list(entries.order_by("-at", "-pk")[:CHANGES_SHOWN])
    names = {a.pk: str(a) for a in Account.objects.all()}
    return [PoolChange(entry, _lines(entry, names)) for entry in newest]


def _lines(entry: AuditEntry, names: dict[int, str]) -> list[tuple[str, str, str]]:
    before, after = entry.detail.get("before"), entry.detail.get("after")
    if entry.verb == "pool.quota":
        whose = names.get(entry.detail.get("account") or 0, "")
        member = entry.detail.get("membership")
        name = sentence(
            "quota of {whose}",
            whose=whose or sentence("member {member}", member=member),
        )
        return [(name, _hours(before), _hours(after))]
    was = before if isinstance(before, dict) else {}
    is_now = after if isinstance(after, dict) else {}
    return [
        (str(_WORDS.get(key, key)), _said(was.get(key), names), _said(value, names))
        for key, value in is_now.items()
        if was.get(key) != value
    ]


def _hours(seconds: int | None) -> str:
    return gettext("no limit") if seconds is None else credits_text(seconds)


def _said(value: object, names: dict[int, str]) -> str:
    if isinstance(value, list):
        return ", ".join(names.get(pk, f"#{pk}") for pk in value) or "everybody"
    return "–" if value is None else str(value)
