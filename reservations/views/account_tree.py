"""The tree of Accounts, one Account at a time: those below it and its members."""

from django import forms
from django.core.paginator import Paginator
from django.db.models import Count, Q
from django.http import Http404, HttpRequest, HttpResponseBase
from django.shortcuts import render
from django.views.decorators.http import require_safe

from reservations.forms import read
from reservations.models import Account, Membership
from reservations.views.access import operator_required

ROWS_PER_PAGE = 50


class TreeForm(forms.Form):
    """Which Account, and which of its members."""

    account = forms.IntegerField(required=False, min_value=1, max_value=2**62)
    q = forms.CharField(required=False, max_length=80)
    archived = forms.BooleanField(required=False)
    page = forms.IntegerField(required=False, min_value=1, max_value=10**6)
    below = forms.IntegerField(required=False, min_value=1, max_value=10**6)


@require_safe
@operator_required
def show(request: HttpRequest) -> HttpResponseBase:
    """Show one Account with what is directly below it; none: those at the top."""
    asked = read(TreeForm, request.GET)
    values = asked.values
    account = None
    if values.get("account"):
        account = Account.objects.filter(pk=values["account"]).first()
        if account is None:
            raise Http404
    q = (values.get("q") or "").strip()
    below = Account.objects.annotate(
        people=Count("memberships", filter=Q(memberships__active=True))
    )
    members = Membership.objects.select_related("user", "account", "sponsor")
    if q:
        below = below.filter(Q(name__icontains=q) | Q(title__icontains=q))
        members = members.filter(
            Q(user__username__icontains=q) | Q(user__display_name__icontains=q)
        )
        if account is not None:
            members = members.filter(account=account)
    else:
        below = below.filter(parent=account)
        members = members.filter(account=account)
    if not values.get("archived"):
        below = below.filter(archived_at=None)
        members = members.filter(active=True)
    query = request.GET.copy()
    query.pop("page", None)
    query.pop("below", None)
    return render(
        request,
        "reservations/account_tree.html",
        {
            "tab": "accounts",
            "asked": asked,
            "q": q,
            "account": account,
            "path": path_of(account),
            "below": Paginator(below.order_by("name"), ROWS_PER_PAGE).get_page(
                values.get("below") or 1
            ),
            "members": Paginator(
                members.order_by("user__username", "pk"), ROWS_PER_PAGE
            ).get_page(values.get("page") or 1),
            "query": query.urlencode(),
        },
    )


def path_of(account: Account | None) -> list[Account]:
    """Return the Accounts from the root down to this one."""
    found: list[Account] = []
    while account is not None:
        found.append(account)
        account = account.parent
    return found[::-1]
