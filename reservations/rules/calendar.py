"""Free times of Gpus, the choice among them, and the first slots that fit a wish.

``groups_of`` chooses among free Gpus.

Cost: an instant is tested by bisection, O(log n) a Gpu. A search visits at most the
instants at which a Gpu becomes free and the full hours between.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import TypedDict

from reservations.rules.lifecycle import Kind
from reservations.rules.prices import PeakHours, Tariff
from reservations.rules.window import (
    HOUR_SECONDS,
    Window,
    instant,
    unix,
    window_from,
)


@dataclass(frozen=True, slots=True)
class Slot:
    """A found slot: Gpus, Window and kind."""

    gpu_ids: tuple[int, ...]
    start: datetime
    end: datetime
    kind: Kind
    displaces: int = 0
    """The number of others' flex Reservations that it would displace."""
    foreign_gpu_ids: tuple[int, ...] = ()
    """The Gpus among them that a foreign process uses now."""

    @property
    def window(self) -> Window:
        """Return its half-open Window."""
        return Window(self.start, self.end)


@dataclass(frozen=True, slots=True)
class SlotWish:
    """The properties of the slot to search for."""

    count: int
    duration_seconds: int
    min_memory_bytes: int = 0
    gpu_class: str | None = None

    def fits(self, gpu: CalendarGpu) -> bool:
        """Return whether the Gpu is good enough and in service, and can be one of as
        many as are wished."""
        here = not gpu.engine or self.may_have(gpu)
        return gpu.bookable and here and self.suits(gpu)

    def may_have(self, gpu: CalendarGpu) -> bool:
        """Return whether a set of this number may have the Gpu.

        Of another engine it is some GPUs of one node, or whole nodes with equally many
        GPUs.
        """
        if not gpu.engine:
            return True
        if not gpu.of_node:
            return False
        some = not gpu.whole_node and self.count < gpu.of_node
        return some or self.count % gpu.of_node == 0

    def suits(self, gpu: CalendarGpu) -> bool:
        """Return whether the Gpu is good enough, in service or not."""
        return gpu.memory_total_bytes >= self.min_memory_bytes and self.gpu_class in (
            None,
            gpu.gpu_class,
        )


@dataclass(frozen=True, slots=True)
class FlexInfo:
    """An unfrozen flex Reservation of another User, which may be displaced."""

    reservation_pk: int
    membership_pk: int
    account_pk: int
    account: str
    start: datetime
    end: datetime
    cost_gpu_seconds: int
    booked_at: datetime
    user: str = ""
    """The holder, as the reader may see it."""
    user_pk: int = 0
    paused_until: datetime | None = None
    """The requester displaced its owner before and gave the time back, and may displace
    this owner again only from this instant on.
    """
    planned: bool = False
    """Placed at a planned start: only firm within quota may displace it
    (docs/design/fair-booking.md#rule-5)."""


@dataclass(frozen=True, slots=True)
class PlannedStart:
    """The planned start of a waiting request. Later flex does not delay it.

    See docs/design/fair-booking.md#rule-5.
    """

    waiting_pk: int
    user_pk: int
    gpu_pks: frozenset[int]
    window: Window


@dataclass(frozen=True, slots=True)
class ClosureInfo:
    """One closure, with the values that a decision needs."""

    pk: int
    kind: str
    reason: str
    start: datetime
    end: datetime
    scope: str = "gpus"
    gpu_pks: frozenset[int] = frozenset()
    node: str = ""
    """Name of the Node, if it closes a whole one."""
    pool_pk: int = 0
    account_pk: int | None = None
    account: str = ""
    """The title of the Account whose teaching slot it is."""
    account_name: str = ""
    """The name of that Account."""

    @property
    def window(self) -> Window:
        """Return its half-open Window."""
        return Window(self.start, self.end)

    def closes(self, gpu: CalendarGpu) -> bool:
        """Return whether it covers a Gpu, including one that joins its pool or node
        later.
        """
        if self.scope == "site":
            return True
        if self.scope == "node":
            return gpu.node == self.node
        if self.scope == "pool":
            return gpu.pool_pk == self.pool_pk
        return gpu.pk in self.gpu_pks

    def admits(self, account_pks: Collection[int]) -> bool:
        """Return whether it admits bookings under these Accounts (a path to the
        root).
        """
        return self.account_pk is not None and self.account_pk in account_pks


@dataclass(frozen=True, slots=True)
class BusySpan:
    """One Gpu is taken from ``start`` to ``end``, in Unix seconds."""

    gpu_pk: int
    start: int
    end: int
    user: str = ""
    """The holder, as the reader may see it."""
    flex: FlexInfo | None = None
    """None: nobody can take it (firm, frozen, running, or the reader's own)."""
    closed: ClosureInfo | None = None
    """The closure, if the time is closed and not held."""
    paused_until: datetime | None = None
    """Set if only a pause prevents the reader from taking it. See ``FlexInfo``."""


class Calendar:
    """Busy spans of some Gpus; those of one Gpu never overlap."""

    def __init__(
        self,
        gpus: Iterable[CalendarGpu],
        busy: Iterable[BusySpan],
        plans: Iterable[PlannedStart] = (),
        gaps: Mapping[int, int] | None = None,
    ) -> None:
        self.gpus = tuple(gpus)
        self.plans = tuple(plans)
        self.gaps = gaps or {}
        """By Gpu: until when (Unix seconds) a Job in a gap is on it. It is free, but
        only after the Job's notice.
        """
        self.foreign: dict[int, int] = {}
        """By Gpu: until when (Unix seconds) a foreign process is expected on it. It can
        be booked, but others are preferred.
        """
        spans: dict[int, list[BusySpan]] = defaultdict(list)
        for span in busy:
            spans[span.gpu_pk].append(span)
        self._spans = {
            pk: sorted(own, key=lambda span: span.start) for pk, own in spans.items()
        }
        self._ends = {pk: [s.end for s in own] for pk, own in self._spans.items()}
        self._changes: dict[int, list[int]] = {}
        self.swept: dict[object, list[tuple[int, int]]] = {}
        """Results of ``rooms`` without displacing flex, shared by all views of the
        calendar.
        """
        self.swept_gpus: dict[int, dict[object, list[tuple[int, int]]]]
        """The results of each Gpu separately. Gpus with equal spans share them."""
        self.swept_gpus = {gpu.pk: {} for gpu in self.gpus}

    def first_overlap(self, gpu_pk: int, window: Window) -> BusySpan | None:
        """Return the first span of a Gpu that meets the Window."""
        return self._clash(gpu_pk, unix(window.start), unix(window.end))

    def _clash(self, gpu_pk: int, start: int, end: int) -> BusySpan | None:
        spans = self._spans.get(gpu_pk)
        if not spans:
            return None
        place = bisect_left(self._ends[gpu_pk], start + 1)
        if place < len(spans) and spans[place].start < end:
            return spans[place]
        return None

    def clashes(self, gpu_pk: int, window: Window) -> list[BusySpan]:
        """Return every span of a Gpu that meets the Window, in order."""
        return self.spans_between(gpu_pk, unix(window.start), unix(window.end))

    def spans_between(self, gpu_pk: int, start: int, end: int) -> list[BusySpan]:
        """Return every span of a Gpu between two Unix seconds."""
        spans = self._spans.get(gpu_pk)
        if not spans:
            return []
        found = []
        for place in range(bisect_left(self._ends[gpu_pk], start + 1), len(spans)):
            if spans[place].start >= end:
                break
            found.append(spans[place])
        return found

    def takeable_flex(
        self, gpu_pk: int, start: int, end: int
    ) -> tuple[FlexInfo, ...] | None:
        """Return the flex of a Gpu between two Unix seconds. None: other spans are
        there.
        """
        spans = self._spans.get(gpu_pk)
        if not spans:
            return ()
        found = []
        place = bisect_left(self._ends[gpu_pk], start + 1)
        while place < len(spans) and spans[place].start < end:
            if (flex := spans[place].flex) is None:
                return None
            found.append(flex)
            place += 1
        return tuple(found)

    def flex_in(self, gpu_pks: Iterable[int], window: Window) -> dict[int, FlexInfo]:
        """Return the preemptible flex on these Gpus, by Reservation."""
        return {
            span.flex.reservation_pk: span.flex
            for pk in gpu_pks
            for span in self.clashes(pk, window)
            if span.flex is not None
        }

    def flex_owners(self) -> frozenset[int]:
        """Return the Memberships that hold preemptible flex."""
        return frozenset(
            span.flex.membership_pk
            for own in self._spans.values()
            for span in own
            if span.flex is not None
        )

    def plan_in(self, gpu_pks: Iterable[int], window: Window) -> PlannedStart | None:
        """Return the first planned start of another User that overlaps."""
        wanted = frozenset(gpu_pks)
        met = (p for p in self.plans if p.window.meets(window) and wanted & p.gpu_pks)
        return min(met, key=lambda p: (p.window, p.waiting_pk), default=None)

    def planned_gpus(self, window: Window) -> frozenset[int]:
        """Return the Gpus that plans of others hold within the Window."""
        met = (plan.gpu_pks for plan in self.plans if plan.window.meets(window))
        return frozenset[int]().union(*met)

    def seen_by(self, user_pk: int) -> Calendar:
        """Return the calendar for one User, without their own flex and plans."""
        plans = [plan for plan in self.plans if plan.user_pk != user_pk]
        mine = self._flex_gpus.get(user_pk, ())
        if not mine and len(plans) == len(self.plans):
            return self
        own = {pk: [_untaken(span, user_pk) for span in self._spans[pk]] for pk in mine}
        other = self.with_spans(own, plans)
        # The same spans at the same times.
        other._changes, other.swept = self._changes, self.swept
        return other

    def with_spans(
        self, spans: Mapping[int, Sequence[BusySpan]], plans: Iterable[PlannedStart]
    ) -> Calendar:
        """Return a calendar with other spans on some Gpus. The rest is shared."""
        other = Calendar((), (busy for own in spans.values() for busy in own), plans)
        other._changes = {
            g: sorted({*c, *other.changes(g)}) for g, c in self._changes.items()
        }
        other.swept_gpus = {
            pk: {} if pk in spans else own for pk, own in self.swept_gpus.items()
        }
        other.gpus, other.gaps, other.foreign = self.gpus, self.gaps, self.foreign
        other._spans, other._ends = self._spans | other._spans, self._ends | other._ends
        return other

    @cached_property
    def _flex_gpus(self) -> dict[int, set[int]]:
        """Return the Gpus on which a User holds preemptible flex."""
        found: dict[int, set[int]] = defaultdict(set)
        for span in self.busy():
            if span.flex is not None:
                found[span.flex.user_pk].add(span.gpu_pk)
        return found

    def busy(self) -> Iterator[BusySpan]:
        """Yield every span."""
        for own in self._spans.values():
            yield from own

    def spans(self, gpu_pk: int) -> list[BusySpan]:
        """Return the spans of one Gpu, in order."""
        return self._spans.get(gpu_pk, [])

    def free(self, window: Window, wish: SlotWish) -> list[CalendarGpu]:
        """Return the Gpus that fit the wish and are free over the Window."""
        start, end = unix(window.start), unix(window.end)
        return [
            gpu
            for gpu in self.gpus
            if wish.fits(gpu) and self._clash(gpu.pk, start, end) is None
        ]

    def sets(self, window: Window, wish: SlotWish) -> list[tuple[CalendarGpu, ...]]:
        """Return the sets of free Gpus worth taking.

        Preferred are Gpus without planned starts, Jobs in gaps and foreign processes.
        Then come those with planned starts or gaps that may be taken, and last those
        that a foreign process uses.
        """
        free, start = self.free(window, wish), unix(window.start)
        planned = self.planned_gpus(window)
        if self.gaps:
            planned |= {pk for pk, end in self.gaps.items() if end > start}
        foreign = self.foreign_in((gpu.pk for gpu in free), window)
        clean = [gpu for gpu in free if gpu.pk not in foreign]
        clear = [gpu for gpu in clean if gpu.pk not in planned]
        found = choices(clear, wish.count)
        if planned:
            found += choices(clean, wish.count)
        if foreign:
            found += choices(free, wish.count)
        return found

    def foreign_in(self, gpu_pks: Iterable[int], window: Window) -> tuple[int, ...]:
        """Return the Gpus that a foreign process may still use then."""
        if not self.foreign:
            return ()
        start = unix(window.start)
        return tuple(pk for pk in gpu_pks if self.foreign.get(pk, start) > start)

    def free_from(self, gpu_pk: int, at: datetime) -> datetime:
        """Return the first instant from ``at`` on at which a Gpu is free."""
        second = unix(at)
        while (span := self._clash(gpu_pk, second, second + 1)) is not None:
            second = span.end
        return max(at, instant(second))

    def changes(self, grid_seconds: int) -> list[int]:
        """Return when some Gpu becomes free, in Unix seconds, on the grid, in order."""
        if grid_seconds not in self._changes:
            ends = {end for own in self._ends.values() for end in own}
            self._changes[grid_seconds] = sorted(
                {_ceil_to_grid(e, grid_seconds) for e in ends}
            )
        return self._changes[grid_seconds]


def _untaken(span: BusySpan, user_pk: int) -> BusySpan:
    """Return a span for this User: their own flex is not preemptible."""
    own = span.flex is not None and span.flex.user_pk == user_pk
    return replace(span, flex=None) if own else span


@dataclass(frozen=True, slots=True)
class SlotSearch:
    """The range of starts: from ``earliest`` (may be now) to ``latest``."""

    earliest: datetime
    latest: datetime
    grid_seconds: int
    longest_seconds: int
    step_seconds: int = HOUR_SECONDS
    """Step between tried starts, besides the instants at which Gpus become free: a
    quota may allow more without any Gpu becoming free.
    """
    most_asked: int = 400
    """How often ``allowed`` is called before the search gives up."""


def first_slots(
    calendar: Calendar,
    wish: SlotWish,
    search: SlotSearch,
    *,
    allowed: Callable[[Window, tuple[CalendarGpu, ...]], Kind | None],
    taking: Callable[[Window], list[tuple[CalendarGpu, ...]]] | None = None,
    limit: int = 1,
) -> list[Slot]:
    """Return the first slots that fit, earliest first and clearly different.

    A second slot on the same node and class and of the same kind is offered only if it
    begins after the end of the first one.

    Args:
        allowed: returns the kind that the rules grant for Gpus and Window. None: none.
        taking: returns sets of Gpus that displacing would free, called if too few are
            free. None: search only free Gpus.
    """
    found: list[Slot] = []
    over_at: dict[tuple[str, str, Kind], datetime] = {}
    asked = 0
    for start in starts(calendar, search):
        window = window_from(
            start,
            duration_seconds=wish.duration_seconds,
            grid_seconds=search.grid_seconds,
            longest_seconds=search.longest_seconds,
        )
        sets = calendar.sets(window, wish)
        if not sets and taking is not None:
            sets = taking(window)
        for gpus in sets:
            asked += 1
            kind = allowed(window, gpus)
            if kind is None:
                continue
            key = (gpus[0].node, gpus[0].gpu_class, kind)
            if key in over_at and window.start < over_at[key]:
                continue
            over_at[key] = window.end
            pks = tuple(gpu.pk for gpu in gpus)
            yields = calendar.flex_in(pks, window)
            used = calendar.foreign_in(pks, window)
            found.append(Slot(pks, window.start, window.end, kind, len(yields), used))
            if len(found) == limit:
                return found
        if asked >= search.most_asked:
            break
    return found


def starts(calendar: Calendar, search: SlotSearch) -> Iterator[datetime]:
    """Yield the instants to try, in order. Except for the first, they are on the
    grid.
    """
    grid = search.grid_seconds
    first, last = unix(search.earliest), unix(search.latest)
    stride = max(search.step_seconds // grid, 1) * grid
    seconds = set(range(_ceil_to_grid(first, grid), last + 1, stride))
    seconds |= {at for at in calendar.changes(grid) if first < at <= last}
    if search.earliest <= search.latest:
        yield search.earliest
    for second in sorted(seconds - {first}):
        yield instant(second)


def _ceil_to_grid(second: int, grid_seconds: int) -> int:
    return -(-second // grid_seconds) * grid_seconds


def choices(free: Sequence[CalendarGpu], count: int) -> list[tuple[CalendarGpu, ...]]:
    """Return the sets of ``count`` Gpus worth taking, best first.

    Sets of one node and one class if there is one; see ``groups_of``.
    """
    return [_first(group, count) for group in groups_of(free, count)]


def groups_of(free: Sequence[CalendarGpu], count: int) -> list[list[CalendarGpu]]:
    """Return the groups that have ``count`` Gpus, best fit first.

    The best fit is one node and one class. Of several, the order is: the least memory
    that is enough (large cards stay free), then the smallest group (large gaps stay
    whole), then the requester's favourites, then the lowest indices. If no node has
    enough Gpus of one class: one node with several classes, then one class over several
    nodes, then any Gpus that fit.

    Gpus of another engine are never mixed with the portal's own, which come first,
    because nobody else gives them out.
    """
    if count < 1:
        raise ValueError(f"cannot choose {count} Gpus")
    own = [gpu for gpu in free if not gpu.engine]
    other: list[list[CalendarGpu]] = []
    if len(own) < len(free):
        other = _engine_groups([gpu for gpu in free if gpu.engine], count)
    for key in (
        lambda gpu: (gpu.node, gpu.gpu_class),
        lambda gpu: (gpu.node,),
        lambda gpu: (gpu.gpu_class,),
        lambda _gpu: (),
    ):
        if enough := _large_enough(own, count, key):
            return enough + other
    return other


def _large_enough(
    free: Iterable[CalendarGpu],
    count: int,
    key: Callable[[CalendarGpu], tuple[str, ...]],
) -> list[list[CalendarGpu]]:
    groups: dict[tuple[str, ...], list[CalendarGpu]] = defaultdict(list)
    for gpu in free:
        groups[key(gpu)].append(gpu)
    enough = {name: g for name, g in groups.items() if len(g) >= count}
    ranked = sorted(enough.items(), key=lambda item: _fit(item[1], item[0]))
    return [group for _name, group in ranked]


def _engine_groups(free: Sequence[CalendarGpu], count: int) -> list[list[CalendarGpu]]:
    """Return the groups of another engine's Gpus: of one node, or whole nodes of the
    same classes."""
    nodes: dict[str, list[CalendarGpu]] = defaultdict(list)
    for gpu in free:
        nodes[gpu.node].append(gpu)
    whole = {name: g for name, g in nodes.items() if len(g) == g[0].of_node}
    some = [
        gpu
        for name, group in nodes.items()
        for gpu in group
        if not gpu.whole_node or (name in whole and gpu.of_node == count)
    ]
    if found := _large_enough(some, count, lambda gpu: (gpu.node,)):
        return found
    alike: dict[tuple[str, ...], list[CalendarGpu]] = defaultdict(list)
    for _name, group in sorted(whole.items()):
        alike[tuple(sorted(gpu.gpu_class for gpu in group))] += group
    return [
        group[:count]
        for group in alike.values()
        if len(group) >= count and count % group[0].of_node == 0
    ]


def _fit(
    group: Sequence[CalendarGpu], name: tuple[str, ...]
) -> tuple[int, int, bool, tuple[str, ...]]:
    liked = any(gpu.favourite for gpu in group)
    return min(gpu.memory_total_bytes for gpu in group), len(group), not liked, name


def _first(group: Sequence[CalendarGpu], count: int) -> tuple[CalendarGpu, ...]:
    order = sorted(
        group, key=lambda g: (g.weight, not g.favourite, g.node, g.index, g.pk)
    )
    return tuple(order[:count])


@dataclass(frozen=True, slots=True)
class CalendarGpu:
    """The calendar's view of a Gpu (a frozen copy of the row)."""

    pk: int
    node: str
    index: int
    gpu_class: str
    memory_total_bytes: int
    weight: int
    """Cost of one second of it, outside peak hours, in weighted GPU-seconds."""
    bookable: bool = True
    name: str = ""
    """Product name, as the driver reports it."""
    pool_pk: int = 0
    out: str = ""
    """Why it cannot be booked, in words. Empty if it can."""
    restricted: bool = False
    """Whether its pool is reserved for some accounts."""
    limited: bool = False
    """Whether its pool has quotas."""
    favourite: bool = False
    """Whether the requester starred it: preferred to others that are as good."""
    peak: PeakHours | None = None
    """Its peak hours. None: the price is always the same."""
    engine: str = ""
    """The other system that gives out its node. Empty: the portal."""
    whole_node: bool = False
    """Whether it is only booked with all other Gpus of its node."""
    whole_because: str = ""
    """Why, a `WholeNodes`. Empty: it is not, or it is not known."""
    of_node: int = 0
    """Number of GPUs of its node, if another engine gives them out and the portal books
    them. 0: it is not known, and no search finds it."""

    @property
    def tariff(self) -> Tariff:
        """Return the cost of a second, by the hour of the week."""
        return Tariff.of(self.weight, self.peak)

    @property
    def label(self) -> str:
        """Return its name for people."""
        return f"{self.node}:{self.index}"


class CalendarFlexRisk(TypedDict):
    """The risk that a flex reservation is taken before its freeze."""

    ratio: float
    """The chance that a waiting request displaces it, 0 to 1."""
    waiting: int
    """Requests of others that could use one of its GPUs then."""
    above: int
    """Those of them that may displace it."""
    members_above: int
    """Memberships that rank above its holder's now."""
    members: int
    text: str
    """The same in a sentence."""
