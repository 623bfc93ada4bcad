"""Apply edits to the tree of Accounts and Memberships, in memory.

Edits name their row by key, and other rows by name (`parent`, `account`, `user`,
`sponsor`), so that a form, a CSV file and an undo use the same values. New rows have
negative keys until they are stored. Nothing is written here. The caller compares
``before`` with ``after`` and stores the rows that differ.

Cost: O(n) of n Accounts and Memberships, besides two rankings (``fairshare``).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Literal

from reservations.accounts.tree.tree_rows import AccountInfo, MemberInfo, Row, Tree
from reservations.rules.errors import Refusal
from telemetry.protocol.coded_error import CodedError
from telemetry.protocol.sentences import joined, sentence

Table = Literal["account", "member", "user"]
SLUG = re.compile(r"[a-zA-Z0-9_-]{1,63}")
LOGIN = re.compile(r"[\w.@+-]{1,150}")
"""A user name. Providers may send letters of every alphabet."""
NEW_LOGIN = re.compile(r"[A-Za-z0-9_.@+-]{1,150}")
"""A user name that a person types for a new login. A Cyrillic letter may look like a
Latin one."""
MOST_SHARES = 1_000_000
MOST_QUOTA_GPU_SECONDS = 10**9 * 3600
MOST_EDITS = 60_000
MOST_LEVELS = 30
"""The greatest depth of the tree. Each level costs time whenever the tree is read."""


@dataclass(frozen=True, slots=True)
class Edit:
    """The new values of one row. ``pk`` None: a new row."""

    table: Table
    pk: int | None
    version: int | None
    """The row's version when it was shown. None: it was not shown."""
    fields: Mapping[str, Any]
    line: int = 0
    """The row of the file it came from, for its errors. 0: no file."""

    @property
    def display_name(self) -> str:
        """Return the row's name for people."""
        fields = self.fields
        name = fields.get("name") or fields.get("user") or fields.get("username")
        return str(name or f"{self.table} {self.pk}")

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        fields = {
            name: value.isoformat() if isinstance(value, datetime) else value
            for name, value in self.fields.items()
        }
        return {
            "table": self.table,
            "pk": self.pk,
            "version": self.version,
            "fields": fields,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Edit:
        """Read what `to_json` wrote."""
        fields = {
            name: datetime.fromisoformat(value)
            if name.endswith("_at") and value
            else value
            for name, value in data["fields"].items()
        }
        return cls(data["table"], data["pk"], data["version"], fields)


@dataclass(frozen=True, slots=True)
class Problem:
    """Why an edit cannot be made, with the edit and the field."""

    edit: Edit
    field: str
    text: str


@dataclass(eq=False)
class EditsRefused(CodedError):
    """Some of the edits are invalid, so none was made."""

    code = "edits-refused"
    title = sentence("The changes cannot be made")
    status = HTTPStatus.CONFLICT
    problems: tuple[str, ...] = ()

    def text(self, zone: tzinfo = UTC) -> str:
        return joined(self.problems) if self.problems else self.title


@dataclass(eq=False)
class TreeStale(Refusal):
    """Another person changed the rows after they were shown."""

    code = "tree-stale"
    title = sentence("Changed meanwhile")
    what: str = ""

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence(
            "{what} was changed in the meantime. Check the new values first.",
            what=self.what,
        )


@dataclass
class Edited:
    """The result of edits: the new tree, and their problems."""

    before: Tree
    after: Tree
    new_users: dict[int, Mapping[str, str]]
    """Logins to create, by their negative key."""
    problems: list[Problem]
    touched: dict[tuple[str, int], Edit]
    """The last edit of each row, for problems found later."""

    @property
    def changed(self) -> list[tuple[str, int]]:
        """Return (table, key) of the rows that differ, Accounts first."""
        found = []
        for table in ("account", "member"):
            old, new = self.before.rows(table), self.after.rows(table)
            found += [(table, pk) for pk, row in new.items() if old.get(pk) != row]
        return found


class _Editor:
    """Applies edits one after another, and collects their problems."""

    def __init__(
        self,
        tree: Tree,
        users: Mapping[str, int],
        now: datetime,
        faults: Mapping[str, str],
    ) -> None:
        self.accounts = dict(tree.accounts)
        self.members = dict(tree.members)
        self.users = dict(users)
        self.faults = faults
        self.now = now
        self.by_name = {a.name: a.pk for a in tree.accounts.values()}
        self.by_right = {(m.user_pk, m.account_pk): m.pk for m in tree.members.values()}
        self.new_users: dict[int, Mapping[str, str]] = {}
        self.problems: list[Problem] = []
        self.touched: dict[tuple[str, int], Edit] = {}
        self._fresh = -1

    def key(self) -> int:
        """Return a key for a row that is not stored yet."""
        self._fresh -= 1
        return self._fresh

    def bad(self, edit: Edit, field: str, text: str) -> None:
        """Record one problem."""
        self.problems.append(Problem(edit, field, text))

    def user(self, edit: Edit) -> None:
        """Create a login, unless it exists."""
        name = str(edit.fields.get("username", ""))
        if name in self.users:
            return
        if not NEW_LOGIN.fullmatch(name):
            self.bad(edit, "user", sentence("“{name}” is not a valid login", name=name))
            return
        if name in self.faults:
            self.bad(edit, "user", self.faults[name])
            return
        pk = self.key()
        self.users[name] = pk
        self.new_users[pk] = {k: str(v) for k, v in edit.fields.items()}

    def account(self, edit: Edit) -> None:
        """Create or change one Account."""
        values = dict(edit.fields)
        if edit.pk is None:
            name = str(values.get("name", ""))
            if not SLUG.fullmatch(name):
                self.bad(
                    edit,
                    "account",
                    sentence(
                        "“{name}” is not a valid name. Use letters, digits, - and _",
                        name=name,
                    ),
                )
                return
            if name in self.by_name:
                self.bad(
                    edit,
                    "account",
                    sentence("there is already a group “{name}”", name=name),
                )
                return
            old = AccountInfo(self.key(), name, "", None, 1, None)
            self.by_name[name] = old.pk
        elif edit.pk in self.accounts:
            old = self.accounts[edit.pk]
            if not self._fresh_enough(edit, old.version, old.name):
                return
        else:
            self.bad(edit, "account", sentence("there is no such group"))
            return
        if "parent" in values:
            values["parent_pk"] = self._account(edit, "parent", values.pop("parent"))
        archive = values.pop("archived", False)
        values.pop("name", None)
        new = replace(old, **values)
        self._figures(edit, new)
        self.accounts[new.pk] = new
        self.touched["account", new.pk] = edit
        if archive:
            self._archive(edit, new.pk)

    def _archive(self, edit: Edit, pk: int) -> None:
        inside = Tree(self.accounts, {}).below(pk)
        for one in inside:
            if self.accounts[one].archived_at is None:
                self.accounts[one] = replace(self.accounts[one], archived_at=self.now)
                self.touched.setdefault(("account", one), edit)
        for member in list(self.members.values()):
            if member.account_pk in inside and member.active:
                self.members[member.pk] = replace(member, active=False)
                self.touched.setdefault(("member", member.pk), edit)

    def member(self, edit: Edit) -> None:
        """Create or change one Membership. A removed one becomes active again."""
        values = dict(edit.fields)
        old = self._changed_membership(edit, values)
        if old is None:
            return
        if "sponsor" in values:
            name = values.pop("sponsor")
            values["sponsor_pk"] = self._user(edit, "sponsor", name) if name else None
        new = replace(old, **values)
        self._figures(edit, new)
        self.members[new.pk] = new
        self.touched["member", new.pk] = edit

    def _changed_membership(
        self, edit: Edit, values: dict[str, Any]
    ) -> MemberInfo | None:
        if edit.pk is not None:
            found = self.members.get(edit.pk)
            if found is None:
                self.bad(edit, "member", sentence("there is no such member"))
            elif not self._fresh_enough(edit, found.version, sentence("the member")):
                return None
            return found
        account = self._account(edit, "account", values.pop("account", None))
        user = self._user(edit, "user", values.pop("user", None))
        if account is None or user is None:
            if not edit.fields.get("account"):
                self.bad(edit, "account", sentence("a group is needed"))
            return None
        pk = self.by_right.get((user, account))
        if pk is not None:
            if self.members[pk].active:
                self.bad(edit, "user", sentence("is already a member of this group"))
                return None
            values.setdefault("active", True)
            return replace(
                self.members[pk],
                shares=1,
                quota_gpu_seconds=None,
                is_head=False,
                expires_at=None,
                sponsor_pk=None,
            )
        made = MemberInfo(self.key(), user, account, 1, None)
        self.by_right[user, account] = made.pk
        return made

    def _fresh_enough(self, edit: Edit, stored: int, what: str) -> bool:
        if edit.version is None or edit.version == stored:
            return True
        self.bad(
            edit, "version", sentence("{what} was changed in the meantime", what=what)
        )
        return False

    def _account(self, edit: Edit, field: str, name: str | None) -> int | None:
        if not name:
            return None
        if name not in self.by_name:
            self.bad(edit, field, sentence("there is no group “{name}”", name=name))
            return None
        return self.by_name[name]

    def _user(self, edit: Edit, field: str, name: str | None) -> int | None:
        if not name or name not in self.users:
            self.bad(
                edit, field, sentence("there is no login “{name}”", name=name or "")
            )
            return None
        return self.users[name]

    def _figures(self, edit: Edit, row: Row) -> None:
        if not 0 <= row.shares <= MOST_SHARES:
            self.bad(
                edit,
                "shares",
                sentence("not between 0 and {most}", most=MOST_SHARES),
            )
        quota = row.quota_gpu_seconds
        if quota is not None and not 0 <= quota <= MOST_QUOTA_GPU_SECONDS:
            self.bad(edit, "quota", sentence("not between 0 and 1,000,000,000 credits"))


def edited(
    tree: Tree,
    edits: Sequence[Edit],
    users: Mapping[str, int],
    *,
    now: datetime,
    faults: Mapping[str, str] = MappingProxyType({}),
) -> Edited:
    """Apply edits in order, and return their problems.

    Args:
        users: keys of the logins that edits name and that exist.
        faults: why new logins that edits name cannot be made.
    """
    editor = _Editor(tree, users, now, faults)
    if len(edits) > MOST_EDITS:
        editor.bad(
            edits[0],
            "",
            sentence("more than {most} changes at once", most=MOST_EDITS),
        )
        edits = ()
    for edit in edits:
        getattr(editor, edit.table)(edit)
    done = Edited(
        before=tree,
        after=Tree(editor.accounts, editor.members),
        new_users=editor.new_users,
        problems=editor.problems,
        touched=editor.touched,
    )
    done.problems += check(done)
    return done


def check(done: Edited) -> list[Problem]:
    """Return the problems of the changed rows in the new tree."""
    found: list[Problem] = []
    answering = {
        (m.user_pk, m.account_pk)
        for m in done.after.members.values()
        if m.active and m.sponsor_pk is None
    }
    for table, pk in done.changed:
        edit = done.touched[table, pk]
        row = done.after.rows(table)[pk]
        texts = (
            _account_wrong(row, done.after)
            if isinstance(row, AccountInfo)
            else _member_wrong(row, done.after, answering)
        )
        found += [Problem(edit, name, text) for name, text in texts]
    return found + _sponsors_left(done)


def _account_wrong(row: AccountInfo, tree: Tree) -> Iterable[tuple[str, str]]:
    if row.archived_at is not None:
        return
    seen = {row.pk}
    above = row.parent_pk
    while above is not None:
        if above in seen:
            yield "parent", sentence("“{name}” would be its own parent", name=row.name)
            return
        seen.add(above)
        if len(seen) > MOST_LEVELS:
            yield (
                "parent",
                sentence(
                    "more than {most} levels of groups",
                    most=MOST_LEVELS,
                ),
            )
            return
        above = tree.accounts[above].parent_pk
    if row.parent_pk is not None and tree.accounts[row.parent_pk].archived_at:
        yield (
            "parent",
            sentence("“{name}” is archived", name=tree.accounts[row.parent_pk].name),
        )


def _member_wrong(
    row: MemberInfo, tree: Tree, answering: Collection[tuple[int, int]]
) -> Iterable[tuple[str, str]]:
    if not row.active:
        return
    if tree.accounts[row.account_pk].archived_at is not None:
        yield (
            "account",
            sentence("“{name}” is archived", name=tree.accounts[row.account_pk].name),
        )
    if row.sponsor_pk is None:
        return
    if row.expires_at is None:
        yield "expires", sentence("a guest needs a last day")
    if row.is_head:
        yield "head", sentence("a guest cannot head a group")
    if row.sponsor_pk == row.user_pk:
        yield "sponsor", sentence("a guest needs another member as sponsor")
    elif (row.sponsor_pk, row.account_pk) not in answering:
        yield "sponsor", sentence("is not a member of this group")


def _sponsors_left(done: Edited) -> list[Problem]:
    """Refuse that sponsors leave an Account while their guests are in it."""
    leaving = {
        (row.user_pk, row.account_pk): done.touched["member", row.pk]
        for table, pk in done.changed
        if table == "member" and not (row := done.after.members[pk]).active
    }
    if not leaving:
        return []
    found = {}
    for guest in done.after.members.values():
        key = (guest.sponsor_pk or 0, guest.account_pk)
        if guest.active and key in leaving:
            found[key] = Problem(
                leaving[key], "sponsor", sentence("is the sponsor of a guest here")
            )
    return list(found.values())
