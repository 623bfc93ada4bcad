"""The tree of Accounts as a table, and a table as edits of the tree.

Each row is an Account or a member. Accounts and members that are not in the table stay
as they are. A missing column is not touched. An empty cell empties the field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import Any

from reservations.accounts.csv_table import RowError, SheetRow, too_long
from reservations.accounts.tree.tree_edits import LOGIN, Edit
from reservations.accounts.tree.tree_rows import AccountInfo, MemberInfo, Tree
from telemetry.protocol.sentences import sentence

COLUMNS = (
    *("row", "account", "title", "parent", "shares", "quota_hours", "ends", "user"),
    *("name", "mail", "head", "guest_of", "member"),
)
NEEDED = ("row", "account")
HOUR = 3600
YES, NO = ("yes", "true", "1", "x"), ("", "no", "false", "0")


class CellWrong(ValueError):
    """A cell that cannot be read, with the reason."""


@dataclass(frozen=True, slots=True)
class Person:
    """A login with the values of its row in the table."""

    username: str
    name: str = ""
    mail: str = ""


@dataclass
class Read:
    """The result of reading a table."""

    edits: list[Edit] = field(default_factory=list)
    errors: list[RowError] = field(default_factory=list)
    same: int = 0
    """Rows that change nothing."""


def read_yes(text: str) -> bool:
    """Read yes or no. Empty means no."""
    if text.lower() in YES:
        return True
    if text.lower() in NO:
        return False
    raise CellWrong(sentence("must be yes or no"))


def read_shares(text: str) -> int:
    """Read a whole number. Empty means 1."""
    if not text:
        return 1
    if not (text.isascii() and text.isdecimal()) or len(text) > 7:
        raise CellWrong(sentence("is not a whole number of shares"))
    return int(text)


def read_hours(text: str) -> int | None:
    """Read credits as weighted GPU-seconds. Empty: no quota is set."""
    if not text:
        return None
    try:
        found = float(text.replace(",", "."))
    except ValueError as error:
        raise CellWrong(sentence("is not a number of credits")) from error
    if not 0 <= found <= 10**9:
        raise CellWrong(sentence("is not between 0 and 1,000,000,000 credits"))
    return round(found * HOUR)


def read_end(text: str, zone: tzinfo) -> datetime | None:
    """Read an instant with its offset, or a last day in the site's zone."""
    if not text:
        return None
    try:
        if len(text) == 10:
            day = date.fromisoformat(text) + timedelta(days=1)
            at = datetime.combine(day, time.min, tzinfo=zone)
        else:
            at = datetime.fromisoformat(text)
    except (ValueError, OverflowError) as error:
        raise CellWrong(sentence("is not a day like 2026-12-31")) from error
    if at.tzinfo is None:
        raise CellWrong(sentence("has no zone: write a day like 2026-12-31"))
    if not 2000 <= at.year <= 2200:
        raise CellWrong(sentence("is not between the years 2000 and 2200"))
    return at.astimezone(UTC)


def edits_of(
    rows: Iterable[SheetRow], tree: Tree, people: Mapping[int, str], *, zone: tzinfo
) -> Read:
    """Compare a table with the tree. Return the edits.

    Args:
        people: login names by key, of everybody in the table or the tree.
    """
    reader = _Reader(tree, people, zone)
    accounts: list[tuple[SheetRow, Edit]] = []
    members: list[Edit] = []
    for row in rows:
        reader.found.errors += too_long(row)
        kind = row["row"].lower()
        if kind == "account":
            made = reader.account(row)
            accounts += [(row, made)] if made else []
        elif kind == "member":
            members += reader.member(row)
        else:
            reader.wrong(row, "row", sentence("must be account or member"))
    reader.found.edits = [*_parents_first(accounts), *members]
    return reader.found


def _parents_first(rows: list[tuple[SheetRow, Edit]]) -> list[Edit]:
    """Order new Accounts so that each follows its parent."""
    new = {row["account"]: edit for row, edit in rows if edit.pk is None}
    found: list[Edit] = []
    done: set[str] = set()
    for row, edit in rows:
        line: list[Edit] = []
        name: str | None = row["account"]
        while name in new and name not in done:
            done.add(name)
            line.append(new[name])
            name = new[name].fields.get("parent")
        found += reversed(line)
        if edit.pk is not None or edit is not new[row["account"]]:
            found.append(edit)
    return found


class _Reader:
    """Reads rows against one tree."""

    def __init__(self, tree: Tree, people: Mapping[int, str], zone: tzinfo) -> None:
        self.tree, self.people, self.zone = tree, people, zone
        self.logins = {name: pk for pk, name in people.items()}
        self.by_name = {a.name: a for a in tree.accounts.values()}
        self.rights = {(m.user_pk, m.account_pk): m for m in tree.members.values()}
        self.found = Read()
        self.fresh: set[str] = set()

    def wrong(self, row: SheetRow, column: str, text: str) -> None:
        """Record one error."""
        self.found.errors.append(RowError(row.number, column, text))

    def cells(
        self, row: SheetRow, readers: Mapping[str, tuple[str, Callable[[str], Any]]]
    ) -> dict[str, Any]:
        """Read the columns that the table has."""
        values = {}
        for column, (name, read) in readers.items():
            if column not in row:
                continue
            try:
                values[name] = read(row[column])
            except CellWrong as error:
                self.wrong(row, column, str(error))
        return values

    def account(self, row: SheetRow) -> Edit | None:
        """Return the edit of an Account's row. None: nothing changes."""
        values = self.cells(
            row,
            {
                "title": ("title", lambda text: text[:120]),
                "parent": ("parent", lambda text: text or None),
                "shares": ("shares", read_shares),
                "quota_hours": ("quota_gpu_seconds", read_hours),
                "ends": ("ends_at", lambda text: read_end(text, self.zone)),
            },
        )
        old = self.by_name.get(row["account"])
        if old is None:
            values["name"] = row["account"]
            return Edit("account", None, None, values, row.number)
        parent = self.tree.accounts.get(old.parent_pk or 0)
        now = {
            "title": old.title,
            "parent": parent.name if parent else None,
            "shares": old.shares,
            "quota_gpu_seconds": old.quota_gpu_seconds,
            "ends_at": old.ends_at,
        }
        return self._changed(row, "account", old, now, values)

    def member(self, row: SheetRow) -> list[Edit]:
        """Return the edit of a member's row, with the login if it is new."""
        if not LOGIN.fullmatch(row["user"]):
            self.wrong(
                row,
                "user",
                sentence("“{user}” is not a valid login", user=row["user"][:40]),
            )
            return []
        values = self.cells(
            row,
            {
                "shares": ("shares", read_shares),
                "quota_hours": ("quota_gpu_seconds", read_hours),
                "head": ("is_head", read_yes),
                "ends": ("expires_at", lambda text: read_end(text, self.zone)),
                "guest_of": ("sponsor", lambda text: text or None),
                "member": ("active", lambda text: not text or read_yes(text)),
            },
        )
        account = self.by_name.get(row["account"])
        key = (self.logins.get(row["user"], 0), account.pk if account else 0)
        old = self.rights.get(key)
        if old is not None and (old.active or values.get("active") is False):
            now = {
                "shares": old.shares,
                "quota_gpu_seconds": old.quota_gpu_seconds,
                "is_head": old.is_head,
                "expires_at": old.expires_at,
                "sponsor": self.people.get(old.sponsor_pk or 0),
                "active": old.active,
            }
            made = self._changed(row, "member", old, now, values)
            return [made] if made else []
        if not values.pop("active", True):
            self.found.same += 1
            return []
        fields = values | {"user": row["user"], "account": row["account"]}
        new = Edit("member", None, None, fields, row.number)
        return [*self._login(row), new]

    def _login(self, row: SheetRow) -> Iterator[Edit]:
        name = row["user"]
        if name in self.logins or name in self.fresh:
            return
        if not (row["name"] or row["mail"]):
            self.wrong(
                row,
                "user",
                sentence(
                    "there is no such login (a row with a name or mail address "
                    "creates it)"
                ),
            )
            return
        if row["mail"] and not mail_valid(row["mail"]):
            self.wrong(row, "mail", sentence("is not a valid mail address"))
        self.fresh.add(name)
        login = {"username": name, "display_name": row["name"], "email": row["mail"]}
        yield Edit("user", None, None, login, row.number)

    def _changed(
        self,
        row: SheetRow,
        table: Any,
        old: AccountInfo | MemberInfo,
        now: Mapping[str, Any],
        values: Mapping[str, Any],
    ) -> Edit | None:
        fields = {name: value for name, value in values.items() if now[name] != value}
        if not fields:
            self.found.same += 1
            return None
        return Edit(table, old.pk, old.version, fields, row.number)


def mail_valid(text: str) -> bool:
    """Return whether an address has the form of a mail address."""
    name, at, domain = text.rpartition("@")
    plain = text.isprintable() and not set(text) & set(' ,;<>()[]\\"')
    return bool(name and at and "." in domain.strip(".") and plain and len(text) <= 254)


def tree_rows(tree: Tree, people: Mapping[int, Person]) -> Iterator[tuple[object, ...]]:
    """Yield the tree as the cells of a table, from the root down."""
    children: dict[int | None, list[AccountInfo]] = {}
    for account in sorted(tree.accounts.values(), key=lambda a: a.name):
        if account.archived_at is None:
            children.setdefault(account.parent_pk, []).append(account)
    members: dict[int, list[MemberInfo]] = {}
    for member in tree.members.values():
        if member.active:
            members.setdefault(member.account_pk, []).append(member)
    todo = list(reversed(children.get(None, [])))
    while todo:
        account = todo.pop()
        parent = tree.accounts.get(account.parent_pk or 0)
        yield (
            *("account", account.name, account.title, parent.name if parent else ""),
            *(account.shares, _hours(account.quota_gpu_seconds), _end(account.ends_at)),
            *("", "", "", "", "", ""),
        )
        for member in sorted(
            members.get(account.pk, []), key=lambda m: people[m.user_pk].username
        ):
            person = people[member.user_pk]
            sponsor = people.get(member.sponsor_pk or 0)
            yield (
                *("member", account.name, "", "", member.shares),
                *(_hours(member.quota_gpu_seconds), _end(member.expires_at)),
                *(person.username, person.name, person.mail),
                "yes" if member.is_head else "no",
                sponsor.username if sponsor else "",
                "yes",
            )
        todo += reversed(children.get(account.pk, []))


def _hours(gpu_seconds: int | None) -> str:
    """Return hours so precisely that they are read back as the same seconds."""
    return "" if gpu_seconds is None else f"{gpu_seconds / HOUR:.17g}"


def _end(at: datetime | None) -> str:
    return "" if at is None else at.astimezone(UTC).isoformat().replace("+00:00", "Z")
