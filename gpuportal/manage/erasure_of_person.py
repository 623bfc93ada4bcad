"""Erase a person in all apps at once: everything, or nothing."""

from datetime import datetime

from axes.models import AccessAttempt, AccessFailureLog, AccessLog
from django.contrib.admin.models import LogEntry
from django.db import connection, transaction

from placement.jobs import job_erasure
from reservations.accounts import erasure
from reservations.accounts.name_removal import PersonNames
from reservations.models import User
from telemetry.alerts.alert_erasure import forget_names


def check(user: User, *, typed: str, actor: User | None) -> None:
    """Refuse an erasure that is not confirmed, or of a person who still holds
    something.

    Raises:
        NotErasable, StillHolds.
    """
    erasure.check_erasable(user, typed=typed, actor=actor)
    job_erasure.check_no_jobs(user)


def erase(*, user_id: int, typed: str, actor: User | None, now: datetime) -> str:
    """Erase a User's identity. Return the alias that stays.

    Raises:
        NotErasable, StillHolds.
    """
    with transaction.atomic(durable=True):
        user = User.objects.get(pk=user_id)
        login = user.username
        names = erasure.erase(user_id=user_id, typed=typed, actor=actor, now=now)
        job_erasure.forget(user=user, names=names)
        forget_names(
            searched=names.searched,
            without=names.without,
            json_without=names.json_without,
        )
        _forget_at_the_door(login, names)
    _truncate_write_ahead_log()
    return names.alias


def _truncate_write_ahead_log() -> None:
    """Write SQLite's log, which has pages from before, back into the file.

    Deleted data are overwritten in the file (settings: ``secure_delete``), so that a
    copy of it, for example a backup, names no erased person.
    """
    if connection.vendor == "sqlite" and not connection.in_atomic_block:
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _forget_at_the_door(login: str, names: PersonNames) -> None:
    """Erase logins and entries of Django's admin log."""
    for model in (AccessAttempt, AccessFailureLog, AccessLog):
        model.objects.filter(username__iexact=login).delete()
    erasure.rewrite(LogEntry, ("object_repr", "change_message"), names)
