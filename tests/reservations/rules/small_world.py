"""A small world in memory in which people wait, book, displace and let time pass."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import combinations

from reservations.rules.calendar import (
    BusySpan,
    Calendar,
    CalendarGpu,
    FlexInfo,
    PlannedStart,
    SlotWish,
)
from reservations.rules.decision import Decision, decide
from reservations.rules.fairness.fair_tree import AccountShares, MemberShares
from reservations.rules.fairness.preemption import FairTree
from reservations.rules.fairness.quota import QuotaInfo
from reservations.rules.lifecycle import Kind
from reservations.rules.policy import Policy
from reservations.rules.request import Holding, Request, Snapshot
from reservations.rules.window import Window, unix
from reservations.waitlist.openings import WaitingRequestInfo
from reservations.waitlist.planned_starts import expect
from reservations.waitlist.rules import (
    WaitlistMatch,
    first_placed,
    in_order,
)

NOW = datetime(2026, 3, 28, 1, tzinfo=UTC)
"""The night before Europe's clocks change."""
HOUR = timedelta(hours=1)
POLICY = Policy(gpus_at_once=9, future_flex=9, live_reservations=99)
GPUS = tuple(
    CalendarGpu(pk, "n" if pk < 3 else "m", pk, "A30", 2**34, 1) for pk in range(4)
)


@dataclass
class Held:
    """A booking, and the waiting request that it came from."""

    member: int
    gpus: tuple[int, ...]
    window: Window
    kind: Kind
    request: WaitingRequestInfo
    planned: bool = False

    @property
    def cost(self) -> int:
        return len(self.gpus) * self.window.seconds


@dataclass
class Lobby:
    """Who waits and who holds, at one instant. A Membership is its own User."""

    accounts: list[AccountShares]
    of: dict[int, tuple[int, int]]
    """Account and shares by Membership."""
    past: dict[int, int] = field(default_factory=dict)
    firm: set[int] = field(default_factory=set)
    """Memberships with endless quota; the others have none."""
    policy: Policy = POLICY
    gpus: tuple[CalendarGpu, ...] = GPUS[:3]
    now: datetime = NOW
    held: dict[int, Held] = field(default_factory=dict)
    waiting: dict[int, WaitingRequestInfo] = field(default_factory=dict)

    def tree(self) -> FairTree:
        usage = dict(self.past)
        for one in self.held.values():
            usage[one.member] = usage.get(one.member, 0) + one.cost
        members = (
            MemberShares(pk, account, shares, usage.get(pk, 0))
            for pk, (account, shares) in self.of.items()
        )
        return FairTree(tuple(self.accounts), tuple(members))

    def frozen_until(self) -> datetime:
        return self.now + timedelta(seconds=self.policy.freeze_seconds)

    def calendar(self) -> Calendar:
        spans = [
            BusySpan(
                gpu,
                unix(one.window.start),
                unix(one.window.end),
                "",
                self.flex(pk, one),
            )
            for pk, one in self.held.items()
            for gpu in one.gpus
        ]
        plans = [
            one.plan
            for one in self.waiting.values()
            if one.plan is not None and one.plan.window.start > self.frozen_until()
        ]
        return Calendar(self.gpus, spans, plans)

    def flex(self, pk: int, one: Held) -> FlexInfo | None:
        if one.kind is Kind.FIRM or one.window.start <= self.frozen_until():
            return None
        return FlexInfo(
            pk,
            one.member,
            1,
            "",
            one.window.start,
            one.window.end,
            one.cost,
            NOW,
            user_pk=one.member,
            planned=one.planned,
        )

    def facts(self, one: WaitingRequestInfo) -> Snapshot:
        quota = 10**9 if one.member_pk in self.firm else 0
        own = tuple(
            Holding(pk, held.window, frozenset(held.gpus), held.kind)
            for pk, held in self.held.items()
            if held.member == one.user_pk
        )
        return Snapshot(
            policy=self.policy,
            calendar=self.calendar().seen_by(one.user_pk),
            own=own,
            quotas=(QuotaInfo("own", quota, ()),),
            membership_pk=one.member_pk,
            tree=self.tree(),
        )

    def queue(self) -> tuple[WaitingRequestInfo, ...]:
        return in_order(self.waiting.values(), self.tree().ranked().ranks)

    def step(self) -> WaitlistMatch | None:
        """Place the first that fits; what it displaces waits again."""
        found = first_placed(self.queue(), self.facts, now=self.now)
        if found is not None:
            self.book(
                found.waiting,
                found.slot.gpu_ids,
                found.slot.window,
                found.decision,
                planned=found.keeps_plan,
            )
        return found

    def book(
        self,
        one: WaitingRequestInfo,
        gpus: tuple[int, ...],
        window: Window,
        decision: Decision,
        *,
        planned: bool = False,
    ) -> list[int]:
        gone = [d.flex.reservation_pk for d in decision.displaced]
        for pk in gone:
            victim = self.held.pop(pk)
            by_rank = decision.kind is Kind.FLEX
            self.waiting[pk] = replace(
                victim.request, plan=None, takes=victim.request.takes and not by_rank
            )
        self.waiting.pop(one.pk, None)
        kind = decision.kind
        assert kind is not None
        self.held[one.pk] = Held(one.member_pk, gpus, window, kind, one, planned)
        return gone

    def plan(self) -> None:
        """Keep every planned start, as the service does."""
        expected = expect(self.queue(), self.facts, now=self.now, policy=self.policy)
        for pk, one in self.waiting.items():
            found = expected.get(pk)
            held = found.plan if found is not None and found.held else None
            self.waiting[pk] = replace(one, plan=held)

    def plans(self) -> dict[int, PlannedStart]:
        return {
            pk: one.plan for pk, one in self.waiting.items() if one.plan is not None
        }

    def granted(
        self, one: WaitingRequestInfo, first: datetime, last_end: datetime
    ) -> Iterator[Window]:
        """Yield, by trying everything, the Windows in free time the rules grant."""
        facts = self.facts(one)
        for window in self.free_windows(one, first, last_end):
            for gpus in combinations(
                facts.calendar.free(window, one.wish), one.wish.count
            ):
                if decide(Request(gpus, window, self.now), facts).kind is not None:
                    yield window
                    break

    def free_windows(
        self, one: WaitingRequestInfo, first: datetime, last_end: datetime
    ) -> Iterator[Window]:
        start = max(first, one.earliest)
        length = timedelta(seconds=one.wish.duration_seconds)
        while start + length <= min(last_end, one.latest):
            yield Window(start, start + length)
            start += HOUR


def request(
    pk: int,
    member: int,
    *,
    count: int = 1,
    hours: int = 2,
    start: int = 0,
    end: int = 60,
    asked: int = 0,
    **fields: object,
) -> WaitingRequestInfo:
    """Return a request by whole hours from ``NOW``."""
    fields.setdefault("consents", True)
    return WaitingRequestInfo(
        pk=pk,
        member_pk=member,
        user_pk=member,
        wish=SlotWish(count, hours * 3600),
        earliest=NOW + start * HOUR,
        latest=NOW + end * HOUR,
        asked_at=NOW - timedelta(minutes=asked),
        **fields,
    )  # type: ignore[arg-type]
