"""Begin a session, after the second factor of a person who has one.

Until then nobody is signed in. The session only remembers whose password was right.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import wraps
from typing import Any
from urllib.parse import urlencode

from django.contrib.auth import REDIRECT_FIELD_NAME, login
from django.contrib.sessions.backends.base import SessionBase
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.utils.crypto import constant_time_compare

from reservations.accounts.second_factors.queries import has_factor, policy
from reservations.accounts.second_factors.rules import Demand, is_fresh
from reservations.models import User
from reservations.rules.window import unix
from reservations.store.access import reader
from reservations.web.session_consumer import signed_in
from telemetry.protocol.request_refusal import RequestRefused
from telemetry.protocol.sentences import sentence

PENDING = "second-factor-pending"
"""In the session: the sign-in that waits for a second factor."""
PROVED_AT = "second-factor-at"
"""In the session: when the second factor was proved, in Unix seconds."""
PROVIDER_KEY = "oidc-provider"
"""In the session: the key of the provider that began it."""
PROVIDER_SESSION = "provider-session"
"""In the session: the names of the session at that provider, if it may end this one."""
SIGNED_IN_AT = "signed-in-at"
"""In the session: when it began, in Unix seconds."""
PENDING_SECONDS = 600
LONGEST_BACK = 2000


def begin_session(
    request: HttpRequest,
    user: User,
    *,
    backend: str,
    back: str,
    provider: str = "",
    provider_session: Mapping[str, str] | None = None,
) -> HttpResponse:
    """Sign a person in, or ask for their second factor first.

    Args:
        back: the page to go to. The login page decides whether it is safe.
        provider: the key of the identity provider that proved who they are; "": they
            typed a password.
        provider_session: the names of the session at the provider, by which it may end
            this one.
    """
    asked = not provider or policy().after_providers
    if not asked or not has_factor(user):
        _enter(
            request,
            user,
            backend=backend,
            provider=provider,
            provider_session=provider_session,
        )
        return to_start(back)
    request.session.flush()
    request.session[PENDING] = {
        "user": user.pk,
        "mark": user.get_session_auth_hash(),
        "backend": backend,
        "back": back if len(back) <= LONGEST_BACK else "",
        "provider": provider,
        "provider_session": provider_session,
        "begun": unix(timezone.now()),
    }
    return redirect("second-factor")


def pending_user(request: HttpRequest) -> User | None:
    """Return the person whose sign-in waits for a second factor.

    None: nobody, it began too long ago, or the password was changed meanwhile.
    """
    pending = request.session.get(PENDING)
    if not pending or unix(timezone.now()) - pending["begun"] > PENDING_SECONDS:
        return None
    user = User.objects.filter(pk=pending["user"], is_active=True).first()
    if user is None:
        return None
    same = constant_time_compare(pending["mark"], user.get_session_auth_hash())
    return user if same else None


def finish(request: HttpRequest, user: User, now: datetime) -> HttpResponse:
    """Sign in the person who has just proved the second factor."""
    pending = request.session[PENDING]
    _enter(
        request,
        user,
        backend=pending["backend"],
        provider=pending["provider"],
        # Release 0.1.0 wrote none.
        provider_session=pending.get("provider_session"),
    )
    note_proof(request, now)
    return to_start(pending["back"])


def _enter(
    request: HttpRequest,
    user: User,
    *,
    backend: str,
    provider: str,
    provider_session: Mapping[str, str] | None,
) -> None:
    login(request, user, backend=backend)
    for key in (PENDING, PROVED_AT, PROVIDER_KEY, PROVIDER_SESSION):
        request.session.pop(key, None)
    request.session[SIGNED_IN_AT] = unix(timezone.now())
    if provider:
        request.session[PROVIDER_KEY] = provider
    if provider_session:
        request.session[PROVIDER_SESSION] = dict(provider_session)


def signed_in_at(session: SessionBase, user: User) -> datetime:
    """Return when a person signed in to a session.

    Sessions from before this was noted have the person's last sign-in.
    """
    noted = session.get(SIGNED_IN_AT)
    if noted is None:
        return user.last_login or user.date_joined
    return datetime.fromtimestamp(noted, UTC)


def note_proof(request: HttpRequest, now: datetime) -> None:
    """Remember in the session that the second factor was proved."""
    request.session[PROVED_AT] = unix(now)


def to_start(back: str) -> HttpResponse:
    """Redirect by way of the login page, which knows the start page and safe ones."""
    query = f"?{urlencode({REDIRECT_FIELD_NAME: back}, safe='/')}" if back else ""
    return redirect(f"{reverse('login')}{query}")


def proof_needed(request: HttpRequest) -> bool:
    """Return whether a person has a second factor and did not prove it lately."""
    if is_fresh(request.session.get(PROVED_AT), unix(timezone.now())):
        return False
    return has_factor(reader(request))


def to_proof(back: str) -> HttpResponse:
    """Redirect to the page that asks for the second factor, which leads back."""
    query = urlencode({REDIRECT_FIELD_NAME: back}, safe="/")
    return redirect(f"{reverse('second-factor')}?{query}")


def proof_required(
    *, back: str
) -> Callable[[Callable[..., HttpResponseBase]], Callable[..., HttpResponseBase]]:
    """Let a view of a signed-in person ask for the second factor again.

    Args:
        back: name of the address to which a person goes back afterwards.
    """

    def decorate(
        view: Callable[..., HttpResponseBase],
    ) -> Callable[..., HttpResponseBase]:
        @wraps(view)
        def checked(
            request: HttpRequest, *args: Any, **kwargs: Any
        ) -> HttpResponseBase:
            if proof_needed(request):
                return to_proof(reverse(back))
            return view(request, *args, **kwargs)

        return checked

    return decorate


def check_proof(request: HttpRequest) -> None:
    """Refuse a request of a page that needs the second factor again.

    Raises:
        RequestRefused: a person has one and did not prove it lately.
    """
    if proof_needed(request):
        raise RequestRefused(
            "second-factor-needed",
            sentence("Confirm your second factor on the page Settings first."),
        )


def second_factor_missing() -> RequestRefused:
    """Return the refusal of an operator who has to set up a second factor first."""
    return RequestRefused(
        "second-factor-needed",
        sentence("Set up a second factor on the page Settings first."),
    )


def check_demand(session: SessionBase, user: User, now: datetime) -> None:
    """Refuse an operator who needs a second factor and has none.

    Raises:
        RequestRefused: the grace is over.
    """
    if demand_of(session, user, now) is Demand.REQUIRED:
        raise second_factor_missing()


def door_user(session_key: str | None, now: datetime) -> User | None:
    """Return the User of a session that asks for a terminal, ssh or a workspace.

    None: signed out, expired, password changed, or deactivated.

    Raises:
        RequestRefused: an operator has to set up a second factor first.
    """
    found = signed_in(session_key)
    if found is None:
        return None
    user, session = found
    check_demand(session, user, now)
    return user


def demand_of(session: SessionBase, user: User, now: datetime) -> Demand:
    """Return what the portal asks of a signed-in person.

    The first answer other than none is stored, because a grace begins with it. Cost:
    one query for operators who signed in without a second factor, none for others.
    """
    if not user.is_operator or PROVED_AT in session:
        return Demand.NONE
    found = policy().demand(
        operator=True,
        by_provider=PROVIDER_KEY in session,
        asked_at=user.second_factor_asked_at,
        now=now,
    )
    if found is Demand.NONE or has_factor(user):
        return Demand.NONE
    if user.second_factor_asked_at is None:
        user.second_factor_asked_at = now
        User.objects.filter(pk=user.pk, second_factor_asked_at=None).update(
            second_factor_asked_at=now
        )
    return found
