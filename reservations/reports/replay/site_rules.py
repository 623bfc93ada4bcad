"""The site's shares and quotas for a replay, and edits of them.

As in a trace, names are keys: an Account is a group, a person is a user. Only
Memberships with requests are kept, because others change no rank and hold no quota.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from reservations.reports.replay.trace import TraceJob

MOST_SHARES = 1_000_000
MOST_FACTOR_PERMILLE = 100_000


@dataclass(frozen=True, slots=True)
class AccountRule:
    """An Account of the site: its place, its shares, its quota."""

    name: str
    parent: str | None
    shares: int
    quota_gpu_seconds: int | None
    """Weighted, in any 7 days. None: the sum of the members' quotas."""
    pool_quota_gpu_seconds: int | None = None
    """The quota on the Gpus of the replayed Pool. None: no limit."""


@dataclass(frozen=True, slots=True)
class MemberRule:
    """A Membership of the site."""

    account: str
    user: str
    shares: int
    quota_gpu_seconds: int | None
    """Weighted, in any 7 days. None: the policy's."""
    pool_quota_gpu_seconds: int | None = None
    """As for an Account."""


@dataclass(frozen=True, slots=True)
class AccountEdit:
    """Other values for an Account and for its members."""

    shares: int
    quota_gpu_seconds: int | None
    members_permille: int = 1000
    """Factor of each member's quota, own or the policy's, in thousandths."""

    def to_json(self) -> list[int | None]:
        """Return it as it is stored."""
        return [self.shares, self.quota_gpu_seconds, self.members_permille]

    @classmethod
    def from_json(cls, stored: Iterable[Any]) -> AccountEdit:
        """Return the value of a stored one."""
        return cls(*stored)


@dataclass(frozen=True, slots=True)
class SiteTree:
    """Accounts and Memberships. Exactly one Account has no parent."""

    accounts: tuple[AccountRule, ...]
    members: tuple[MemberRule, ...]

    def edited(
        self, edits: Mapping[str, AccountEdit], *, quota_gpu_seconds: int
    ) -> SiteTree:
        """Return the tree with other values. Unknown names change nothing.

        Args:
            quota_gpu_seconds: of a Membership without its own.
        """
        accounts = tuple(
            replace(
                one,
                shares=edits[one.name].shares,
                quota_gpu_seconds=edits[one.name].quota_gpu_seconds,
            )
            if one.name in edits
            else one
            for one in self.accounts
        )
        members = []
        for member in self.members:
            edit = edits.get(member.account)
            quota = member.quota_gpu_seconds
            quota = quota_gpu_seconds if quota is None else quota
            factor = edit.members_permille if edit else 1000
            pool = member.pool_quota_gpu_seconds
            members.append(
                replace(
                    member,
                    quota_gpu_seconds=quota * factor // 1000,
                    pool_quota_gpu_seconds=None
                    if pool is None
                    else pool * factor // 1000,
                )
            )
        return SiteTree(accounts, tuple(members))

    def of_trace(self, jobs: Iterable[TraceJob], *, weight: int) -> SiteTree:
        """Return the part of the tree with the users of a trace, in plain GPU-seconds.

        Args:
            weight: of one Gpu: quotas are weighted, a trace is not.
        """
        asked = {job.member for job in jobs}
        parents = {one.name: one.parent for one in self.accounts}
        kept: set[str] = {one.name for one in self.accounts if one.parent is None}
        for account, _user in asked:
            at: str | None = account
            while at is not None and at in parents:
                kept.add(at)
                at = parents[at]
        return SiteTree(
            tuple(
                replace(one, quota_gpu_seconds=_tighter_quota(one, weight))
                for one in self.accounts
                if one.name in kept
            ),
            tuple(
                replace(one, quota_gpu_seconds=_tighter_quota(one, weight))
                for one in self.members
                if (one.account, one.user) in asked
            ),
        )

    def path(self, account: str) -> list[AccountRule]:
        """Return an Account and those above it. []: there is no such Account."""
        by_name = {one.name: one for one in self.accounts}
        found: list[AccountRule] = []
        at: str | None = account
        while at is not None and at in by_name and len(found) <= len(by_name):
            found.append(by_name[at])
            at = by_name[at].parent
        return found


def _tighter_quota(rule: AccountRule | MemberRule, weight: int) -> int | None:
    """Return the lower of both quotas, in plain GPU-seconds."""
    both = rule.quota_gpu_seconds, rule.pool_quota_gpu_seconds
    least = min((quota for quota in both if quota is not None), default=None)
    return None if least is None else least // max(1, weight)


class MembershipQuotas:
    """The quotas of each Membership, by number. The last one applies to all others."""

    def __init__(
        self,
        members: Mapping[tuple[str, str], int],
        quota_gpu_seconds: int,
        tree: SiteTree | None,
    ) -> None:
        """Number them.

        Args:
            members: number of each Membership of the trace.
            quota_gpu_seconds: plain, of a Membership that the tree does not know.
            tree: as ``SiteTree.of_trace`` returns it.
        """
        self.quotas = [quota_gpu_seconds] * len(members)
        self.binding: dict[int, tuple[int, ...]] = {
            pk: (pk,) for pk in members.values()
        }
        if tree is None:
            return
        for member in tree.members:
            pk = members.get((member.account, member.user))
            if pk is not None and member.quota_gpu_seconds is not None:
                self.quotas[pk] = member.quota_gpu_seconds
        inside: dict[str, list[int]] = defaultdict(list)
        for (account, _user), pk in members.items():
            for above in tree.path(account):
                inside[above.name].append(pk)
        for rule in tree.accounts:
            if rule.quota_gpu_seconds is None:
                continue
            self.quotas.append(rule.quota_gpu_seconds)
            for pk in inside[rule.name]:
                self.binding[pk] += (len(self.quotas) - 1,)
