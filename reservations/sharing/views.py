"""The sections of pages for sharing, offering, swapping and partial returns."""

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import wraps
from typing import Any

from django.contrib import messages
from django.core.paginator import Paginator
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext
from django.views.decorators.http import require_POST, require_safe

from reservations.booking import partial_release
from reservations.models import (
    CoUser,
    Membership,
    Occurrence,
    Offer,
    Reservation,
    User,
)
from reservations.rules.figures import time_text
from reservations.rules.lifecycle import State
from reservations.rules.policy import Policy
from reservations.sharing import co_use, offers
from reservations.sharing.forms import (
    GiveBackForm,
    OfferFilterForm,
    OfferForm,
    ShareForm,
)
from reservations.store.access import reader
from reservations.store.booking_facts import site_policy
from reservations.store.calendar_queries import Reader
from reservations.web.api_parts import count_request
from telemetry.protocol.coded_error import CodedError
from telemetry.protocol.sentences import known, sentence
from telemetry.web.error_answers import message_of
from telemetry.web.query_filters import read_filters

AHEAD = timedelta(days=14)
MOST_CHOICES = 100
PAGE_ROWS = 25
MOST_TYPED = 200
REFUSED = "refused_form"
"""Key in the session."""
PARTS = {
    "share": ("user",),
    "offer": ("to", "account", "wanted", "message"),
    "give-back": ("gpus", "hours"),
}
"""Typed fields of the forms on a Reservation's page, by last part of the address."""
View = Callable[..., HttpResponse]


def run_act(view: View) -> View:
    """Run an action. A refusal is shown on the page from which it came."""

    @require_POST
    @wraps(view)
    def guarded(request: HttpRequest, pk: int, **more: int) -> HttpResponse:
        try:
            return view(request, pk, **more)
        except CodedError as error:
            text = message_of(error)
            part = request.path.rstrip("/").rpartition("/")[2]
            if part in PARTS:
                _store_form(request, pk, part, {"": [text]})
            else:
                messages.error(request, text)
        return redirect(_reservation_url(request, pk))

    return guarded


def _reservation_url(request: HttpRequest, pk: int) -> str:
    return "/offers/" if request.path.startswith("/offers/") else f"/reservations/{pk}/"


def _act(request: HttpRequest) -> tuple[User, datetime]:
    user = reader(request)
    return user, count_request(user, writes=True)


def _store_form_errors(request: HttpRequest, pk: int, part: str, form: Any) -> bool:
    """Store a form with errors for the next page. False: it has no errors."""
    if form.errors:
        _store_form(
            request, pk, part, {name: list(said) for name, said in form.errors.items()}
        )
    return bool(form.errors)


def _store_form(
    request: HttpRequest, pk: int, part: str, errors: dict[str, list[str]]
) -> None:
    """Store the typed values and their errors until the page is shown again."""
    typed = {
        name: [
            value[:MOST_TYPED] for value in request.POST.getlist(name)[:MOST_CHOICES]
        ]
        for name in PARTS[part]
    }
    request.session[REFUSED] = {
        "reservation": pk,
        "part": part,
        "typed": typed,
        "errors": errors,
    }


def refused_form(request: HttpRequest, pk: int) -> dict[str, Any]:
    """Return the form that was just refused, and delete it. {} without one.

    ``part`` names the section, ``typed`` has a value by field (``gpus``: all of them),
    ``errors`` the sentences by field, those of the whole form under "".
    """
    kept = request.session.get(REFUSED)
    if not isinstance(kept, dict) or kept.get("reservation") != pk:
        return {}
    del request.session[REFUSED]
    typed = {
        name: values if name == "gpus" else "".join(values[:1])
        for name, values in kept["typed"].items()
    }
    errors = {name or "form": said for name, said in kept["errors"].items()}
    return {"part": kept["part"], "typed": typed, "errors": errors}


# --- one Reservation's page ---------------------------------------------------------


@run_act
def share(request: HttpRequest, pk: int) -> HttpResponse:
    """Share the User's Reservation with a member of the same Account."""
    user, now = _act(request)
    form = ShareForm(request.POST)
    if not _store_form_errors(request, pk, "share", form):
        name = form.cleaned_data["user"]
        made = co_use.share(reservation_id=pk, user=user, username=name, now=now)
        messages.success(
            request,
            gettext("%(user)s can use it now, and has been notified.")
            % {"user": made.user},
        )
    return redirect("reservation", pk)


@run_act
def unshare(request: HttpRequest, pk: int, user_pk: int) -> HttpResponse:
    """Remove a co-user, or leave."""
    user, now = _act(request)
    if co_use.unshare(reservation_id=pk, user=user, co_user_id=user_pk, now=now):
        own = user.pk == user_pk
        words = (
            gettext("You left this booking.")
            if own
            else gettext("Removed. Their jobs there are stopped.")
        )
        messages.success(request, words)
    return redirect("reservation", pk)


@run_act
def offer(request: HttpRequest, pk: int) -> HttpResponse:
    """Offer the User's Reservation, as a gift or as a swap."""
    user, now = _act(request)
    form = OfferForm(request.POST)
    if _store_form_errors(request, pk, "offer", form):
        return redirect("reservation", pk)
    data = form.cleaned_data
    made = offers.offer(
        reservation_id=pk,
        user=user,
        to=data["to"],
        account=data["account"],
        wanted_id=data["wanted"],
        message=data["message"],
        now=now,
    )
    name = offers.taker_name(made, Reader.of(user, site_policy()))
    messages.success(
        request, gettext("Offered to %(name)s, who has been notified.") % {"name": name}
    )
    return redirect("reservation", pk)


@run_act
def give_back(request: HttpRequest, pk: int) -> HttpResponse:
    """Give back some GPUs or the last hours."""
    user, now = _act(request)
    form = GiveBackForm(request.POST)
    if _store_form_errors(request, pk, "give-back", form):
        return redirect("reservation", pk)
    data = form.cleaned_data
    partial_release.give_back_part(
        reservation_id=pk,
        user=user,
        gpu_ids=data["gpus"],
        last_seconds=int((data["hours"] or 0) * 3600),
        version=data["version"],
        now=now,
    )
    messages.success(request, gettext("Given back. You keep the rest."))
    return redirect("reservation", pk)


@run_act
def accept(request: HttpRequest, pk: int) -> HttpResponse:
    """Accept an Offer."""
    user, now = _act(request)
    kind = request.POST.get("kind", "")[:8]
    done = offers.accept(offer_id=pk, user=user, kind=kind, now=now)
    assert done.given is not None
    messages.success(
        request,
        sentence("The booking is yours now, as {kind}.", kind=known(done.given.kind)),
    )
    return redirect("reservation", done.given.pk)


@run_act
def decline(request: HttpRequest, pk: int) -> HttpResponse:
    """Decline an Offer, or withdraw the User's own."""
    user, now = _act(request)
    done = offers.decline(offer_id=pk, user=user, now=now)
    messages.success(
        request, sentence("The offer is {state}.", state=known(done.state))
    )
    return redirect("offers")


def people_context(row: Reservation, user: User, now: datetime) -> dict[str, Any]:
    """Return the context for sharing, offers and the Series of a Reservation's page."""
    own = row.user_id == user.pk
    live = row.state in State.live() and row.end > now
    shared = CoUser.objects.sharing().filter(reservation=row).select_related("user")
    co_users = list(shared)
    mine = [one for one in co_users if one.user_id == user.pk]
    found: dict[str, Any] = {
        "co_users": co_users if own or mine else [],
        "shared_with_me": bool(mine),
        "handed_on": own and not live and _was_handed_on(row),
    }
    if own:
        day = Occurrence.objects.filter(reservation=row).select_related("series")
        found["series"] = next((one.series for one in day), None)
    if own and live:
        policy = site_policy()
        found |= {
            "may_share": True,
            **_people_of_own_groups(row, co_users),
            **_open_offer(row, user, policy),
            "swappable": _swap_choices(row, user, policy, now),
        }
    return {"people": found}


def _open_offer(row: Reservation, user: User, policy: Policy) -> dict[str, Any]:
    rows = row.offers.filter(state=Offer.State.OPEN)
    found = rows.select_related("taker__user", "taker__account").first()
    if found is None:
        return {}
    return {
        "offer": found,
        "offered_to": offers.taker_name(found, Reader.of(user, policy)),
    }


def _was_handed_on(row: Reservation) -> bool:
    done = Offer.objects.filter(state=Offer.State.ACCEPTED)
    return done.filter(Q(reservation=row) | Q(wanted=row)).exists()


def _people_of_own_groups(row: Reservation, co_users: list[CoUser]) -> dict[str, Any]:
    """Return people of the owner's groups, to share with and to offer to."""
    near = row.user.memberships.filter(active=True).order_by().values("account_id")
    rows = (
        Membership.objects.filter(
            account_id__in=near, active=True, user__is_active=True
        )
        .exclude(user_id=row.user_id)
        .select_related("user")
        .order_by("user__username")[:MOST_CHOICES]
    )
    sharing = {one.user_id for one in co_users}
    people = list(rows)
    return {
        "takers": list(dict.fromkeys(one.user.username for one in people)),
        "candidates": [
            one.user
            for one in people
            if one.account_id == row.membership.account_id
            and one.user_id not in sharing
        ],
    }


def _swap_choices(
    row: Reservation, user: User, policy: Policy, now: datetime
) -> list[tuple[int, str, str]]:
    """Return others' coming Reservations: key, text, and holder."""
    if row.state != State.CONFIRMED:
        return []
    rows = (
        Reservation.objects.filter(
            state=State.CONFIRMED, start__gt=now, start__lt=now + AHEAD
        )
        .exclude(user_id=user.pk)
        .select_related("user", "membership__account")
        .prefetch_related("allocations__gpu__node")
        .order_by("start")
    )
    eyes = Reader.of(user, policy)
    found = []
    for one in rows[:MOST_CHOICES]:
        named = eyes.sees_name(one.user_id, one.membership.account_id)
        who = str(one.user) if named else str(one.membership.account)
        found.append((one.pk, reservation_line(one, eyes), who))
    return found


def reservation_line(row: Reservation, eyes: Reader) -> str:
    """Return "Tue 3 Mar 09:00 to 13:00, node-a:0, Bo (vision)" for its reader."""
    zone = timezone.get_current_timezone()
    gpus = ", ".join(sorted(str(a.gpu) for a in row.allocations.all()))
    account = row.membership.account
    named = eyes.sees_name(row.user_id, account.pk)
    who = f"{row.user} ({account})" if named else str(account)
    end = timezone.localtime(row.end, zone)
    same_day = end.date() == timezone.localtime(row.start, zone).date()
    until = f"{end:%H:%M}" if same_day else time_text(row.end, zone)
    return sentence(
        "{start} to {until}, {gpus}, {kind}, {who}",
        start=time_text(row.start, zone),
        until=until,
        gpus=gpus,
        kind=known(row.kind),
        who=who,
    )


# --- the list of Offers ---------------------------------------------------------------


@require_safe
def offer_list(request: HttpRequest) -> HttpResponse:
    """List the Offers to and from the User, open ones first."""
    user = reader(request)
    asked = read_filters(OfferFilterForm, request.GET)
    rows = Offer.objects.of(user)
    state = asked.values.get("state") or "open"
    if state != "all":
        rows = rows.filter(state=state)
    rows = rows.select_related("given", "given_back")
    page = Paginator(rows, PAGE_ROWS).get_page(asked.values.get("page") or 1)
    eyes = Reader.of(user, site_policy())
    return render(
        request,
        "reservations/sharing/offer_list.html",
        {
            "page": page,
            "rows": [offer_row(one, user, eyes) for one in page],
            "state": state,
            "states": ["open", *Offer.State.values[1:], "all"],
            "notices": asked.notices,
        },
    )


def offer_row(row: Offer, user: User, eyes: Reader) -> dict[str, Any]:
    to_me = row.taker.user_id == user.pk
    return {
        "offer": row,
        "to_me": to_me,
        "taker": offers.taker_name(row, eyes),
        "what": reservation_line(row.reservation, eyes),
        "wanted": reservation_line(row.wanted, eyes) if row.wanted else "",
        "mine_now": (row.given if to_me else row.given_back),
        "open": row.state == Offer.State.OPEN,
    }
