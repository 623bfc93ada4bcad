"""The page of a group head: own members, and nothing else."""

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.views.decorators.http import require_safe

from reservations.models import Account
from reservations.views.access import reader


@require_safe
def show(request: HttpRequest) -> HttpResponseBase:
    """Lead to the books of the first Account that one heads."""
    user = reader(request)
    own = Account.objects.filter(
        memberships__user=user, memberships__is_head=True, memberships__active=True
    )
    first = own.order_by("name").first()
    if first is None:
        raise PermissionDenied
    return redirect(f"/standing/?account={first.pk}")
