"""Preemption: which flex Reservations yield to a request.

See docs/design/fair-booking.md#rule-1 to #rule-4. A firm request displaces all unfrozen
flex in its way. A flex request of v displaces that of u only if v *with* the new
commitment still ranks strictly above u *without* the displaced one, in the Fair Tree
after the displacement. ("v ranks above u now" would let the two alternate for ever,
because each ranks above the other while the other holds.) Why it ends: after a
displacement, v with its holding ranks above u without one, so u cannot rank above v in
a new request.

If several sets of Gpus are possible, the one with the fewest Reservations in the way is
chosen, then that of the lowest-ranked owners, then the newest. All sets are tried, up
to ``MOST_GPUS`` of one group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from fractions import Fraction
from itertools import combinations

from reservations.rules.calendar import (
    Calendar,
    CalendarGpu,
    FlexInfo,
    SlotWish,
    groups_of,
)
from reservations.rules.closed_time import refusal_of
from reservations.rules.errors import GpuTaken
from reservations.rules.fairness.fair_tree import (
    AccountShares,
    MemberShares,
    PathStep,
    Ranking,
    rank_tree,
)
from reservations.rules.fairness.rank_advice import used_ratio
from reservations.rules.figures import time_text
from reservations.rules.window import Window, unix
from telemetry.protocol.sentences import sentence

MOST_GPUS = 16
"""Of a larger group, the Gpus with the fewest Reservations in the way are tried."""


@dataclass(frozen=True, slots=True)
class Displacer:
    """The User who may displace flex, and the time. Their own flex is exempt."""

    user_pk: int
    now: datetime
    freeze_seconds: int
    notice_seconds: int = 600
    """The notice of an overstay that is claimed
    (docs/design/fair-booking.md#rule-3).
    """

    pause_seconds: int = 0
    """For how long a person who returned displaced time may not displace its owner
    again.
    """

    @property
    def leave_at(self) -> datetime:
        """Return when an overstay has ended if it is claimed now."""
        return self.now + timedelta(seconds=self.notice_seconds)

    @property
    def frozen_until(self) -> datetime:
        """Return the last start at which nothing can be displaced any more."""
        return self.now + timedelta(seconds=self.freeze_seconds)


@dataclass(frozen=True, slots=True)
class FairTree:
    """Shares and weighted usage of everybody at one instant."""

    accounts: tuple[AccountShares, ...]
    members: tuple[MemberShares, ...]
    unit: int = 1
    """Usage of one weighted GPU-second now (``fairshare.weight_at``)."""
    _base: list[Ranking] = field(default_factory=list, compare=False, repr=False)
    """The ranking of the tree, computed on first use."""
    _scales: list[FairTreeSums] = field(default_factory=list, compare=False, repr=False)

    @property
    def scales(self) -> FairTreeSums:
        """Return the tree as sums, for a quick refusal."""
        if not self._scales:
            self._scales.append(FairTreeSums(self))
        return self._scales[0]

    def ranked(self, extra: Mapping[int, int] | None = None) -> Ranking:
        """Return the ranking with these additional GPU-seconds, by Membership."""
        if not self._base:
            self._base.append(rank_tree(self.accounts, self.members))
        base = self._base[0]
        if not extra:
            return base
        return base.with_usage(
            {
                m.pk: max(m.usage + extra[m.pk] * self.unit, 0)
                for m in self.members
                if m.pk in extra
            }
        )


@dataclass(frozen=True, slots=True)
class Displaced:
    """One Reservation that yields, and the reason."""

    flex: FlexInfo
    frozen_at: datetime
    """From then on nobody could have displaced it."""
    own: tuple[PathStep, ...]
    """The requester's path, with the new commitment."""
    theirs: tuple[PathStep, ...]
    """The owner's path, without the displaced Reservation."""
    before: Ranking = field(compare=False, repr=False)
    after: Ranking = field(compare=False, repr=False)
    """Everybody's ranking afterwards. Places are counted on demand."""

    @property
    def place_before(self) -> int:
        """Return the owner's place among all before. 1 is served first."""
        return self.before.place(self.flex.membership_pk)

    @property
    def place_after(self) -> int:
        """Return the owner's place among all afterwards."""
        return self.after.place(self.flex.membership_pk)

    @property
    def refund_gpu_seconds(self) -> int:
        """Return the refund: the whole cost."""
        return self.flex.cost_gpu_seconds

    def to_json(self) -> dict[str, object]:
        """Return the JSON that is stored with the displacing Reservation.

        See docs/design/fair-booking.md#rule-8.
        """
        return {
            "reservation": self.flex.reservation_pk,
            "membership": self.flex.membership_pk,
            "start": self.flex.start.isoformat(),
            "frozen_at": self.frozen_at.isoformat(),
            "refund_gpu_seconds": self.refund_gpu_seconds,
            **({"planned": True} if self.flex.planned else {}),
            "place_before": self.place_before,
            "place_after": self.place_after,
            "own": [_step_json(step) for step in self.own],
            "theirs": [_step_json(step) for step in self.theirs],
        }


def _step_json(step: PathStep) -> dict[str, object]:
    level_fs = step.level.level_fs
    return {
        "user" if step.is_user else "account": step.pk,
        "level_fs": None if level_fs is None else str(level_fs),
    }


@dataclass(eq=False)
class FlexHeld(GpuTaken):
    """The owner of the flex in the way does not rank below the request.

    See docs/design/fair-booking.md#rule-2.
    """

    code = "flex-held"
    title = sentence("Held as flex")
    own_level_fs: float | None = None
    """With the requested time. None: infinite."""
    their_level_fs: float | None = None
    """Without the held time. None: infinite."""

    def text(self, zone: tzinfo = UTC) -> str:
        values = {
            "gpu": self.gpu,
            "start": time_text(self.start, zone),
            "end": time_text(self.end, zone),
            "own": f"{used_ratio(self.own_level_fs):.1f}",
            "theirs": f"{used_ratio(self.their_level_fs):.1f}",
        }
        if not self.user:
            return sentence(
                "{gpu} is taken from {start} to {end}, as flex. You can take flex time "
                "only from someone who has used more of their share. With this booking "
                "you would have used {own}× your share. Without theirs they would have "
                "used {theirs}×.",
                **values,
            )
        return sentence(
            "{gpu} is taken by {user} from {start} to {end}, as flex. You can take "
            "flex time only from someone who has used more of their share. With this "
            "booking you would have used {own}× your share. Without theirs they would "
            "have used {theirs}×.",
            user=self.user,
            **values,
        )


Key = tuple[bool, Fraction, bool]


def _key(level_fs: Fraction | None, *, is_user: bool) -> Key:
    return level_fs is None, level_fs or Fraction(0), is_user


def ranks_above(own: Iterable[Key], theirs: Iterable[Key]) -> bool:
    """Return whether a path ranks strictly above another, as Fair Tree does.

    The first Level at which they differ decides, because siblings that tie are merged.
    If a User ties with an Account, neither ranks above: the User shares its rank with
    the Account's first-served children, and a tie displaces nobody.
    """
    for one, two in zip(own, theirs, strict=False):
        if one[:2] != two[:2]:
            return one > two
        if one != two:
            return False
    return False


def keys(path: Iterable[PathStep]) -> list[Key]:
    """Return the values by which paths are compared."""
    return [_key(step.level.level_fs, is_user=step.is_user) for step in path]


def deciding(
    own: Sequence[PathStep], theirs: Sequence[PathStep]
) -> tuple[PathStep, PathStep]:
    """Return the first Levels at which two paths differ, or the last ones."""
    for one, two in zip(own, theirs, strict=False):
        if keys([one]) != keys([two]):
            return one, two
    return own[-1], theirs[-1]


def displaced_by(
    flex: Sequence[FlexInfo],
    *,
    member_pk: int,
    more_gpu_seconds: int,
    tree: FairTree,
    freeze_seconds: int,
) -> tuple[Displaced, ...]:
    """Return these Reservations as displaced, with both paths afterwards.

    Args:
        more_gpu_seconds: the commitment that the request adds to its Membership.
    """
    extra = {member_pk: more_gpu_seconds}
    for one in flex:
        extra[one.membership_pk] = (
            extra.get(one.membership_pk, 0) - one.cost_gpu_seconds
        )
    before, after = tree.ranked(), tree.ranked(extra)
    own = after.path(member_pk)
    return tuple(
        Displaced(
            flex=one,
            frozen_at=one.start - timedelta(seconds=freeze_seconds),
            own=own,
            theirs=after.path(one.membership_pk),
            before=before,
            after=after,
        )
        for one in flex
    )


@dataclass(eq=False)
class PlannedFor(GpuTaken):
    """A waiting request has its planned start there. Only firm may take it."""

    code = "planned-for"
    title = sentence("Held for the waitlist")

    def text(self, zone: tzinfo = UTC) -> str:
        values = {
            "gpu": self.gpu,
            "start": time_text(self.start, zone),
            "end": time_text(self.end, zone),
        }
        if not self.user:
            return sentence(
                "{gpu} is held from {start} to {end} for a request on the waitlist. "
                "Only a firm booking can take this time.",
                **values,
            )
        return sentence(
            "{gpu} is held from {start} to {end} for a request of {user} on the "
            "waitlist. Only a firm booking can take this time.",
            user=self.user,
            **values,
        )


def check_plans(
    gpus: Sequence[CalendarGpu], window: Window, calendar: Calendar
) -> None:
    """Refuse flex that would delay a planned start, or a booking placed at one.

    Raises:
        PlannedFor: with the first of them (docs/design/fair-booking.md#rule-5).
    """
    plan = calendar.plan_in([gpu.pk for gpu in gpus], window)
    if plan is not None:
        named = next(gpu.label for gpu in gpus if gpu.pk in plan.gpu_pks)
        raise PlannedFor(gpu=named, start=plan.window.start, end=plan.window.end)
    for gpu in gpus:
        for span in calendar.clashes(gpu.pk, window):
            if span.flex is not None and span.flex.planned:
                raise PlannedFor(
                    gpu=gpu.label,
                    start=span.flex.start,
                    end=span.flex.end,
                    user=span.user,
                )


def check_above(displaced: Iterable[Displaced], *, on: Mapping[int, str]) -> None:
    """Refuse a flex request that does not rank above the flex in its way.

    See docs/design/fair-booking.md#rule-2.

    Args:
        on: a Gpu of the request, by the Reservation that is in its way there.

    Raises:
        FlexHeld: with the two level_fs at which the paths part.
    """
    for one in displaced:
        if ranks_above(keys(one.own), keys(one.theirs)):
            continue
        own, theirs = deciding(one.own, one.theirs)
        raise FlexHeld(
            gpu=on[one.flex.reservation_pk],
            start=one.flex.start,
            end=one.flex.end,
            user=one.flex.user,
            own_level_fs=_float(own.level.level_fs),
            their_level_fs=_float(theirs.level.level_fs),
        )


def _float(level_fs: Fraction | None) -> float | None:
    return None if level_fs is None else float(level_fs)


def flex_to_displace(
    gpus: Iterable[CalendarGpu], window: Window, calendar: Calendar
) -> tuple[FlexInfo, ...]:
    """Return the flex that a request would displace, each once, by number.

    Raises:
        GpuTaken, ClosedThen: a span that nobody can take is in the way.
    """
    found: dict[int, FlexInfo] = {}
    for gpu in gpus:
        for span in calendar.clashes(gpu.pk, window):
            if span.flex is None:
                raise refusal_of(gpu, span)
            found[span.flex.reservation_pk] = span.flex
    return tuple(found[pk] for pk in sorted(found))


def fewest_displaced(
    calendar: Calendar, window: Window, wish: SlotWish, *, ranks: Mapping[int, int]
) -> list[tuple[CalendarGpu, ...]]:
    """Return the sets of Gpus for which some flex is displaced, best group first.

    Args:
        ranks: by Membership, larger is served first (``fairshare.Rank.rank``).
    """
    ways: dict[int, tuple[FlexInfo, ...]] = {}
    takeable: list[CalendarGpu] = []
    planned = calendar.planned_gpus(window)
    start, end = unix(window.start), unix(window.end)
    for gpu in calendar.gpus:
        flex = calendar.takeable_flex(gpu.pk, start, end) if wish.fits(gpu) else None
        if flex is not None:
            takeable.append(gpu)
            ways[gpu.pk] = flex
            if any([one.planned for one in flex]):
                planned |= {gpu.pk}
    if len(takeable) < wish.count:
        return []
    # Planned starts of others yield only to firm, so try without displacing them.
    clear = [gpu for gpu in takeable if gpu.pk not in planned]
    found = _sets_with_fewest_victims(clear, ways, wish, ranks)
    return found + (
        _sets_with_fewest_victims(takeable, ways, wish, ranks) if planned else []
    )


def _sets_with_fewest_victims(
    takeable: Sequence[CalendarGpu],
    ways: Mapping[int, tuple[FlexInfo, ...]],
    wish: SlotWish,
    ranks: Mapping[int, int],
) -> list[tuple[CalendarGpu, ...]]:
    found = []
    burden = {gpu.pk: _victim_sort_key(ways[gpu.pk], ranks) for gpu in takeable}
    for group in groups_of(takeable, wish.count):
        group.sort(key=lambda g: (g.weight, g.node, g.index, g.pk))
        group.sort(key=lambda g: burden[g.pk])
        if _sorted_first_is_best(group, ways, wish.count):
            found.append(tuple(group[: wish.count]))
            continue
        tried = combinations(group[: max(MOST_GPUS, wish.count)], wish.count)
        found.append(
            min(
                tried,
                key=lambda s: _victim_sort_key(
                    (f for g in s for f in ways[g.pk]), ranks
                ),
            )
        )
    return sorted(
        found, key=lambda s: _victim_sort_key((f for g in s for f in ways[g.pk]), ranks)
    )


def _sorted_first_is_best(
    group: Sequence[CalendarGpu], ways: Mapping[int, tuple[FlexInfo, ...]], count: int
) -> bool:
    """Return whether the first Gpus of a sorted group are surely the best set.

    They are if no Reservation is in the way on two Gpus of the group, and none of them
    has more than one in the way.
    """
    victims = [one.reservation_pk for gpu in group for one in ways[gpu.pk]]
    few = all(len(ways[gpu.pk]) <= 1 for gpu in group[:count])
    return few and len(victims) == len(set(victims))


def _victim_sort_key(
    flex: Iterable[FlexInfo], ranks: Mapping[int, int]
) -> tuple[int, list[tuple[int, int, int]]]:
    """Order sets of victims: fewest, then lowest-ranked owners, then newest."""
    victims = {one.reservation_pk: one for one in flex}
    if not victims:
        return 0, []
    return len(victims), sorted(
        (ranks.get(one.membership_pk, 0), -unix(one.booked_at), -one.reservation_pk)
        for one in victims.values()
    )


Node = tuple[bool, int]
"""Whether it is a Membership, and its key."""


class FairTreeSums:
    """The tree's sums by node, and each Membership's path down to it, in integers.

    They tell which requester surely stands below the owner of the flex in the way. See
    docs/design/fair-booking.md#rule-2. The waitlist tries thousands of sets of Gpus,
    and nearly all of them fail because the requester does not stand above an owner.
    Fair Tree compares two people at the first Level at which their paths part. There
    the usage of the parent cancels:

        LF(A) < LF(B)  <=>  shares(A) * usage(B) < shares(B) * usage(A)

    So two products decide, with the sums as they would be after the displacement. Where
    the two tie, or shares are ``parent``, ``check_above`` judges. Cost: the length of
    the paths.
    """

    def __init__(self, tree: FairTree) -> None:
        self._accounts = {account.pk: account for account in tree.accounts}
        self._unit = tree.unit
        self._shares: dict[Node, int | None] = {}
        self._usage: dict[Node, int] = {}
        self._paths: dict[int, tuple[Node, ...]] = {}
        for member in tree.members:
            node: Node = True, member.pk
            self._shares[node] = member.shares
            self._paths[member.pk] = (*self._above(member.account_pk), node)
            for step in self._paths[member.pk]:
                self._usage[step] = self._usage.get(step, 0) + member.usage

    def _above(self, account_pk: int) -> list[Node]:
        """Return the Accounts that are not skipped, below the root, from the top."""
        found: list[Node] = []
        account = self._accounts[account_pk]
        while account.parent_pk is not None:
            if account.shares is not None:
                self._shares[False, account.pk] = account.shares
                found.append((False, account.pk))
            account = self._accounts[account.parent_pk]
        return found[::-1]

    def below(
        self, member_pk: int, more_gpu_seconds: int, flex: Iterable[FlexInfo]
    ) -> bool:
        """Return whether a Membership with this much more is surely not above an owner.

        The owners are those of this flex, once all of it is displaced.
        """
        if member_pk not in self._paths:
            return False
        extra = {member_pk: more_gpu_seconds}
        for one in flex:
            if one.membership_pk not in self._paths:
                return False
            owner = one.membership_pk
            extra[owner] = extra.get(owner, 0) - one.cost_gpu_seconds
        change: dict[Node, int] = {}
        for pk, gpu_seconds in extra.items():
            usage = self._usage[True, pk]
            moved = max(usage + gpu_seconds * self._unit, 0) - usage
            for step in self._paths[pk]:
                change[step] = change.get(step, 0) + moved
        own = self._paths[member_pk]
        return any(
            self._is_surely_below(own, self._paths[pk], change)
            for pk in extra
            if pk != member_pk
        )

    def _is_surely_below(
        self, own: tuple[Node, ...], theirs: tuple[Node, ...], change: dict[Node, int]
    ) -> bool:
        one, two = next((a, b) for a, b in zip(own, theirs, strict=False) if a != b)
        mine, their = self._shares[one], self._shares[two]
        if mine is None or their is None:
            return False
        return mine * (self._usage[two] + change.get(two, 0)) < their * (
            self._usage[one] + change.get(one, 0)
        )
