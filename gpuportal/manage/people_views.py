"""The operator's list of people, the page of one of them, and their erasure."""

from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.core.paginator import Paginator
from django.db.models import Count, Exists, OuterRef, Prefetch, Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_safe

from gpuportal.manage import erasure_of_person, person_links
from gpuportal.manage.audit_text import rows_of
from reservations.accounts import invitation_mail, offboarding, tasks
from reservations.accounts import people as people_services
from reservations.accounts.identities import service as identity_service
from reservations.accounts.identities.queries import identity_sources, provider_name
from reservations.accounts.invitations import UNUSABLE
from reservations.accounts.second_factors import service as factor_service
from reservations.accounts.second_factors.sign_in import proof_needed
from reservations.accounts.tree.login_form import LoginFormMixin, NewLoginField
from reservations.models import (
    ApiToken,
    AuditEntry,
    Membership,
    Reservation,
    SignUp,
    User,
    WaitingRequest,
)
from reservations.store.access import operator_required, reader
from reservations.store.booking_facts import site_policy
from telemetry.protocol.coded_error import CodedError
from telemetry.protocol.sentences import sentence
from telemetry.web.error_answers import message_of
from telemetry.web.plain_forms import PlainForm, PlainModelForm
from telemetry.web.query_filters import read_filters, whole_number

PEOPLE_PER_PAGE = 50
KINDS = {
    "": lazy("everybody"),
    "guest": lazy("guests"),
    "head": lazy("group heads"),
    "new": lazy("cannot sign in yet"),
    "nowhere": lazy("in no group"),
    "unmapped": lazy("without a Unix user"),
    "signed-up": lazy("who signed up"),
    "off": lazy("switched off or erased"),
}
SORTS = {"name": "username", "newest": "-date_joined", "seen": "-last_login"}


class PeopleForm(PlainForm):
    """The requested people, and their order."""

    q = forms.CharField(required=False, max_length=80)
    kind = forms.ChoiceField(required=False, choices=list(KINDS.items()))
    sort = forms.ChoiceField(required=False, choices=[(x, x) for x in ("", *SORTS)])
    page = forms.IntegerField(required=False, min_value=1, max_value=10**6)


@require_safe
@operator_required
def people(request: HttpRequest) -> HttpResponseBase:
    """List people with their Accounts."""
    asked = read_filters(PeopleForm, request.GET)
    values = asked.values
    active = Membership.objects.filter(active=True).select_related("account")
    rows: QuerySet[User] = User.objects.annotate(
        live=Count(
            "reservations",
            filter=Q(reservations__state__in=offboarding.LIVE),
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
    rows = _people_of_kind(rows, values.get("kind") or "")
    rows = rows.order_by(SORTS[values.get("sort") or "name"], "pk")
    query = request.GET.copy()
    query.pop("page", None)
    page = Paginator(rows, PEOPLE_PER_PAGE).get_page(values.get("page") or 1)
    found = {
        "tab": "people",
        "asked": asked,
        "q": q,
        "kinds": KINDS.items(),
        "page": page,
        "query": query.urlencode(),
        "providers": identity_sources(),
        "services_on": settings.OPENID_PROVIDER,
    }
    return render(request, "gpuportal/manage/people.html", found)


def _people_of_kind(rows: QuerySet[User], kind: str) -> QuerySet[User]:
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
        return rows.filter(password__startswith=UNUSABLE, identities=None)
    if kind == "nowhere":
        return rows.filter(~Exists(own))
    if kind == "signed-up":
        return rows.filter(Exists(SignUp.objects.filter(user=OuterRef("pk"))))
    if kind == "unmapped":
        return rows.filter(unix_user="", is_superuser=False)
    return rows


# --- one person -------------------------------------------------------------------


class PersonForm(LoginFormMixin, PlainModelForm):
    """The operator's settings of a person."""

    class Meta:
        model = User
        fields: tuple[str, ...] = (
            "display_name",
            "email",
            "unix_user",
            "is_active",
            "is_superuser",
        )
        labels = {
            "display_name": lazy("Name"),
            "email": lazy("Mail"),
            "unix_user": lazy("Unix user"),
            "is_active": lazy("May sign in"),
            "is_superuser": lazy("Admin"),
        }
        help_texts = {
            "display_name": "",
            "unix_user": lazy(
                "The account on the nodes that jobs of this person run as. "
                "It must exist there and have a uid of 1000 or more, which the node "
                "checks too."
            ),
            "is_active": "",
            "is_superuser": lazy("Sees and changes everything."),
        }


class NewPersonForm(PersonForm):
    """A new person."""

    username = NewLoginField(
        label=lazy("User name"), help_text=lazy("What the person types to sign in.")
    )

    class Meta(PersonForm.Meta):
        fields = ("display_name", "email", "unix_user")

    field_order = ("username", "display_name", "email", "unix_user")


@require_http_methods(["GET", "HEAD", "POST"])
@operator_required
def person_new(request: HttpRequest) -> HttpResponseBase:
    """Make a person, who then gets a password link and groups."""
    form = NewPersonForm(request.POST if request.method == "POST" else None)
    needed = proof_needed(request)
    if request.method != "POST" or needed or not form.is_valid():
        status = 200 if request.method != "POST" else 403 if needed else 422
        page = {"tab": "people", "form": form, "proof_needed": needed}
        return render(request, "gpuportal/manage/person_new.html", page, status=status)
    values = dict(form.cleaned_data)
    made = people_services.make(
        username=values.pop("username"),
        fields=values,
        actor=reader(request),
        now=timezone.now(),
    )
    messages.success(
        request,
        gettext("%(name)s was added. Make a password link and add a group next.")
        % {"name": made},
    )
    return redirect("manage-person", made.pk)


@require_http_methods(["GET", "HEAD", "POST"])
@operator_required
@never_cache
def person(request: HttpRequest, pk: int) -> HttpResponseBase:
    """Show a person; change the account, make a password link, end sessions.

    Only the end of sessions needs no second factor again, because it is urgent.
    """
    found = get_object_or_404(User, pk=pk)
    if request.method != "POST":
        return _person_page(request, found, PersonForm(instance=found))
    act = request.POST.get("act", "save")
    now, actor = timezone.now(), reader(request)
    if act != "sign-out" and proof_needed(request):
        # The form keeps what was typed.
        kept = request.POST if act == "save" else None
        form = PersonForm(kept, instance=User.objects.get(pk=pk))
        return _person_page(request, found, form, status=403)
    try:
        if act == "link":
            text = people_services.password_link(user_id=pk, actor=actor, now=now)
            link = invitation_mail.link_of(text, request.build_absolute_uri("/"))
            return _person_page(
                request, found, PersonForm(instance=found), password_link=link
            )
        if act == "mail":
            person_links.mail(user_id=pk, actor=actor, now=now)
            messages.success(
                request,
                gettext("A password link was sent to %(address)s.")
                % {"address": found.email},
            )
            return redirect("manage-person", pk)
        if act == "sign-out":
            ended = people_services.sign_out(user_id=pk, actor=actor, now=now)
            messages.success(
                request,
                ngettext(
                    "%(n)s session of %(who)s ended.",
                    "%(n)s sessions of %(who)s ended.",
                    ended,
                )
                % {"n": ended, "who": found},
            )
            return redirect("manage-person", pk)
        if act == "factors":
            factor_service.reset(user=found, actor=actor, now=now)
            people_services.sign_out(user_id=pk, actor=actor, now=now)
            messages.success(
                request,
                gettext("The second factors of %(who)s were removed.") % {"who": found},
            )
            return redirect("manage-person", pk)
        if act == "disconnect":
            identity_service.disconnect(
                identity_id=whole_number(request.POST.get("identity", "")),
                user_id=pk,
                actor=actor,
                now=now,
            )
            people_services.sign_out(user_id=pk, actor=actor, now=now)
            messages.success(
                request, gettext("Disconnected. The groups of this person stay.")
            )
            return redirect("manage-person", pk)
        form = PersonForm(request.POST, instance=User.objects.get(pk=pk))
        if not form.is_valid():
            return _person_page(request, found, form, status=422)
        changed = people_services.change(
            user_id=pk, fields=form.cleaned_data, actor=actor, now=now
        )
    except CodedError as error:
        text = message_of(error)
        form = PersonForm(instance=found)
        return _person_page(request, found, form, error=text, status=409)
    if "email" in changed and changed["email"][0]:
        tasks.queue_notice(tasks.mail_address_notice, pk, changed["email"][0])
    messages.success(
        request, gettext("Saved.") if changed else gettext("Nothing was changed.")
    )
    return redirect("manage-person", pk)


def _person_page(
    request: HttpRequest,
    found: User,
    form: PersonForm,
    *,
    status: int = 200,
    **more: Any,
) -> HttpResponse:
    now = timezone.now()
    policy = site_policy()
    rights = found.memberships.filter(active=True).select_related("account", "sponsor")
    identities = list(found.identities.all())
    log = AuditEntry.objects.filter(Q(actor=found) | Q(subject=f"user:{found.pk}"))
    page = {
        "tab": "people",
        "person": found,
        "form": form,
        "rights": [
            (right, policy.quota_gpu_seconds)
            if right.quota_gpu_seconds is None
            else (right, right.quota_gpu_seconds)
            for right in rights
        ],
        "factors": found.second_factors.all(),
        "proof_needed": proof_needed(request),
        "fresh": found.password.startswith(UNUSABLE),
        "identities": [(one, provider_name(one.issuer)) for one in identities],
        "passwords": settings.LOGIN_SETTINGS.passwords,
        "mail_possible": invitation_mail.possible() and bool(found.email),
        "sessions": len(people_services.sessions_of(found, now=now)),
        "tokens": ApiToken.objects.filter(
            user=found, revoked_at=None, expires_at__gt=now
        ).count(),
        "live": Reservation.objects.live().filter(user=found).order_by("start")[:10],
        "waits": WaitingRequest.objects.waiting().filter(user=found).count(),
        "log": rows_of(log.select_related("actor")[:10]),
        **more,
    }
    return render(request, "gpuportal/manage/person.html", page, status=status)


@require_http_methods(["GET", "HEAD", "POST"])
@operator_required
def person_erase(request: HttpRequest, pk: int) -> HttpResponseBase:
    """Erase a person after the login was typed. Their bookings are ended first."""
    person = get_object_or_404(User, pk=pk)
    if request.method != "POST":
        return _page(request, person)
    now = timezone.now()
    if request.POST.get("act") == "end":
        offboarding.wind_down(
            Membership.objects.filter(user=person),
            at=now,
            policy=site_policy(),
            reason=sentence("ended by the lab admin"),
        )
        messages.success(
            request,
            gettext("Bookings, requests and vouchers of this person have ended."),
        )
        return redirect("person-erase", pk)
    try:
        alias = erasure_of_person.erase(
            user_id=pk,
            typed=request.POST.get("typed", "").strip(),
            actor=reader(request),
            now=now,
        )
    except CodedError as error:
        text = message_of(error)
        return _page(request, person, error=text, status=409)
    messages.success(
        request, gettext("Erased: the login is %(alias)s now.") % {"alias": alias}
    )
    return redirect("manage-people")


def _page(
    request: HttpRequest, person: User, *, error: str = "", status: int = 200
) -> HttpResponse:
    page = {
        "tab": "people",
        "person": person,
        "error": error,
        "held": Reservation.objects.live().filter(user=person).count(),
        "waits": WaitingRequest.objects.waiting().filter(user=person).count(),
        "past": Reservation.objects.filter(user=person).count(),
        "alias": f"erased-{person.pk}",
        "groups": ", ".join(
            str(right.account)
            for right in person.memberships.filter(active=True).select_related(
                "account"
            )
        ),
    }
    return render(request, "gpuportal/manage/person_erase.html", page, status=status)
