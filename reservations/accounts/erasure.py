"""Erase a person: the row stays, without anything that identifies the person.

Ledger, audit log and summaries refer to the User's row, which gets an alias, so every
balance stays as it was. Texts that name the person get the alias too. In the ledger and
the audit log, whose rows never change, the names are struck out. The caller opens the
transaction, so that all apps erase together or not at all.
"""

import re
import secrets
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.db.models import CharField, Model, Q, TextField
from django.db.models.functions import Cast

from reservations.accounts.name_removal import (
    NotErasable,
    PersonNames,
    StillHolds,
    names_of,
)
from reservations.accounts.tree import service as accounts
from reservations.models import (
    Account,
    ApiToken,
    AuditEntry,
    CalendarFeed,
    Closure,
    CoUser,
    Delivery,
    Favourite,
    Identity,
    Invitation,
    LedgerEntry,
    Membership,
    Notice,
    NoticeSettings,
    Occurrence,
    Offer,
    OpenidConsent,
    OpenidSubject,
    RecoveryCode,
    RefusedRequest,
    RequestKey,
    Reservation,
    SecondFactor,
    Series,
    SignUp,
    SitePolicy,
    SshKey,
    TreeChange,
    TreeChangeRow,
    UsedAssertion,
    User,
    Voucher,
    WaitingRequest,
)
from reservations.models.triggers import STRUCK_JSON, STRUCK_TEXT
from reservations.store.audit_log import audit_act
from telemetry.protocol.sentences import counted, sentence

NAMING: tuple[tuple[type[Model], tuple[str, ...]], ...] = (
    (TreeChange, ("reason",)),
    (Closure, ("reason",)),
    (Offer, ("message", "terms")),
    (Occurrence, ("why",)),
    (Voucher, ("reason",)),
    (Notice, ("detail",)),
    (Delivery, ("error",)),
    (Reservation, ("purpose",)),
    (WaitingRequest, ("purpose",)),
    (Account.history.model, ("title", "history_change_reason")),
    (Account, ("title",)),
    (Membership.history.model, ("history_change_reason",)),
    (SitePolicy.history.model, ("history_change_reason",)),
)
"""Texts of this app that may name a person and may be rewritten."""
BATCH = 500


def names_to_erase(user: User) -> PersonNames:
    """Return all names of a User, and the alias."""
    alias = f"erased-{user.pk}"
    while User.objects.filter(username=alias).exclude(pk=user.pk).exists():
        alias += "x"
    words = (
        user.username,
        user.display_name,
        user.unix_user,
        user.email,
        user.get_full_name(),
    )
    return names_of(alias, words, _single_names(user))


def _single_names(user: User) -> list[str]:
    """Return first and last name alone, unless another User has the same one."""
    parts = {user.first_name, user.last_name, *user.display_name.split()}
    others = User.objects.filter(erased_at=None).exclude(pk=user.pk)
    return [
        name
        for name in sorted(parts - {""})
        if not others.filter(
            Q(first_name=name)
            | Q(last_name=name)
            | Q(display_name__iregex=rf"(^|\s){re.escape(name)}(\s|$)")
        ).exists()
    ]


def check_erasable(user: User, *, typed: str, actor: User | None) -> None:
    """Refuse an erasure, which cannot be undone, that is not meant or comes too early.

    Raises:
        NotErasable: the name was not typed, the person was erased before, is the
            operator, or is the actor.
        StillHolds: the person has live reservations, or sponsors a guest.
    """
    if user.erased_at is not None:
        raise NotErasable(why=sentence("This person has been erased already"))
    if user.is_superuser or user.is_staff or (actor and actor.pk == user.pk):
        raise NotErasable(
            why=sentence("An admin cannot be erased. Take the admin rights away first")
        )
    if typed != user.username:
        raise NotErasable(
            why=sentence("Type “{username}” to confirm", username=user.username)
        )
    held = Reservation.objects.live().filter(user=user).count()
    if held:
        raise StillHolds(
            what=counted("holds {n} reservation", "holds {n} reservations", held)
        )
    if WaitingRequest.objects.waiting().filter(user=user).exists():
        raise StillHolds(what=sentence("has waiting requests"))
    guest = Membership.objects.filter(sponsor=user, active=True).first()
    if guest is not None:
        raise StillHolds(
            what=sentence(
                "is the sponsor of a guest in {account}", account=guest.account
            )
        )


def erase(
    *, user_id: int, typed: str, actor: User | None, now: datetime
) -> PersonNames:
    """Remove everything that identifies a User, in the caller's transaction.

    Raises:
        NotErasable, StillHolds.
    """
    accounts.lock_tree()
    user = User.objects.select_for_update(no_key=True, of=("self",)).get(pk=user_id)
    check_erasable(user, typed=typed, actor=actor)
    names = names_to_erase(user)
    _drop_own(user, now)
    for model, fields in NAMING:
        rewrite(model, fields, names)
    _rewrite_titles(names)
    _strike_names(names)
    _blank(user, names, now)
    audit_act(verb="person.erased", subject=f"user:{user.pk}", actor=actor, now=now)
    return names


def _drop_own(user: User, now: datetime) -> None:
    """Delete what only this person had, and end their part in what others have."""
    Delivery.objects.filter(notice__user=user).delete()
    RefusedRequest.objects.filter(membership__user=user).delete()
    own = (
        *(Notice, ApiToken, SshKey, RequestKey, Identity, Invitation, NoticeSettings),
        *(SecondFactor, RecoveryCode, OpenidConsent, OpenidSubject),
        *(SignUp, UsedAssertion),
    )
    for model in (*own, CalendarFeed, Favourite):
        model._default_manager.filter(user=user).delete()
    Reservation.objects.filter(user=user).exclude(purpose="").update(purpose="")
    WaitingRequest.objects.filter(user=user).exclude(purpose="").update(purpose="")
    Series.objects.filter(user=user).update(purpose="", state=Series.State.ENDED)
    Offer.objects.filter(made_by=user).update(message="")
    written = Notice.objects.filter(kind=Notice.Kind.ASKED, detail__person=user.pk)
    for told in written:
        told.detail = {**told.detail, "reason": ""}
        told.save(update_fields=["detail"])
    CoUser.objects.sharing().filter(user=user).update(removed_at=now)
    rows = user.memberships.filter(Q(active=True) | ~Q(sponsor=None))
    for row in rows:
        row.active, row.is_head, row.sponsor = False, False, None
        row.version += 1
        row._change_reason = "erased"  # type: ignore[attr-defined]
        row.save()


def _blank(user: User, names: PersonNames, now: datetime) -> None:
    user.username = user.display_name = names.alias
    user.first_name = user.last_name = user.email = user.unix_user = ""
    user.password = "!" + secrets.token_urlsafe(30)
    user.is_active = False
    user.last_login = None
    user.hue = User._meta.get_field("hue").default
    user.time_zone, user.language, user.tour_seen_at = "", "", None
    user.erased_at = now
    user.save()
    user.groups.clear()
    user.user_permissions.clear()


def _naming(
    model: type[Model], fields: Iterable[str], names: PersonNames
) -> Iterable[Any]:
    """Return the rows of a table in which a text may name the person."""
    rows = model._default_manager.order_by("pk")
    wanted = Q(pk__in=[])
    for name in fields:
        column = model._meta.get_field(name)
        if not isinstance(column, CharField | TextField):
            rows = rows.annotate(**{f"{name}_text": Cast(name, TextField())})
            name = f"{name}_text"
        for word in names.searched:
            wanted |= Q(**{f"{name}__icontains": word})
    return rows.filter(wanted).iterator(chunk_size=BATCH) if names.names else ()


def rewrite(model: type[Model], fields: tuple[str, ...], names: PersonNames) -> int:
    """Put the alias in place of a person's names. Return how many rows changed."""
    changed = 0
    for row in list(_naming(model, fields, names)):
        values = {}
        for name in fields:
            old = getattr(row, name)
            new = (
                names.without(old) if isinstance(old, str) else names.json_without(old)
            )
            if new != old:
                limit = getattr(model._meta.get_field(name), "max_length", None)
                values[name] = new[:limit] if isinstance(new, str) else new
        if values:
            model._default_manager.filter(pk=row.pk).update(**values)
            changed += 1
    return changed


def _rewrite_titles(names: PersonNames) -> None:
    """Rewrite the titles of Accounts. Their names identify nobody."""
    for row in list(_naming(TreeChangeRow, ("before", "after"), names)):
        for values in (row.before, row.after):
            if values and values.get("title"):
                values["title"] = names.without(values["title"])
        row.save(update_fields=["before", "after"])


def _strike_names(names: PersonNames) -> None:
    """Strike out texts of the ledger and the audit log that name the person."""
    for entry in list(_naming(LedgerEntry, ("reason",), names)):
        if names.inside(entry.reason):
            LedgerEntry.objects.filter(pk=entry.pk).update(reason=STRUCK_TEXT)
    for entry in list(_naming(AuditEntry, ("reason", "detail"), names)):
        values: dict[str, Any] = {}
        if names.inside(entry.reason):
            values["reason"] = STRUCK_TEXT
        if names.json_without(entry.detail) != entry.detail:
            values["detail"] = STRUCK_JSON
        if values:
            AuditEntry.objects.filter(pk=entry.pk).update(**values)
