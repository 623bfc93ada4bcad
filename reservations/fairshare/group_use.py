"""The use of a group: how much each member used, and each member's rank."""

from dataclasses import dataclass

from django.utils import timezone

from reservations.fairshare.service import PathLevel
from reservations.models import Account, Membership
from reservations.rules.fairness.fair_tree import Level, Ranking, decayed_gpu_seconds
from reservations.rules.policy import Policy
from reservations.rules.window import unix
from reservations.store.account_tree import subtree
from reservations.store.booking_facts import site_policy
from reservations.store.usage import ranking


@dataclass(frozen=True)
class MemberUse:
    """One row of the group's table."""

    membership: Membership
    place: int | None
    used_gpu_seconds: float
    """Weighted, decayed, including bookings ahead."""
    part_ratio: float
    """Part of the group's use, 0 to 1."""


@dataclass(frozen=True)
class AccountGroup:
    """An Account, its members and its path from the root."""

    account: Account
    account_pks: tuple[int, ...]
    """The Account and every one below it."""
    members: tuple[MemberUse, ...]
    path: tuple[PathLevel, ...]
    of: int


def group_of(account: Account) -> AccountGroup:
    """Read an Account's members and rank them as Fair Tree does."""
    now, policy = timezone.now(), site_policy()
    below = subtree(account.pk)
    memberships = list(
        Membership.objects.filter(account_id__in=below, active=True).select_related(
            "user", "account"
        )
    )
    ranks = ranking(now, policy)
    second = unix(now)

    def used(level: Level) -> float:
        return decayed_gpu_seconds(
            level.usage, unix_seconds=second, half_life_seconds=policy.half_life_seconds
        )

    rows = [
        (one, used(ranks.member_level(one.pk)) if ranks else 0.0) for one in memberships
    ]
    total = sum(seconds for _one, seconds in rows)
    members = [
        MemberUse(
            membership=one,
            place=ranks.place(one.pk) if ranks else None,
            used_gpu_seconds=seconds,
            part_ratio=seconds / total if total else 0.0,
        )
        for one, seconds in rows
    ]
    members.sort(key=lambda row: (-row.used_gpu_seconds, row.membership.user.username))
    return AccountGroup(
        account=account,
        account_pks=tuple(below),
        members=tuple(members),
        path=account_levels(account, ranks, second, policy) if ranks else (),
        of=len(ranks.ranks) if ranks else 0,
    )


def account_levels(
    account: Account, ranks: Ranking, second: int, policy: Policy
) -> tuple[PathLevel, ...]:
    """Return the Accounts from the root down to this one, as levels."""
    chain = [account]
    while (parent := chain[-1].parent) is not None:
        chain.append(parent)
    found = []
    for one in reversed(chain):
        level = ranks.account_level(one.pk)
        used = decayed_gpu_seconds(
            level.usage, unix_seconds=second, half_life_seconds=policy.half_life_seconds
        )
        found.append(
            PathLevel(
                kind="account",
                name=one.name,
                title=str(one),
                shares=one.shares,
                norm_shares=float(level.norm_shares),
                effective_usage=float(level.effective_usage),
                level_fs=None if level.level_fs is None else float(level.level_fs),
                usage_gpu_hours=used / 3600,
            )
        )
    return tuple(found)
