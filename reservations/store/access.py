"""The rights to read and change Reservations and ledger rows.

A User sees their own rows, those of Accounts under which they book, and those of the
Accounts that they head with all descendants. Operators see all.
"""

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

from django.core.exceptions import PermissionDenied
from django.db.models import Q
from django.http import HttpRequest, HttpResponseBase

from reservations.models import Account, Membership, Reservation, User
from reservations.rules.errors import NotAllowed, NotChangeable, ReasonNeeded
from reservations.rules.overstay_terms import is_gap
from reservations.store.account_tree import headed_accounts
from telemetry.protocol.sentences import sentence

P = ParamSpec("P")


def reader(request: HttpRequest) -> User:
    """Return the signed-in User. LoginRequiredMiddleware lets no others through.

    Raises:
        PermissionDenied: the middleware was removed from the settings.
    """
    if not isinstance(request.user, User):
        raise PermissionDenied
    return request.user


def operator_required(
    view: Callable[Concatenate[HttpRequest, P], HttpResponseBase],
) -> Callable[Concatenate[HttpRequest, P], HttpResponseBase]:
    """Allow a view to the operator only. Others get 403."""

    @wraps(view)
    def guarded(
        request: HttpRequest, *args: P.args, **kwargs: P.kwargs
    ) -> HttpResponseBase:
        if not reader(request).is_operator:
            raise PermissionDenied
        return view(request, *args, **kwargs)

    return guarded


def steered_accounts(user: User) -> frozenset[int]:
    """Return the Accounts of which this User may read the whole ledger."""
    if user.is_operator:
        return frozenset(Account.objects.order_by().values_list("pk", flat=True))
    return headed_accounts(user)


def charted_accounts(user: User) -> frozenset[int]:
    """Return the Accounts of which this User may see charts: own and headed ones."""
    own = Membership.objects.filter(user=user, active=True).order_by()
    return steered_accounts(user) | set(own.values_list("account_id", flat=True))


def visible_reservations(user: User) -> Q:
    """Return the Reservations whose pages this User may open."""
    if user.is_operator:
        return Q()
    own = Membership.objects.filter(user=user, active=True).order_by()
    accounts = set(own.values_list("account_id", flat=True)) | headed_accounts(user)
    return Q(user=user) | Q(membership__account_id__in=accounts)


def may_change(user: User, reservation: Reservation) -> bool:
    """Return whether the User holds it, heads its group, or is an operator."""
    return (
        reservation.user_id == user.pk
        or user.is_operator
        or reservation.membership.account_id in headed_accounts(user)
    )


def check_may_change(
    user: User, reservation: Reservation, *, act: str, reason: str
) -> None:
    """Refuse Users without the right; require a reason from heads and operators.

    Raises:
        NotAllowed: the User may not change it.
        NotChangeable: it holds a gap, which can only be returned.
        ReasonNeeded: it belongs to another User, and no reason was given.
    """
    if not may_change(user, reservation):
        raise NotAllowed(act=sentence("{act} someone else's reservation", act=act))
    if is_gap(reservation.start, reservation.booked_end) and act != "release":
        raise NotChangeable(state=sentence("held for a job that runs in gaps"), act=act)
    if reservation.user_id != user.pk and not reason.strip():
        raise ReasonNeeded
