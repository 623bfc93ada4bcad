"""The queue orders of a replay: the portal's, and those it is compared with."""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from typing import Literal, get_args

from reservations.reports.replay.engine import QueueOrder
from reservations.reports.replay.site_rules import MembershipQuotas, SiteTree
from reservations.reports.replay.trace import TraceJob
from reservations.rules.fairness.fair_tree import (
    AccountShares,
    MemberShares,
    rank_tree,
    weight_at,
)
from reservations.rules.fairness.quota import PERMILLE, QuotaInfo, Spend, fits
from reservations.rules.policy import Policy
from reservations.rules.window import DAY_SECONDS, WEEK_SECONDS, Window, instant

Name = Literal["firm-flex", "fair-tree", "max-min", "fifo", "easy"]
NAMES: tuple[Name, ...] = get_args(Name)
FIRM_PART = 2
"""By default this part of the capacity is quota. The rest is flex, given by rank.
Quotas for all of it would promise more than parallel jobs can be packed to.
"""
LEAST_HALF_LIFE_SECONDS = DAY_SECONDS
HALF_LIVES = 7
"""A trace has no earlier history. So by default its span has at least this many
half-lives.
"""
START = 1_600_000_000
"""Unix second of a trace's start, because charges are weighted by their instant."""


def order_of(
    name: Name,
    jobs: Sequence[TraceJob],
    *,
    gpus: int,
    policy: Policy,
    quota_gpu_seconds: int | None = None,
    keeps_plans: bool = False,
) -> QueueOrder:
    """Return an order by its name.

    Args:
        policy: half-life, look-again time, planned starts, the price of late returns.
            With ``keeps_plans`` the freeze and the horizons too.
        quota_gpu_seconds: firm cost of a Membership in any 7 days. None: its share of
            half of the capacity of 7 days (``FIRM_PART``).
        keeps_plans: see ``FirmFlex``.
    """
    makers: dict[Name, Callable[[], QueueOrder]] = {
        "fifo": lambda: Fifo(planned=0),
        "easy": lambda: Fifo(planned=1),
        "max-min": MaxMin,
        "fair-tree": lambda: FairTreeOrder(jobs, policy),
        "firm-flex": lambda: FirmFlex(
            jobs,
            policy,
            default_quota_gpu_seconds(jobs, gpus)
            if quota_gpu_seconds is None
            else quota_gpu_seconds,
            keeps_plans=keeps_plans,
        ),
    }
    return makers[name]()


def default_quota_gpu_seconds(jobs: Sequence[TraceJob], gpus: int) -> int:
    """Return the quota of a Membership if none is given."""
    members = len({job.member for job in jobs})
    return gpus * WEEK_SECONDS // FIRM_PART // max(1, members)


def default_half_life_seconds(jobs: Sequence[TraceJob], policy: Policy) -> int:
    """Return the site's half-life, or a shorter one that fits the trace's span."""
    days = max((job.submit_s for job in jobs), default=0) // DAY_SECONDS + 1
    fitting = max(LEAST_HALF_LIFE_SECONDS, days * DAY_SECONDS // HALF_LIVES)
    return min(policy.half_life_seconds, fitting)


class Fifo:
    """First come, first served."""

    keeps_plans = False

    def __init__(self, *, planned: int) -> None:
        self.planned = planned

    def submitted(self, job: TraceJob, now: int) -> None:
        """Nothing to store."""

    def started(self, job: TraceJob, now: int) -> None:
        """Nothing to store."""

    def ended(self, job: TraceJob, now: int, *, waiting: bool) -> None:
        """Nothing to store."""

    def ran_in_gap(self, job: TraceJob, seconds: int, now: int, *, done: bool) -> None:
        """Nothing to store."""

    def queue(self, jobs: Sequence[TraceJob], now: int) -> Sequence[TraceJob]:
        """In order of submission."""
        return jobs

    def plans(self, job: TraceJob, at: int, now: int) -> bool:
        """A start may be planned for any time."""
        return True


class MaxMin(Fifo):
    """The user with the least Gpus is next (max-min over users), with EASY backfill."""

    def __init__(self) -> None:
        super().__init__(planned=1)
        self.held: dict[str, int] = defaultdict(int)

    def started(self, job: TraceJob, now: int) -> None:
        """Count the user's Gpus."""
        self.held[job.user] += job.gpus

    def ended(self, job: TraceJob, now: int, *, waiting: bool) -> None:
        """Count the user's Gpus."""
        self.held[job.user] -= job.gpus

    def queue(self, jobs: Sequence[TraceJob], now: int) -> Sequence[TraceJob]:
        """Order the queue: each next job is that of the user with the least so far."""
        queues: dict[str, deque[TraceJob]] = {}
        for job in jobs:
            queues.setdefault(job.user, deque()).append(job)
        heads = [
            (self.held[user], first[0].submit_s, first[0].number, user)
            for user, first in queues.items()
        ]
        heapq.heapify(heads)
        dealt = []
        while heads:
            held, _submit, _number, user = heapq.heappop(heads)
            job = queues[user].popleft()
            dealt.append(job)
            if queues[user]:
                following = queues[user][0]
                entry = (held + job.gpus, following.submit_s, following.number, user)
                heapq.heappush(heads, entry)
        return dealt


class FairTreeOrder(Fifo):
    """By Fair Tree's rank, then age, with EASY backfill.

    See docs/design/fair-booking.md#terms.

    Usage is decayed past charges and undecayed commitments. Groups have equal shares,
    and so have the members of a group, unless a tree is given. Ranks are computed again
    at the site's interval.
    """

    def __init__(
        self, jobs: Sequence[TraceJob], policy: Policy, tree: SiteTree | None = None
    ) -> None:
        super().__init__(planned=1)
        self.policy = policy
        self.look_again_seconds = max(1, policy.look_again_seconds)
        rules = tree.accounts if tree is not None else ()
        groups = sorted({job.group for job in jobs} | {one.name for one in rules})
        members = sorted({job.member for job in jobs})
        self.group_pk = {group: pk for pk, group in enumerate(groups, start=1)}
        self.member_pk = {member: pk for pk, member in enumerate(members)}
        known = {one.name: one for one in rules}
        self.accounts = [AccountShares(0, None)] + [
            AccountShares(
                pk,
                self.group_pk.get(known[name].parent or "", 0) if name in known else 0,
                known[name].shares if name in known else 1,
            )
            for name, pk in self.group_pk.items()
        ]
        own = tree.members if tree is not None else ()
        shares = {(one.account, one.user): one.shares for one in own}
        self.shares = [shares.get(member, 1) for member in members]
        self.charged = [0] * len(members)
        """Weighted GPU-seconds of the past."""
        self.committed = [0] * len(members)
        """Requested GPU-seconds of running jobs."""
        self.ranks: list[int] = []
        self.ranked_at: int | None = None

    def started(self, job: TraceJob, now: int) -> None:
        """Commit the requested time."""
        self.committed[self.member_pk[job.member]] += job.gpus * job.req_s

    def ended(self, job: TraceJob, now: int, *, waiting: bool) -> None:
        """Charge the held time in place of the requested time."""
        pk = self.member_pk[job.member]
        self.committed[pk] -= job.gpus * job.req_s
        self.charged[pk] += self.price(job, waiting=waiting) * self.weight(now)

    def ran_in_gap(self, job: TraceJob, seconds: int, now: int, *, done: bool) -> None:
        """Charge the time held in a gap, as unbooked flex."""
        pk = self.member_pk[job.member]
        self.charged[pk] += job.gpus * seconds * self.weight(now)

    def price(self, job: TraceJob, *, waiting: bool) -> int:
        """Return the GPU-seconds to pay for a job that ended."""
        return job.gpus * job.duration_s

    def weight(self, now: int) -> int:
        """Return the weight of a charge at that second."""
        return weight_at(START + now, self.policy.half_life_seconds)

    def queue(self, jobs: Sequence[TraceJob], now: int) -> Sequence[TraceJob]:
        """By rank, then age, then number."""
        ranks = self.ranks_at(now)
        pks = self.member_pk
        return sorted(
            jobs, key=lambda job: (-ranks[pks[job.member]], job.submit_s, job.number)
        )

    def ranks_at(self, now: int) -> list[int]:
        """Return ranks by Membership, at most ``look_again_seconds`` old."""
        at = now // self.look_again_seconds
        if self.ranked_at != at:
            weight = self.weight(now)
            found = rank_tree(
                self.accounts,
                (
                    MemberShares(
                        pk,
                        self.group_pk[group],
                        self.shares[pk],
                        usage=self.charged[pk] + self.committed[pk] * weight,
                    )
                    for (group, _user), pk in self.member_pk.items()
                ),
            ).ranks
            self.ranks = [found[pk].rank for pk in range(len(self.charged))]
            self.ranked_at = at
        return self.ranks


class FirmFlex(FairTreeOrder):
    """The portal's order: time within the quota is firm and first, the rest is flex.

    A job is firm if, at its submission, every 7 days that touch it hold at most the
    quota (docs/design/fair-booking.md#rule-1). Running jobs keep their Gpus. The first
    waiting jobs have planned starts (docs/design/fair-booking.md#rule-5). Time returned
    early costs ``late_return`` of the following day if nobody waits for it
    (docs/design/fair-booking.md#rule-6).

    ``keeps_plans``: flex whose planned start is nearer than the freeze is no longer
    delayed by firm (docs/design/fair-booking.md#rule-3), and no start is planned beyond
    the horizon of its kind (docs/design/fair-booking.md#rule-1, #rule-2). Jobs of a
    trace all want to start at once, so it is unknown whether their users would have
    planned. For bookings of a calendar it is known.
    """

    def __init__(
        self,
        jobs: Sequence[TraceJob],
        policy: Policy,
        quota_gpu_seconds: int,
        *,
        keeps_plans: bool = False,
        tree: SiteTree | None = None,
    ) -> None:
        super().__init__(jobs, policy, tree)
        self.planned = policy.planned_requests
        self.keeps_plans = keeps_plans
        self.frozen: set[int] = set()
        """Numbers of flex jobs whose planned start is within the freeze."""
        self.ceilings = MembershipQuotas(self.member_pk, quota_gpu_seconds, tree)
        self.spends: dict[int, dict[int, Spend]] = defaultdict(dict)
        """By quota, then job: firm cost that counts."""
        self.firm: set[int] = set()

    def submitted(self, job: TraceJob, now: int) -> None:
        """Decide at once whether it is firm."""
        start = START + now
        window = Window(instant(start), instant(start + job.req_s))
        binding = self.ceilings.binding[self.member_pk[job.member]]
        for place in binding:
            spends = self.spends[place]
            gone = [n for n, s in spends.items() if s.end < start - WEEK_SECONDS]
            for number in gone:
                del spends[number]
            if not self._within_quota(job, place, window, start + job.req_s):
                return
        self.firm.add(job.number)
        for place in binding:
            self.spends[place][job.number] = Spend.held(window, rate=job.gpus)

    def _within_quota(
        self, job: TraceJob, place: int, window: Window, end: int
    ) -> bool:
        """Whether a quota allows it. The fullest 7 days are searched only in doubt."""
        quota_gpu_seconds = self.ceilings.quotas[place]
        spends: Collection[Spend] = self.spends[place].values()
        most = quota_gpu_seconds * PERMILLE
        asked = job.gpus * job.req_s * PERMILLE
        if asked + sum(s.rate_permille * (s.end - s.start) for s in spends) <= most:
            return True
        # The last 7 days with the request in them are one of the windows to check.
        since = end - WEEK_SECONDS
        lately = sum(
            s.rate_permille * max(0, min(s.end, end) - max(s.start, since))
            for s in spends
        )
        if min(asked, job.gpus * WEEK_SECONDS * PERMILLE) + lately > most:
            return False
        info = QuotaInfo(job.group, quota_gpu_seconds, tuple(spends))
        return fits(info, window, rate=job.gpus)

    def started(self, job: TraceJob, now: int) -> None:
        """Move its cost to its actual time."""
        super().started(job, now)
        self._hold_cost(job, now, now + job.req_s)

    def ended(self, job: TraceJob, now: int, *, waiting: bool) -> None:
        """Give back the rest of its cost."""
        super().ended(job, now, waiting=waiting)
        self._hold_cost(job, now - job.duration_s, now)

    def ran_in_gap(self, job: TraceJob, seconds: int, now: int, *, done: bool) -> None:
        """Charge it. A finished job no longer counts in the quota."""
        super().ran_in_gap(job, seconds, now, done=done)
        if done:
            for place in self.ceilings.binding[self.member_pk[job.member]]:
                self.spends[place].pop(job.number, None)

    def _hold_cost(self, job: TraceJob, start: int, end: int) -> None:
        if job.number not in self.firm:
            return
        window = (
            Window(instant(START + start), instant(START + end))
            if end > start
            else None
        )
        for place in self.ceilings.binding[self.member_pk[job.member]]:
            spends = self.spends[place]
            if job.number not in spends:
                continue
            if window is None:
                del spends[job.number]
            else:
                spends[job.number] = Spend.held(window, rate=job.gpus)

    def price(self, job: TraceJob, *, waiting: bool) -> int:
        """Return the cost of the held time, and of a late return that no other job
        used.
        """
        held = job.gpus * job.duration_s
        if waiting:
            return held
        rest = min(job.req_s - job.duration_s, 86_400)
        return held + job.gpus * rest * self.policy.late_return_permille // 1000

    def queue(self, jobs: Sequence[TraceJob], now: int) -> Sequence[TraceJob]:
        """Firm (and frozen) before flex, each by rank, then age."""
        by_rank = super().queue(jobs, now)
        first = self.firm | self.frozen if self.frozen else self.firm
        return sorted(by_rank, key=lambda job: job.number not in first)

    def plans(self, job: TraceJob, at: int, now: int) -> bool:
        """Whether the start lies within the horizon of its kind. See the class."""
        if not self.keeps_plans:
            return True
        policy, firm = self.policy, job.number in self.firm
        ahead = policy.firm_horizon_seconds if firm else policy.flex_horizon_seconds
        if at - now > ahead:
            return False
        if at - now <= policy.freeze_seconds:
            self.frozen.add(job.number)
        return True
