"""The operator's changes to a person: account, password link, sessions."""

import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from http import HTTPStatus
from typing import Any

from django.contrib.auth import SESSION_KEY
from django.contrib.sessions.models import Session
from django.db import transaction

from reservations.accounts import invitations
from reservations.accounts.openid_clients.service import end_tokens
from reservations.accounts.tree.service import lock_tree
from reservations.models import ApiToken, Invitation, User
from reservations.rules.errors import NotAllowed, NotFound
from reservations.store.audit_log import audit_act
from reservations.store.unix_logins import login_fault
from telemetry.protocol.coded_error import CodedError
from telemetry.protocol.sentences import joined, sentence

AUDITED = ("unix_user", "is_active", "is_superuser")
"""Fields whose values the audit log stores. Of others it stores the name."""
LINK_DAYS = 2
"""A password link is short-lived, because it opens an account that may be in use."""


@dataclass(eq=False)
class LoginTaken(CodedError):
    """A user name or a Unix user belongs to another person, or to the system."""

    code = "login-taken"
    title = sentence("This user name or Unix user is taken")
    status = HTTPStatus.CONFLICT
    problems: tuple[str, ...] = ()

    def text(self, zone: tzinfo = UTC) -> str:
        return joined(self.problems) if self.problems else self.title


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
        NotAllowed: operators cannot take their own rights away, and one operator stays.
        LoginTaken: the Unix user is another person's, or a system account.
    """
    with transaction.atomic(durable=True):
        lock_tree()
        changes = _change(user_id, fields, actor=actor, now=now)
        _check_logins({user_id: changes})
    return changes


def set_unix_users(
    wanted: Mapping[int, str], *, actor: User, now: datetime
) -> dict[int, dict[str, list[Any]]]:
    """Set the Unix users of many people, or of none. People may exchange theirs.

    Returns:
        What changed, by person.

    Raises:
        NotFound: no such person, or the person was erased.
        LoginTaken: with every Unix user that is another person's, or a system account.
    """
    with transaction.atomic(durable=True):
        lock_tree()
        changes = {
            pk: _change(pk, {"unix_user": name}, actor=actor, now=now)
            for pk, name in wanted.items()
        }
        _check_logins(changes)
    return changes


def _check_logins(changes: Mapping[int, Collection[str]]) -> None:
    """Refuse Unix logins of other people. The transaction has the new values."""
    wrong = []
    for pk, changed in changes.items():
        user = User.objects.get(pk=pk)
        fault = login_fault(user, changed)
        if fault is not None:
            wrong.append(
                sentence("{person}: {fault}", person=user.username, fault=fault.text)
                if len(changes) > 1
                else fault.text
            )
    if wrong:
        raise LoginTaken(tuple(wrong))


def is_last_operator(user: User) -> bool:
    """Return whether nobody else may manage the site. The tree is locked.

    The person who asks was an operator when the request began. Meanwhile another one
    may have ended that.
    """
    others = User.objects.filter(is_superuser=True, is_active=True).exclude(pk=user.pk)
    return user.is_superuser and user.is_active and not others.exists()


def _change(
    user_id: int, fields: Mapping[str, Any], *, actor: User, now: datetime
) -> dict[str, list[Any]]:
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
    if {"is_active", "is_superuser"} & set(changes) and is_last_operator(user):
        raise NotAllowed(act=sentence("end the rights of the last admin"))
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
    """Create a person who cannot sign in until a password link is used.

    Raises:
        LoginTaken: the user name or the Unix user is another person's.
    """
    with transaction.atomic(durable=True):
        lock_tree()
        user = User(username=username, **fields)
        fault = login_fault(user, ("username", "unix_user"))
        if fault is not None:
            raise LoginTaken((fault.text,))
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
