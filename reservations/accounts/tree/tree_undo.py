"""The tree of Accounts with a change reverted, row by row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from reservations.accounts.tree.tree_edits import Edit, Edited, Problem, check
from reservations.accounts.tree.tree_rows import AccountInfo, MemberInfo, Row, Tree
from telemetry.protocol.sentences import sentence

INSTANTS = ("ends_at", "archived_at", "expires_at")
BROUGHT_BACK = timedelta(days=7)
"""For how long a row is active again if its end has passed."""
Kept = tuple[str, int, Mapping[str, Any] | None, int]
"""Table, key, the row before (None: it was new), its version after the change."""


def reverted(tree: Tree, rows: Iterable[Kept], *, now: datetime) -> Edited:
    """Revert rows. New rows are switched off, not deleted."""
    kept: dict[str, dict[int, Row]] = {
        "account": dict(tree.accounts),
        "member": dict(tree.members),
    }
    touched: dict[tuple[str, int], Edit] = {}
    problems: list[Problem] = []
    for table, pk, before, version in rows:
        edit = Edit("account" if table == "account" else "member", pk, version, {})
        row = kept[table].get(pk)
        if row is None or row.version != version:
            what = row.name if isinstance(row, AccountInfo) else "a member"
            text = sentence("{what} was changed in the meantime", what=what)
            problems.append(Problem(edit, "version", text))
            continue
        touched[table, pk] = edit
        kept[table][pk] = (
            _without(row, now) if before is None else _restored_row(row, before, now)
        )
    done = Edited(
        before=tree,
        after=Tree(
            {pk: a for pk, a in kept["account"].items() if isinstance(a, AccountInfo)},
            {pk: m for pk, m in kept["member"].items() if isinstance(m, MemberInfo)},
        ),
        new_users={},
        problems=problems,
        touched=touched,
    )
    if not problems:
        done.problems += check(done)
    return done


def _without(row: Row, now: datetime) -> Row:
    if isinstance(row, AccountInfo):
        return replace(row, archived_at=now)
    return replace(row, active=False)


def _restored_row(row: Row, before: Mapping[str, Any], now: datetime) -> Row:
    """Return a row as it was. An end that has passed is postponed, because the row
    would end again at once.
    """
    values: dict[str, Any] = {
        name: datetime.fromisoformat(value) if name in INSTANTS and value else value
        for name, value in before.items()
    }
    for name in ("ends_at", "expires_at"):
        if values.get(name) is not None and values[name] <= now:
            values[name] = now + BROUGHT_BACK
    if isinstance(row, AccountInfo):
        return replace(row, **values)
    return replace(row, **values)


def changed_fields(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None
) -> list[tuple[str, Any, Any]]:
    """Return (name, before, after) of the fields that differ between two rows."""
    old, new = before or {}, after or {}
    return [
        (name, old.get(name), new.get(name))
        for name in dict.fromkeys([*old, *new])
        if old.get(name) != new.get(name)
    ]
