"""The operator's changes to a person: account, password link, sessions."""

import secrets
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth import SESSION_KEY
from django.contrib.sessions.models import Session
from django.db import transaction

from reservations.accounts import invitations
from reservations.accounts.openid_clients.service import end_tokens
from reservations.models import ApiToken, Invitation, User
from reservations.rules.errors import NotAllowed, NotFound
from reservations.store.audit_log import audit_act
from telemetry.protocol.sentences import sentence

AUDITED = ("unix_user", "is_active", "is_superuser")
"""Fields whose values the audit log stores. Of others it stores the name."""
LINK_DAYS = 2
"""A password link is short-lived, because it opens an account that may be in use."""


def sessions_of(user: User, *, now: datetime) -> list[Session]:
    """Return the browser sessions in which a User is signed in.

    Cost: every live session is decoded, about 50 microseconds each.
    """
    wanted = str(user.pk)
    return [
        row
        for row in Session.objects.filter(expire_date__gt=now).iterator()
        if row.get_decoded().get(SESSION_KEY) == wanted
    ]


def change(
    *, user_id: int, fields: Mapping[str, Any], actor: User, now: datetime
) -> dict[str, list[Any]]:
    """Set fields of a person; return the old and the new value of each changed field.

    A person who may no longer sign in is signed out everywhere.

    Raises:
        NotFound: no such person, or the person was erased.
        NotAllowed: operators cannot take their own rights away.
    """
    with transaction.atomic(durable=True):
        user = _locked(user_id)
        changes = {
            name: [getattr(user, name), value]
            for name, value in fields.items()
            if getattr(user, name) != value
        }
        if not changes:
            return {}
        if user.pk == actor.pk and {"is_active", "is_superuser"} & set(changes):
            raise NotAllowed(act=sentence("remove your own rights"))
        for name, (_before, after) in changes.items():
            setattr(user, name, after)
        if "is_superuser" in changes:
            # Django's own pages require this second flag.
            user.is_staff = user.is_superuser
        user.save(update_fields=[*changes, "is_staff"])
        if not user.is_active:
            _end_sessions(user, now)
            end_tokens(user)
        audit_act(
            verb="people.changed",
            subject=f"user:{user.pk}",
            actor=actor,
            now=now,
            # Names and mail addresses are not logged, because they are erased with the
            # person.
            changes={
                name: change if name in AUDITED else None
                for name, change in changes.items()
            },
        )
    return changes


def make(
    *, username: str, fields: Mapping[str, Any], actor: User, now: datetime
) -> User:
    """Create a person who cannot sign in until a password link is used."""
    with transaction.atomic(durable=True):
        user = User(username=username, **fields)
        user.set_unusable_password()
        user.save()
        audit_act(verb="people.made", subject=f"user:{user.pk}", actor=actor, now=now)
    return user


def password_link(*, user_id: int, actor: User, now: datetime) -> str:
    """Create a link with which a person chooses a new password. Older links end.

    The present password stays valid until the link is used.

    Returns:
        The text of the link. It cannot be shown again.

    Raises:
        NotFound: no such person, or they may not sign in.
    """
    with transaction.atomic(durable=True):
        user = _locked(user_id)
        if not user.is_active:
            raise NotFound(
                what=sentence("person who may sign in: switch the account on first")
            )
        Invitation.objects.filter(user=user, used_at=None).delete()
        text = secrets.token_urlsafe(32)
        fresh = user.password.startswith(invitations.UNUSABLE)
        Invitation.objects.create(
            user=user,
            link_hash=ApiToken.hash_token(text),
            made_by=actor,
            created_at=now,
            expires_at=now + timedelta(days=invitations.DAYS if fresh else LINK_DAYS),
        )
        audit_act(
            verb="people.password-link",
            subject=f"user:{user.pk}",
            actor=actor,
            now=now,
        )
    return text


def sign_out(*, user_id: int, actor: User, now: datetime) -> int:
    """End every browser session of a person. Return how many there were.

    The tokens that services have for the person end, too.

    Raises:
        NotFound: no such person.
    """
    with transaction.atomic(durable=True):
        user = _locked(user_id)
        ended = _end_sessions(user, now)
        tokens = end_tokens(user)
        if ended or tokens:
            audit_act(
                verb="people.signed-out",
                subject=f"user:{user.pk}",
                actor=actor,
                now=now,
                sessions=ended,
                service_tokens=tokens,
            )
    return ended


def end_other_sessions(*, user: User, kept: str | None, now: datetime) -> None:
    """End the browser sessions of a person except one."""
    rows = sessions_of(user, now=now)
    ended = [row.pk for row in rows if row.session_key != kept]
    Session.objects.filter(pk__in=ended).delete()


def _locked(user_id: int) -> User:
    rows = User.objects.select_for_update(no_key=True, of=("self",))
    found = rows.filter(pk=user_id, erased_at=None).first()
    if found is None:
        raise NotFound(what=sentence("such person"))
    return found


def _end_sessions(user: User, now: datetime) -> int:
    rows = sessions_of(user, now=now)
    Session.objects.filter(pk__in=[row.pk for row in rows]).delete()
    return len(rows)
