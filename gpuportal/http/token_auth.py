"""The User of an API token, ``Authorization: Bearer gp_...``, and its scopes.

An operation needs one scope for each of its effects. ``read`` reads, ``book`` changes
the calendar, ``job`` runs code. An operation that does two of these needs both scopes.
Consequences of an earlier request need no further scope: a cancelled reservation ends
its Jobs, and a waiting request with a Job launches it, because a token with both scopes
made it.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, cast

from django.http import HttpRequest
from django.utils import timezone

from reservations.models import ApiToken, User
from telemetry.protocol.request_refusal import RequestRefused
from telemetry.protocol.sentences import joined, sentence

USED_AGAIN = timedelta(minutes=5)
"""A token's last use is written at most this often."""
Body = Mapping[str, Any]
PREFIX = "api/v1/"
JOB_ROUTES = (
    *("jobs", "models", "plans", "serve"),
    *("ssh-certificates", "ssh-keys", "tokens", "workspaces"),
)
"""Prefixes of the routes whose unsafe operations run code or prepare it."""


def _scope_missing(scope: str, needed: Sequence[str]) -> RequestRefused:
    words = sentence("The token lacks the scope “{scope}”.", scope=scope)
    if len(needed) > 1:
        both = joined((f"“{one}”" for one in needed), by=sentence(" and "))
        all_of_them = sentence("This request needs {scopes}.", scopes=both)
        words = joined([words, all_of_them])
    return RequestRefused("scope-missing", words)


def user_of(text: str, *, scopes: Sequence[str]) -> User | None:
    """Return the User of `usable_token`; None: the token cannot be used."""
    token = usable_token(text, scopes=scopes)
    return None if token is None else cast(User, token.user)


def usable_token(text: str, *, scopes: Sequence[str]) -> ApiToken | None:
    """Return a token with its User; None if it is unknown, expired, revoked or its
    User is inactive.

    Args:
        text: the token.
        scopes: all of them are needed.

    A token never has an admin's rights (docs/design/security.md#tokens).

    Raises:
        RequestRefused: the token lacks one of the scopes.
    """
    now = timezone.now()
    tokens = ApiToken.objects.select_related("user")
    found = tokens.filter(token_hash=ApiToken.hash_token(text)).first()
    if found is None:
        return None
    user = found.user
    if found.revoked_at or found.expires_at <= now or not user.is_active:
        return None
    # The scope for all served models includes each one: serve includes serve:12.
    for scope in scopes:
        if not {scope, scope.partition(":")[0]} & set(found.scopes):
            raise _scope_missing(scope, scopes)
    if found.last_used_at is None or now - found.last_used_at > USED_AGAIN:
        ApiToken.objects.filter(pk=found.pk).update(last_used_at=now)
    user.is_superuser = user.is_staff = False
    return found


def bearer(request: HttpRequest) -> str:
    """Return the token of a request, or ""."""
    kind, _, text = request.headers.get("Authorization", "").partition(" ")
    return text.strip() if kind.lower() == "bearer" else ""


def _always(_body: Body) -> bool:
    return True


def _may_move(body: Body) -> bool:
    # The schema turns "true" and 1 into true, so every value except false counts.
    return body.get("may_move", False) not in (None, False)


def _gaps_or_moves(body: Body) -> bool:
    return body.get("backfill") is not None or _may_move(body)


def _serves_elsewhere(body: Body) -> bool:
    """Return whether POST /serve books: hours from now, or permission to move (the
    default)."""
    own = body.get("reservation") is not None and body.get("hours") is None
    return not own or body.get("may_move", True) is not False


def _books(body: Body) -> bool:
    """Return whether POST /serve/text books: only not within a reservation."""
    return body.get("reservation") is None or body.get("hours") is not None


def _with_job(body: Body) -> bool:
    return body.get("job") is not None


ALSO: Mapping[tuple[str, str], tuple[str, Callable[[Body], bool]]] = {
    ("POST", "jobs"): ("book", _gaps_or_moves),
    ("POST", "jobs/arrays"): ("book", _gaps_or_moves),
    ("POST", "jobs/<int:job_id>/moves"): ("book", _may_move),
    ("POST", "jobs/<int:job_id>/moves/<int:move_id>/accept"): ("book", _always),
    ("POST", "serve"): ("book", _serves_elsewhere),
    ("POST", "serve/text"): ("book", _books),
    ("POST", "serve/<int:job_id>/move"): ("book", _always),
    ("POST", "waiting"): ("job", _with_job),
    ("POST", "workspaces/book"): ("book", _always),
}
"""Operation -> its second scope, and the bodies for which it is needed."""


def scopes_needed(method: str, route: str, body: Callable[[], Body]) -> tuple[str, ...]:
    """Return the scopes that a token needs for a request.

    Args:
        method: of HTTP.
        route: as Django resolved it ("api/v1/jobs/<int:job_id>").
        body: returns the JSON object of the request, empty without a body. Called
            only if the scopes depend on it.

    >>> scopes_needed("GET", "api/v1/jobs", dict)
    ('read',)
    >>> scopes_needed("POST", "api/v1/serve", lambda: {"file": 1, "hours": 2})
    ('job', 'book')
    >>> scopes_needed(
    ...     "POST", "api/v1/serve", lambda: {"reservation": 7, "may_move": False}
    ... )
    ('job',)
    """
    if method in ("GET", "HEAD"):
        return ("read",)
    path = route.removeprefix(PREFIX).rstrip("/")
    first = "job" if path.split("/", 1)[0] in JOB_ROUTES else "book"
    second, needed = ALSO.get((method, path), ("", _always))
    return (first, second) if second and needed(body()) else (first,)
