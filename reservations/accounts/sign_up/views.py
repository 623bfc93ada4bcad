"""The pages on which a visitor makes an account, and the admin's list of domains.

The text of a link goes into the session at once and out of the address, as that of an
invitation does.
"""

from typing import Any

from axes.helpers import get_client_ip_address
from django.contrib.auth.decorators import login_not_required
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import get_language, gettext, gettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_safe
from kombu.exceptions import OperationalError

from reservations.accounts import tasks
from reservations.accounts.group_quota import sum_of_members
from reservations.accounts.invitation_views import BACKEND
from reservations.accounts.second_factors.sign_in import (
    begin_session,
    proof_needed,
    to_start,
)
from reservations.accounts.sign_up import service
from reservations.accounts.sign_up.forms import (
    AddressForm,
    SignUpForm,
    domain_rows,
)
from reservations.accounts.sign_up.queries import (
    can_be_offered,
    is_open,
    stored_domains,
)
from reservations.accounts.sign_up.rules import (
    LINK_LIFE,
    MOST_MAILS,
    read_address,
    shown_domain,
)
from reservations.models import Account
from reservations.rules.errors import NotAllowed, NotFound
from reservations.rules.figures import credits_text
from reservations.store.access import operator_required
from reservations.web.rate_limits import check_address_rate
from reservations.web.review_page import Review, ReviewPage
from telemetry.protocol.request_refusal import RequestRefused
from telemetry.protocol.sentences import sentence
from telemetry.web.error_answers import message_of

REQUESTS_PER_MINUTE = 60
"""Most requests for a mail from one address of the network. A whole course may come
from one."""
KEY = "sign-up"
FOLDER = "reservations/accounts/sign_up"


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@login_not_required
def ask(request: HttpRequest) -> HttpResponseBase:
    """Take a mail address. A worker looks it up, so the answer tells nothing.

    Raises:
        TooFast: too many requests came from this address of the network.
        RequestRefused: the broker is away.
    """
    if request.user.is_authenticated:
        return to_start("")
    if not is_open():
        return render(request, f"{FOLDER}/ask.html", {"form": None}, status=404)
    domains = stored_domains()
    form = AddressForm(
        request.POST if request.method == "POST" else None, domains=domains
    )
    page = {"form": form, "domains": [shown_domain(one) for one in domains]}
    if request.method != "POST":
        return render(request, f"{FOLDER}/ask.html", page)
    check_address_rate(
        "sign-up",
        address=get_client_ip_address(request) or "unknown",
        per_minute=REQUESTS_PER_MINUTE,
        now=timezone.now(),
    )
    if not form.is_valid():
        return render(request, f"{FOLDER}/ask.html", page, status=422)
    try:
        tasks.mail_sign_up.delay(str(form.cleaned_data["email"]), get_language() or "")
    except OperationalError as error:
        raise RequestRefused(
            "unavailable",
            sentence("No mail was sent. Try again in a moment."),
            title=sentence("The portal cannot send mail at the moment"),
        ) from error
    return redirect("sign-up-sent")


@require_safe
@login_not_required
def sent(request: HttpRequest) -> HttpResponseBase:
    """Say that a mail is under way."""
    page = {"minutes": LINK_LIFE.seconds // 60, "most": MOST_MAILS}
    return render(request, f"{FOLDER}/sent.html", page)


@require_safe
@never_cache
@login_not_required
def follow(request: HttpRequest, token: str) -> HttpResponseBase:
    """Store a link in the session, and redirect to the page that uses it.

    Opening it uses nothing up, because mail servers open links as well.
    """
    try:
        _row(token[:100])
    except NotFound:
        return _page(request, status=404)
    request.session[KEY] = token[:100]
    return redirect("sign-up-choose")


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@sensitive_post_parameters("password", "again")
@login_not_required
def choose(request: HttpRequest) -> HttpResponseBase:
    """Let a person who proved an address choose name and password, and sign them in."""
    text, now = request.session.get(KEY, ""), timezone.now()
    form = SignUpForm(request.POST if request.method == "POST" else None)
    try:
        address = read_address(_row(text).address)
        page: dict[str, Any] = {
            "address": str(address),
            "user_name": service.next_user_name(address),
        }
        if request.method != "POST":
            return _page(request, form, **page)
        if form.is_valid():
            user = service.accept(
                text=text,
                name=form.cleaned_data["name"],
                password=form.cleaned_data["password"],
                now=now,
            )
            request.session.flush()
            board = reverse("board")
            answer = begin_session(request, user, backend=BACKEND, back=board)
            return redirect(board) if request.user.is_authenticated else answer
    except ValidationError as error:
        form.add_error("password", error)
    except NotFound:
        return _page(request, status=404)
    except NotAllowed as error:
        return _page(request, status=409, why=message_of(error))
    return _page(request, form, status=422, **page)


def _row(text: str) -> Any:
    """Return the sign-up of a link.

    Raises:
        NotFound: it does not work, or the site has no passwords any more.
    """
    if not can_be_offered():
        raise NotFound(what=sentence("such link, or it is used or too old"))
    return service.sign_up_of(text, now=timezone.now())


def _page(
    request: HttpRequest,
    form: SignUpForm | None = None,
    *,
    status: int = 200,
    **more: Any,
) -> HttpResponse:
    page = {"form": form, "open": is_open(), "minutes": LINK_LIFE.seconds // 60, **more}
    return render(request, f"{FOLDER}/choose.html", page, status=status)


# --- the admin's list ---------------------------------------------------------------


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@operator_required
def show(request: HttpRequest) -> HttpResponseBase:
    """Show and change which mail domains may sign up."""
    return DomainsPage(request).answer()


class DomainsPage(ReviewPage):
    """The list of domains."""

    template = f"{FOLDER}/domains.html"
    tab = "people"
    before_hint = gettext_lazy("Preview who may sign up then. Then save.")

    def answer(self) -> HttpResponseBase:
        """Save nothing without a fresh proof, because a row admits many people."""
        post = self.request.POST
        if "save" in post and proof_needed(self.request):
            return self.page(self.form_of(post), status=403)
        return super().answer()

    def form_of(self, data: Any) -> Any:
        """Return the list."""
        return domain_rows(data, stored_domains())

    def review(self, form: Any) -> Review:
        """Return what each domain gives before and after."""
        wanted = form.wanted()
        stored = {key: row.account_id for key, row in stored_domains().items()}
        groups = {one.pk: one for one in Account.objects.all()}
        titles = {pk: str(one) for pk, one in groups.items()}
        lines = [
            (
                shown_domain(domain),
                _right(stored, domain, titles),
                _right(wanted, domain, titles),
            )
            for domain in sorted(stored.keys() | wanted.keys())
            if stored.get(domain, -1) != wanted.get(domain, -1)
        ]
        effects = [
            sentence(
                "{group} has no quota. With each sign-up it is set to what its members "
                "have together, now {quota}. Set a quota for the group first.",
                group=titles[pk],
                quota=credits_text(sum_of_members(groups[pk])),
            )
            for pk in sorted({pk for pk in wanted.values() if pk in groups})
            if groups[pk].quota_gpu_seconds is None
        ]
        if stored.keys() - wanted.keys():
            effects.append(
                sentence("People who have signed up stay, with their groups.")
            )
        return Review(
            mark=service.domains_mark(wanted),
            title=gettext("Changes") if lines else gettext("Nothing was changed."),
            lines=lines,
            effects=effects if lines else [],
            changes=bool(lines),
        )

    def save(self, form: Any, *, mark: str, reason: str) -> str:
        """Store the list."""
        service.save_domains(form.wanted(), mark=mark, actor=self.actor, now=self.now)
        return gettext("Saved.")

    def context(self, form: Any, review: Review | None) -> dict[str, Any]:
        """Return whether sign-ups work at all as well."""
        return {
            "proof_needed": proof_needed(self.request),
            "can_be_offered": can_be_offered(),
            "address": reverse("sign-up"),
        }


def _right(given: dict[str, int | None], domain: str, titles: dict[int, str]) -> str:
    if domain not in given:
        return gettext("nobody signs up")
    account = given[domain]
    if account is None:
        return gettext("sign-up without a group")
    return gettext("sign-up into %(group)s") % {"group": titles.get(account, account)}
