"""SAML assertions that were accepted: each works once."""

import secrets
from dataclasses import asdict
from datetime import datetime

from django.db import transaction

from reservations.accounts.identities.rules import Claims
from reservations.accounts.identities.unix_account import (
    NO_ACCOUNT,
    stored_account,
)
from reservations.models import ApiToken, UsedAssertion, User


def use_assertion(
    *, issuer: str, assertion_id: str, expires_at: datetime
) -> UsedAssertion | None:
    """Remember an assertion. None: it was used before."""
    text = f"{issuer} {assertion_id}"
    with transaction.atomic(durable=True):
        found, made = UsedAssertion.objects.get_or_create(
            assertion_hash=ApiToken.hash_token(text),
            defaults={"expires_at": expires_at},
        )
    return found if made else None


def keep_claims(used: UsedAssertion, *, user_pk: int, claims: Claims) -> str:
    """Keep the claims for the person who connects a login. Return the way to them."""
    token = secrets.token_urlsafe(32)
    groups = None if claims.groups is None else sorted(claims.groups)
    used.user_id = user_pk
    used.token_hash = ApiToken.hash_token(token)
    used.claims = asdict(claims) | {"groups": groups}
    if claims.unix == NO_ACCOUNT:
        # Release 0.1.0, which may run beside this one, does not know it.
        del used.claims["unix"]
    used.save(update_fields=["user", "token_hash", "claims"])
    return token


def take_claims(token: str, *, user: User, now: datetime) -> Claims | None:
    """Return kept claims, once. None: they are another person's, old or taken."""
    with transaction.atomic(durable=True):
        rows = UsedAssertion.objects.select_for_update(no_key=True, of=("self",))
        found = rows.filter(
            token_hash=ApiToken.hash_token(token), user=user, expires_at__gt=now
        ).first()
        if found is None or found.claims is None:
            return None
        values = found.claims
        found.claims, found.token_hash = None, ""
        found.save(update_fields=["claims", "token_hash"])
    groups, unix = values.pop("groups"), stored_account(values.pop("unix", None))
    return Claims(
        **values, groups=None if groups is None else frozenset(groups), unix=unix
    )
