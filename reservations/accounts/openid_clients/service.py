"""Register services, store what people agree to, issue and end codes and tokens.

The acts of operators and of people are in the audit log. A replayed code or refresh
token is, too.
"""

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from django.core.signing import BadSignature, Signer
from django.db import transaction
from django.db.models import QuerySet

from reservations.accounts.openid_clients.rules import (
    ACCESS_LASTS,
    CODE_LASTS,
    MOST_REFRESHES,
    REFRESH_LASTS,
    REFRESHES_PERIOD,
)
from reservations.models import (
    ApiToken,
    OpenidClient,
    OpenidCode,
    OpenidConsent,
    OpenidSubject,
    OpenidToken,
    User,
)
from reservations.rules.errors import NotFound, TooFast
from reservations.store.audit_log import audit_act
from telemetry.protocol.sentences import sentence

Row = TypeVar("Row", OpenidCode, OpenidToken)

# --- services, by operators -------------------------------------------------------


@dataclass(frozen=True)
class ClientFields:
    """The fields of a service that an operator enters."""

    name: str
    redirect_uris: Sequence[str]
    scopes: Sequence[str]


def make_client(
    *, fields: ClientFields, public: bool, actor: User, now: datetime
) -> tuple[OpenidClient, str]:
    """Register a service. Return it with its secret, which is not stored.

    Args:
        public: it gets no secret, and "" is returned.
    """
    secret = "" if public else OpenidClient.draw_secret()
    with transaction.atomic(durable=True):
        client = OpenidClient.objects.create(
            client_id=OpenidClient.draw_id(),
            name=fields.name,
            redirect_uris=list(fields.redirect_uris),
            scopes=list(fields.scopes),
            secret_hash=ApiToken.hash_token(secret) if secret else "",
            secret_at=now if secret else None,
            made_by=actor,
            created_at=now,
        )
        _audit("openid.client-made", client, actor, now, after=_logged(client))
    return client, secret


def change_client(
    *, client_pk: int, fields: ClientFields, actor: User, now: datetime
) -> bool:
    """Change a service. Return whether anything changed.

    Raises:
        NotFound: it was deleted meanwhile.
    """
    with transaction.atomic(durable=True):
        client = _locked(client_pk)
        before = _logged(client)
        client.name = fields.name
        client.redirect_uris = list(fields.redirect_uris)
        client.scopes = list(fields.scopes)
        after = _logged(client)
        if before == after:
            return False
        client.save(update_fields=["name", "redirect_uris", "scopes"])
        _audit("openid.client-changed", client, actor, now, before=before, after=after)
    return True


def rotate_secret(*, client_pk: int, actor: User, now: datetime) -> str:
    """Replace the secret of a service. The previous one no longer works.

    Raises:
        NotFound: it was deleted meanwhile, or is public.
    """
    secret = OpenidClient.draw_secret()
    with transaction.atomic(durable=True):
        client = _locked(client_pk)
        if client.public:
            raise NotFound(what=sentence("secret of a public service"))
        client.secret_hash, client.secret_at = ApiToken.hash_token(secret), now
        client.save(update_fields=["secret_hash", "secret_at"])
        _audit("openid.secret-replaced", client, actor, now)
    return secret


def set_enabled(*, client_pk: int, enabled: bool, actor: User, now: datetime) -> None:
    """Switch a service off or on. Off ends its codes and tokens. Consents stay.

    Raises:
        NotFound: it was deleted meanwhile.
    """
    with transaction.atomic(durable=True):
        client = _locked(client_pk)
        if client.enabled == enabled:
            return
        client.enabled = enabled
        client.save(update_fields=["enabled"])
        if not enabled:
            OpenidToken.objects.filter(consent__client=client).delete()
            OpenidCode.objects.filter(consent__client=client).delete()
        verb = "openid.client-on" if enabled else "openid.client-off"
        _audit(verb, client, actor, now)


def delete_client(*, client_pk: int, actor: User, now: datetime) -> str:
    """Delete a service with all consents, codes and tokens. Return its name.

    Raises:
        NotFound: it was deleted meanwhile.
    """
    with transaction.atomic(durable=True):
        client = _locked(client_pk)
        people = client.consents.count()
        _audit("openid.client-deleted", client, actor, now, people=people)
        client.delete()
    return client.name


def _locked(client_pk: int) -> OpenidClient:
    rows = OpenidClient.objects.select_for_update(no_key=True, of=("self",))
    found = rows.filter(pk=client_pk).first()
    if found is None:
        raise NotFound(what=sentence("such service"))
    return found


def _lock(client: OpenidClient) -> None:
    """Let no other transaction issue or end codes and tokens of a service."""
    rows = OpenidClient.objects.select_for_update(no_key=True, of=("self",))
    rows.filter(pk=client.pk).first()


def _logged(client: OpenidClient) -> dict[str, object]:
    return {
        "name": client.name,
        "redirect_uris": list(client.redirect_uris),
        "scopes": list(client.scopes),
        "public": client.public,
    }


def _audit(
    verb: str, client: OpenidClient, actor: User | None, now: datetime, **detail: object
) -> None:
    subject = f"openid_client:{client.pk}"
    audit_act(verb=verb, subject=subject, actor=actor, now=now, reason="", **detail)


# --- consents, by people ----------------------------------------------------------


def give_consent(
    *, user: User, client: OpenidClient, scopes: Sequence[str], now: datetime
) -> None:
    """Store that a person agreed. Scopes that they agreed to before stay.

    Raises:
        NotFound: the service was deleted meanwhile.
    """
    with transaction.atomic(durable=True):
        client = _locked(client.pk)
        OpenidSubject.objects.get_or_create(user=user)
        found, made = OpenidConsent.objects.get_or_create(
            user=user,
            client=client,
            defaults={"scopes": list(scopes), "given_at": now, "used_at": now},
        )
        if not made:
            added = [one for one in scopes if one not in found.scopes]
            if not added:
                return
            found.scopes, found.given_at = [*found.scopes, *added], now
            found.save(update_fields=["scopes", "given_at"])
        _audit("openid.consent-given", client, user, now, scopes=found.scopes)


def end_consent(*, consent_pk: int, user: User, now: datetime) -> str | None:
    """End one of a person's own consents, with its codes and tokens.

    Returns:
        The name of the service; None: not theirs, or ended before.
    """
    with transaction.atomic(durable=True):
        rows = OpenidConsent.objects.filter(pk=consent_pk, user=user)
        found = rows.select_related("client").first()
        if found is None:
            return None
        _lock(found.client)
        _audit("openid.consent-ended", found.client, user, now)
        found.delete()
    return found.client.name


def end_tokens(user: User) -> int:
    """End every code and token of a person. Return how many tokens.

    The caller opens the transaction and writes the audit log.
    """
    # Wait for codes and refresh tokens that are being used, and then end what they
    # gave, too.
    clients = OpenidClient.objects.select_for_update(no_key=True, of=("self",))
    list(clients.filter(consents__user=user).order_by("pk").values_list("pk"))
    OpenidCode.objects.filter(consent__user=user).delete()
    return OpenidToken.objects.filter(consent__user=user).delete()[0]


# --- codes and tokens -------------------------------------------------------------


def issue_code(
    *,
    text: str,
    user: User,
    client: OpenidClient,
    scopes: Sequence[str],
    redirect_uri: str,
    nonce: str,
    challenge: str,
    signed_in_at: datetime,
    second_factor: bool,
    now: datetime,
) -> bool:
    """Store a code, which works once, within a minute.

    Returns:
        Whether it was stored. False: the person's consent was ended meanwhile.
    """
    with transaction.atomic(durable=True):
        _lock(client)
        consent = OpenidConsent.objects.filter(user=user, client=client).first()
        if consent is None:
            return False
        consent.used_at = now
        consent.save(update_fields=["used_at"])
        OpenidCode.objects.create(
            consent=consent,
            scopes=list(scopes),
            code_hash=ApiToken.hash_token(text),
            redirect_uri=redirect_uri,
            nonce=nonce,
            challenge=challenge,
            signed_in_at=signed_in_at,
            second_factor=second_factor,
            expires_at=now + CODE_LASTS,
        )
    return True


def redeem(text: str, client: OpenidClient, now: datetime) -> OpenidCode | None:
    """Return the code of a text, locked; None: it gives nothing.

    A used code ends the tokens that it gave, because one of the two users is a thief
    (RFC 6749, section 4.1.2). The caller opens the transaction.
    """
    rows = _locked_rows(OpenidCode.objects.all(), client)
    found = rows.filter(code_hash=ApiToken.hash_token(text)).first()
    if found is None:
        return None
    if found.used_at is not None:
        ended = _end_sign_in(found.consent, code=found)
        _audit_replay("openid.code-replayed", found.consent, now, tokens=ended)
        return None
    if found.expires_at <= now or not found.consent.user.is_active:
        return None
    return found


def _locked_rows(rows: QuerySet[Row], client: OpenidClient) -> QuerySet[Row]:
    """Return the codes or tokens of a service, each locked when it is read."""
    _lock(client)
    return (
        rows.select_for_update(no_key=True, of=("self",))
        .filter(consent__client=client)
        .select_related("consent__user", "consent__client")
    )


def mark_used(code: OpenidCode, now: datetime) -> None:
    """Remember that a code was redeemed."""
    code.used_at = now
    code.save(update_fields=["used_at"])


def refreshable(text: str, client: OpenidClient, now: datetime) -> OpenidToken | None:
    """Return the token of a refresh token, locked; None: it gives nothing.

    A refresh token works once. A used one ends all tokens of the person at the service
    (RFC 9700, section 4.14.2). The caller opens the transaction.

    Raises:
        TooFast: the service refreshed this consent too often within an hour.
    """
    rows = _locked_rows(OpenidToken.objects.all(), client)
    found = rows.filter(refresh_hash=ApiToken.hash_token(text)).first()
    if found is None:
        _end_if_used_long_ago(text, client, now)
        return None
    if found.replaced_at is not None:
        ended = _end_sign_in(found.consent)
        _audit_replay("openid.refresh-replayed", found.consent, now, tokens=ended)
        return None
    until = found.refresh_until
    if until is None or until <= now or not found.consent.user.is_active:
        return None
    _check_refreshes(found.consent, now)
    return found


def _check_refreshes(consent: OpenidConsent, now: datetime) -> None:
    recent = consent.openidtokens.filter(replaced_at__gt=now - REFRESHES_PERIOD)
    times = recent.order_by("-replaced_at").values_list("replaced_at", flat=True)
    oldest = times[MOST_REFRESHES - 1 : MOST_REFRESHES].first()
    if oldest is not None:
        left = oldest + REFRESHES_PERIOD - now
        raise TooFast(per_minute=1, retry_seconds=math.ceil(left.total_seconds()))


def draw_refresh(code_pk: int | None) -> str:
    """Return the text of a new refresh token.

    It names the code of its sign-in and is signed. So a replay is noticed after the row
    of the used token was deleted.

    Args:
        code_pk: of the code that gave it, or that gave the tokens before it.
    """
    return _refresh_signer().sign(f"{code_pk or 0}-{secrets.token_urlsafe(32)}")


def _refresh_signer() -> Signer:
    return Signer(sep=".", salt="reservations.openid.refresh")


def _end_if_used_long_ago(text: str, client: OpenidClient, now: datetime) -> None:
    """End what a used refresh token gave, if its row was deleted since."""
    try:
        named = _refresh_signer().unsign(text)
    except BadSignature:
        return
    rows = OpenidToken.objects.filter(consent__client=client)
    live = rows.filter(code_id=int(named.partition("-")[0])).first()
    if live is not None:
        ended = _end_sign_in(live.consent)
        _audit_replay("openid.refresh-replayed", live.consent, now, tokens=ended)


def store_token(
    *,
    access: str,
    refresh: str | None,
    scopes: Sequence[str],
    of: OpenidCode | OpenidToken,
    now: datetime,
) -> OpenidToken:
    """Store a new access token, with a refresh token if there is one.

    Args:
        of: the code or the refresh token that gives it.
    """
    if isinstance(of, OpenidCode):
        code: OpenidCode | None = of
        until = now + REFRESH_LASTS
    else:
        code, until = of.code, of.refresh_until or now
    return OpenidToken.objects.create(
        consent=of.consent,
        code=code,
        scopes=list(scopes),
        access_hash=ApiToken.hash_token(access),
        refresh_hash=ApiToken.hash_token(refresh) if refresh else None,
        refresh_until=until if refresh else None,
        signed_in_at=of.signed_in_at,
        second_factor=of.second_factor,
        expires_at=now + ACCESS_LASTS,
    )


def replace_token(token: OpenidToken, now: datetime) -> None:
    """End an access token whose refresh token was used.

    Of the used ones of a consent, those stay that ``refreshable`` counts.
    """
    token.replaced_at = token.expires_at = now
    token.save(update_fields=["replaced_at", "expires_at"])
    used = token.consent.openidtokens.filter(replaced_at__isnull=False)
    newest_first = used.order_by("-replaced_at", "-pk").values_list("pk", flat=True)
    OpenidToken.objects.filter(pk__in=list(newest_first[MOST_REFRESHES:])).delete()


def revoke_token(token: OpenidToken) -> None:
    """End a token, and what its refresh token has given since (RFC 7009).

    The caller opens the transaction. A refresh at the same time is waited for, and what
    it gives ends, too.
    """
    _lock(token.consent.client)
    if token.code is not None:
        _end_sign_in(token.consent, code=token.code)
    OpenidToken.objects.filter(pk=token.pk).delete()


def clear_tokens(now: datetime) -> int:
    """Delete codes and tokens that have ended. Return how many.

    A used refresh token stays as long as it could have worked, to notice a replay.
    ``replace_token`` may delete it before.
    """
    ended = OpenidToken.objects.filter(expires_at__lt=now)
    gone = ended.filter(refresh_until=None).delete()[0]
    gone += ended.filter(refresh_until__lt=now).delete()[0]
    # A code stays as long as the tokens that a replay would end.
    codes = OpenidCode.objects.filter(expires_at__lt=now, tokens=None)
    return gone + codes.delete()[0]


def _end_sign_in(consent: OpenidConsent, code: OpenidCode | None = None) -> int:
    rows = OpenidToken.objects.filter(consent=consent)
    if code is not None:
        rows = rows.filter(code=code)
    return rows.delete()[0]


def _audit_replay(
    verb: str, consent: OpenidConsent, now: datetime, *, tokens: int
) -> None:
    """Write the row, unless a replay before has ended all tokens and written it."""
    if not tokens:
        return
    audit_act(
        verb=verb,
        subject=f"user:{consent.user_id}",
        actor=None,
        now=now,
        service=consent.client.name,
        tokens=tokens,
    )
