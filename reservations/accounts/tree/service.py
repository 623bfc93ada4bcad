"""Save and undo edits of the tree of Accounts, all of them or none."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from django.db import connection, transaction
from django.utils.crypto import get_random_string
from simple_history.utils import (
    bulk_create_with_history,
    bulk_update_with_history,
)

from reservations.accounts.tree.queries import read_tree, users_named
from reservations.accounts.tree.tree_edits import (
    Edit,
    Edited,
    EditsRefused,
    TreeStale,
    edited,
)
from reservations.accounts.tree.tree_rows import AccountInfo, MemberInfo
from reservations.accounts.tree.tree_undo import reverted
from reservations.models import (
    Account,
    Membership,
    Reservation,
    TreeChange,
    TreeChangeRow,
    User,
)
from reservations.rules.errors import NotFound
from reservations.store.audit_log import audit_act
from reservations.store.unix_logins import new_username_faults
from telemetry.protocol.sentences import Sentence, joined, sentence

TREE_LOCK = 0x47505554
"""Key of PostgreSQL's advisory lock, which lets only one edit of the tree run.

It is taken before the lock of any row, so that two moves cannot make a cycle.
"""
REASON_LENGTH = 100
"""The length that simple_history stores."""
BATCH = 500
Row = AccountInfo | MemberInfo


def preview_edits(edits: Sequence[Edit], *, now: datetime) -> Edited:
    """Return the tree that edits result in, without writing anything."""
    users = users_named(names_in(edits))
    new = {str(edit.fields["username"]) for edit in edits if edit.table == "user"}
    faults = new_username_faults(new - set(users))
    return edited(read_tree(), edits, users, now=now, faults=faults)


def names_in(edits: Iterable[Edit]) -> set[str]:
    """Return the login names that edits contain."""
    fields = ("user", "username", "sponsor")
    return {
        str(edit.fields[name])
        for edit in edits
        for name in fields
        if edit.fields.get(name)
    }


def lock_tree() -> None:
    """Lock the tree against other edits until this transaction ends."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [TREE_LOCK])


def save(
    *,
    edits: Sequence[Edit],
    actor: User | None,
    reason: str,
    now: datetime,
    kind: str = TreeChange.Kind.EDIT,
    check: Callable[[Edited], None] | None = None,
) -> TreeChange:
    """Make all edits, or none.

    Args:
        check: raises if the effects differ from the preview.

    Raises:
        TreeStale: a row was changed since it was shown.
        EditsRefused: with every problem of every edit.
    """
    with transaction.atomic(durable=True):
        lock_tree()
        done = preview_edits(edits, now=now)
        raise_problems(done)
        if check is not None:
            check(done)
        refuse_holders(done)
        return write(done, actor=actor, reason=reason, now=now, kind=kind)


def raise_problems(done: Edited) -> None:
    """Raise an error if edits have problems.

    Raises:
        TreeStale, EditsRefused.
    """
    for problem in done.problems:
        if problem.field == "version":
            text = problem.text
            what = text.values.get("what") if isinstance(text, Sentence) else None
            raise TreeStale(what=what if isinstance(what, str) else text)
    if done.problems:
        raise EditsRefused(problems=tuple(problem_sentences(done)))


def problem_sentences(done: Edited) -> list[str]:
    """Return the problems as sentences, each once."""
    found: list[str] = []
    for problem in done.problems:
        line = problem.edit.line
        row = sentence("Row {line}, ", line=line) if line else ""
        field = f"{problem.field}: " if problem.field else ""
        found.append(joined([row, field, problem.text, "."], by=""))
    return list(dict.fromkeys(found))


def refuse_holders(done: Edited) -> None:
    """Refuse to remove members who hold Gpus, because nobody would pay for them.

    Raises:
        EditsRefused.
    """
    leaving = deactivated_memberships(done)
    held = (
        Reservation.objects.live()
        .filter(membership_id__in=leaving)
        .order_by("membership_id")
        .values_list("membership__user__username", flat=True)
    )
    names = list(dict.fromkeys(held))[:5]
    if names:
        raise EditsRefused(
            problems=(
                sentence(
                    "{names} still hold reservations in this group. Cancel or "
                    "release these first, or give the group a last day.",
                    names=", ".join(names),
                ),
            )
        )


def deactivated_memberships(done: Edited) -> list[int]:
    """Return the stored Memberships that the edits deactivate."""
    return [
        pk
        for table, pk in done.changed
        if table == "member"
        and not done.after.members[pk].active
        and pk in done.before.members
        and done.before.members[pk].active
    ]


def undo(*, change_id: int, actor: User, now: datetime) -> TreeChange:
    """Revert every row of a change, if no later change touched one of them.

    New rows are switched off and never deleted, because other rows may refer to them.

    Raises:
        NotFound: no such change.
        TreeStale: one of its rows was changed since, or it was undone.
        EditsRefused: the tree would be wrong.
    """
    with transaction.atomic(durable=True):
        lock_tree()
        change = (
            TreeChange.objects.select_for_update(no_key=True, of=("self",))
            .filter(pk=change_id)
            .first()
        )
        if change is None:
            raise NotFound(what=sentence("change #{pk}", pk=change_id))
        if change.undone_by_id is not None:
            raise TreeStale(what=sentence("Change #{pk}", pk=change_id))
        rows = [
            (r.table, r.row_pk, r.before, r.version_after) for r in change.rows.all()
        ]
        done = reverted(read_tree(), rows, now=now)
        raise_problems(done)
        refuse_holders(done)
        made = write(
            done,
            actor=actor,
            reason=sentence("undoes change #{number}", number=change.pk),
            now=now,
            kind=TreeChange.Kind.UNDO,
        )
        TreeChange.objects.filter(pk=change.pk).update(undone_by=made)
    return made


# --- writing ----------------------------------------------------------------------


def write(
    done: Edited, *, actor: User | None, reason: str, now: datetime, kind: str
) -> TreeChange:
    """Store the changed rows, their history and the change, in a transaction."""
    kept = {
        "default_user": actor,
        "default_change_reason": reason[:REASON_LENGTH],
        "default_date": now,
        "batch_size": BATCH,
    }
    change = TreeChange.objects.create(
        at=now, actor=actor, kind=kind, reason=reason[:400]
    )
    users = _make_users(done)
    accounts = _store(Account, done, "account", users, {}, kept)
    members = _store(Membership, done, "member", users, accounts, kept)
    stored = {"account": accounts, "member": members}
    TreeChangeRow.objects.bulk_create(
        [
            TreeChangeRow(
                change=change,
                table=table,
                row_pk=stored[table].get(pk, pk),
                before=_json(done.before.rows(table).get(pk), stored, users),
                after=_json(done.after.rows(table)[pk], stored, users),
                version_after=_version_after(done, table, pk),
            )
            for table, pk in done.changed
        ],
        batch_size=BATCH,
    )
    audit_act(
        verb=f"tree.{kind}",
        subject=f"change:{change.pk}",
        actor=actor,
        now=now,
        reason=reason,
        rows=len(done.changed),
        new_logins=len(users),
    )
    return change


def _version_after(done: Edited, table: str, pk: int) -> int:
    return done.after.rows(table)[pk].version + (pk in done.before.rows(table))


def _make_users(done: Edited) -> dict[int, int]:
    """Create the new logins. They cannot sign in until they are invited."""
    made = []
    for fields in done.new_users.values():
        user = User(
            username=fields["username"],
            display_name=fields.get("display_name", "")[:80],
            email=fields.get("email", "")[:254],
        )
        # As set_unusable_password, without hashing 300 times.
        user.password = "!" + get_random_string(40)
        made.append(user)
    User.objects.bulk_create(made, batch_size=BATCH)
    return {pk: user.pk for pk, user in zip(done.new_users, made, strict=True)}


def _store(
    model: type[Account] | type[Membership],
    done: Edited,
    table: str,
    users: dict[int, int],
    accounts: dict[int, int],
    kept: dict[str, Any],
) -> dict[int, int]:
    """Write new and changed rows. Return the keys of new rows."""
    before, after = done.before.rows(table), done.after.rows(table)
    pks = [pk for name, pk in done.changed if name == table]
    new = [pk for pk in pks if pk not in before]
    got: dict[int, int] = {}
    # An Account may be below a new one, so parents are created first, level by level.
    while new:
        ready = [pk for pk in new if _parent(after[pk]) not in new]
        rows = [
            model(**_columns(after[pk], users, accounts | got, new=True))
            for pk in ready
        ]
        made = bulk_create_with_history(rows, model, **kept)
        got |= {pk: row.pk for pk, row in zip(ready, made, strict=True)}
        new = [pk for pk in new if pk not in got]
    old = sorted(pk for pk in pks if pk in before)
    if old:
        # In key order, as bookings lock them.
        held = model._default_manager.filter(pk__in=old).order_by("pk")
        list(held.select_for_update(no_key=True).values_list("pk"))
        rows = [
            model(pk=pk, **_columns(after[pk], users, accounts | got, new=False))
            for pk in old
        ]
        names = sorted(set(_columns(after[old[0]], users, accounts, new=False)))
        _keep_others(model, rows, names)
        bulk_update_with_history(rows, model, names, **kept)
    return got


def _keep_others(
    model: type[Account] | type[Membership], rows: list[Any], names: list[str]
) -> None:
    """Fill the columns that edits do not have, so that the history is complete."""
    others = [f.attname for f in model._meta.concrete_fields if f.attname not in names]
    pks = [row.pk for row in rows]
    for first in range(0, len(pks), BATCH):
        found = model._default_manager.filter(pk__in=pks[first : first + BATCH])
        stored = {line["id"]: line for line in found.order_by().values(*others)}
        for row in rows[first : first + BATCH]:
            for name in others:
                setattr(row, name, stored[row.pk][name])


def _parent(row: Row) -> int | None:
    return row.parent_pk if isinstance(row, AccountInfo) else None


def _columns(
    row: Row, users: dict[int, int], accounts: dict[int, int], *, new: bool
) -> dict[str, Any]:
    """Return the columns of a row, with stored keys."""
    version = row.version + (not new)
    same = {
        "shares": row.shares,
        "quota_gpu_seconds": row.quota_gpu_seconds,
        "version": version,
    }
    if isinstance(row, AccountInfo):
        parent = row.parent_pk
        return same | {
            "name": row.name,
            "title": row.title,
            "parent_id": accounts.get(parent or 0, parent),
            "ends_at": row.ends_at,
            "archived_at": row.archived_at,
        }
    sponsor = row.sponsor_pk
    return same | {
        "user_id": users.get(row.user_pk, row.user_pk),
        "account_id": accounts.get(row.account_pk, row.account_pk),
        "is_head": row.is_head,
        "active": row.active,
        "expires_at": row.expires_at,
        "sponsor_id": users.get(sponsor or 0, sponsor),
    }


def row_values(row: Row | None) -> dict[str, Any] | None:
    """Return a row's own values as JSON values. None: there is no row."""
    if row is None:
        return None
    return {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in asdict(row).items()
        if name not in ("pk", "version")
    }


def _json(
    row: Row | None, stored: dict[str, dict[int, int]], users: dict[int, int]
) -> dict[str, Any] | None:
    if row is None:
        return None
    values = row_values(row) or {}
    for name, keys in (
        ("parent_pk", stored["account"]),
        ("account_pk", stored["account"]),
        ("user_pk", users),
        ("sponsor_pk", users),
    ):
        if values.get(name) in keys:
            values[name] = keys[values[name]]
    return values
