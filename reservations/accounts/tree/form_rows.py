"""Rows of the tree as form inputs.

Each row carries the values it showed ("was"), so that only typed changes become edits.
A concurrent change of the same row is noticed by its version.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from typing import Any

from django.utils import timezone
from django.utils.translation import gettext

from reservations.accounts.tree.tree_edits import Edit, Table
from reservations.models import Account, Membership
from reservations.web.credit_field import Unreadable, hours, read_quota

FIELDS: dict[str, tuple[str, ...]] = {
    "account": ("title", "parent", "shares", "quota", "ends"),
    "member": ("shares", "quota", "head", "expires", "sponsor", "leave"),
}
"""Field names on the page, by table."""
STORED = {
    "quota": "quota_gpu_seconds",
    "head": "is_head",
    "ends": "ends_at",
    "expires": "expires_at",
    "leave": "active",
}


@dataclass
class RowView:
    """One row of the table: the values of its inputs, and their problems."""

    table: Table
    row: Account | Membership
    values: dict[str, str]
    was: dict[str, str]
    changed: bool = False
    errors: dict[str, str] = field(default_factory=dict)
    effective: str = ""
    """The quota that applies if none is set, in credits. "": not computed."""

    @property
    def key(self) -> str:
        """Return the prefix of its inputs."""
        return f"{self.table}-{self.row.pk}"

    @property
    def was_json(self) -> str:
        """Return the shown values for the hidden input."""
        return json.dumps({"version": self.row.version, **self.was})


def shown(row: Account | Membership) -> dict[str, str]:
    """Return a stored row as its inputs show it."""
    same = {"shares": str(row.shares), "quota": hours(row.quota_gpu_seconds)}
    if isinstance(row, Account):
        return same | {
            "title": row.title,
            "parent": row.parent.name if row.parent else "",
            "ends": last_day(row.ends_at),
        }
    return same | {
        "head": "on" if row.is_head else "",
        "expires": last_day(row.expires_at),
        "sponsor": row.sponsor.username if row.sponsor else "",
        "leave": "" if row.active else "on",
    }


def views_of(
    rows: Iterable[Account | Membership],
    collected: Mapping[tuple[str, int], Mapping[str, Any]],
) -> list[RowView]:
    """Return rows filled with their collected edits."""
    found = []
    for row in rows:
        table: Table = "account" if isinstance(row, Account) else "member"
        was = shown(row)
        fields = collected.get((table, row.pk), {})
        typed = {name: _typed(name, fields, was[name]) for name in was}
        found.append(RowView(table, row, typed, was, changed=typed != was))
    return found


def _typed(name: str, fields: Mapping[str, Any], was: str) -> str:
    stored = STORED.get(name, name)
    if stored not in fields:
        return was
    value = fields[stored]
    if name == "quota":
        return hours(value)
    if name in ("ends", "expires"):
        return last_day(value)
    if name == "leave":
        return "" if value else "on"
    if name == "head":
        return "on" if value else ""
    return "" if value is None else str(value)


def last_day(at: datetime | None) -> str:
    """Return the last day before an instant, as an input shows it."""
    if at is None:
        return ""
    return (timezone.localtime(at) - timedelta(seconds=1)).date().isoformat()


# --- reading ------------------------------------------------------------------------


def read_shares(text: str) -> int:
    """Read a whole number of shares."""
    if not text.strip().isdecimal() or len(text.strip()) > 7:
        raise Unreadable(gettext("enter a whole number"))
    return int(text)


def read_day(text: str) -> datetime | None:
    """Read a day as the instant at which it ends, in the site's zone."""
    if not text.strip():
        return None
    try:
        day = date.fromisoformat(text.strip())
    except ValueError as error:
        raise Unreadable(gettext("enter a day like 2026-12-31")) from error
    if not 2000 <= day.year <= 2200:
        raise Unreadable(gettext("the year is not between 2000 and 2200"))
    return timezone.make_aware(datetime.combine(day + timedelta(days=1), time.min))


def _stripped_or_none(text: str) -> str | None:
    return text.strip() or None


READERS: dict[str, Callable[[str], Any]] = {
    "title": lambda text: text.strip()[:120],
    "parent": _stripped_or_none,
    "shares": read_shares,
    "quota": read_quota,
    "ends": read_day,
    "expires": read_day,
    "sponsor": _stripped_or_none,
    "head": lambda text: text == "on",
    "leave": lambda text: text != "on",
}


def read_row(view: RowView, posted: Mapping[str, str]) -> Edit:
    """Return the typed values of one row. Errors stay with the row."""
    try:
        was = json.loads(posted.get(f"{view.key}-was", "{}"))
    except ValueError:
        was = {}
    was = was if isinstance(was, dict) else {}
    version = was.get("version")
    fields: dict[str, Any] = {}
    for name in FIELDS[view.table]:
        if name not in was:
            continue
        text = posted.get(f"{view.key}-{name}", "")
        view.values[name] = text
        if text == was[name]:
            continue
        try:
            fields[STORED.get(name, name)] = READERS[name](text)
        except Unreadable as error:
            view.errors[name] = str(error)
    version = version if isinstance(version, int) else 0
    return Edit(view.table, view.row.pk, version, fields)
