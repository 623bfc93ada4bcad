"""The standing page's sentences and figures, ready for its template."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime

from django.utils import timezone

from reservations.fairshare.group_use import AccountGroup
from reservations.fairshare.service import MembershipStanding, PathLevel, QuotaStanding
from reservations.fairshare.standing_advice import ordinal
from reservations.rules.fairness.rank_advice import used_ratio
from telemetry.protocol.sentences import joined, sentence


@dataclass(frozen=True)
class LevelBar:
    """One step of the path with its bar."""

    level: PathLevel
    words: str
    left: float
    width: float
    behind: bool
    """Whether it used more than its share: level_fs below 1."""


@dataclass(frozen=True)
class QuotaDay:
    """One day of a quota's band."""

    day: date
    left_gpu_seconds: int
    held_ratio: float
    """0 to 1 of the quota, in the fullest 7 days that touch this day."""

    @property
    def left_hours(self) -> int:
        """Return the whole credits that can still be booked."""
        return self.left_gpu_seconds // 3600


def times(level: PathLevel) -> str:
    """Say how much of its share a branch has used: "1.3×"."""
    ratio = used_ratio(level.level_fs)
    if math.isinf(ratio):
        return sentence("time without having a share")
    return f"{ratio:.1f}×" if ratio >= 0.05 or ratio == 0 else sentence("under 0.1×")


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


def first_sentence(shown: MembershipStanding, *, own: bool) -> str:
    """Return the page's first sentence: "You are 4th of 16. Vision has used ..."."""
    values = {"name": str(shown.membership.user), "of": shown.of}
    if shown.place is None:
        if own:
            return sentence("You are not ranked, because no groups are set up yet.")
        return sentence(
            "{name} is not ranked, because no groups are set up yet.", **values
        )
    values["place"] = ordinal(shown.place)
    words = (
        sentence("You are {place} of {of}.", **values)
        if own
        else sentence("{name} is {place} of {of}.", **values)
    )
    groups = [level for level in shown.path[1:] if level.kind == "account"]
    member = shown.path[-1] if shown.path else None
    parts: list[str] = [
        sentence(
            "{title} has used {times} its share",
            title=level.title if number else _capitalized(level.title),
            times=times(level),
        )
        for number, level in enumerate(groups)
    ]
    if member is not None:
        values["times"] = times(member)
        if parts:
            part = (
                sentence("you {times} of yours", **values)
                if own
                else sentence("{name} {times} of theirs", **values)
            )
        elif own:
            part = sentence("You have used {times} of yours", **values)
        else:
            values["name"] = _capitalized(str(shown.membership.user))
            part = sentence("{name} has used {times} of theirs", **values)
        parts.append(part)
    if not parts:
        return words
    return joined([words, joined([joined(parts, by="; "), "."], by="")])


def group_sentence(group: AccountGroup | None) -> str:
    """Return the first sentence of a group's page, or of a page about nobody."""
    if group is None:
        return sentence(
            "You are in no group yet, so you have no rank. Ask the lab admin."
        )
    if len(group.path) > 1:
        return sentence(
            "{group} has used {times} its share; {n} members.",
            group=group.account,
            times=times(group.path[-1]),
            n=len(group.members),
        )
    return sentence(
        "{group} is the whole site; {n} members.",
        group=group.account,
        n=len(group.members),
    )


def bar_of(level_fs: float | None) -> tuple[float, float, bool]:
    """Return (left, width, behind) of a bar, from the middle to the right if ahead.

    One unit of log2(level_fs) is a quarter of the width. 4 and 1/4 fill half of it.

    >>> bar_of(0.5), bar_of(None)
    ((25.0, 25.0, True), (50, 50.0, False))
    """
    ratio = used_ratio(level_fs)
    way = 2.0 if ratio == 0 else -2.0 if math.isinf(ratio) else -math.log2(ratio)
    length = min(abs(way), 2.0) * 25
    return round(50 - length if way < 0 else 50, 2), round(length, 2), way < 0


def levels(path: Sequence[PathLevel]) -> list[LevelBar]:
    """Return the path's bars, from the middle to the right if under-served."""
    bars = []
    for number, level in enumerate(path):
        if number == 0:
            bars.append(LevelBar(level, sentence("the whole"), 50, 0, behind=False))
            continue
        left, width, behind = bar_of(level.level_fs)
        words = sentence(
            "share {share}, used {used}: {times} of its share",
            share=f"{level.norm_shares:.0%}",
            used=f"{level.effective_usage:.0%}",
            times=times(level),
        )
        bars.append(LevelBar(level, words, left, width, behind=behind))
    return bars


@dataclass(frozen=True)
class QuotaChart:
    """One quota over the next 14 days, as an area and as a list of days."""

    quota: QuotaStanding
    days: list[QuotaDay]
    held: str
    """SVG path of the held time, in a viewBox of (steps, 100). The quota is 100."""
    steps: int
    day_lines: list[float]
    """The start of each day except the first, in steps."""
    horizon: float | None
    """The end of firm booking, in steps. None: outside the chart."""
    now: float
    """The present instant, in steps."""


def quota_charts(
    quotas: Sequence[QuotaStanding], *, horizon_at: datetime
) -> list[QuotaChart]:
    """Return each quota with its next 14 days. A day counts by its tightest point."""
    return [_chart(quota, horizon_at) for quota in quotas]


def _chart(quota: QuotaStanding, horizon_at: datetime) -> QuotaChart:
    whole = quota.quota_gpu_seconds
    tightest: dict[date, int] = {}
    lines: list[float] = []
    path = ["M0 100"]
    for number, point in enumerate(quota.band):
        day = timezone.localtime(point.at).date()
        if tightest and day not in tightest:
            lines.append(number)
        tightest[day] = max(tightest.get(day, 0), point.held_gpu_seconds)
        ratio = min(point.held_gpu_seconds / whole, 1) if whole else 1.0
        path.append(f"V{round(100 - 100 * ratio, 2):g}H{number + 1}")
    steps = len(quota.band)
    days = [
        QuotaDay(day, max(whole - held, 0), held / whole if whole else 1.0)
        for day, held in sorted(tightest.items())[:14]
    ]
    return QuotaChart(
        quota=quota,
        days=days,
        held=f"{' '.join(path)}V100Z",
        steps=steps,
        day_lines=lines,
        horizon=_steps_until(horizon_at, quota, steps),
        now=_steps_until(timezone.now(), quota, steps) or 0.0,
    )


def _steps_until(at: datetime, quota: QuotaStanding, steps: int) -> float | None:
    if steps < 2:
        return None
    step = quota.band[1].at - quota.band[0].at
    found = (at - quota.band[0].at) / step
    return round(found, 2) if 0 < found < steps else None
