"""The User of an API token: ``Authorization: Bearer gp_...``."""

from collections.abc import Sequence
from datetime import timedelta
from typing import cast

from django.http import HttpRequest
from django.utils import timezone

from reservations.models import ApiToken, User
from telemetry.protocol.sentences import joined, sentence

USED_AGAIN = timedelta(minutes=5)
"""A token's last use is written at most this often."""


class ScopeMissing(Exception):
    """A valid token without the scope for this request."""

    def __init__(self, scope: str, needed: Sequence[str]) -> None:
        words = sentence("The token lacks the scope “{scope}”.", scope=scope)
        if len(needed) > 1:
            both = joined((f"“{one}”" for one in needed), by=sentence(" and "))
            all_of_them = sentence("This request needs {scopes}.", scopes=both)
            words = joined([words, all_of_them])
        super().__init__(words)


def user_of(text: str, *, scopes: Sequence[str]) -> User | None:
    """Return a token's User; None if it is unknown, expired, revoked or its User is
    inactive.

    Args:
        text: the token.
        scopes: all of them are needed.

    A token never has an admin's rights (docs/design/security.md#tokens).

    Raises:
        ScopeMissing: the token lacks one of the scopes.
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
            raise ScopeMissing(scope, scopes)
    if found.last_used_at is None or now - found.last_used_at > USED_AGAIN:
        ApiToken.objects.filter(pk=found.pk).update(last_used_at=now)
    user.is_superuser = user.is_staff = False
    return cast(User, user)


def bearer(request: HttpRequest) -> str:
    """Return the token of a request, or ""."""
    kind, _, text = request.headers.get("Authorization", "").partition(" ")
    return text.strip() if kind.lower() == "bearer" else ""
