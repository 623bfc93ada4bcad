"""The first slots that fit, for "find a slot" and after a refusal."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from reservations.booking.favourites import favourite_gpus
from reservations.engines import service as engines
from reservations.engines.engine_refusals import EngineRefused
from reservations.models import Membership, Reservation, User
from reservations.rules.calendar import (
    CalendarGpu,
    Slot,
    SlotSearch,
    SlotWish,
    first_slots,
)
from reservations.rules.closed_time import PoolNotYours, PoolQuotaExceeded, check_pools
from reservations.rules.decision import Decision, decide
from reservations.rules.errors import (
    GpuNotBookable,
    GpuTaken,
    Refusal,
    TooLong,
    TooManyGpus,
)
from reservations.rules.fairness.preemption import Displacer, fewest_displaced
from reservations.rules.lifecycle import Kind
from reservations.rules.never_fits import check_there
from reservations.rules.overstay_terms import OverBeforeFree, notice_end
from reservations.rules.policy import Policy
from reservations.rules.request import Request, Snapshot
from reservations.rules.window import Window, unix, whole_second
from reservations.store import locks
from reservations.store.booking_facts import (
    own_holdings,
    returns_for,
    site_policy,
    strike_for,
)
from reservations.store.booking_snapshot import (
    account_path,
    calendar_of,
    quota_infos,
    right_to_book,
    with_tree,
)
from reservations.store.foreign_use import SOON_SECONDS, foreign_gpus
from reservations.store.gpu_rows import barred_pools, calendar_gpus

MOST_SLOTS = 20
MANY_GPUS = 64
"""From this many Gpus on, the first offer after a refusal is searched in a part of
them.
"""
PARTS = 8


def find_slots(
    *,
    user: User,
    membership: Membership | None,
    count: int,
    min_memory_bytes: int,
    duration_seconds: int,
    earliest: datetime | None = None,
    latest: datetime | None = None,
    gpu_class: str | None = None,
    now: datetime,
    limit: int = 3,
    refused: list[Refusal] | None = None,
) -> list[Slot]:
    """Return the first slots that ``book`` would grant this User.

    Args:
        refused: gets the rules that refuse times at which enough Gpus are free, each
            once.
        earliest: at or before ``now`` means at once.
        latest: last instant of the slot's end. Default and maximum: the horizon.

    Raises:
        Refusal: no slot can fit, at any time (too long, too many Gpus, no such Gpus).
        MembershipNeeded, NotAllowed.
    """
    now = whole_second(now)
    policy = site_policy()
    if duration_seconds > policy.longest_seconds:
        raise TooLong(
            asked_seconds=duration_seconds,
            longest_seconds=policy.longest_seconds,
            joined=False,
        )
    if count > policy.gpus_at_once:
        raise TooManyGpus(asked=count, held=0, most=policy.gpus_at_once)
    chosen = locks.choose_membership(user, membership)
    wish = SlotWish(count, duration_seconds, min_memory_bytes, gpu_class)
    starred = favourite_gpus(user.pk)
    gpus = [replace(gpu, favourite=gpu.pk in starred) for gpu in calendar_gpus()]
    found = _search(
        chosen,
        wish,
        gpus,
        earliest=max(earliest or now, now),
        latest_end=latest,
        now=now,
        policy=policy,
        limit=min(limit, MOST_SLOTS),
        taking=True,
        refused=refused,
    )
    if not found:
        asking = {account.pk for account in account_path(chosen)}
        check_there(wish, gpus, barred_pools(gpus, asking))
    return found


def _search(
    membership: Membership,
    wish: SlotWish,
    gpus: Sequence[CalendarGpu],
    *,
    earliest: datetime,
    latest_end: datetime | None,
    now: datetime,
    policy: Policy,
    limit: int,
    ignoring: int | None = None,
    taking: bool = False,
    refused: list[Refusal] | None = None,
) -> list[Slot]:
    """Search the calendar, which is read once.

    Args:
        refused: gets the rules that refuse times at which enough Gpus are free.
        taking: include slots that would displace flex. Slots offered after a refusal or
            a displacement never do.

    Raises:
        PoolNotYours: (taking) all suitable Gpus are reserved for other groups.
    """
    horizon = now + timedelta(seconds=policy.firm_horizon_seconds)
    latest = horizon
    if latest_end is not None:
        latest = min(horizon, latest_end - timedelta(seconds=wish.duration_seconds))
    if latest < earliest:
        return []
    facts = _facts(
        membership,
        wish,
        gpus,
        earliest,
        latest_end or latest + timedelta(seconds=policy.longest_seconds),
        now=now,
        policy=policy,
        ignoring=ignoring,
        taking=taking,
        refused=refused,
    )
    search = SlotSearch(
        earliest=_on_grid_or_now(earliest, now, policy),
        latest=latest,
        grid_seconds=policy.grid_seconds,
        longest_seconds=policy.longest_seconds,
    )
    return first_slots(
        facts.calendar,
        wish,
        search,
        allowed=_allowed(facts, latest_end, now=now, taking=taking, seen=refused),
        taking=_taking(facts, wish) if facts.tree is not None else None,
        limit=limit,
    )


def _facts(
    membership: Membership,
    wish: SlotWish,
    gpus: Sequence[CalendarGpu],
    start: datetime,
    end: datetime,
    *,
    now: datetime,
    policy: Policy,
    ignoring: int | None,
    taking: bool,
    refused: list[Refusal] | None,
) -> Snapshot:
    """Return all facts for a search. See ``_search``.

    Raises:
        PoolNotYours: (taking) all suitable Gpus are reserved for other groups.
    """
    path = account_path(membership)
    asking = {account.pk for account in path}
    barred = barred_pools(gpus, asking)
    good = _given_out([gpu for gpu in gpus if wish.fits(gpu)], membership.user, refused)
    fitting = [gpu for gpu in good if gpu.pool_pk not in barred]
    if taking and good and not fitting:
        check_pools(good, barred)
    leave_at = notice_end(now, policy)
    taker = None
    if taking:
        taker = Displacer(
            membership.user_id,
            now,
            policy.freeze_seconds,
            pause_seconds=policy.displacement_pause_seconds,
        )
    calendar = calendar_of(
        fitting,
        start,
        end,
        ignoring=ignoring,
        taker=taker,
        asking=asking,
        leave_at=leave_at,
        searching=True,
    )
    if start < now + timedelta(seconds=SOON_SECONDS):
        calendar.foreign = dict.fromkeys(foreign_gpus(), unix(now) + SOON_SECONDS)
    quotas = quota_infos(
        membership,
        path,
        start,
        end,
        policy=policy,
        ignoring=ignoring,
        pools={gpu.pool_pk for gpu in fitting if gpu.limited},
    )
    own = own_holdings(membership.user_id, ignoring=ignoring)
    return with_tree(
        Snapshot(
            policy,
            calendar,
            own,
            quotas,
            membership_pk=membership.pk,
            right=right_to_book(membership, path),
            strike=strike_for(membership.user_id, end, now=now, policy=policy),
            returns=returns_for(membership, end, now=now, policy=policy),
        ),
        now=now,
    )


def _given_out(
    gpus: Sequence[CalendarGpu], user: User, refused: list[Refusal] | None
) -> list[CalendarGpu]:
    """Return these Gpus, without those of another engine if it gives the User none.

    Args:
        refused: gets the reason.
    """
    nodes = sorted({gpu.node for gpu in gpus if gpu.engine})
    why = engines.search_refusal(", ".join(nodes), user) if nodes else None
    if why is None:
        return list(gpus)
    if refused is not None:
        refused.append(why)
    return [gpu for gpu in gpus if not gpu.engine]


def _allowed(
    facts: Snapshot,
    latest_end: datetime | None,
    *,
    now: datetime,
    taking: bool,
    seen: list[Refusal] | None = None,
) -> Callable[[Window, tuple[CalendarGpu, ...]], Kind | None]:
    """Return a function for the kind that the rules grant, cached for equal Gpus."""
    refused: set[tuple[object, ...]] = set()

    def allowed(window: Window, chosen: tuple[CalendarGpu, ...]) -> Kind | None:
        like = (window, *sorted((gpu.pool_pk, gpu.weight) for gpu in chosen))
        if like in refused:
            return None
        decision: Decision = decide(Request(chosen, window, now), facts)
        why = decision.refusal
        # A GPU that is taken is no rule of the requester.
        if (
            seen is not None
            and why is not None
            and not isinstance(why, GpuTaken)
            and why.code not in {one.code for one in seen}
        ):
            seen.append(why)
        if not taking and _same_for_alike(decision.refusal):
            refused.add(like)
        if latest_end is not None and window.end > latest_end:
            return None
        return decision.kind

    return allowed


def _same_for_alike(refusal: Refusal | None) -> bool:
    """Return whether free Gpus of the same pools and weights are refused, too."""
    if refusal is None:
        return False
    # A pool's quota refuses every Gpu of the pool.
    return refusal.on_any_gpus or isinstance(refusal, PoolQuotaExceeded)


def _taking(
    facts: Snapshot, wish: SlotWish
) -> Callable[[Window], list[tuple[CalendarGpu, ...]]]:
    """Return a function that finds the Gpus with the fewest Reservations in the way."""
    assert facts.tree is not None
    standing = facts.tree.ranked().ranks
    ranks = {pk: rank.rank for pk, rank in standing.items()}

    def sets(window: Window) -> list[tuple[CalendarGpu, ...]]:
        return fewest_displaced(facts.calendar, window, wish, ranks=ranks)

    return sets


def next_equal(
    row: Reservation, gpu_ids: Sequence[int], *, now: datetime
) -> Slot | None:
    """Return the first free slot that equals a Reservation's.

    See docs/design/fair-booking.md#rule-4.
    """
    policy = site_policy()
    gpus = calendar_gpus()
    seconds = int((row.booked_end - row.start).total_seconds())
    wish = _similar_wish(gpus, gpu_ids, seconds, policy)
    if wish is None:
        return None
    found = _search(
        row.membership,
        wish,
        gpus,
        earliest=max(row.start, whole_second(now)),
        latest_end=None,
        now=whole_second(now),
        policy=policy,
        limit=1,
    )
    return found[0] if found else None


def _similar_wish(
    gpus: Sequence[CalendarGpu],
    gpu_ids: Sequence[int],
    seconds: int,
    policy: Policy,
) -> SlotWish | None:
    """Return a wish for as many Gpus, at least as good, for as long."""
    asked = [gpu for gpu in gpus if gpu.pk in set(gpu_ids)]
    if not asked or len(asked) > policy.gpus_at_once:
        return None
    classes = {gpu.gpu_class for gpu in asked}
    return SlotWish(
        count=len(asked),
        duration_seconds=max(min(seconds, policy.longest_seconds), 1),
        min_memory_bytes=min(gpu.memory_total_bytes for gpu in asked),
        gpu_class=classes.pop() if len(classes) == 1 else None,
    )


def _on_grid_or_now(at: datetime, now: datetime, policy: Policy) -> datetime:
    """Return a start that may be booked: now, or on the grid."""
    if at <= now:
        return now
    over = unix(at) % policy.grid_seconds
    if not over and not at.microsecond:
        return at
    return at.replace(microsecond=0) + timedelta(seconds=policy.grid_seconds - over)


def own_part(
    gpus: Sequence[CalendarGpu], count: int, *, number: int
) -> Sequence[CalendarGpu]:
    """Return a part of a large site's Gpus. Each number has another part.

    If many requests are refused at once, offering the same best slot to all of them
    would refuse all but one again. A part has an eighth of the Nodes and, for a wish of
    one Gpu, every other Gpu of them.
    """
    nodes = sorted({gpu.node for gpu in gpus})
    if len(gpus) < MANY_GPUS or len(nodes) < PARTS:
        return gpus
    first = number % len(nodes)
    part = {nodes[(first + step) % len(nodes)] for step in range(len(nodes) // PARTS)}
    odd = number // len(nodes) % 2
    return [
        gpu for gpu in gpus if gpu.node in part and (count > 1 or gpu.index % 2 == odd)
    ]


def add_next_slot(
    refusal: Refusal,
    membership: Membership,
    gpu_ids: Sequence[int],
    start: datetime,
    end: datetime,
    *,
    now: datetime,
    policy: Policy,
    ignoring: int | None = None,
) -> None:
    """Add to a Refusal what would work instead.

    If fewer Gpus may be held at once, it is that many of them at the same time. And the
    next slot: as many Gpus, of the same class if they are of one, at least as large as
    the smallest of them, for as long (or as long as allowed), not earlier.
    """
    if not refusal.curable:
        return
    gpus = calendar_gpus()
    begin = max(start, now)
    seconds = int((end - (begin if end > begin else start)).total_seconds())
    if isinstance(refusal, TooManyGpus) and refusal.fits and seconds > 0:
        chosen = set(gpu_ids)
        fewer = _search(
            membership,
            SlotWish(refusal.fits, seconds, 0, None),
            [gpu for gpu in gpus if gpu.pk in chosen],
            earliest=begin,
            latest_end=begin + timedelta(seconds=seconds),
            now=now,
            policy=policy,
            limit=1,
            ignoring=ignoring,
        )
        refusal.works_instead = fewer[0] if fewer else None
    if isinstance(refusal, OverBeforeFree):
        begin = refusal.now
    wish = _similar_wish(gpus, gpu_ids, seconds, policy)
    if wish is None:
        return
    if isinstance(refusal, PoolNotYours):
        wish = replace(wish, gpu_class=None)
    if isinstance(refusal, EngineRefused):
        # Slurm knows more than the calendar, which would find the same again.
        chosen = set(gpu_ids)
        gone = {gpu.node for gpu in gpus if gpu.engine and gpu.pk in chosen}
        gpus = [gpu for gpu in gpus if gpu.node not in gone]
    # Other Gpus at the same time first: this reads one Window, not two weeks.
    same_time = begin + timedelta(seconds=wish.duration_seconds)
    tries: list[tuple[Sequence[CalendarGpu], datetime | None]] = [(gpus, None)]
    if isinstance(refusal, GpuTaken | GpuNotBookable):
        some = own_part(gpus, wish.count, number=membership.pk)
        tries.insert(0, (gpus, same_time))
        if len(some) < len(gpus):
            tries.insert(0, (some, same_time))
    for among, latest_end in tries:
        found = _search(
            membership,
            wish,
            among,
            earliest=begin,
            latest_end=latest_end,
            now=now,
            policy=policy,
            limit=1,
            ignoring=ignoring,
        )
        if found:
            refusal.next_slot = found[0]
            return
