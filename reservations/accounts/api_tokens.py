"""API tokens: created once, shown once, stored as a hash, revocable."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db import transaction

from reservations.models import ApiToken, AuditEntry, User
from telemetry.protocol.sentences import sentence


@transaction.atomic(durable=True)
def create_token(
    *, user: User, label: str, scopes: Sequence[str], days: int, now: datetime
) -> tuple[ApiToken, str]:
    """Create a token and return it with its text, which is not stored.

    Raises:
        ValueError: a scope that no token may have.
    """
    unknown = sorted(
        scope
        for scope in set(scopes) - set(ApiToken.SCOPES)
        if not ApiToken.SERVED.fullmatch(scope)
    )
    if unknown or not scopes:
        raise ValueError(
            sentence(
                "not scopes of a token: {unknown}", unknown=unknown or "none given"
            )
        )
    text = ApiToken.draw()
    token = ApiToken.objects.create(
        user=user,
        label=label,
        token_hash=ApiToken.hash_token(text),
        scopes=sorted(set(scopes), key=_scope_sort_key),
        created_at=now,
        expires_at=now + timedelta(days=days),
    )
    AuditEntry.objects.create(
        at=now, actor=user, verb="token.created", subject=f"token:{token.pk}"
    )
    return token, text


@transaction.atomic(durable=True)
def revoke_token(*, token_id: int, user: User, now: datetime) -> bool:
    """Revoke one of the User's own tokens. False: not theirs, or revoked before."""
    revoked = ApiToken.objects.filter(pk=token_id, user=user, revoked_at=None).update(
        revoked_at=now
    )
    if revoked:
        AuditEntry.objects.create(
            at=now, actor=user, verb="token.revoked", subject=f"token:{token_id}"
        )
    return revoked == 1


def _scope_sort_key(scope: str) -> tuple[int, str]:
    """Return the position of a scope in a token's list."""
    return (ApiToken.SCOPES.index(scope.partition(":")[0]), scope)
