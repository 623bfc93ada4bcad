"""The operator's pages of pools: prices, admitted groups and limits."""

from collections.abc import Mapping
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

from reservations.models import Account, Allocation, AuditEntry, PoolQuota
from reservations.operations import pools
from reservations.operations.forms import NewPoolForm, PoolForm, PoolQuotaForm
from reservations.operations.peak_hours import DAYS, hours_text
from reservations.operations.pools import PoolEdit
from reservations.rules.figures import credits_text
from reservations.rules.prices import PeakHours, read_peak
from reservations.rules.review import FieldsInvalid
from reservations.store.access import operator_required, reader
from reservations.store.drains import Drain, drains
from reservations.web.review_page import Review, ReviewPage, undo_answer
from telemetry.models import Node, Pool
from telemetry.protocol.sentences import counted, joined, sentence
from telemetry.web.error_answers import add_errors

CHANGES_SHOWN = 20
QUOTA_IDS = "quota_%s"
"""Ids of the second form of a page. Both forms have a reason."""


@dataclass(frozen=True)
class PoolChange:
    """One act on a Pool, in words."""

    entry: AuditEntry
    lines: list[tuple[str, str, str]]
    undoable: bool


@require_safe
@operator_required
def pool_list(request: HttpRequest) -> HttpResponseBase:
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
        "gate_modes": Node.GateMode.choices,
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
    """Return the nodes of the portal that have Gpus, with the reason why they take no
    bookings."""
    standing = Q(gpus__retired=False)
    rows = Node.objects.annotate(
        gpu_count=Count("gpus", filter=standing, distinct=True),
        draining_count=Count(
            "gpus", filter=standing & Q(gpus__draining=True), distinct=True
        ),
    ).filter(gpu_count__gt=0, engine=Node.Engine.PORTAL)
    why = drains(node.pk for node in rows if node.draining)
    return [(node, why.get(node.pk)) for node in rows]


@require_POST
@operator_required
def new(request: HttpRequest) -> HttpResponseBase:
    """Create a pool with its name."""
    form = NewPoolForm(request.POST)
    if form.is_valid():
        try:
            made = pools.add_pool(
                **form.cleaned_data, actor=reader(request), now=timezone.now()
            )
        except FieldsInvalid as invalid:
            add_errors(form, invalid)
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
def pool_page(request: HttpRequest, pk: int) -> HttpResponseBase:
    """Show a pool. Preview and set its price and its groups."""
    return PoolPage(request, pk).answer()


class PoolPage(ReviewPage):
    """One pool."""

    template = "reservations/operations/pool_edit.html"
    tab = "pools"

    def __init__(self, request: HttpRequest, pk: int) -> None:
        super().__init__(request)
        self.pool = get_object_or_404(_pools(), pk=pk)
        self.quota_form = PoolQuotaForm(auto_id=QUOTA_IDS)

    def form_of(self, data: Any) -> PoolForm:
        """Return the form with the pool as it is."""
        if data is None:
            return PoolForm(initial=_initial(self.pool))
        return PoolForm(data)

    def review(self, form: Any) -> Review:
        """Return what changes, and how many bookings keep their price."""
        found = pools.preview_pool(pool_id=self.pool.pk, edit=_edit(form.cleaned_data))
        lines = changed_lines(found.before, found.after, _account_names())
        live = Allocation.objects.filter(
            gpu__pool=self.pool, live=True, end__gt=self.now
        )
        count = live.values("reservation").distinct().count()
        return Review(
            mark=found.mark,
            title=sentence("What changes") if lines else sentence("Nothing changes"),
            lines=lines,
            effects=[
                counted(
                    "{n} booking on this pool keeps its price and its GPUs.",
                    "{n} bookings on this pool keep their price and their GPUs.",
                    count,
                )
            ]
            if lines and count
            else [],
            changes=bool(lines),
            plan=found,
        )

    def save(self, form: Any, *, mark: str, reason: str) -> str:
        """Save the price and the groups."""
        changed = pools.change_pool(
            pool_id=self.pool.pk,
            edit=_edit(form.cleaned_data),
            actor=self.actor,
            now=self.now,
            reason=form.cleaned_data["reason"],
            mark=mark,
        )
        told = sentence("Saved.") if changed else sentence("Nothing was changed.")
        return joined([told, sentence("Existing bookings keep their price.")])

    def context(self, form: Any, review: Review | None) -> dict[str, Any]:
        """Return the limits in the pool, its week and its history."""
        quotas = PoolQuota.objects.filter(pool=self.pool).select_related(
            "account", "membership__user", "membership__account"
        )
        return {
            "pool": self.pool,
            "quota_form": self.quota_form,
            "quotas": quotas,
            "changes": changes_of(self.pool),
            "peak": _peak(self.pool),
            "week": _week(_peak(self.pool)),
        }


def _edit(values: dict[str, Any]) -> PoolEdit:
    return PoolEdit(
        values["weight"],
        tuple(account.pk for account in values["accounts"]),
        peak_factor=values["peak_factor"] or 1,
        peak_hours=values["peak_hours"],
    )


@require_POST
@operator_required
def undo(request: HttpRequest, pk: int, entry: int) -> HttpResponseBase:
    """Restore what a change of a pool changed, unless it was changed again since."""

    def act() -> str:
        pools.undo_pool(
            pool_id=pk,
            entry_id=entry,
            actor=reader(request),
            now=timezone.now(),
            reason=sentence("undoes change #{number}", number=entry),
        )
        return joined(
            [sentence("Undone."), sentence("Existing bookings keep their price.")]
        )

    get_object_or_404(Pool, pk=pk)
    return undo_answer(request, act, "manage-pool", pk)


@require_POST
@operator_required
def quota(request: HttpRequest, pk: int) -> HttpResponseBase:
    """Set or remove the quota of an account or a member on a pool."""
    page = PoolPage(request, pk)
    form = PoolQuotaForm(request.POST, auto_id=QUOTA_IDS)
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
        except FieldsInvalid as invalid:
            add_errors(form, invalid)
        else:
            messages.success(
                request,
                gettext("Saved.") if changed else gettext("Nothing was changed."),
            )
            return redirect("manage-pool", pk)
    page.quota_form = form
    return page.page(page.form_of(None), status=422)


def _initial(pool: Pool) -> dict[str, Any]:
    rule = getattr(pool, "rule", None)
    peak = _peak(pool)
    return {
        "weight": pool.weight,
        "accounts": [a.pk for a in rule.accounts.all()] if rule else [],
        "peak_factor": peak.factor if peak else 1,
        "peak_hours": hours_text(peak.mask) if peak else "",
    }


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


def changes_of(pool: Pool) -> list[PoolChange]:
    """Return the newest acts on a Pool, with old and new values."""
    entries = AuditEntry.objects.filter(subject=f"pool:{pool.pk}").select_related(
        "actor"
    )
    newest = list(entries.order_by("-at", "-pk")[:CHANGES_SHOWN])
    names, state = _account_names(), pools.state_of(pool)
    return [
        PoolChange(
            entry, _change_lines(entry, names), pools.can_be_undone(entry, state)
        )
        for entry in newest
    ]


def _account_names() -> dict[int, str]:
    return {account.pk: str(account) for account in Account.objects.all()}


def _change_lines(
    entry: AuditEntry, names: dict[int, str]
) -> list[tuple[str, str, str]]:
    before, after = entry.detail.get("before"), entry.detail.get("after")
    if entry.verb == "pool.quota":
        whose = names.get(entry.detail.get("account") or 0, "")
        member = entry.detail.get("membership")
        name = sentence(
            "quota of {whose}",
            whose=whose or sentence("member {member}", member=member),
        )
        return [(name, _hours(before), _hours(after))]
    return changed_lines(
        before if isinstance(before, dict) else {},
        after if isinstance(after, dict) else {},
        names,
    )


def changed_lines(
    before: Mapping[str, object], after: Mapping[str, object], names: dict[int, str]
) -> list[tuple[str, str, str]]:
    """Return (field, before, after) of a Pool in words, for the fields that differ."""
    return [
        (
            _WORDS.get(key, key),
            _value_text(before.get(key), names),
            _value_text(value, names),
        )
        for key, value in after.items()
        if before.get(key) != value
    ]


def _hours(seconds: int | None) -> str:
    return gettext("no limit") if seconds is None else credits_text(seconds)


def _value_text(value: object, names: dict[int, str]) -> str:
    if isinstance(value, list):
        return ", ".join(names.get(pk, f"#{pk}") for pk in value) or "everybody"
    return "–" if value is None else str(value)
