"""The Unix logins of people, by which their processes are found.

The Unix login of a person is the Unix user that the operator set. Without one it is the
user name, unless the person may have chosen that name. Two people with one Unix login
share their processes, so new values may not make such a pair. Pairs that exist already
stay, because a site may have made them on purpose.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from django.db.models import Q, QuerySet
from django.db.models.functions import Lower

from reservations.models import UNIX_LOGIN_UNKNOWN, User
from telemetry.protocol.sentences import sentence

SYSTEM_ACCOUNTS = re.compile(
    "root|daemon|bin|sys|sync|games|man|lp|mail|news|uucp|proxy|www-data|backup|list"
    "|irc|gnats|_apt|nobody|sshd|messagebus|polkitd|avahi|dnsmasq|_chrony|tss|uuidd"
    "|postfix|postgres|redis|mysql|munge|slurm|gpuportal|systemd-[a-z-]+"
)
"""The accounts of Debian's package base-passwd, and those of well-known services."""
BATCH = 500
"""SQLite limits the number of values of a query."""


@dataclass(frozen=True, slots=True)
class LoginFault:
    """Why a person cannot have a user name or a Unix user."""

    field: str
    """``username`` or ``unix_user``."""
    text: str


def unix_login(user: User) -> str:
    """Return the Unix login of a person: the one that the operator set, or the user
    name. "": it is not known, because the person may have chosen the user name.
    """
    if user.unix_user or has_chosen_name(user):
        return user.unix_user
    return user.username


def has_chosen_name(user: User) -> bool:
    """Return whether a person may have chosen the user name at a provider."""
    return (
        user.name_from_provider
        or user.identities.filter(name_from_provider=True).exists()
    )


def unix_uid(user: User) -> int:
    """Return the uid that the Unix user of a person has on every node.

    0: nobody said it, because an admin set the Unix user. Cost: one query.
    """
    if not user.unix_user:
        return 0
    rows = user.identities.filter(unix_user=user.unix_user).exclude(unix_uid=None)
    return rows.values_list("unix_uid", flat=True).first() or 0


def login_fault(user: User, changed: Collection[str]) -> LoginFault | None:
    """Return why a person cannot be saved with a changed user name or Unix user.

    Args:
        user: with the new values. Their row has the old ones, or is not stored yet.
        changed: names of the changed fields. Other fields are not checked.
    """
    if "username" in changed and (
        _others(user).filter(username__iexact=user.username).exists()
    ):
        return LoginFault("username", sentence("Another person has this user name."))
    name = user.unix_user
    if name and "unix_user" in changed:
        if SYSTEM_ACCOUNTS.fullmatch(name):
            text = sentence(
                "“{name}” is a system account. Enter the account of a person.",
                name=name,
            )
            return LoginFault("unix_user", text)
        if (other := _others(user).filter(unix_user=name).first()) is not None:
            return LoginFault("unix_user", _has_unix_user(other, name))
        own_name = Q(unix_user="", is_active=True, username__iexact=name)
        rows = _others(user).filter(own_name).exclude(UNIX_LOGIN_UNKNOWN)
        if (other := rows.first()) is not None:
            text = sentence(
                "“{name}” is the user name of {person}, who has no Unix user. Set the "
                "Unix user of {person} first.",
                name=name,
                person=str(other),
            )
            return LoginFault("unix_user", text)
    becomes_login = not name and {"unix_user", "is_active"} & set(changed)
    if "username" in changed or (user.is_active and becomes_login):
        other = _others(user).filter(unix_user__iexact=user.username).first()
        if other is not None:
            field = "username" if "username" in changed else "unix_user"
            return LoginFault(field, _has_unix_user(other, user.username))
    return None


def new_username_faults(usernames: Iterable[str]) -> dict[str, str]:
    """Return why new people cannot have user names, by user name.

    Cost: two queries for each 500 names.
    """
    names = sorted(set(usernames))
    found: dict[str, str] = {}
    for first in range(0, len(names), BATCH):
        batch = {name.lower(): name for name in names[first : first + BATCH]}
        rows = User.objects.filter(erased_at=None).order_by()
        for other in rows.annotate(low=Lower("username")).filter(low__in=batch):
            found[batch[other.username.lower()]] = sentence(
                "“{name}” is the user name of {person}",
                name=other.username,
                person=str(other),
            )
        for owner in rows.filter(unix_user__in=batch):
            name = batch[owner.unix_user]
            found[name] = sentence(
                "“{name}” is the Unix user of {person}", name=name, person=str(owner)
            )
    return found


def shared_unix_logins() -> dict[str, tuple[str, ...]]:
    """Return the Unix logins that several people have, with their user names."""
    rows = User.objects.filter(erased_at=None).exclude(UNIX_LOGIN_UNKNOWN)
    rows = rows.exclude(unix_user="", is_active=False).order_by("username")
    found: dict[str, list[str]] = {}
    for username, unix_user in rows.values_list("username", "unix_user"):
        found.setdefault(unix_user or username, []).append(username)
    return {
        name: tuple(people) for name, people in sorted(found.items()) if len(people) > 1
    }


def _others(user: User) -> QuerySet[User]:
    return User.objects.filter(erased_at=None).exclude(pk=user.pk)


def _has_unix_user(other: User, name: str) -> str:
    return sentence(
        "“{name}” is the Unix user of {person}, who would lose their processes to "
        "this person.",
        name=name,
        person=str(other),
    )
