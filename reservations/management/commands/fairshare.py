"""`manage.py fairshare`: the tree as Slurm's `sshare -l` prints it."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from reservations.domain.errors import hours_text
from reservations.domain.fairshare import Level, Ranking, decayed_gpu_seconds
from reservations.domain.policy import Policy
from reservations.domain.window import unix
from reservations.models import Account, Membership
from reservations.snapshots import ranking, site_policy

COLUMNS = "{:<32}{:>8}{:>12}{:>14}{:>12}{:>11}{:>11}"


class Command(BaseCommand):
    """Prints; changes nothing."""

    help = "Print shares, usage, level_fs and fairshare of every account and member."

    def handle(self, *args: Any, **options: Any) -> None:
        """Rank now, print from the root down."""
        policy, now = site_policy(), timezone.now()
        ranks = ranking(now, policy)
        if ranks is None:
            raise CommandError("There is no account yet.")
        self.stdout.write(
            COLUMNS.format(
                "Account / User", "Shares", "NormShares", "Usage GPU-h", "EffUsage",
                "LevelFS", "FairShare",
            )
        )  # fmt: skip
        children: dict[int | None, list[Account]] = {}
        for account in Account.objects.order_by("name"):
            children.setdefault(account.parent_id, []).append(account)
        members: dict[int, list[Membership]] = {}
        for member in Membership.objects.filter(active=True).select_related("user"):
            members.setdefault(member.account_id, []).append(member)
        todo = [(account, 0) for account in reversed(children.get(None, []))]
        while todo:
            account, depth = todo.pop()
            level = ranks.account_level(account.pk)
            self._line(account.name, depth, account.shares, level, None, now, policy)
            for member in members.get(account.pk, []):
                self._line(
                    member.user.username, depth + 1, member.shares,
                    ranks.member_level(member.pk), (ranks, member.pk), now, policy,
                )  # fmt: skip
            below = children.get(account.pk, [])
            todo += [(child, depth + 1) for child in reversed(below)]

    def _line(
        self,
        name: str,
        depth: int,
        shares: int,
        level: Level,
        rank: tuple[Ranking, int] | None,
        now: Any,
        policy: Policy,
    ) -> None:
        used = decayed_gpu_seconds(
            level.usage,
            unix_seconds=unix(now),
            half_life_seconds=policy.half_life_seconds,
        )
        level_fs = "inf" if level.level_fs is None else f"{float(level.level_fs):.6f}"
        fairshare = f"{float(rank[0].ranks[rank[1]].fairshare):.6f}" if rank else ""
        self.stdout.write(
            COLUMNS.format(
                " " * depth + name, shares, f"{float(level.norm_shares):.6f}",
                hours_text(round(used)), f"{float(level.effective_usage):.6f}",
                level_fs, fairshare,
            ).rstrip()
        )  # fmt: skip
