"""The standing page's sentences and figures, ready for its template."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from django.utils import timezone

from reservations.domain.advice import Branch, parting, surplus_usage, used_ratio
from reservations.domain.fairshare import Ranking, decayed_gpu_seconds
from reservations.domain.window import unix
from reservations.models import Membership
from reservations.services.standing import MembershipStanding, PathLevel, QuotaStanding
from reservations.snapshots import ranking, site_policy
from reservations.snapshots.facts import account_path, committed_gpu_seconds
from reservations.views.group import Group
from telemetry.domain.units import format_gpu_hours

BAR_WIDTH = 100.0
"""Units of the bars' viewBox; the middle is level_fs 1."""


@dataclass(frozen=True)
class LevelBar:
    """One step of the path with its bar."""

    level: PathLevel
    words: str
    left: float
    width: float
    behind: bool
    """Used more than its share: level_fs below 1."""


@dataclass(frozen=True)
class QuotaDay:
    """One day of a quota's band."""

    day: date
    left_gpu_seconds: int
    held_ratio: float
    """0 to 1 of the quota, in the fullest 7 days that touch this day."""

    @property
    def left_hours(self) -> int:
        """Return whole weighted GPU-hours that can still be booked."""
        return self.left_gpu_seconds // 3600

    @property
    def height(self) -> float:
        """Return the held part's height in a viewBox of 100."""
        return round(100 * min(self.held_ratio, 1), 2)

    @property
    def top(self) -> float:
        """Return where the held part begins, from above."""
        return round(100 - self.height, 2)


def names_visible() -> bool:
    """Say whether students see each other's names."""
    return site_policy().names_visible


def ordinal(number: int) -> str:
    """Return 1st, 2nd, 3rd, 4th, 11th.

    >>> ordinal(1), ordinal(12), ordinal(23)
    ('1st', '12th', '23rd')
    """
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"


def times(level: PathLevel) -> str:
    """Say how much of its share a branch has used: "1.3×"."""
    ratio = used_ratio(level.level_fs)
    if math.isinf(ratio):
        return "more than its share of none"
    return f"{ratio:.1f}×" if ratio >= 0.05 or ratio == 0 else "under 0.1×"


def sentence(shown: MembershipStanding, *, own: bool) -> str:
    """Return the page's first words: "You are 4th of 16. Vision has used ..."."""
    who = "You are" if own else f"{shown.membership.user} is"
    if shown.place is None:
        return f"{who} not ranked: there is no tree of accounts yet."
    words = f"{who} {ordinal(shown.place)} of {shown.of}."
    groups = [level for level in shown.path[1:] if level.kind == "account"]
    member = shown.path[-1] if shown.path else None
    parts = [f"{level.title} has used {times(level)} its share" for level in groups]
    if member is not None:
        whose = ("you", "yours") if own else (str(shown.membership.user), "theirs")
        verb = "" if parts else (" have used" if own else " has used")
        parts.append(f"{whose[0]}{verb} {times(member)} of {whose[1]}")
    if not parts:
        return words
    told = "; ".join(parts)
    return f"{words} {told[0].upper()}{told[1:]}."


def group_sentence(group: Group | None) -> str:
    """Return the first words where a whole group is shown, or nobody at all."""
    if group is None:
        return "You are in no group yet, so you have no standing."
    used = times(group.path[-1]) if len(group.path) > 1 else ""
    told = f" has used {used} its share" if used else " is the whole site"
    return f"{group.account}{told}; {len(group.members)} members."


def levels(path: Sequence[PathLevel]) -> list[LevelBar]:
    """Return the path's bars: from the middle to the right for under-served.

    One unit of log2(level_fs) is a quarter of the width; 4 and 1/4 fill it.
    """
    bars = []
    for number, level in enumerate(path):
        if number == 0:
            bars.append(LevelBar(level, "the whole", 50, 0, behind=False))
            continue
        ratio = used_ratio(level.level_fs)
        way = 2.0 if ratio == 0 else -2.0 if math.isinf(ratio) else -math.log2(ratio)
        length = min(abs(way), 2.0) * 25
        words = (
            f"share {level.norm_shares:.0%}, used {level.effective_usage:.0%}: "
            f"{times(level)} of its share"
        )
        left = 50 - length if way < 0 else 50
        bars.append(
            LevelBar(level, words, round(left, 2), round(length, 2), behind=way < 0)
        )
    return bars


def quota_days(
    quotas: Sequence[QuotaStanding],
) -> list[tuple[QuotaStanding, list[QuotaDay]]]:
    """Return each quota with its next 14 days; a day counts by its tightest point."""
    found = []
    for quota in quotas:
        tightest: dict[date, int] = {}
        for point in quota.band:
            day = timezone.localtime(point.at).date()
            tightest[day] = max(tightest.get(day, 0), point.held_gpu_seconds)
        whole = quota.quota_gpu_seconds
        days = [
            QuotaDay(day, max(whole - held, 0), held / whole if whole else 1.0)
            for day, held in sorted(tightest.items())[:14]
        ]
        found.append((quota, days))
    return found


def advice(shown: MembershipStanding, *, own: bool) -> list[str]:
    """Say what would move one up: the rival ahead, and what one has booked."""
    if shown.place is None:
        return []
    if shown.place == 1:
        return ["Nobody is served before you."] if own else []
    now, policy = timezone.now(), site_policy()
    ranks = ranking(now, policy)
    pk = shown.membership.pk
    if ranks is None or pk not in ranks.ranks:
        return []
    told = [_rival_words(shown.membership, ranks, own=own)]
    booked = committed_gpu_seconds().get(pk, 0)
    if booked:
        free = ranking(now, policy, extra={pk: -booked})
        place = free.place(pk) if free else shown.place
        told.append(
            f"{format_gpu_hours(booked)} (weighted) are booked ahead and count as "
            f"used. Without them the place would be {ordinal(place)}."
        )
    told.append(
        "Use fades by half every "
        f"{policy.half_life_seconds // 86_400} days, for everybody alike: "
        "waiting alone moves nobody."
    )
    return [words for words in told if words]


def _rival_words(member: Membership, ranks: Ranking, *, own: bool) -> str:
    """Compare with whoever is next ahead, on the level where the paths part."""
    mine = ranks.ranks[member.pk].rank
    ahead = [(rank.rank, pk) for pk, rank in ranks.ranks.items() if rank.rank > mine]
    rival = Membership.objects.select_related(
        "user", "account__parent__parent__parent"
    ).get(pk=min(ahead)[1])
    parted = parting(_steps(member), _steps(rival))
    if parted is None:
        return ""
    here, there = (_branch(step, ranks) for step in parted)
    name = there.title if parted[1][0] == "account" or names_visible() else "a member"
    less = surplus_usage(here, there)
    if less is None:
        return f"Next ahead is {name}, with no use at all: any use of theirs helps."
    policy = site_policy()
    seconds = decayed_gpu_seconds(
        max(less, 0),
        unix_seconds=unix(timezone.now()),
        half_life_seconds=policy.half_life_seconds,
    )
    who = "You" if own and parted[0][0] == "member" else here.title
    return (
        f"Next ahead is {name}. {who} would pass with "
        f"{format_gpu_hours(max(seconds, 3600 / 10))} (weighted) less use."
    )


def _steps(membership: Membership) -> list[tuple[str, int, str]]:
    """Return the path from the root: (kind, pk, title) of each node."""
    accounts = reversed(account_path(membership))
    steps = [("account", account.pk, str(account)) for account in accounts]
    return [*steps, ("member", membership.pk, str(membership.user))]


def _branch(step: tuple[str, int, str], ranks: Ranking) -> Branch:
    kind, pk, title = step
    level = ranks.member_level(pk) if kind == "member" else ranks.account_level(pk)
    return Branch(title, level.norm_shares, level.usage)
