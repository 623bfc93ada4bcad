"""One Account of the tree per page. Edits are made in place, collected, saved later."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.contrib import messages
from django.core.paginator import Paginator
from django.db.models import Count, Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext
from django.views.decorators.http import require_POST, require_safe

from reservations.accounts.tree import tree_draft
from reservations.accounts.tree.form_rows import (
    FIELDS,
    STORED,
    RowView,
    read_row,
    views_of,
)
from reservations.accounts.tree.forms import AccountForm, MemberForm
from reservations.accounts.tree.queries import read_tree
from reservations.accounts.tree.tree_edits import Edit
from reservations.accounts.tree.tree_rows import nested, quotas_of_members
from reservations.models import Account, Membership, User
from reservations.store.access import operator_required
from reservations.store.booking_facts import site_policy
from reservations.web.credit_field import hours
from telemetry.web.plain_forms import PlainForm
from telemetry.web.query_filters import QueryFilters, read_filters

ROWS_PER_PAGE = 50
DEEPEST = 8
"""Accounts below this depth are indented like those at this depth."""
SHOWN = {
    table: {STORED.get(name, name) for name in names} for table, names in FIELDS.items()
}


class TreeForm(PlainForm):
    """The Account, and a filter of its members."""

    account = forms.IntegerField(required=False, min_value=1, max_value=2**62)
    q = forms.CharField(required=False, max_length=80)
    archived = forms.BooleanField(required=False)
    page = forms.IntegerField(required=False, min_value=1, max_value=10**6)
    below = forms.IntegerField(required=False, min_value=1, max_value=10**6)


@require_safe
@operator_required
def show(request: HttpRequest) -> HttpResponseBase:
    """Show one Account with the tree below it, or the whole tree."""
    asked, account = _read_tree_filters(request)
    return _page(request, asked, account)


def _read_tree_filters(request: HttpRequest) -> tuple[QueryFilters, Account | None]:
    asked = read_filters(TreeForm, request.GET)
    account = None
    if asked.values.get("account"):
        account = (
            Account.objects.select_related("parent")
            .filter(pk=asked.values["account"])
            .first()
        )
        if account is None:
            raise Http404
    return asked, account


def _page(
    request: HttpRequest,
    asked: QueryFilters,
    account: Account | None,
    *,
    status: int = 200,
    **more: Any,
) -> HttpResponse:
    collected = tree_draft.drafted(request)
    below, members = _rows(asked, account)
    by_row: dict[tuple[str, int], Mapping[str, Any]] = {
        (e.table, e.pk): e.fields for e in collected if e.pk is not None
    }
    views = {
        "own": views_of([account] if account else [], by_row),
        "below": views_of(below.object_list, by_row),
        "members": views_of(members.object_list, by_row),
    } | more.pop("views", {})
    default = site_policy().quota_gpu_seconds
    quotas = quotas_of_members(read_tree(), default_gpu_seconds=default)
    for view in (one for rows in views.values() for one in rows):
        own = quotas.get(view.row.pk, 0) if view.table == "account" else default
        view.effective = hours(own)
    query = {
        key: value
        for key, value in request.GET.items()
        if key not in ("page", "below") and value
    }
    page = {
        "tab": "accounts",
        "asked": asked,
        "q": (asked.values.get("q") or "").strip(),
        "account": account,
        "path": path_of(account),
        "views": views,
        "below": below,
        "members": members,
        "query": urlencode(query),
        "here": request.get_full_path(),
        "collected": len(collected),
        "new": [e for e in collected if e.pk is None],
        "account_form": AccountForm(prefix="add"),
        "member_form": MemberForm(prefix="join"),
        "names": list(
            Account.objects.filter(archived_at=None).values_list("name", flat=True)
        ),
        "sponsors": _sponsors(account),
        **more,
    }
    return render(
        request, "reservations/accounts/tree/account_tree.html", page, status=status
    )


def _rows(asked: QueryFilters, account: Account | None) -> tuple[Any, Any]:
    """Return a page of the Accounts below and a page of the members."""
    values = asked.values
    q = (values.get("q") or "").strip()
    below = Account.objects.select_related("parent").annotate(
        people=Count("memberships", filter=Q(memberships__active=True))
    )
    members: QuerySet[Membership] = Membership.objects.select_related(
        "user", "account", "sponsor"
    )
    if q:
        below = below.filter(Q(name__icontains=q) | Q(title__icontains=q))
        members = members.filter(
            Q(user__username__icontains=q)
            | Q(user__display_name__icontains=q)
            | Q(user__email__iexact=q)
        )
    if account is not None or not q:
        members = members.filter(account=account)
    if not values.get("archived"):
        below = below.filter(archived_at=None)
        members = members.filter(active=True)
    return (
        _accounts(below, account, values.get("below") or 1, flat=bool(q)),
        Paginator(members.order_by("user__username", "pk"), ROWS_PER_PAGE).get_page(
            values.get("page") or 1
        ),
    )


def _accounts(
    rows: QuerySet[Account], account: Account | None, number: int, *, flat: bool
) -> Any:
    """Return a page of Accounts, each with its ``depth`` in the tree that is shown.

    Args:
        flat: the results of a search, by name. Otherwise the tree below the Account.
    """
    keys = rows.order_by("name").values_list("pk", "parent_id")
    order = (
        [(pk, 0) for pk, _parent in keys]
        if flat
        else nested(keys, account.pk if account else None)
    )
    page: Any = Paginator(order, ROWS_PER_PAGE).get_page(number)
    found = rows.in_bulk([pk for pk, _depth in page.object_list])
    accounts = []
    for pk, depth in page.object_list:
        found[pk].depth = min(depth, DEEPEST)  # type: ignore[attr-defined]
        accounts.append(found[pk])
    page.object_list = accounts
    return page


def _sponsors(account: Account | None) -> list[str]:
    """Return some members who may sponsor a guest, heads first."""
    if account is None:
        return []
    rows = account.memberships.filter(active=True, sponsor=None)
    names = rows.order_by("-is_head", "user__username").values_list("user__username")
    return [name for (name,) in names[:100]]


def path_of(account: Account | None) -> list[Account]:
    """Return the Accounts from the root down to this one."""
    found: list[Account] = []
    while account is not None:
        found.append(account)
        account = account.parent
    return found[::-1]


# --- collecting -----------------------------------------------------------------------


@require_POST
@operator_required
def collect(request: HttpRequest) -> HttpResponseBase:
    """Add the typed values of one page to the collected edits."""
    asked, account = _read_tree_filters(request)
    below, members = _rows(asked, account)
    collected = tree_draft.drafted(request)
    views = {
        "own": views_of([account] if account else [], {}),
        "below": views_of(below.object_list, {}),
        "members": views_of(members.object_list, {}),
    }
    rows: list[RowView] = [view for group in views.values() for view in group]
    sent = [view for view in rows if f"{view.key}-was" in request.POST]
    new = [read_row(view, request.POST) for view in sent]
    wrong = sum(bool(view.errors) for view in rows)
    if wrong:
        return _page(request, asked, account, status=422, views=views, wrong=wrong)
    kept = tree_draft.merged(collected, new, SHOWN)
    if len(kept) > tree_draft.MOST_EDITS:
        messages.error(
            request,
            gettext("More than %(most)s changes. Apply these first, or import a file.")
            % {"most": tree_draft.MOST_EDITS},
        )
        return redirect(_tree_url(request))
    tree_draft.keep(request, kept)
    if request.POST.get("next") == "preview":
        return redirect("manage-draft")
    return redirect(_tree_url(request))


def _tree_url(request: HttpRequest) -> str:
    query = request.GET.urlencode()
    return reverse("manage-accounts") + (f"?{query}" if query else "")


@require_POST
@operator_required
def add(request: HttpRequest) -> HttpResponseBase:
    """Collect a new Account, a new member, or the archiving of an Account."""
    asked, account = _read_tree_filters(request)
    act = request.POST.get("act")
    new: list[Edit] = []
    if act == "account":
        form: forms.Form = AccountForm(request.POST, prefix="add")
        if form.is_valid():
            parent = account.name if account else None
            fields = {**form.cleaned_data, "parent": parent}
            new = [Edit("account", None, None, fields)]
        else:
            return _page(request, asked, account, status=422, account_form=form)
    elif act == "member" and account is not None:
        form = MemberForm(request.POST, prefix="join")
        if form.is_valid():
            new = _member_edits(form.cleaned_data, account)
        else:
            return _page(request, asked, account, status=422, member_form=form)
    elif act == "archive" and account is not None:
        new = [Edit("account", account.pk, account.version, {"archived": True})]
    collected = tree_draft.drafted(request)
    if len(collected) + len(new) <= tree_draft.MOST_EDITS:
        tree_draft.keep(request, tree_draft.merged(collected, new, {"account": set()}))
    else:
        messages.error(request, gettext("The draft is full. Apply its changes first."))
    return redirect("manage-draft" if act == "archive" else _tree_url(request))


def _member_edits(values: dict[str, Any], account: Account) -> list[Edit]:
    """Return the edits of one new member. An unknown login is created."""
    fields = {
        key: value for key, value in values.items() if key not in ("name", "mail")
    }
    edits = [Edit("member", None, None, fields | {"account": account.name})]
    if not User.objects.filter(username=values["user"]).exists():
        login = {
            "username": values["user"],
            "display_name": values["name"],
            "email": values["mail"],
        }
        edits.insert(0, Edit("user", None, None, login))
    return edits
