"""Who may look at whose Reservations and ledger rows.

One's own, those of Accounts one books under, and of Accounts one steers with
everything below them. The operator sees all.
"""

from django.core.exceptions import PermissionDenied
from django.db.models import Q
from django.http import HttpRequest

from reservations.models import Account, Membership, User
from reservations.snapshots.calendar import headed_accounts, subtree

__all__ = [
    "charted_accounts",
    "reader",
    "steered_accounts",
    "subtree",
    "visible_reservations",
]


def reader(request: HttpRequest) -> User:
    """Return who looks. The login middleware lets nobody else through.

    Raises:
        PermissionDenied: it was taken out of the settings.
    """
    if not isinstance(request.user, User):
        raise PermissionDenied
    return request.user


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
