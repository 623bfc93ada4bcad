"""The pages of second factors: prove one, and set them up."""

import base64
import secrets
from datetime import datetime
from typing import Any

import segno
from axes.helpers import get_client_ip_address
from django.conf import settings
from django.contrib import messages
from django.contrib.auth import REDIRECT_FIELD_NAME
from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext, ngettext
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods

from reservations.accounts import people, tasks
from reservations.accounts.second_factors import passkeys, service, sign_in
from reservations.accounts.second_factors.forms import (
    AppForm,
    FactorForm,
    PasskeyForm,
    ProofForm,
)
from reservations.accounts.second_factors.queries import (
    app_of,
    has_factor,
    passkeys_of,
    policy,
    recovery_codes_left,
)
from reservations.accounts.second_factors.rules import (
    SECRET_BYTES,
    is_fresh,
    totp,
)
from reservations.accounts.second_factors.sealed_text import seal, unseal
from reservations.models import User
from reservations.rules.errors import NotFound
from reservations.rules.window import unix
from reservations.store.access import reader
from reservations.web.rate_limits import check_address_rate, check_rate
from telemetry.protocol.sentences import sentence
from telemetry.web.query_filters import whole_number
from telemetry.web.translation import translated

FOLDER = "reservations/accounts/second_factors"
PROOF_STATE = "second-factor-challenge"
NEW_STATE = "second-factor-new-passkey"
NEW_SECRET = "second-factor-new-app"
NEW_SECRET_AT = "second-factor-new-app-at"
"""In the session: the challenges that a browser signs, and the secret of a new app with
the time at which it was made, in Unix seconds."""
PROOFS_PER_MINUTE = 20
PASSWORDS_PER_MINUTE = 5


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@sensitive_post_parameters("code")
@login_not_required
def prove(request: HttpRequest) -> HttpResponseBase:
    """Ask for the second factor, to sign in or again before an important act."""
    signed_in = request.user if isinstance(request.user, User) else None
    user = signed_in or sign_in.pending_user(request)
    back = request.GET.get(REDIRECT_FIELD_NAME, "")
    if user is None:
        messages.info(request, gettext("Sign in first."))
        return redirect("login")
    if signed_in and not has_factor(user):
        return sign_in.to_start(back)
    now = timezone.now()
    form = ProofForm(request.POST if request.method == "POST" else None)
    error = ""
    if request.method == "POST":
        # By address too, so that nobody else uses up the tries of a person.
        caller = get_client_ip_address(request) or "unknown"
        check_address_rate(
            "second-factor",
            address=f"{user.pk}.{caller}",
            per_minute=PROOFS_PER_MINUTE,
            now=now,
        )
        try:
            _check(request, user, form, now)
        except service.ProofRefused as refused:
            error = translated(refused.why)
            if refused.locks:
                tasks.queue_notice(tasks.mail_lock_notice, user.pk)
        else:
            if signed_in:
                sign_in.note_proof(request, now)
                return sign_in.to_start(back)
            return sign_in.finish(request, user, now)
    page = {
        "person": user,
        "error": error,
        "app": app_of(user),
        "codes": recovery_codes_left(user),
        "passkey_options": _proof_options(request, user),
        "again": signed_in is not None,
        "back": back,
    }
    status = 422 if error else 200
    return render(request, f"{FOLDER}/prove.html", page, status=status)


def _check(request: HttpRequest, user: User, form: ProofForm, now: datetime) -> None:
    """Accept a code or a passkey.

    Raises:
        ProofRefused: it is wrong.
    """
    # A challenge is for one answer.
    state = request.session.pop(PROOF_STATE, None)
    if not form.is_valid():
        raise service.ProofRefused(
            sentence("This code is wrong or was used already. Enter the next one.")
        )
    if not form.cleaned_data["passkey"]:
        if service.check_code(user=user, code=form.cleaned_data["code"], now=now):
            left = recovery_codes_left(user)
            words = ngettext(
                "You used a recovery code. %(n)s is left.",
                "You used a recovery code. %(n)s are left.",
                left,
            )
            messages.warning(request, words % {"n": left})
        return
    if state is None:
        raise service.ProofRefused(sentence("This page is too old. Try again."))
    service.check_passkey(
        user=user,
        state=state,
        answer=form.cleaned_data["passkey"],
        origin=passkeys.origin_of(request),
        now=now,
    )


def _proof_options(request: HttpRequest, user: User) -> str:
    """Return what the browser needs to use a passkey; "" if there is none here."""
    origin = passkeys.origin_of(request)
    own = passkeys_of(user, origin.rp_id)
    if not own or not origin.possible:
        return ""
    options, request.session[PROOF_STATE] = passkeys.begin_proof(own, origin)
    return options


# --- set up -----------------------------------------------------------------------


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@sensitive_post_parameters("password", "code")
@sign_in.proof_required(back="second-factors")
def show(request: HttpRequest) -> HttpResponseBase:
    """Show the factors of the signed-in person; add and remove them."""
    user, act, now = reader(request), request.POST.get("act", ""), timezone.now()
    if request.method != "POST":
        return _page(request, user)
    if act == "app":
        request.session[NEW_SECRET] = seal(secrets.token_bytes(SECRET_BYTES))
        request.session[NEW_SECRET_AT] = unix(now)
        return _page(request, user)
    if act == "remove":
        number = whole_number(request.POST.get("factor", ""))
        try:
            service.remove(user=user, factor_id=number, now=now)
        except NotFound as error:
            return _page(request, user, error=translated(str(error)), status=404)
        messages.success(request, gettext("The second factor was removed."))
        return redirect("second-factors")
    if act == "codes" and has_factor(user):
        codes = service.make_recovery_codes(user=user, now=now)
        return _page(request, user, fresh_codes=codes)
    if act in ("app-add", "passkey-add"):
        return _add(request, user, act, now)
    return _page(request, user, status=422)


def _add(request: HttpRequest, user: User, act: str, now: datetime) -> HttpResponseBase:
    """Add a factor. With the first one the recovery codes are made and shown."""
    form = (AppForm if act == "app-add" else PasskeyForm)(request.POST)
    shown = {"app_form" if act == "app-add" else "passkey_form": form}
    first = not has_factor(user)
    state = request.session.pop(NEW_STATE, None)
    if first and not _own_password(user) and not _signed_in_lately(user, now):
        words = gettext(
            "Sign out and sign in again first. The first second factor needs a sign-in "
            "of the last ten minutes."
        )
        return _page(request, user, error=words, status=422, **shown)
    if form.is_valid() and first:
        _check_password(user, form, now)
    if not form.is_valid():
        return _page(request, user, status=422, **shown)
    values = form.cleaned_data
    try:
        if act == "app-add":
            secret = _new_secret(request, now)
            if secret is None:
                # The form with the code is shown for a secret only.
                words = gettext("This page is too old. Try again.")
                return _page(request, user, error=words, status=422)
            service.add_app(
                user=user,
                secret=secret,
                code=values["code"],
                name=values["name"] or gettext("Authenticator app"),
                now=now,
            )
            _drop_new_secret(request)
        else:
            if state is None:
                raise service.ProofRefused(sentence("This page is too old. Try again."))
            service.add_passkey(
                user=user,
                state=state,
                answer=values["passkey"],
                name=values["name"] or gettext("Passkey"),
                origin=passkeys.origin_of(request),
                now=now,
            )
    except service.ProofRefused as refused:
        form.add_error(
            "code" if act == "app-add" else "passkey", translated(refused.why)
        )
        return _page(request, user, status=422, **shown)
    sign_in.note_proof(request, now)
    messages.success(request, gettext("The second factor was added."))
    if not first:
        return redirect("second-factors")
    # They were opened without it.
    people.end_other_sessions(user=user, kept=request.session.session_key, now=now)
    codes = service.make_recovery_codes(user=user, now=now)
    return _page(request, user, fresh_codes=codes)


def _own_password(user: User) -> bool:
    return bool(settings.LOGIN_SETTINGS.passwords) and user.has_usable_password()


def _signed_in_lately(user: User, now: datetime) -> bool:
    last = user.last_login
    return last is not None and is_fresh(unix(last), unix(now))


def _check_password(user: User, form: FactorForm, now: datetime) -> None:
    """Let nobody lock a person out who only found their browser open."""
    if not _own_password(user):
        return
    check_rate(
        "password-change", user_pk=user.pk, per_minute=PASSWORDS_PER_MINUTE, now=now
    )
    if not user.check_password(form.cleaned_data.get("password", "")):
        form.add_error("password", gettext("This is not your current password."))


def _page(
    request: HttpRequest, user: User, *, status: int = 200, **more: Any
) -> HttpResponse:
    origin = passkeys.origin_of(request)
    factors = list(user.second_factors.all())
    secret = _new_secret(request, timezone.now())
    options = ""
    if origin.possible:
        own = passkeys_of(user, origin.rp_id)
        options, state = passkeys.begin_registration(user, own, origin)
        request.session[NEW_STATE] = state
    asked_at = user.second_factor_asked_at
    rules = policy()
    page = {
        "factors": factors,
        "app": app_of(user),
        "codes": recovery_codes_left(user),
        "ask_password": not factors and _own_password(user),
        "passkey_options": options,
        "localhost": origin.rp_id in ("127.0.0.1", "::1"),
        "rp_id": origin.rp_id,
        "demand": "none"
        if factors
        else getattr(request, "second_factor_demand", "none"),
        "grace_ends_at": rules.ends_at(asked_at)
        if asked_at is not None and rules.operators == "required"
        else None,
        **({} if secret is None else _app_secret(user, secret)),
        **more,
    }
    return render(request, f"{FOLDER}/factors.html", page, status=status)


def _new_secret(request: HttpRequest, now: datetime) -> bytes | None:
    """Return the secret of an app that is being set up; drop it after ten minutes."""
    if not is_fresh(request.session.get(NEW_SECRET_AT), unix(now)):
        _drop_new_secret(request)
        return None
    return unseal(request.session.get(NEW_SECRET, ""))


def _drop_new_secret(request: HttpRequest) -> None:
    for key in (NEW_SECRET, NEW_SECRET_AT):
        request.session.pop(key, None)


def _app_secret(user: User, secret: bytes) -> dict[str, str]:
    """Return the secret of a new app, as a QR code and as text."""
    address = totp(secret).get_provisioning_uri(user.username, "GPU Portal")
    code = segno.make(address, micro=False)
    text = base64.b32encode(secret).decode()
    return {
        "app_qr": code.svg_data_uri(scale=4, border=2, light="white"),
        "app_secret": " ".join(text[at : at + 4] for at in range(0, len(text), 4)),
    }
