"""The tree of Accounts and Memberships as values.

Nothing is read or written here; ``editing`` says what an edit makes of a Tree, and
``outlook`` what that does to everybody's place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True)
class AccountInfo:
    """An Account as it is stored."""

    pk: int
    name: str
    title: str
    parent_pk: int | None
    shares: int
    quota_gpu_seconds: int | None
    """Weighted, in any 7 days; None: the sum of the members'."""
    ends_at: datetime | None = None
    archived_at: datetime | None = None
    version: int = 1


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """A Membership as it is stored."""

    pk: int
    user_pk: int
    account_pk: int
    shares: int
    quota_gpu_seconds: int | None
    """Weighted, in any 7 days; None: the site's."""
    is_head: bool = False
    active: bool = True
    expires_at: datetime | None = None
    sponsor_pk: int | None = None
    version: int = 1


Row = AccountInfo | MemberInfo


@dataclass(frozen=True)
class Tree:
    """Every Account and every Membership, by key."""

    accounts: Mapping[int, AccountInfo] = field(default_factory=dict)
    members: Mapping[int, MemberInfo] = field(default_factory=dict)

    def rows(self, table: str) -> Mapping[int, Row]:
        """Return the rows of a table."""
        return self.accounts if table == "account" else self.members

    def below(self, account_pk: int) -> set[int]:
        """Return an Account and every one below it."""
        children: dict[int | None, list[int]] = {}
        for account in self.accounts.values():
            children.setdefault(account.parent_pk, []).append(account.pk)
        found: set[int] = set()
        waiting = [account_pk]
        while waiting:
            pk = waiting.pop()
            if pk not in found:
                found.add(pk)
                waiting += children.get(pk, [])
        return found
