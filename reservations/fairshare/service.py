"""A person's standing: rank, the path to the root, quota ahead, the ledger."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db.models import QuerySet
from django.utils import timezone

from reservations.models import Account, LedgerEntry, Membership, User, Voucher
from reservations.rules.fairness.fair_tree import Level, Ranking, decayed_gpu_seconds
from reservations.rules.fairness.no_shows import Strike, strike_of
from reservations.rules.fairness.quota import (
    BandPoint,
    QuotaInfo,
    band,
    headroom_gpu_seconds,
)
from reservations.rules.policy import Policy
from reservations.rules.window import Window, unix, whole_second
from reservations.store.booking_facts import no_shows_of, site_policy
from reservations.store.booking_snapshot import PATH_UP, account_path, quota_infos
from reservations.store.membership_rights import paid_by
from reservations.store.usage import ranking
from reservations.store.vouchers import good_vouchers

BAND_STEP_SECONDS = 3 * 3600
BAND_STEPS = 14 * 8


@dataclass(frozen=True, slots=True)
class PathLevel:
    """One step of the path institution > group > you."""

    kind: str
    """"account" or "member"."""
    name: str
    title: str
    shares: int
    norm_shares: float
    effective_usage: float
    level_fs: float | None
    """Above 1: under-served. None: infinite, nothing was used yet."""
    usage_gpu_hours: float
    """Weighted, decayed, including bookings ahead."""


@dataclass(frozen=True, slots=True)
class QuotaStanding:
    """One quota, of the Membership or of an Account above it."""

    account: str
    own: bool
    quota_gpu_seconds: int
    held_gpu_seconds: int
    """In the fullest 7 days that touch this instant."""
    left_gpu_seconds: int
    band: tuple[BandPoint, ...]
    """14 days from this midnight on, a point every 3 hours."""


@dataclass(frozen=True, slots=True)
class MembershipStanding:
    """The standing of one Membership."""

    membership: Membership
    place: int | None
    """1 is served first. Ties share the best rank."""
    of: int
    path: tuple[PathLevel, ...]
    quotas: tuple[QuotaStanding, ...]


@dataclass(frozen=True, slots=True)
class FairshareStatus:
    """The data of one User's page."""

    now: datetime
    memberships: tuple[MembershipStanding, ...]
    vouchers: tuple[Voucher, ...] = ()
    """Vouchers that can be spent. The first to expire comes first."""
    strike: Strike | None = None
    """The shorter horizon after no-shows, if it is in force."""
    no_shows: tuple[datetime, ...] = ()
    """Those that still count."""


def ledger_of(user: User) -> QuerySet[LedgerEntry]:
    """Return what a User's Memberships paid, also those that ended, newest first."""
    own = user.memberships.order_by().values_list("pk", flat=True)
    return LedgerEntry.objects.filter(paid_by(list(own))).order_by("-at", "-pk")


def standing(*, user: User, now: datetime) -> FairshareStatus:
    """Return a User's standing in every active Membership."""
    now = whole_second(now)
    policy = site_policy()
    every = user.memberships.select_related("user", PATH_UP).order_by("account__name")
    rows = [row for row in every if row.active]
    ranks = ranking(now, policy) if rows else None
    no_shows = no_shows_of([user.pk], now=now, policy=policy).get(user.pk, ())
    return FairshareStatus(
        now=now,
        memberships=tuple(_membership(row, ranks, now, policy) for row in rows),
        vouchers=tuple(good_vouchers(user, now)),
        strike=strike_of(no_shows, now=now, policy=policy),
        no_shows=no_shows,
    )


def _membership(
    row: Membership, ranks: Ranking | None, now: datetime, policy: Policy
) -> MembershipStanding:
    path = account_path(row)
    # From midnight of the site's clock, so that the chart has whole days.
    begin = timezone.localtime(now).replace(hour=0, minute=0, second=0, microsecond=0)
    begin = begin.astimezone(UTC)
    end = begin + timedelta(seconds=BAND_STEP_SECONDS * BAND_STEPS)
    infos = quota_infos(row, path, begin, end, policy=policy, pools=None)
    return MembershipStanding(
        membership=row,
        place=ranks.place(row.pk) if ranks else None,
        of=len(ranks.ranks) if ranks else 0,
        path=_path(row, path, ranks, now, policy) if ranks else (),
        quotas=tuple(_quota(info, now, begin) for info in infos),
    )


def _quota(info: QuotaInfo, now: datetime, begin: datetime) -> QuotaStanding:
    left = headroom_gpu_seconds(info, Window.of(now, seconds=1))
    return QuotaStanding(
        account=f"{info.account} on {info.pool}" if info.pool_pk else info.account,
        own=info.own and not info.pool_pk,
        quota_gpu_seconds=info.quota_gpu_seconds,
        held_gpu_seconds=info.quota_gpu_seconds - left,
        left_gpu_seconds=max(left, 0),
        band=tuple(
            band(
                info,
                start=begin,
                steps=BAND_STEPS,
                step_seconds=BAND_STEP_SECONDS,
            )
        ),
    )


def _path(
    row: Membership,
    path: list[Account],
    ranks: Ranking,
    now: datetime,
    policy: Policy,
) -> tuple[PathLevel, ...]:
    """Return root, ..., own Account, own Membership."""
    steps = [
        _level(
            "account", a.name, str(a), a.shares, ranks.account_level(a.pk), now, policy
        )
        for a in reversed(path)
    ]
    own = ranks.member_level(row.pk)
    user = row.user
    steps.append(
        _level("member", user.username, str(user), row.shares, own, now, policy)
    )
    return tuple(steps)


def _level(
    kind: str,
    name: str,
    title: str,
    shares: int,
    level: Level,
    now: datetime,
    policy: Policy,
) -> PathLevel:
    used = decayed_gpu_seconds(
        level.usage,
        unix_seconds=unix(now),
        half_life_seconds=policy.half_life_seconds,
    )
    return PathLevel(
        kind=kind,
        name=name,
        title=title,
        shares=shares,
        norm_shares=float(level.norm_shares),
        effective_usage=float(level.effective_usage),
        level_fs=None if level.level_fs is None else float(level.level_fs),
        usage_gpu_hours=used / 3600,
    )
