"""Who may look at whose Reservations and ledger rows.

One's own, those of Accounts one books under, and of Accounts one steers with
everything below them. The operator sees all.
"""

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

from django.core.exceptions import PermissionDenied
from django.db.models import Q
from django.http import HttpRequest, HttpResponseBase

from reservations.models import Account, Membership, User
from reservations.store.calendar_queries import headed_accounts, subtree

__all__ = [
    "charted_accounts",
    "operator_required",
    "reader",
    "steered_accounts",
    "subtree",
    "visible_reservations",
]


P = ParamSpec("P")


def reader(request: HttpRequest) -> User:
    """Return who looks. The login middleware lets nobody else through.

    Raises:
        PermissionDenied: it was taken out of the settings.
    """
    if not isinstance(request.user, User):
        raise PermissionDenied
    return request.user


def operator_required(
    view: Callable[Concatenate[HttpRequest, P], HttpResponseBase],
) -> Callable[Concatenate[HttpRequest, P], HttpResponseBase]:
    """Let nobody but the operator reach a view: 403 for everybody else."""

    @wraps(view)
    def guarded(
        request: HttpRequest, *args: P.args, **kwargs: P.kwargs
    ) -> HttpResponseBase:
        if not reader(request).is_operator:
            raise PermissionDenied
        return view(request, *args, **kwargs)

    return guarded


def steered_accounts(user: User) -> frozenset[int]:
    """Return the Accounts whose books this User may read whole."""
    if user.is_operator:
        return frozenset(Account.objects.order_by().values_list("pk", flat=True))
    return headed_accounts(user)


def charted_accounts(user: User) -> frozenset[int]:
    """Return the Accounts whose history this User may see: own and steered ones."""
    own = Membership.objects.filter(user=user, active=True).order_by()
    return steered_accounts(user) | set(own.values_list("account_id", flat=True))


def visible_reservations(user: User) -> Q:
    """Return which Reservations have a page for this User."""
    if user.is_operator:
        return Q()
    own = Membership.objects.filter(user=user, active=True).order_by()
    accounts = set(own.values_list("account_id", flat=True)) | headed_accounts(user)
    return Q(user=user) | Q(membership__account_id__in=accounts)
