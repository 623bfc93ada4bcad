"""Pages that join apps: the live board, search, the user's settings, errors."""

from collections import Counter
from typing import Any
from urllib.parse import urlencode

from django.conf import settings
from django.contrib import messages
from django.contrib.auth import REDIRECT_FIELD_NAME
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.views import LoginView, LogoutView
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from gpuportal.board.booking_energy import booking_energy
from gpuportal.http import problems
from gpuportal.http.middleware import activate_language_of_user, form_page
from gpuportal.pages.context import read_frames
from gpuportal.pages.find import as_json, find
from gpuportal.pages.forms import (
    LanguageForm,
    SignInForm,
    SshKeyForm,
    TokenForm,
    ZoneForm,
)
from gpuportal.saml import ended_session
from placement.workspace.quick_booking import quick_start
from reservations.accounts.api_tokens import create_token, revoke_token
from reservations.accounts.identities.provider_sessions import provider_session
from reservations.accounts.identities.queries import (
    directory,
    sources_with_redirect,
    ways_in,
)
from reservations.accounts.openid_clients.queries import consents_of
from reservations.accounts.second_factors.queries import recovery_codes_left
from reservations.accounts.second_factors.sign_in import (
    PROVIDER_KEY,
    begin_session,
    proof_needed,
    proof_required,
    to_start,
)
from reservations.accounts.sign_up.queries import is_open
from reservations.accounts.ssh_keys.public_key import SshKeyRefused
from reservations.accounts.ssh_keys.service import add_key, remove_key
from reservations.models import ApiToken, User
from reservations.notifications.reader_locale import zone_names
from reservations.rules.errors import NotAllowed
from reservations.store.drains import drains, gpu_drain_reasons
from telemetry import request_id
from telemetry.live.broadcast import MINUTE_FRAMES
from telemetry.models import Gpu, Node
from telemetry.protocol.frame import ROSTER_ID
from telemetry.protocol.sentences import sentence
from telemetry.web.error_answers import problem_response
from telemetry.web.translation import translated, translated_values


class SignIn(LoginView):
    """The login page. Signed-in users are redirected to the start page."""

    redirect_authenticated_user = True
    template_name = "registration/login.html"
    authentication_form = SignInForm

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Add the providers, and the one that a person left or may leave as well."""
        sources = {one.key: one for one in sources_with_redirect()}
        query = self.request.GET
        return super().get_context_data(
            **kwargs,
            passwords=settings.LOGIN_SETTINGS.passwords,
            providers=tuple(sources.values()),
            directory=directory(),
            sign_up=is_open(),
            left=sources.get(query.get("left", "")),
            gone=sources.get(query.get("gone", "")),
        )

    def form_valid(self, form: Any) -> HttpResponse:
        """Sign in, or ask for the second factor first."""
        answer = begin_session(
            self.request,
            form.get_user(),
            backend=form.get_user().backend,
            back=self.get_redirect_url(),
        )
        if self.request.user.is_authenticated:
            return redirect(self.get_success_url())
        return answer

    def get_default_redirect_url(self) -> str:
        """Return the board for the operator and a User's own page for all others."""
        user = self.request.user
        if getattr(user, "is_operator", False):
            return reverse("board")
        return reverse("mine")


class SignOut(LogoutView):
    """Ends the session, and names the provider whose session goes on."""

    left = ""

    def post(
        self, request: HttpRequest, *args: Any, **kwargs: Any
    ) -> HttpResponse | TemplateResponse:
        """End the session. For ten minutes the one at the provider can be ended."""
        self.left = request.session.get(PROVIDER_KEY, "")
        held = provider_session(request.session, provider=self.left)
        response = super().post(request, *args, **kwargs)
        if held is not None:
            ended_session.keep(response, held)
        return response

    def get_default_redirect_url(self) -> str:
        """Return the login page."""
        url = super().get_default_redirect_url()
        return f"{url}?{urlencode({'left': self.left})}" if self.left else url


@login_not_required
def admin_sign_in(request: HttpRequest) -> HttpResponse:
    """Lead the admin's sign-in to the login page, which knows all ways and factors.

    Raises:
        PermissionDenied: the person is signed in, and may not use the admin.
    """
    if request.user.is_authenticated and not request.user.is_staff:
        raise PermissionDenied
    return to_start(request.GET.get(REDIRECT_FIELD_NAME, ""))


@require_safe
def board(request: HttpRequest) -> HttpResponse:
    """Show every Gpu of every Node, live. The figures come over the websocket."""
    gpus = list(Gpu.objects.shown().values_list("pk", "node__name", "draining"))
    counts = Counter(node for _pk, node, _draining in gpus)
    nodes = list(Node.objects.in_service().values_list("pk", "name", "draining"))
    names = [name for _pk, name, _draining in nodes]
    drained = {pk: name for pk, name, draining in nodes if draining}
    alone = [pk for pk, _node, draining in gpus if draining]
    page = {
        "nodes": [(name, range(counts[name])) for name in names if counts[name]],
        "node_names": names,
        "has_nodes": bool(names),
        "has_gpus": bool(counts),
        "drains": {drained[pk]: one.reason for pk, one in drains(drained).items()},
        "gpu_drains": gpu_drain_reasons(alone),
        "slurm_books": settings.SLURM_BOOK,
        "quick": quick_start(_user(request)),
    }
    return render(request, "gpuportal/board/board.html", page)


@require_safe
@never_cache
def board_minute(request: HttpRequest) -> HttpResponse:
    """Return the last minute's frames, oldest first, for the first sparklines.

    Only those of the newest roster, because a page reads all of them with one layout.
    """
    frames = read_frames(MINUTE_FRAMES)
    same = [one for one in frames if one[ROSTER_ID] == frames[0][ROSTER_ID]]
    minute = b"".join(reversed(same))
    return HttpResponse(minute, content_type="application/octet-stream")


@require_safe
@never_cache
def board_energy(request: HttpRequest) -> JsonResponse:
    """Return, by Gpu, the running booking and its kWh."""
    told = booking_energy(timezone.now())
    return JsonResponse(
        {pk: {"reservation": row, "kwh": kwh} for pk, (row, kwh) in told.items()}
    )


@require_safe
def search(request: HttpRequest) -> HttpResponse:
    """Find Gpus, Nodes, people, Jobs and pages. The search box gets JSON."""
    query = request.GET.get("q", "").strip()
    hits = find(query, _user(request))
    if not request.accepts("text/html"):
        return JsonResponse({"hits": translated_values(as_json(hits))})
    return render(
        request, "gpuportal/pages/search.html", {"query": query, "hits": hits}
    )


@require_safe
def me(request: HttpRequest) -> HttpResponse:
    """Show the User's theme, groups and API tokens."""
    return _me_page(request, TokenForm())


@require_POST
def time_zone(request: HttpRequest) -> HttpResponse:
    """Store the zone in which the User reads times; empty: the site's."""
    form = ZoneForm(request.POST)
    if not form.is_valid():
        return _me_page(request, TokenForm(), zone_form=form, status=422)
    user = _user(request)
    user.time_zone = form.cleaned_data["time_zone"]
    user.save(update_fields=["time_zone"])
    messages.success(
        request,
        gettext("Times are now shown in %(zone)s.")
        % {"zone": user.time_zone or settings.TIME_ZONE},
    )
    back = form.cleaned_data["back"]
    safe = url_has_allowed_host_and_scheme(back, {request.get_host()})
    return redirect(back if back and safe else "me")


@require_POST
@login_not_required
def language(request: HttpRequest) -> HttpResponse:
    """Store the language of a reader: a User's in the database, a visitor's in a
    cookie.

    A User's is in the cookie as well, for pages that are rendered without the User.
    """
    form = LanguageForm(request.POST)
    user = request.user if isinstance(request.user, User) else None
    if not form.is_valid():
        if user:
            return _me_page(request, TokenForm(), language_form=form, status=422)
        messages.error(request, str(form.errors["language"][0]))
        return redirect("login")
    chosen = form.cleaned_data["language"]
    if user:
        user.language = chosen
        user.save(update_fields=["language"])
    response = redirect(form_page(request) or ("me" if user else "login"))
    name = settings.LANGUAGE_COOKIE_NAME
    if not chosen:
        response.delete_cookie(name, samesite="Lax")
        return response
    response.set_cookie(
        name,
        chosen,
        max_age=settings.LANGUAGE_COOKIE_AGE,
        secure=settings.LANGUAGE_COOKIE_SECURE,
        httponly=settings.LANGUAGE_COOKIE_HTTPONLY,
        samesite="Lax",
    )
    return response


@require_POST
def tour_seen(request: HttpRequest) -> HttpResponse:
    """Remember that the User closed the tour."""
    user = _user(request)
    user.tour_seen_at = timezone.now()
    user.save(update_fields=["tour_seen_at"])
    return HttpResponse(status=204)


@require_POST
@never_cache
@proof_required(back="me")
def token_create(request: HttpRequest) -> HttpResponse:
    """Make a token and answer with a page. No other page shows the token."""
    form = TokenForm(request.POST)
    if not form.is_valid():
        return _me_page(request, form, status=422)
    token, text = create_token(
        user=_user(request),
        label=form.cleaned_data["label"],
        scopes=form.cleaned_data["scopes"],
        days=form.cleaned_data["days"],
        now=timezone.now(),
    )
    return _me_page(request, TokenForm(), fresh=token, fresh_text=text)


@require_POST
def token_revoke(request: HttpRequest, pk: int) -> HttpResponse:
    """Revoke one of the User's own tokens."""
    if not ApiToken.objects.filter(pk=pk, user=_user(request)).exists():
        raise Http404("no such token of yours")
    revoke_token(token_id=pk, user=_user(request), now=timezone.now())
    return redirect("me")


@require_POST
@proof_required(back="me")
def ssh_key_add(request: HttpRequest) -> HttpResponse:
    """Store a public key of the User."""
    form = SshKeyForm(request.POST, request.FILES)
    if form.is_valid():
        try:
            key = add_key(
                user=_user(request),
                text=form.cleaned_data["public_key"],
                name=form.cleaned_data["name"],
                now=timezone.now(),
            )
        except SshKeyRefused as refused:
            for field, words in refused.fields.items():
                form.add_error(field, translated(words))
        else:
            messages.success(
                request, gettext("The key “%(name)s” was added.") % {"name": key.name}
            )
            return redirect(reverse("me") + "#ssh-keys")
    return _me_page(request, TokenForm(), key_form=form, status=422)


@require_POST
def ssh_key_remove(request: HttpRequest, pk: int) -> HttpResponse:
    """Remove one of the User's own keys."""
    if not remove_key(key_id=pk, user=_user(request), now=timezone.now()):
        raise Http404("no such key of yours")
    return redirect(reverse("me") + "#ssh-keys")


def _me_page(
    request: HttpRequest, form: TokenForm, *, status: int = 200, **extra: object
) -> HttpResponse:
    user = _user(request)
    page = {
        "form": form,
        "tokens": user.tokens.filter(revoked_at=None),
        "memberships": user.memberships.filter(active=True).select_related("account"),
        "ssh_keys": user.ssh_keys.all(),
        "key_form": SshKeyForm(),
        "now": timezone.now(),
        "zone_form": ZoneForm({"time_zone": user.time_zone}),
        "zones": zone_names(),
        "language_form": LanguageForm({"language": user.language}),
        "languages": settings.LANGUAGES,
        "site_zone": settings.TIME_ZONE,
        "ways_in": ways_in(user),
        "second_factors": user.second_factors.all(),
        "recovery_codes": recovery_codes_left(user),
        "proof_needed": proof_needed(request),
        "openid_consents": consents_of(user) if settings.OPENID_PROVIDER else None,
        "own_password": settings.LOGIN_SETTINGS.passwords
        and user.has_usable_password(),
        **extra,
    }
    return render(request, "gpuportal/pages/me.html", page, status=status)


def _user(request: HttpRequest) -> User:
    """Return the signed-in User. LoginRequiredMiddleware lets only signed-in users
    through."""
    assert isinstance(request.user, User)
    return request.user


@login_not_required
def not_allowed(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Answer 403: the page exists, but the user may not see it."""
    activate_language_of_user(request)
    if problems.wants_problem(request):
        return problem_response(NotAllowed(act=sentence("do this")))
    return render(request, "403.html", status=403)


@login_not_required
def form_expired(request: HttpRequest, reason: str = "") -> HttpResponse:
    """Answer 403: the CSRF check failed. The page links back to the form, which keeps
    its text."""
    activate_language_of_user(request)
    if problems.wants_problem(request):
        return problem_response(problems.page_expired())
    page = {"form_page": form_page(request) or reverse("board")}
    return render(request, "403_csrf.html", page, status=403)


@login_not_required
def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Answer 404, with links to other pages."""
    activate_language_of_user(request)
    if problems.wants_problem(request):
        return problem_response(problems.no_such_address())
    return render(request, "404.html", status=404)


@login_not_required
def failed(request: HttpRequest) -> HttpResponse:
    """Answer 500, rendered without the database, which may have failed."""
    found = request_id.current()
    return render(request, "500.html", {"request_id": found}, status=500)
