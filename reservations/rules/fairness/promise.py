"""The GPU time that all quotas together promise, by pool.

See docs/design/fair-booking.md#i4. Without an outage, in every window of 7 days that
begins after now + freeze + the longest booking, the firm and frozen time of others is
at most the sum of their quotas (flex that far ahead is not frozen and yields to firm).
So if the quotas of all groups that may book a pool add up to no more than its capacity,
a member whose headroom admits a block finds that much GPU time free of others' firm
time in each such window. If they add up to more, the pool is oversold, and the first
request wins.

Headroom in one window alone promises nothing, because rolling windows overlap: a block
fits if every applicable quota has room in every window that the block touches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from reservations.rules.fairness.quota import QuotaInfo, fits
from reservations.rules.policy import Policy
from reservations.rules.prices import Rate
from reservations.rules.window import WEEK_SECONDS, Window, grid_ceil


@dataclass(frozen=True, slots=True)
class PoolCapacity:
    """The Gpus of one pool that are in service."""

    pk: int
    name: str
    gpus: int
    weight: int

    @property
    def week_gpu_seconds(self) -> int:
        """Return its capacity in any 7 days, in weighted GPU-seconds.

        Peak hours add nothing, because others may spend their quotas outside them, and
        the promise is about time.
        """
        return self.gpus * self.weight * WEEK_SECONDS


@dataclass(frozen=True, slots=True)
class QuotaClaim:
    """One Membership's quota, and the Accounts above that limit it."""

    membership_pk: int
    quota_gpu_seconds: int
    account_pks: tuple[int, ...] = ()
    """From its own up to the root."""
    pool_quotas: Mapping[int, int] | None = None
    """By pool, if one is set for this Membership."""
    pools: frozenset[int] | None = None
    """The pools that it may book. None: all."""


@dataclass(frozen=True, slots=True)
class PoolPromise:
    """The condition of docs/design/fair-booking.md#i4 for one pool."""

    pool: PoolCapacity
    claims_gpu_seconds: int
    """The firm time that all quotas together allow in it, in any 7 days."""

    @property
    def kept(self) -> bool:
        """Return whether every quota can be used in full
        (docs/design/fair-booking.md#i4).
        """
        return self.claims_gpu_seconds <= self.pool.week_gpu_seconds

    @property
    def oversold_gpu_seconds(self) -> int:
        """Return by how much the quotas exceed the pool's capacity, or 0."""
        return max(self.claims_gpu_seconds - self.pool.week_gpu_seconds, 0)


def pool_promises(
    pools: Iterable[PoolCapacity],
    claims: Sequence[QuotaClaim],
    *,
    account_quotas: Mapping[int, int] | None = None,
    account_pool_quotas: Mapping[tuple[int, int], int] | None = None,
    parents: Mapping[int, int | None] | None = None,
) -> tuple[PoolPromise, ...]:
    """Return the condition of docs/design/fair-booking.md#i4 for each pool.

    A Membership may use its whole quota in one pool, unless a quota of that pool or of
    an Account above is lower. An Account counts with its quota if those of its members
    add up to more.

    Args:
        account_quotas: by Account, over all pools.
        account_pool_quotas: by (Account, pool).
        parents: of each Account. None: the root.
    """
    bounds, in_pool = account_quotas or {}, account_pool_quotas or {}
    return tuple(
        PoolPromise(pool, _claimed(pool.pk, claims, bounds, in_pool, parents or {}))
        for pool in pools
    )


def _claimed(
    pool_pk: int,
    claims: Sequence[QuotaClaim],
    bounds: Mapping[int, int],
    in_pool: Mapping[tuple[int, int], int],
    parents: Mapping[int, int | None],
) -> int:
    """Return the claims on one pool, summed up the tree and bounded per Account."""
    sums: dict[int, int] = {}
    loose = 0
    for claim in claims:
        if claim.pools is not None and pool_pk not in claim.pools:
            continue
        own = (claim.pool_quotas or {}).get(pool_pk)
        most = claim.quota_gpu_seconds
        amount = most if own is None else min(own, most)
        if claim.account_pks:
            home = claim.account_pks[0]
            sums[home] = sums.get(home, 0) + amount
        else:
            loose += amount
    depth = _depths(sums, parents)
    total = loose
    while depth:
        pk = max(depth, key=lambda one: (depth[one], one))
        level = depth.pop(pk)
        amount = sums.pop(pk)
        for bound in (bounds.get(pk), in_pool.get((pk, pool_pk))):
            amount = amount if bound is None else min(amount, bound)
        above = parents.get(pk)
        if above is None:
            total += amount
            continue
        sums[above] = sums.get(above, 0) + amount
        depth.setdefault(above, level - 1)
    return total


def _depths(
    accounts: Iterable[int], parents: Mapping[int, int | None]
) -> dict[int, int]:
    found = {}
    for pk in accounts:
        steps, at = 0, parents.get(pk)
        while at is not None:
            steps, at = steps + 1, parents.get(at)
        found[pk] = steps
    return found


def promised_from(now: datetime, policy: Policy) -> datetime:
    """Return the instant after which the windows of the promise begin."""
    return now + timedelta(seconds=policy.freeze_seconds + policy.longest_seconds)


def blocks(
    start: datetime, end: datetime, *, seconds: int, grid_seconds: int
) -> Iterator[Window]:
    """Yield the blocks of a length that begin on the grid between two instants."""
    at = grid_ceil(start, grid_seconds)
    while at + timedelta(seconds=seconds) <= end:
        yield Window.of(at, seconds=seconds)
        at += timedelta(seconds=grid_seconds)


def admitted(
    infos: Sequence[QuotaInfo],
    *,
    start: datetime,
    end: datetime,
    rate: Rate,
    seconds: int,
    grid_seconds: int,
) -> tuple[Window, ...]:
    """Return the spans in which a block may begin: every quota has room for it.

    Neighbouring starts are joined: a block may begin anywhere on the grid from a span's
    start to its end, which is the last start and not the block's end.

    Args:
        rate: weighted Gpus of the block.
    """
    found: list[Window] = []
    step = timedelta(seconds=grid_seconds)
    for block in blocks(start, end, seconds=seconds, grid_seconds=grid_seconds):
        if not all(fits(info, block, rate=rate) for info in infos):
            continue
        if found and found[-1].end == block.start:
            found[-1] = Window(found[-1].start, block.start + step)
        else:
            found.append(Window(block.start, block.start + step))
    return tuple(found)
