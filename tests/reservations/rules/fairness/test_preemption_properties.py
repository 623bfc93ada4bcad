"""Displacements end for all requests (docs/design/fair-booking.md#i6)."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from reservations.rules.calendar import BusySpan, Calendar, CalendarGpu, FlexInfo
from reservations.rules.decision import decide
from reservations.rules.decision_record import (
    broken_rules,
    inputs_of,
    recompute,
    without_places,
)
from reservations.rules.fairness.fair_tree import AccountShares, MemberShares
from reservations.rules.fairness.preemption import FairTree
from reservations.rules.fairness.quota import QuotaInfo
from reservations.rules.lifecycle import Kind
from reservations.rules.policy import Policy
from reservations.rules.request import Request, Snapshot
from reservations.rules.window import Window, unix

NOW = datetime(2026, 3, 28, 1, tzinfo=UTC)
"""The night before Europe's clocks change."""
HOUR = 3600
MOST_STEPS = 400


@dataclass(frozen=True)
class Ask:
    """A request that is repeated until it holds."""

    pk: int
    member: int
    gpus: tuple[int, ...]
    start: int
    hours: int

    @property
    def window(self) -> Window:
        start = NOW + timedelta(hours=self.start)
        return Window(start, start + timedelta(hours=self.hours))

    @property
    def cost(self) -> int:
        return len(self.gpus) * self.hours * HOUR


@dataclass
class World:
    """A tree of people, their past use, and who holds what."""

    accounts: list[AccountShares]
    of: dict[int, tuple[int, int]]
    """Account and shares by Membership."""
    past: dict[int, int]
    firm: set[int] = field(default_factory=set)
    """Memberships with endless quota."""
    held: dict[int, tuple[Ask, Kind]] = field(default_factory=dict)

    def tree(self) -> FairTree:
        usage = dict(self.past)
        for ask, _kind in self.held.values():
            usage[ask.member] = usage.get(ask.member, 0) + ask.cost
        return FairTree(
            tuple(self.accounts),
            tuple(
                MemberShares(pk, account, shares, usage.get(pk, 0))
                for pk, (account, shares) in self.of.items()
            ),
        )

    def try_(self, ask: Ask, now: datetime = NOW) -> list[int] | None:
        """Book it; return who had to go, None where it was refused."""
        policy = Policy(gpus_at_once=9, future_flex=9, live_reservations=99)
        spans = [
            BusySpan(
                gpu,
                unix(other.window.start),
                unix(other.window.end),
                "",
                self.info(other, kind, ask, now, policy),
            )
            for other, kind in self.held.values()
            for gpu in other.gpus
        ]
        gpus = tuple(CalendarGpu(pk, "n", pk, "A30", 2**34, 1) for pk in range(3))
        quota = 10**9 if ask.member in self.firm else 0
        snapshot = Snapshot(
            policy=policy,
            calendar=Calendar(gpus, spans),
            quotas=(QuotaInfo("own", quota, ()),),
            membership_pk=ask.member,
            tree=self.tree(),
        )
        request = Request(tuple(gpus[pk] for pk in ask.gpus), ask.window, now)
        decision = decide(request, snapshot)
        again = recompute(inputs_of(request, snapshot), policy)
        assert again == without_places(decision.to_json()) or decision.kind is None
        if decision.kind is None:
            return None
        assert broken_rules(decision.to_json()) == []
        gone = [one.flex.reservation_pk for one in decision.displaced]
        for one in decision.displaced:
            victim, kind = self.held.pop(one.flex.reservation_pk)
            assert kind is Kind.FLEX and victim.member != ask.member
            assert now < one.frozen_at, "only before the freeze"
            assert one.refund_gpu_seconds == victim.cost, "all of it, no more"
        self.held[ask.pk] = ask, decision.kind
        return gone

    def info(self, other, kind, ask, now, policy) -> FlexInfo | None:
        frozen = other.window.start - now <= timedelta(seconds=policy.freeze_seconds)
        if kind is Kind.FIRM or frozen or other.member == ask.member:
            return None
        return FlexInfo(
            other.pk,
            other.member,
            1,
            "",
            other.window.start,
            other.window.end,
            other.cost,
            NOW,
        )


@st.composite
def worlds(draw: st.DrawFn) -> tuple[World, list[Ask]]:
    count = draw(st.integers(1, 4))
    accounts = [AccountShares(1, None)] + [
        AccountShares(pk, draw(st.integers(1, pk - 1)), draw(st.sampled_from((1, 2))))
        for pk in range(2, count + 1)
    ]
    members = range(10, 10 + draw(st.integers(2, 6)))
    of = {
        pk: (draw(st.integers(1, count)), draw(st.sampled_from((1, 1, 2, 3))))
        for pk in members
    }
    past = {pk: draw(st.integers(0, 12)) * HOUR for pk in members}
    firm = set(draw(st.lists(st.sampled_from(list(members)), max_size=1)))
    asks = [
        Ask(
            pk=number,
            member=draw(st.sampled_from(list(members))),
            gpus=tuple(
                draw(st.lists(st.integers(0, 2), min_size=1, max_size=3, unique=True))
            ),
            start=draw(st.integers(6, 20)),
            hours=draw(st.integers(1, 6)),
        )
        for number in range(1, draw(st.integers(2, 9)) + 1)
    ]
    return World(accounts, of, past, firm), asks


@given(worlds(), st.randoms(use_true_random=False))
@settings(max_examples=120, deadline=None)
def test_displacing_ends_though_everybody_asks_again(drawn, chance) -> None:
    """Displacements end, and firm and frozen time never goes.

    See docs/design/fair-booking.md#i6 and #i2.
    """
    world, asks = drawn
    for _step in range(MOST_STEPS):
        waiting = [ask for ask in asks if ask.pk not in world.held]
        chance.shuffle(waiting)
        kept = {
            pk
            for pk, (ask, kind) in world.held.items()
            if kind is Kind.FIRM or ask.start <= 12
        }
        moved = next((w for w in waiting if world.try_(w) is not None), None)
        assert kept <= set(world.held), "docs/design/fair-booking.md#i2"
        if moved is None:
            return
    raise AssertionError(f"still moving after {MOST_STEPS} steps")


@given(worlds())
@settings(max_examples=120, deadline=None)
def test_who_was_displaced_cannot_take_it_back_at_once(drawn) -> None:
    """No pair alternates (docs/design/fair-booking.md#i6)."""
    world, asks = drawn
    for ask in asks:
        gone = world.try_(ask) if ask.pk not in world.held else None
        for pk in gone or ():
            victim = next(one for one in asks if one.pk == pk)
            assert ask.pk in world.held
            back = world.try_(victim)
            assert back is None or ask.pk not in back
