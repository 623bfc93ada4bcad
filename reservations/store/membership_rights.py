"""Which of a person's Memberships pays."""

from collections.abc import Sequence

from django.db.models import Q

from reservations.models import Membership, Reservation, User


def paid_by(own: Sequence[int]) -> Q:
    """Return a filter for rows of these Memberships of one User.

    Exactly one is compared directly, so that an index returns the newest rows in order.
    """
    return Q(membership_id=own[0]) if len(own) == 1 else Q(membership_id__in=own)


def payers(user: User) -> list[Membership]:
    """Return a User's active Memberships, with their Accounts.

    The one that paid for the User's newest booking comes first, because forms preselect
    the first. The others follow by the name of their Account. Two queries.
    """
    rows = user.memberships.filter(active=True).select_related("account")
    found = list(rows.order_by("account__name", "pk"))
    if len(found) < 2:
        return found
    booked = Reservation.objects.filter(user=user, membership__in=found)
    last = booked.order_by("-pk").values_list("membership_id", flat=True).first()
    return sorted(found, key=lambda one: one.pk != last)
