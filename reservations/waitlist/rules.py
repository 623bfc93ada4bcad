"""Choose the next waiting request to place, and its slot. Pure.

See docs/design/fair-booking.md#rule-5.

Order: Fair Tree rank, then older request, then id. The first request that fits anywhere
gets the earliest start that the rules grant (``decide``: quotas, limits, horizons,
docs/design/fair-booking.md#rule-2), at the instants at which Gpus become free and the
full hours between.

Why it ends (docs/design/fair-booking.md#i6): without new requests the placements stop.
A request that lost flex by rank (``takes`` is off) takes only free time, so each
request displaces by rank at most once, and once more for every time it yielded to firm.
Firm is never displaced. Between two displacements every placement adds one, and their
number is bounded.

With notice shorter than the freeze, or in the person's quiet hours, a slot is only
offered, unless it was accepted in advance or a Job waits with the request.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import Any

from reservations.rules.calendar import (
    Calendar,
    CalendarGpu,
    Slot,
    SlotWish,
)
from reservations.rules.decision import Decision, decide
from reservations.rules.decision_record import broken_rules
from reservations.rules.errors import (
    QuotaExceeded,
)
from reservations.rules.fairness.fair_tree import FairRank
from reservations.rules.fairness.limits import check_quotas
from reservations.rules.fairness.preemption import fewest_displaced
from reservations.rules.lifecycle import Kind
from reservations.rules.policy import Policy
from reservations.rules.prices import Tariff
from reservations.rules.request import Request, Snapshot
from reservations.rules.window import Window, unix
from reservations.waitlist.openings import WaitingRequestInfo, has_room, rooms

MOST_ASKED = 400
"""How often the rules are checked for one request before it keeps waiting."""
MOST_TAKEN = 12
"""For how many Windows of one request displacing is considered: the earliest ones."""
OFFER_SECONDS = 30 * 60
"""How long an offer is open. In quiet hours: this long after they end."""
PAUSE_SECONDS = 2 * 3600
"""For this long after an offer that was not accepted, a request gets no other."""


@dataclass(frozen=True, slots=True)
class WaitlistMatch:
    """The slot that one request could get now."""

    waiting: WaitingRequestInfo
    slot: Slot
    decision: Decision
    ask: bool
    """Whether it needs the person's answer first."""

    @property
    def keeps_plan(self) -> bool:
        """Return whether flex was placed at its planned start or before."""
        plan = self.waiting.plan
        return (
            plan is not None
            and self.decision.kind is Kind.FLEX
            and self.slot.start <= plan.window.start
        )


FactsOf = Callable[[WaitingRequestInfo], Snapshot]
"""The facts that decide a request: its person's calendar, holdings and quotas."""


def in_order(
    waiting: Iterable[WaitingRequestInfo], ranks: Mapping[int, FairRank]
) -> tuple[WaitingRequestInfo, ...]:
    """Return requests in the order of service: rank, then older, then id."""
    return tuple(sorted(waiting, key=lambda one: order_key(one, ranks)))


def order_key(
    one: WaitingRequestInfo, ranks: Mapping[int, FairRank]
) -> tuple[int, datetime, int]:
    """Return the sort key of a request. The smallest is served first."""
    rank = ranks[one.member_pk].rank if one.member_pk in ranks else 0
    return -rank, one.asked_at, one.pk


def first_placed(
    queue: Sequence[WaitingRequestInfo],
    facts_of: FactsOf,
    *,
    now: datetime,
    skip: Collection[int] = (),
    vain: dict[int, WaitlistMatch | None] | None = None,
) -> WaitlistMatch | None:
    """Return the first in order that can be placed without an answer. None: there is
    none.

    Args:
        skip: requests to skip.
        vain: receives those that cannot be placed now, with slots that need an answer.
    """
    for one in queue:
        if one.pk in skip:
            continue
        found = choose(one, facts_of(one), now=now)
        if found is not None and not found.ask:
            return found
        if vain is not None:
            vain[one.pk] = found
    return None


def choose(
    one: WaitingRequestInfo, facts: Snapshot, *, now: datetime
) -> WaitlistMatch | None:
    """Return the earliest start that the rules grant. One that needs an answer is last.

    None before its planned start is over, because it is never placed after it.
    """
    asked = 0
    to_ask: WaitlistMatch | None = None
    hopeless: set[tuple[Window, Tariff]] = set()
    brief = replace(facts, brief=True)
    for window, found_sets in _attempts(one, facts, now=now):
        if one.plan is not None and window.start > one.plan.window.start:
            break
        ask = needs_answer(one, window.start, now=now, policy=facts.policy)
        if ask and to_ask is not None:
            continue
        for gpus in found_sets():
            request = Request(gpus, window, now)
            if (window, request.rate) in hopeless or _is_outranked(one, request, brief):
                continue
            asked += 1
            decision = decide(request, brief)
            if not _is_good(one, decision):
                if refused_on_any_gpus(decision):
                    hopeless.add((window, request.rate))
                continue
            # Decided again with all details, for the reason.
            decision = decide(request, facts)
            assert decision.kind is not None
            slot = Slot(
                tuple(gpu.pk for gpu in gpus),
                window.start,
                window.end,
                decision.kind,
                len(decision.displaced),
            )
            found = WaitlistMatch(one, slot, decision, ask)
            if not ask:
                return found
            to_ask = found
            break
        if asked >= MOST_ASKED:
            break
    return to_ask


def _attempts(
    one: WaitingRequestInfo, facts: Snapshot, *, now: datetime
) -> Iterator[tuple[Window, Callable[[], list[tuple[CalendarGpu, ...]]]]]:
    """Yield each Window to try, with a function that finds its sets of Gpus.

    After enough attempts to displace, only Windows with free Gpus.
    """
    calendar, taking = facts.calendar, DisplacementOptions(one, facts)
    after = now
    for window in windows(one, facts, now=now):
        if taking.spent:
            after = window.start
            break
        yield window, partial(_sets, window, one.wish, calendar, taking)
    else:
        return
    for window in windows(one, facts, now=now, taking=False):
        if window.start >= after:
            yield window, partial(calendar.sets, window, one.wish)


def _sets(
    window: Window, wish: SlotWish, calendar: Calendar, taking: DisplacementOptions
) -> list[tuple[CalendarGpu, ...]]:
    """Return the sets of free Gpus. Without any, those that flex yields."""
    free = has_room(calendar, wish, unix(window.start))
    return (calendar.sets(window, wish) if free else []) or taking.sets(window)


def refused_on_any_gpus(decision: Decision) -> bool:
    """Return whether other Gpus of the same weight would be refused then, too."""
    refusal = decision.refusal if decision.kind is None else None
    return refusal is not None and refusal.on_any_gpus


def _is_outranked(one: WaitingRequestInfo, request: Request, facts: Snapshot) -> bool:
    """Return whether the rule of rank surely refuses.

    It would displace by rank (docs/design/fair-booking.md#rule-2) and ranks below.
    """
    flex = facts.calendar.flex_in([gpu.pk for gpu in request.gpus], request.window)
    if not flex or facts.tree is None:
        return False
    try:
        check_quotas(request, facts)
    except QuotaExceeded:
        if not one.takes:
            return True
        more = request.cost_gpu_seconds - facts.freed_gpu_seconds
        return facts.tree.scales.below(facts.membership_pk, more, flex.values())
    return False


def _is_good(one: WaitingRequestInfo, decision: Decision) -> bool:
    if decision.kind is None:
        return False
    by_rank = decision.kind is Kind.FLEX and bool(decision.displaced)
    return one.takes or not by_rank


def needs_answer(
    one: WaitingRequestInfo, start: datetime, *, now: datetime, policy: Policy
) -> bool:
    """Return whether a placement at this notice needs the person's answer."""
    if one.consents:
        return False
    short = start - now <= timedelta(seconds=policy.freeze_seconds)
    return short or one.quiet_until is not None


def offer_until(one: WaitingRequestInfo, slot: Slot, *, now: datetime) -> datetime:
    """Return until when an offer is open: 30 min, counted from the end of quiet hours.

    At most until the end of the slot. If it begins meanwhile, the booking begins later.
    """
    woken = max(now, one.quiet_until or now)
    return min(woken + timedelta(seconds=OFFER_SECONDS), slot.end)


class DisplacementOptions:
    """Sets of Gpus that displacing would free, for some Windows of one request."""

    def __init__(self, one: WaitingRequestInfo, facts: Snapshot) -> None:
        self._one, self._facts = one, facts
        self._left = MOST_TAKEN
        self._ranks: dict[int, int] | None = None

    @property
    def spent(self) -> bool:
        """Return whether displacing is not considered for any further Window."""
        return self._facts.tree is None or self._left == 0

    def sets(self, window: Window) -> list[tuple[CalendarGpu, ...]]:
        """Return the sets. Empty for a Window too many, or if no flex yields."""
        if self.spent:
            return []
        self._left -= 1
        if self._ranks is None:
            assert self._facts.tree is not None
            ranks = self._facts.tree.ranked().ranks
            self._ranks = {pk: rank.rank for pk, rank in ranks.items()}
        return fewest_displaced(
            self._facts.calendar, window, self._one.wish, ranks=self._ranks
        )


# --- Windows with room
# ------------------------------------------------------------------


def windows(
    one: WaitingRequestInfo, facts: Snapshot, *, now: datetime, taking: bool = True
) -> Iterator[Window]:
    """Yield the Windows to try, earliest first.

    Those in which enough Gpus are free, or (``taking``) held by flex that might yield.
    """
    policy = facts.policy
    horizon = now + timedelta(seconds=policy.firm_horizon_seconds)
    last = min(one.latest - timedelta(seconds=one.wish.duration_seconds), horizon)
    first = max(one.earliest, now)
    taking = taking and facts.tree is not None
    yield from rooms(facts.calendar, one, first, last, policy=policy, taking=taking)


# --- the stored reason, and its check
# ---------------------------------------------------


def reason(
    choice: WaitlistMatch,
    queue: Sequence[WaitingRequestInfo],
    ranks: Mapping[int, FairRank],
) -> dict[str, Any]:
    """Return the stored reason of a placement: the order and the decision.

    See docs/design/fair-booking.md#rule-8.
    """
    own = queue.index(choice.waiting)
    return {
        "rule": "5 waitlist",
        "order": [_entry(one, ranks) for one in queue[: own + 1]],
        "slot": {
            "gpus": list(choice.slot.gpu_ids),
            "start": choice.slot.start.isoformat(),
            "end": choice.slot.end.isoformat(),
        },
        "keeps_plan": choice.keeps_plan,
        "takes": choice.waiting.takes,
        "decision": choice.decision.to_json(),
    }


def _entry(one: WaitingRequestInfo, ranks: Mapping[int, FairRank]) -> dict[str, Any]:
    rank, asked_at, pk = order_key(one, ranks)
    return {"id": pk, "rank": -rank, "asked_at": asked_at.isoformat()}


def broken_order(stored: Mapping[str, Any]) -> list[str]:
    """Return the parts of a stored placement that do not follow. Empty: it is valid.

    See docs/design/fair-booking.md#i14.
    """
    keys = [
        (-entry["rank"], datetime.fromisoformat(entry["asked_at"]), entry["id"])
        for entry in stored["order"]
    ]
    found = [
        f"5: #{key[2]} was served before its turn"
        for before, key in pairwise(keys)
        if key < before
    ]
    decision = stored["decision"]
    firm = str(decision["rule"]).startswith("1")
    if decision.get("displaced") and not firm and not stored["takes"]:
        found.append("5: it took by rank though it had lost by rank")
    return found + broken_rules(decision)
