"""Results before and after a replay, in figures and charts."""

from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext

from reservations.models import PolicyReplay
from reservations.reports.replay.comparison import ReplayOutcome
from reservations.reports.replay.forms import HOUR, TITLES
from reservations.reports.replay.measures import DAY_SECONDS
from reservations.reports.replay.site_rules import AccountEdit
from telemetry.protocol.sentences import sentence

WIDTH = 1000
HIGH = 120


@dataclass(frozen=True)
class ReplayMeasure:
    """One measure under both rules. ``better``: 1 if more is better, -1 if less is."""

    title: str
    before: float
    after: float
    unit: str
    better: int

    @property
    def words(self) -> tuple[str, str]:
        """Return both values in words."""
        if self.unit == "ratio":
            return f"{100 * self.before:.1f} %", f"{100 * self.after:.1f} %"
        unit = f" {self.unit}" if self.unit else ""
        return f"{self.before:,.2f}{unit}", f"{self.after:,.2f}{unit}"

    @property
    def verdict(self) -> str:
        """Return whether it improved, if it changed."""
        change = self.after - self.before
        if self.words[0] == self.words[1] or abs(change) < 5e-4 * max(
            1.0, abs(self.before)
        ):
            return "same"
        return "better" if change * self.better > 0 else "worse"

    @property
    def widths(self) -> tuple[int, int]:
        """Return both bars: parts of one, or hours of the longer wait."""
        most = max(self.before, self.after) if self.unit == "h" else 1.0
        return tuple(  # type: ignore[return-value]
            round(WIDTH * min(1.0, value / most)) if most else 0
            for value in (self.before, self.after)
        )


MEASURES = (
    (sentence("Mean wait"), "wait_mean_hours", "h", -1),
    (sentence("Median wait"), "wait_p50_hours", "h", -1),
    (sentence("99 % waited at most"), "wait_p99_hours", "h", -1),
    (sentence("Worst person's mean wait"), "worst_user_wait_hours", "h", -1),
    (sentence("Utilization"), "utilization", "ratio", 1),
    (sentence("Jain's index by groups"), "jain_tree", "", 1),
    (sentence("Jain's index by people"), "jain_flat", "", 1),
    (sentence("Unserved entitlement"), "unserved_entitlement", "ratio", -1),
)


@dataclass(frozen=True)
class GroupBars:
    """A group's mean wait under both rules. Widths in thousandths of the longest."""

    group: str
    jobs: int
    before_hours: float
    after_hours: float
    before: int
    after: int


def shown(row: PolicyReplay) -> dict[str, Any]:
    """Return the rules of both sides and, if it is done, their results."""
    rules = [
        (title, unit, row.present[name] / HOUR, row.edited[name] / HOUR)
        for name, (title, unit) in TITLES.items()
    ]
    found: dict[str, Any] = {
        "rules": [(*rule, rule[2] != rule[3]) for rule in rules],
        "accounts": _accounts(row),
        "done_permille": round(WIDTH * row.done_ratio),
        "open": row.state in PolicyReplay.OPEN,
    }
    if row.before is None or row.after is None:
        return found
    before, after = (
        ReplayOutcome.from_json(row.before),
        ReplayOutcome.from_json(row.after),
    )
    found["figures"] = [
        ReplayMeasure(title, before.measures[name], after.measures[name], unit, better)
        for title, name, unit, better in MEASURES
    ]
    found["waits"] = [one for one in found["figures"] if one.unit == "h"]
    found["parts"] = [one for one in found["figures"] if one.unit != "h"]
    found["groups"] = _groups(before, after)
    found["days"] = _days(before, after, gpus=row.gpus)
    found["idle"] = all(
        bar.before_hours == bar.after_hours == 0 for bar in found["groups"]
    )
    return found


def _groups(before: ReplayOutcome, after: ReplayOutcome) -> list[GroupBars]:
    later = {one.group: one for one in after.groups}
    waits = [one.wait_mean_hours for one in (*before.groups, *after.groups)]
    most = max(waits, default=0.0) or 1.0
    return [
        GroupBars(
            one.group,
            one.jobs,
            one.wait_mean_hours,
            later[one.group].wait_mean_hours,
            round(WIDTH * one.wait_mean_hours / most),
            round(WIDTH * later[one.group].wait_mean_hours / most),
        )
        for one in sorted(before.groups, key=lambda g: -g.wait_mean_hours)
    ]


@dataclass(frozen=True)
class AccountRow:
    """The edited values of an Account as text: before and after."""

    name: str
    shares: tuple[int, int]
    quota: tuple[str, str]
    factor: float


def _accounts(row: PolicyReplay) -> list[AccountRow]:
    present = row.present.get("accounts", {})
    found = []
    for name, kept in sorted(row.edited.get("accounts", {}).items()):
        before, after = (AccountEdit.from_json(one) for one in (present[name], kept))
        found.append(
            AccountRow(
                name,
                (before.shares, after.shares),
                (_quota(before), _quota(after)),
                after.members_permille / 1000,
            )
        )
    return found


def _quota(edit: AccountEdit) -> str:
    if edit.quota_gpu_seconds is None:
        return gettext("sum of its members'")
    return f"{edit.quota_gpu_seconds / HOUR:,.6g} h"


@dataclass(frozen=True)
class DayLines:
    """One line chart over the days of the span: two polylines and its scale."""

    title: str
    before: str
    after: str
    most: str
    days: int


def _days(before: ReplayOutcome, after: ReplayOutcome, *, gpus: int) -> list[DayLines]:
    """Return used and waited-for Gpus, the mean of each day."""
    if len(before.days) < 2 or len(before.days) != len(after.days):
        return []
    return [
        _day_lines(
            gettext("GPUs in use"),
            [one.used_gpu_seconds for one in before.days],
            [one.used_gpu_seconds for one in after.days],
            gpus * DAY_SECONDS,
        ),
        _day_lines(
            gettext("GPUs waited for"),
            [one.waited_gpu_seconds for one in before.days],
            [one.waited_gpu_seconds for one in after.days],
            0,
        ),
    ]


def _day_lines(
    title: str, before: list[int], after: list[int], most_gpu_seconds: int
) -> DayLines:
    """Draw both. A scale of 0 means that of the highest day."""
    most = max(most_gpu_seconds, *before, *after) or DAY_SECONDS
    return DayLines(
        title,
        _points(before, most),
        _points(after, most),
        f"{most / DAY_SECONDS:,.3g}",
        len(before),
    )


def _points(values: list[int], most: int) -> str:
    step = WIDTH / (len(values) - 1)
    return " ".join(
        f"{round(place * step)},{round(HIGH * (1 - value / most))}"
        for place, value in enumerate(values)
    )
