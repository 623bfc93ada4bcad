"""The calendar page. Its bookings come from the JSON API and the socket."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_safe

from reservations.models import Account, Membership, SitePolicy, User
from reservations.store.access import reader
from reservations.store.membership_rights import payers
from reservations.store.vouchers import good_vouchers
from reservations.web.forms import read_draft


def calendar_config(
    user: User, memberships: list[Membership], draft: dict[str, object] | None
) -> dict[str, object]:
    """Return the page's initial data for its scripts."""
    policy = SitePolicy.current()
    return {
        "me": str(user),
        "operator": user.is_operator,
        "zone": timezone.get_current_timezone_name(),
        "grid_seconds": policy.grid_seconds,
        "longest_seconds": policy.longest_seconds,
        "freeze_seconds": policy.freeze_seconds,
        "memberships": [
            {"id": membership.pk, "account": membership.account.name}
            for membership in memberships
        ],
        "accounts": sorted(
            {str(m.account) for m in memberships}
            | {m.account.name for m in memberships}
        ),
        # Groups by the name in the calendar's API, with the name for people.
        "titles": dict(Account.objects.exclude(title="").values_list("name", "title")),
        "vouchers": _vouchers(user),
        "draft": draft,
        "urls": {
            "reservation": reverse("reservation", args=[0]),
            "launch": "/jobs/new/",
            "waiting": reverse("waiting"),
        },
    }


def _vouchers(user: User) -> list[dict[str, int]]:
    """Return the vouchers that the drawer may offer."""
    found = good_vouchers(user, timezone.now())
    return [{"id": one.pk, "membership": one.membership_id} for one in found]


@require_safe
def calendar(request: HttpRequest) -> HttpResponse:
    """Show the frame of the calendar; `?gpu=`, `?gpus=` and so on fill a draft."""
    user = reader(request)
    memberships = payers(user)
    draft, notices = read_draft(request.GET)
    return render(
        request,
        "reservations/booking/calendar_show.html",
        {
            "memberships": memberships,
            "notices": notices,
            "config": calendar_config(user, memberships, draft),
        },
    )
