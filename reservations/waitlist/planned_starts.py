"""The planned starts and the estimates of waiting requests. Pure.

Conservative backfill (docs/design/fair-booking.md#rule-5): the first
``planned_requests`` in order have a planned start. Later requests cannot take it. A
request keeps its planned start until it is placed, can begin sooner, or loses it to
firm time. Then it gets the next one. A new request gets one as soon as fewer than that
many have one. So small requests do not starve a large one: only firm time within quotas
takes a planned start.

The requests behind are estimated after that: in order, each takes the earliest
remaining room. Planned starts lie after the freeze, because time inside the freeze is
open to every booking (docs/design/fair-booking.md#rule-3).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice

from reservations.rules.calendar import BusySpan, Calendar, CalendarGpu, PlannedStart
from reservations.rules.errors import Refusal
from reservations.rules.fairness.limits import check_limits
from reservations.rules.lifecycle import Kind
from reservations.rules.policy import MOST_LIVE_RESERVATIONS, Policy
from reservations.rules.request import Holding, Request, Snapshot
from reservations.rules.window import Window, grid_ceil, instant, unix, without
from reservations.waitlist.openings import WaitingRequestInfo, rooms
from reservations.waitlist.rules import FactsOf

MOST_TRIED = 300
"""Windows tried for one request. After that it has no estimate."""
ENDLESS = MOST_LIVE_RESERVATIONS


@dataclass(frozen=True, slots=True)
class ExpectedStart:
    """The estimated place of a request. ``held``: later flex cannot delay it."""

    plan: PlannedStart
    held: bool

    @property
    def start(self) -> datetime:
        """Return its start."""
        return self.plan.window.start


def expect(
    queue: Sequence[WaitingRequestInfo],
    facts_of: FactsOf,
    *,
    now: datetime,
    policy: Policy,
) -> dict[int, ExpectedStart]:
    """Return the estimated place of each request, by request. No entry: none was found.

    Args:
        queue: in order (``waitlist.in_order``).
    """
    held = _still_valid_plans(queue, facts_of, now=now, policy=policy)
    for one in queue:
        if one.pk not in held and one.plan is None:
            continue
        others = [plan for pk, plan in held.items() if pk != one.pk]
        found = earliest_room(one, facts_of(one), others, now=now)
        kept = held.get(one.pk)
        if found is not None and (kept is None or found.window < kept.window):
            held[one.pk] = found
    for one in queue:
        if len(held) >= policy.planned_requests:
            break
        if one.pk not in held:
            found = earliest_room(one, facts_of(one), held.values(), now=now)
            if found is not None:
                held[one.pk] = found
    expected = {pk: ExpectedStart(plan, held=True) for pk, plan in held.items()}
    for one in queue:
        if one.pk not in expected:
            taken = [other.plan for other in expected.values()]
            found = earliest_room(one, facts_of(one), taken, now=now)
            if found is not None:
                expected[one.pk] = ExpectedStart(found, held=False)
    return expected


def _still_valid_plans(
    queue: Sequence[WaitingRequestInfo],
    facts_of: FactsOf,
    *,
    now: datetime,
    policy: Policy,
) -> dict[int, PlannedStart]:
    """Return the plans that are still possible."""
    return {
        one.pk: one.plan
        for one in queue
        if one.plan is not None
        and _is_still_valid(one, one.plan, facts_of(one), now, policy)
    }


def _is_still_valid(
    one: WaitingRequestInfo,
    plan: PlannedStart,
    facts: Snapshot,
    now: datetime,
    policy: Policy,
) -> bool:
    gpus = {gpu.pk: gpu for gpu in facts.calendar.gpus if one.wish.fits(gpu)}
    return (
        plan.gpu_pks <= gpus.keys()
        and plan.window.start - now > timedelta(seconds=policy.freeze_seconds)
        and plan.window.end <= one.latest
        and not any(
            facts.calendar.first_overlap(pk, plan.window) for pk in plan.gpu_pks
        )
    )


def earliest_room(
    one: WaitingRequestInfo,
    facts: Snapshot,
    taken: Iterable[PlannedStart],
    *,
    now: datetime,
) -> PlannedStart | None:
    """Return the earliest room after the freeze, besides bookings and these plans.

    The person's own bookings and plans reduce it: the number held at once is limited.
    """
    policy = facts.policy
    plans = tuple(taken)
    calendar = beside(facts.calendar, plans)
    own = facts.own + tuple(
        Holding(-plan.waiting_pk, plan.window, plan.gpu_pks, Kind.FLEX)
        for plan in plans
        if plan.user_pk == one.user_pk
    )
    lenient = replace(facts, own=own, policy=replace(policy, live_reservations=ENDLESS))
    frozen_until = now + timedelta(seconds=policy.freeze_seconds + 1)
    first = grid_ceil(max(one.earliest, frozen_until), policy.grid_seconds)
    last = one.latest - timedelta(seconds=one.wish.duration_seconds)
    found = rooms(calendar, one, first, last, policy=policy, taking=False)
    for window in islice(found, MOST_TRIED):
        for gpus in calendar.sets(window, one.wish):
            if _within_limits(gpus, window, lenient, now):
                return PlannedStart(
                    one.pk, one.user_pk, frozenset(gpu.pk for gpu in gpus), window
                )
    return None


def _within_limits(
    gpus: tuple[CalendarGpu, ...], window: Window, facts: Snapshot, now: datetime
) -> bool:
    try:
        check_limits(Request(gpus, window, now), facts)
    except Refusal:
        return False
    return True


def beside(calendar: Calendar, plans: Iterable[PlannedStart]) -> Calendar:
    """Return a calendar that has these plans as bookings."""
    more: dict[int, list[BusySpan]] = defaultdict(list)
    for plan in plans:
        for pk in plan.gpu_pks:
            # Plans of others may be on Gpus that are closed only for this reader.
            met = [
                Window(instant(span.start), instant(span.end))
                for span in calendar.clashes(pk, plan.window)
            ]
            more[pk] += [
                BusySpan(pk, unix(part.start), unix(part.end))
                for part in without(plan.window, met)
            ]
    return calendar.with_spans(
        {pk: [*calendar.spans(pk), *spans] for pk, spans in more.items()},
        calendar.plans,
    )
