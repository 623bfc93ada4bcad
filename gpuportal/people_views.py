"""The operator's list of people, and the erasure of one of them."""

from django import forms
from django.contrib import messages
from django.core.paginator import Paginator
from django.db.models import Count, Exists, OuterRef, Prefetch, Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_safe

from gpuportal import erasing
from reservations.domain.errors import BookingError
from reservations.forms import read
from reservations.models import Membership, Reservation, User, WaitingRequest
from reservations.services import winding
from reservations.services.invitations import UNUSABLE
from reservations.snapshots.facts import site_policy
from reservations.views.access import operator_required, reader
from telemetry.plain_forms import PlainForm

PEOPLE_PER_PAGE = 50
KINDS = {
    "": "everybody",
    "guest": "guests",
    "head": "heads",
    "new": "without a password",
    "nowhere": "in no account",
    "off": "switched off or erased",
}
SORTS = {"name": "username", "newest": "-date_joined", "seen": "-last_login"}


class PeopleForm(PlainForm):
    """Which people, in which order."""

    q = forms.CharField(required=False, max_length=80)
    kind = forms.ChoiceField(required=False, choices=list(KINDS.items()))
    sort = forms.ChoiceField(required=False, choices=[(x, x) for x in ("", *SORTS)])
    page = forms.IntegerField(required=False, min_value=1, max_value=10**6)


@require_safe
@operator_required
def people(request: HttpRequest) -> HttpResponseBase:
    """List people with their Accounts."""
    asked = read(PeopleForm, request.GET)
    values = asked.values
    active = Membership.objects.filter(active=True).select_related("account")
    rows: QuerySet[User] = User.objects.annotate(
        live=Count(
            "reservations",
            filter=Q(reservations__state__in=winding.LIVE),
            distinct=True,
        )
    ).prefetch_related(Prefetch("memberships", active, "rights"))
    q = (values.get("q") or "").strip()
    if q:
        rows = rows.filter(
            Q(username__icontains=q)
            | Q(display_name__icontains=q)
            | Q(email__icontains=q)
            | Q(unix_user=q)
        )
    rows = _of_kind(rows, values.get("kind") or "")
    rows = rows.order_by(SORTS[values.get("sort") or "name"], "pk")
    query = request.GET.copy()
    query.pop("page", None)
    page = Paginator(rows, PEOPLE_PER_PAGE).get_page(values.get("page") or 1)
    found = {
        "tab": "accounts",
        "asked": asked,
        "q": q,
        "kinds": KINDS.items(),
        "page": page,
        "query": query.urlencode(),
    }
    return render(request, "gpuportal/people.html", found)


def _of_kind(rows: QuerySet[User], kind: str) -> QuerySet[User]:
    """Return the people of one kind."""
    own = Membership.objects.filter(user=OuterRef("pk"), active=True)
    if kind == "off":
        return rows.filter(is_active=False)
    rows = rows.filter(is_active=True)
    if kind == "guest":
        return rows.filter(Exists(own.exclude(sponsor=None)))
    if kind == "head":
        return rows.filter(Exists(own.filter(is_head=True)))
    if kind == "new":
        return rows.filter(password__startswith=UNUSABLE)
    if kind == "nowhere":
        return rows.filter(~Exists(own))
    return rows


@require_http_methods(["GET", "HEAD", "POST"])
@operator_required
def person_erase(request: HttpRequest, pk: int) -> HttpResponseBase:
    """Erase a person once the login was typed; first end what they hold."""
    person = get_object_or_404(User, pk=pk)
    if request.method != "POST":
        return _page(request, person)
    now = timezone.now()
    if request.POST.get("act") == "end":
        winding.wind_down(
            Membership.objects.filter(user=person),
            at=now,
            policy=site_policy(),
            reason="ended by the operator",
        )
        messages.success(
            request, "What this person held, waited for or was owed is over."
        )
        return redirect("person-erase", pk)
    try:
        alias = erasing.erase(
            user_id=pk,
            typed=request.POST.get("typed", "").strip(),
            actor=reader(request),
            now=now,
        )
    except BookingError as error:
        text = error.text(timezone.get_current_timezone())
        return _page(request, person, error=text, status=409)
    messages.success(request, f"Erased: the login is {alias} now.")
    return redirect("manage-people")


def _page(
    request: HttpRequest, person: User, *, error: str = "", status: int = 200
) -> HttpResponse:
    page = {
        "tab": "accounts",
        "person": person,
        "error": error,
        "held": Reservation.objects.live().filter(user=person).count(),
        "waits": WaitingRequest.objects.waiting().filter(user=person).count(),
        "past": Reservation.objects.filter(user=person).count(),
        "rights": person.memberships.filter(active=True).select_related("account"),
    }
    return render(request, "gpuportal/person_erase.html", page, status=status)
