"""Rows of the tree in words. Names are looked up when they are shown."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.utils import timezone

from reservations.accounts.tree.tree_edits import Edited
from reservations.models import Account, Membership, User
from reservations.rules.figures import credits_text, moment_text
from telemetry.protocol.sentences import sentence

FIELD_WORDS: dict[str, str] = {
    "name": sentence("name"),
    "title": sentence("title"),
    "parent_pk": sentence("below"),
    "shares": sentence("shares"),
    "quota_gpu_seconds": sentence("quota"),
    "ends_at": sentence("ends"),
    "archived_at": sentence("archived"),
    "is_head": sentence("head"),
    "active": sentence("member"),
    "expires_at": sentence("expires"),
    "sponsor_pk": sentence("guest of"),
}


class Names:
    """Names of Accounts and people by key, read in few queries."""

    def __init__(
        self, done: Edited | None = None, rows: Iterable[tuple[str, int]] = ()
    ) -> None:
        self.accounts: dict[int, str] = {}
        self.users: dict[int, str] = {}
        self.members: dict[int, tuple[int, int]] = {}
        self._logins: dict[int, str] = {}
        wanted = list(rows)
        if done is not None:
            tree = done.after
            self.accounts = {a.pk: a.title or a.name for a in tree.accounts.values()}
            self._logins = {
                pk: fields.get("display_name") or fields["username"]
                for pk, fields in done.new_users.items()
            }
            wanted = wanted or done.changed
            pks = {pk for table, pk in wanted if table == "member"}
            self.members = {
                pk: (tree.members[pk].user_pk, tree.members[pk].account_pk)
                for pk in pks
            }
            users = {user for user, _account in self.members.values()}
            users |= {tree.members[pk].sponsor_pk or 0 for pk in pks}
            users |= {
                done.before.members[pk].sponsor_pk or 0
                for pk in pks
                if pk in done.before.members
            }
            self.read_users(users)

    @classmethod
    def stored(cls, rows: Iterable[tuple[str, int]], users: Iterable[int]) -> "Names":
        """Read the names of stored rows."""
        names = cls()
        pks = {pk for table, pk in rows if table == "member"}
        found = Membership.objects.filter(pk__in=pks).order_by()
        names.members = {
            pk: (user, account)
            for pk, user, account in found.values_list("pk", "user_id", "account_id")
        }
        names.accounts = {
            a.pk: str(a) for a in Account.objects.order_by().only("name", "title")
        }
        names.read_users({*users, *(user for user, _ in names.members.values())})
        return names

    def read_users(self, pks: Iterable[int]) -> None:
        """Add the names of these people."""
        wanted = sorted(pk for pk in pks if pk > 0)
        for first in range(0, len(wanted), 500):
            rows = User.objects.filter(pk__in=wanted[first : first + 500]).order_by()
            self.users |= {u.pk: str(u) for u in rows.only("username", "display_name")}
        self.users |= self._logins

    def of(self, table: str, pk: int) -> str:
        """Return the name of a row."""
        if table == "account":
            return self.accounts.get(pk, sentence("group {pk}", pk=pk))
        user, account = self.members.get(pk, (0, 0))
        return sentence(
            "{user} in {account}",
            user=self.users.get(user, sentence("user {pk}", pk=user)),
            account=self.accounts.get(account, sentence("group {pk}", pk=account)),
        )


def value_text(name: str, value: Any, names: Names) -> str:
    """Return one stored value as people read it."""
    if value is None:
        return "–"
    if name == "parent_pk":
        return names.accounts.get(value, sentence("group {pk}", pk=value))
    if name == "sponsor_pk":
        return names.users.get(value, sentence("user {pk}", pk=value))
    if name == "quota_gpu_seconds":
        return credits_text(value)
    if name.endswith("_at"):
        at = datetime.fromisoformat(value) if isinstance(value, str) else value
        return moment_text(at, timezone.get_current_timezone())
    if isinstance(value, bool):
        return sentence("yes") if value else sentence("no")
    return str(value)
