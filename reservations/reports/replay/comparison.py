"""Compare two replays of the same demand under different rules.

The bookings of a site become the jobs of a trace: user, time of request, number of
Gpus, requested and held length. Both replays use the same trace, so the differences
come from the rules. Neither equals the real past, because people book ahead and a
replay starts each job as soon as it can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from reservations.reports.replay.engine import replay
from reservations.reports.replay.measures import (
    DAY_SECONDS,
    DayLoad,
    GroupWaits,
    load_by_day,
    measure,
    waits_by_group,
)
from reservations.reports.replay.queue_orders import FirmFlex
from reservations.reports.replay.site_rules import SiteTree
from reservations.reports.replay.trace import NEEDED, TraceJob
from reservations.rules.policy import Policy

EDITABLE = (
    "quota_gpu_seconds",
    "half_life_seconds",
    "freeze_seconds",
    "firm_horizon_seconds",
    "flex_horizon_seconds",
)
"""Fields of the policy that affect a replay."""


@dataclass(frozen=True, slots=True)
class ReplayOutcome:
    """Measures of one replay, and its groups' waits."""

    measures: dict[str, float]
    groups: tuple[GroupWaits, ...]
    days: tuple[DayLoad, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return it as it is stored."""
        return {
            "measures": self.measures,
            "groups": [asdict(group) for group in self.groups],
            "days": [[d.used_gpu_seconds, d.waited_gpu_seconds] for d in self.days],
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> ReplayOutcome:
        """Return the value of a stored one."""
        groups = tuple(GroupWaits(**group) for group in stored["groups"])
        days = tuple(DayLoad(*day) for day in stored.get("days", ()))
        return cls(dict(stored["measures"]), groups, days)


def edited(policy: Policy, fields: Mapping[str, int]) -> Policy:
    """Return the policy with other values of ``EDITABLE`` fields.

    Raises:
        PolicyInvalid: a value is out of range, or contradicts another.
    """
    changed: dict[str, Any] = {name: fields[name] for name in EDITABLE}
    return replace(policy, **changed)


def outcome(
    jobs: Sequence[TraceJob],
    policy: Policy,
    *,
    gpus: int,
    weight: int,
    tree: SiteTree | None = None,
    progress: Callable[[float], None] | None = None,
) -> ReplayOutcome:
    """Replay a trace under a policy, with its freeze and its horizons.

    Args:
        jobs: at least one, none wider than ``gpus``.
        weight: of one Gpu: quotas are in weighted GPU-seconds, the trace is not.
        tree: the site's shares and quotas. None: equal shares, one quota for all.
    """
    order = FirmFlex(
        jobs,
        policy,
        policy.quota_gpu_seconds // max(1, weight),
        keeps_plans=True,
        tree=None if tree is None else tree.of_trace(jobs, weight=weight),
    )
    runs = replay(jobs, gpus=gpus, order=order, progress=progress)
    days = max(job.submit_s for job in jobs) // DAY_SECONDS + 1
    return ReplayOutcome(
        asdict(measure(runs, gpus=gpus)),
        tuple(waits_by_group(runs)),
        tuple(load_by_day(runs, days=days)),
    )


def trace_rows(jobs: Sequence[TraceJob]) -> Iterator[list[str | int]]:
    """Yield header and rows of a trace, in the form that ``read_trace`` reads."""
    yield list(NEEDED)
    for job in jobs:
        yield [getattr(job, name) for name in NEEDED]
