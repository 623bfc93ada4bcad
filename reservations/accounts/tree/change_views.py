"""Every change of the tree: its author, time, values before and after, and undo."""

from dataclasses import dataclass

from django import forms
from django.core.paginator import Paginator
from django.db.models import Count, F, OuterRef, Prefetch, Q, Subquery
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import get_object_or_404, render
from django.utils import timezone
from django.utils.translation import gettext
from django.views.decorators.http import require_POST, require_safe

from reservations.accounts.tree import service as accounts
from reservations.accounts.tree.tree_text import FIELD_WORDS, Names, value_text
from reservations.accounts.tree.tree_undo import changed_fields
from reservations.models import Account, Membership, TreeChange, TreeChangeRow
from reservations.store.access import operator_required, reader
from reservations.web.review_page import undo_answer
from telemetry.protocol.sentences import sentence
from telemetry.web.plain_forms import PlainForm
from telemetry.web.query_filters import read_filters

CHANGES_PER_PAGE = 15
ROWS_SHOWN = 6
ROWS_PER_PAGE = 100
Line = tuple[str, list[tuple[str, str, str]], bool]
"""The name of a row, its (field, before, after), and whether the row is new."""


class ChangesForm(PlainForm):
    """A filter of changes: by Account with its members, by kind, by person."""

    account = forms.IntegerField(required=False, min_value=1, max_value=2**62)
    kind = forms.ChoiceField(
        required=False, choices=[("", sentence("any kind")), *TreeChange.Kind.choices]
    )
    q = forms.CharField(required=False, max_length=80)
    page = forms.IntegerField(required=False, min_value=1, max_value=10**6)


@dataclass(frozen=True)
class ChangeView:
    """One change with its first rows in words."""

    change: TreeChange
    lines: list[Line]
    more: int
    undoable: bool


@require_safe
@operator_required
def show(request: HttpRequest) -> HttpResponseBase:
    """List the changes, newest first."""
    asked = read_filters(ChangesForm, request.GET)
    values = asked.values
    rows = TreeChange.objects.select_related("actor", "undone_by")
    if values.get("kind"):
        rows = rows.filter(kind=values["kind"])
    if values.get("q"):
        rows = rows.filter(
            Q(reason__icontains=values["q"]) | Q(actor__username__iexact=values["q"])
        )
    if values.get("account"):
        pk = values["account"]
        members = Membership.objects.filter(account_id=pk).values("pk")
        rows = rows.filter(
            pk__in=TreeChangeRow.objects.filter(
                Q(table="account", row_pk=pk) | Q(table="member", row_pk__in=members)
            ).values("change_id")
        )
    first = Prefetch("rows", TreeChangeRow.objects.all()[:ROWS_SHOWN], "first")
    page = Paginator(rows.prefetch_related(first), CHANGES_PER_PAGE).get_page(
        values.get("page") or 1
    )
    query = request.GET.copy()
    query.pop("page", None)
    return render(
        request,
        "reservations/accounts/tree/tree_changes.html",
        {
            "tab": "accounts",
            "asked": asked,
            "kinds": TreeChange.Kind.choices,
            "page": page,
            "changes": _views(list(page.object_list)),
            "query": query.urlencode(),
        },
    )


def _views(changes: list[TreeChange]) -> list[ChangeView]:
    shown = [row for change in changes for row in change.first]  # type: ignore[attr-defined]
    names = _names(shown)
    pks = [change.pk for change in changes]
    counted = TreeChangeRow.objects.filter(change_id__in=pks).order_by()
    many = dict(counted.values_list("change_id").annotate(n=Count("pk")))
    blocked = _touched_since(pks)
    return [
        ChangeView(
            change=change,
            lines=[_line(row, names) for row in change.first],  # type: ignore[attr-defined]
            more=many.get(change.pk, 0) - len(change.first),  # type: ignore[attr-defined]
            undoable=change.undone_by_id is None and change.pk not in blocked,
        )
        for change in changes
    ]


def _touched_since(pks: list[int]) -> set[int]:
    """Return those changes of which a row has another version now."""
    found: set[int] = set()
    for table, model in (("account", Account), ("member", Membership)):
        stored = model._default_manager.filter(pk=OuterRef("row_pk")).values("version")
        rows = TreeChangeRow.objects.filter(change_id__in=pks, table=table).order_by()
        found |= set(
            rows.annotate(now=Subquery(stored[:1]))
            .exclude(now=F("version_after"))
            .values_list("change_id", flat=True)
        )
    return found


def _names(rows: list[TreeChangeRow]) -> Names:
    people = {
        value
        for row in rows
        for side in (row.before, row.after)
        if side and (value := side.get("sponsor_pk"))
    }
    return Names.stored([(row.table, row.row_pk) for row in rows], people)


def _line(row: TreeChangeRow, names: Names) -> Line:
    fields = [
        (
            FIELD_WORDS[name],
            value_text(name, old, names),
            value_text(name, new, names),
        )
        for name, old, new in changed_fields(row.before, row.after)
        if name in FIELD_WORDS
    ]
    return names.of(row.table, row.row_pk), fields, row.before is None


@require_safe
@operator_required
def change_page(request: HttpRequest, pk: int) -> HttpResponseBase:
    """Show every row of one change."""
    change = get_object_or_404(TreeChange.objects.select_related("actor"), pk=pk)
    page = Paginator(change.rows.all(), ROWS_PER_PAGE).get_page(request.GET.get("page"))
    names = _names(list(page.object_list))
    return render(
        request,
        "reservations/accounts/tree/tree_change.html",
        {
            "tab": "accounts",
            "change": change,
            "page": page,
            "lines": [_line(row, names) for row in page.object_list],
            "undoable": change.undone_by_id is None and not _touched_since([pk]),
        },
    )


@require_POST
@operator_required
def undo(request: HttpRequest, pk: int) -> HttpResponseBase:
    """Revert every row of a change."""

    def act() -> str:
        made = accounts.undo(change_id=pk, actor=reader(request), now=timezone.now())
        return gettext("Change #%(pk)s is undone, as change #%(made)s.") % {
            "pk": pk,
            "made": made.pk,
        }

    return undo_answer(request, act, "manage-changes")
