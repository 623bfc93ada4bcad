"""The facts that decide a booking, read with hand-written SQL.

A booking reads these while it holds its locks, so they must be quick. Django takes
about 0.4 ms of CPU to build such a query, which is ten times what SQLite needs to
answer it. The statements are the same for SQLite and PostgreSQL, and
tests/reservations/store/test_booking_facts.py compares the result of each with that of
Django's query builder.
"""

import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

from django.db import connection
from django.db.models import DateTimeField, Sum

from reservations.models import (
    Allocation,
    LedgerEntry,
    Membership,
    SitePolicy,
    WaitingRequest,
)
from reservations.rules.calendar import ClosureInfo, PlannedStart
from reservations.rules.fairness.early_returns import WINDOW_SECONDS, EarlyReturns
from reservations.rules.fairness.no_shows import Strike, strike_of
from reservations.rules.fairness.preemption import Displacer
from reservations.rules.fairness.quota import PERMILLE, QuotaInfo, Spend, spends_at
from reservations.rules.lifecycle import Kind, State
from reservations.rules.overstay_terms import is_gap
from reservations.rules.policy import LONGEST_POSSIBLE_SECONDS, Policy
from reservations.rules.prices import Tariff, read_peak
from reservations.rules.request import Holding
from reservations.rules.window import Window, unix
from telemetry.protocol.sentences import sentence

HOLDING = State.holding()
_LIVE = [state.value for state in State.live()]
LONGEST = timedelta(seconds=LONGEST_POSSIBLE_SECONDS)
Row = tuple[Any, ...]
_INSTANT = DateTimeField()
_POLICY_FIELDS = SitePolicy._meta.concrete_fields


def _rows(sql: str, *parameters: object) -> list[Row]:
    """Return the rows of one SELECT.

    Args:
        parameters: in the order of their ``%s``. A collection fills a list
            ``IN (%s)`` and must not be empty.
    """
    values: list[Any] = []
    lists: list[str] = []
    for one in parameters:
        alone = isinstance(one, str) or not isinstance(one, Collection)
        several = (one,) if alone else tuple(one)  # type: ignore[arg-type]
        lists.append(", ".join(["%s"] * len(several)))
        for value in several:
            if isinstance(value, datetime):
                value = _INSTANT.get_db_prep_value(value, connection)
            values.append(value)
    with connection.cursor() as cursor:
        cursor.execute(sql % tuple(lists), values)
        return cursor.fetchall()


def _with_utc(value: datetime) -> datetime:
    """Return an instant of a row with its zone: SQLite stores UTC without the zone."""
    return value if value.tzinfo is not None else value.replace(tzinfo=UTC)


def _window(start: datetime, end: datetime) -> Window:
    return Window(_with_utc(start), _with_utc(end))


# --- the rules of the site ---------------------------------------------------------


def site_policy() -> Policy:
    """Return the present rules of the site."""
    columns = ", ".join(field.attname for field in _POLICY_FIELDS)
    rows = _rows(f"SELECT {columns} FROM reservations_sitepolicy WHERE id = 1")
    return _policy_of(rows[0]) if rows else SitePolicy.current().to_policy()


@lru_cache(maxsize=8)
def _policy_of(row: Row) -> Policy:
    """Return the rules of a row. Cached by its values, because the checks are slow."""
    values = {
        field.attname: field.to_python(value)
        for field, value in zip(_POLICY_FIELDS, row, strict=True)
    }
    return SitePolicy(**values).to_policy()


# --- the right to book -------------------------------------------------------------


def is_in_force(membership: Membership) -> bool:
    """Return whether the row of a Membership still allows its User to book."""
    rows = _rows(
        """
        SELECT 1 FROM reservations_membership m
          JOIN reservations_account a ON a.id = m.account_id
         WHERE m.id = %s AND m.user_id = %s AND m.active AND a.archived_at IS NULL
        """,
        *(membership.pk, membership.user_id),
    )
    return bool(rows)


# --- holdings, no-shows and returns of a person ------------------------------------


def own_holdings(user_pk: int, *, ignoring: int | None = None) -> tuple[Holding, ...]:
    """Return a User's live Reservations, over all Memberships, and shared ones."""
    return holdings_of([user_pk], ignoring=ignoring).get(user_pk, ())


def holdings_of(
    user_pks: Collection[int], *, ignoring: int | None = None
) -> dict[int, tuple[Holding, ...]]:
    """Return each User's live Reservations, by User. Users without any are left out.

    Those that others share with them follow, marked ``shared``. A person who left the
    owner's Account, or who may not sign in, shares nothing (``CoUser.sharing``).

    Args:
        ignoring: a Reservation that is about to change.
    """
    if not user_pks:
        return {}
    but = ignoring or 0
    rows = _rows(
        """
        SELECT r.user_id, r.id, r.start, r."end", r.booked_end, r.kind, a.gpu_id,
               0 AS shared
          FROM reservations_reservation r
          JOIN reservations_allocation a ON a.reservation_id = r.id
         WHERE r.user_id IN (%s) AND r.state IN (%s) AND r.id <> %s
         UNION ALL
        SELECT c.user_id, r.id, r.start, r."end", r.booked_end, r.kind, a.gpu_id, 1
          FROM reservations_couser c
          JOIN reservations_user u ON u.id = c.user_id AND u.is_active
          JOIN reservations_reservation r ON r.id = c.reservation_id
          JOIN reservations_membership m ON m.id = r.membership_id
          JOIN reservations_allocation a ON a.reservation_id = r.id
         WHERE c.user_id IN (%s) AND c.removed_at IS NULL
           AND r.state IN (%s) AND r.id <> %s
           AND EXISTS (SELECT 1 FROM reservations_membership own
                        WHERE own.user_id = c.user_id AND own.active
                          AND own.account_id = m.account_id)
         ORDER BY 8, 2
        """,
        *(user_pks, _LIVE, but),
        *(user_pks, _LIVE, but),
    )
    held: dict[int, dict[int, tuple[Window, Kind, set[int], bool]]] = {}
    for user, pk, begin, over, booked_end, kind, gpu, shared in rows:
        start, booked = _with_utc(begin), _with_utc(booked_end)
        if is_gap(start, booked):
            continue
        own = held.setdefault(user, {})
        if pk not in own:
            # An overstay also yields to its holder's own next booking.
            window = Window(start, min(_with_utc(over), booked))
            own[pk] = (window, Kind(kind), set(), bool(shared))
        own[pk][2].add(gpu)
    return {
        user: tuple(
            Holding(pk, window, frozenset(gpus), kind, shared)
            for pk, (window, kind, gpus, shared) in own.items()
        )
        for user, own in held.items()
    }


def no_shows_of(
    user_pks: Collection[int], *, now: datetime, policy: Policy
) -> dict[int, tuple[datetime, ...]]:
    """Return the times of Users' no-shows that still matter, over all Memberships.

    No entry: none.
    """
    if not user_pks:
        return {}
    # An older one causes no strike that is still in force.
    relevant_seconds = policy.strike_window_seconds + policy.strike_seconds
    since = now - timedelta(seconds=relevant_seconds)
    rows = _rows(
        """
        SELECT user_id, ended_at FROM reservations_reservation
         WHERE no_show AND user_id IN (%s) AND ended_at > %s AND ended_at <= %s
         ORDER BY ended_at
        """,
        *(user_pks, since, now),
    )
    found: dict[int, list[datetime]] = defaultdict(list)
    for user, at in rows:
        found[user].append(_with_utc(at))
    return {user: tuple(times) for user, times in found.items()}


def strikes_of(
    user_pks: Collection[int], *, now: datetime, policy: Policy
) -> dict[int, Strike | None]:
    """Return the strike in force for each User with a recent no-show."""
    return {
        user: strike_of(times, now=now, policy=policy)
        for user, times in no_shows_of(user_pks, now=now, policy=policy).items()
    }


def strike_for(
    user_pk: int, start: datetime, *, now: datetime, policy: Policy
) -> Strike | None:
    """Return the strike of a User if it could matter for a start.

    Nothing is read for a start within the shorter horizon.
    """
    if start <= now + timedelta(seconds=policy.strike_horizon_seconds):
        return None
    return strikes_of([user_pk], now=now, policy=policy).get(user_pk)


def returns_of(
    memberships: Collection[Membership], *, now: datetime, policy: Policy
) -> dict[int, EarlyReturns]:
    """Return, by Membership, the returns that exceed its part of the quota.

    No entry: so little was returned that no limit can apply. Two queries, or one if
    nobody returned that much.
    """
    since = now - timedelta(seconds=WINDOW_SECONDS)
    users = {one.user_id for one in memberships}
    if not users:
        return {}
    returned = {
        user: int(total)
        for user, total in _rows(
            """
            SELECT user_id, SUM(gpu_seconds) FROM reservations_earlyreturn
             WHERE user_id IN (%s) AND returned_at > %s
             GROUP BY user_id
            """,
            *(users, since),
        )
    }
    found: dict[int, EarlyReturns] = {}
    for one in memberships:
        if one.user_id in returned:
            own = one.quota_gpu_seconds
            quota = policy.quota_gpu_seconds if own is None else own
            known = EarlyReturns(returned[one.user_id], 0, quota)
            if known.is_over(policy):
                found[one.pk] = known
    if not found:
        return {}
    over = {one.user_id for one in memberships if one.pk in found}
    charges = LedgerEntry.objects.filter(
        membership__user_id__in=over, kind=LedgerEntry.Kind.CHARGE, at__gt=since
    )
    used = dict(
        charges.order_by()
        .values_list("membership__user_id")
        .annotate(total=Sum("gpu_seconds"))
    )
    return {
        one.pk: replace(found[one.pk], used_gpu_seconds=used.get(one.user_id, 0))
        for one in memberships
        if one.pk in found
    }


def returns_for(
    membership: Membership, start: datetime, *, now: datetime, policy: Policy
) -> EarlyReturns | None:
    """Return the returns of one Membership if they could matter for a start.

    Nothing is read for a start within the shorter horizon.
    """
    if start <= now + timedelta(seconds=policy.returned_horizon_seconds):
        return None
    return returns_of([membership], now=now, policy=policy).get(membership.pk)


# --- what counts in quotas -----------------------------------------------------------


def quotas_of(user_pks: Collection[int]) -> dict[int, dict[int, int | None]]:
    """Return, by User, the quota of each of their Memberships. None: the site's."""
    rows = _rows(
        """
        SELECT user_id, id, quota_gpu_seconds FROM reservations_membership
         WHERE user_id IN (%s)
        """,
        user_pks,
    )
    found: dict[int, dict[int, int | None]] = defaultdict(dict)
    for user, pk, quota in rows:
        found[user][pk] = quota
    return found


def spends_of(
    members: Collection[int],
    low: datetime,
    high: datetime,
    *,
    ignoring: int | None = None,
    ignoring_late: int | None = None,
) -> list[tuple[int, int, Spend]]:
    """Return (Membership, Account, firm cost) between two instants.

    Held firm time counts, and late hours with their part. Overstays are flex and do not
    count.

    Args:
        ignoring: a Reservation that is about to change.
        ignoring_late: one whose late hours are about to be held again.
    """
    if not members:
        return []
    late = _rows(
        """
        SELECT l.membership_id, m.account_id, l.start, l."end", l.weight, l.permille
          FROM reservations_latereturn l
          JOIN reservations_membership m ON m.id = l.membership_id
         WHERE l.membership_id IN (%s) AND l.firm AND l.start < %s AND l."end" > %s
           AND l.reservation_id <> %s
        """,
        *(members, high, low, ignoring_late or 0),
    )
    found = [
        (pk, group, Spend(unix(_with_utc(begin)), unix(_with_utc(over)), weight * part))
        for pk, group, begin, over, weight, part in late
    ]
    held = _rows(
        """
        SELECT r.membership_id, m.account_id, r.start, r."end", r.booked_end,
               r.cost_gpu_seconds, r.kind, r.state, r.peaked, r.id
          FROM reservations_reservation r
          JOIN reservations_membership m ON m.id = r.membership_id
         WHERE r.membership_id IN (%s) AND r.start < %s AND r.start > %s
           AND r."end" > %s AND r.id <> %s
        """,
        *(members, high, low - LONGEST, low, ignoring or 0),
    )
    by_the_hour: dict[int, tuple[int, int]] = {}
    for pk, group, begin, over, booked, cost, kind, state, peaked, own in held:
        first, last = unix(_with_utc(begin)), unix(_with_utc(over))
        # Filtered here and not in SQL: without statistics SQLite would search by state.
        if last <= first or kind != Kind.FIRM or state not in HOLDING:
            continue
        if peaked:
            by_the_hour[own] = (pk, group)
        else:
            rate = cost * PERMILLE // (last - first)
            found.append(
                (pk, group, Spend(first, min(last, unix(_with_utc(booked))), rate))
            )
    found += [(*by_the_hour[own], one) for own, one in _by_the_hour(by_the_hour)]
    return found


def _by_the_hour(pks: Collection[int]) -> Iterator[tuple[int, Spend]]:
    """Yield (Reservation, cost) of Allocations, each at its booked price.

    Only until the booked end, because overstays do not count. No query for none.
    """
    if not pks:
        return
    rows = Allocation.objects.filter(reservation_id__in=pks).order_by()
    for pk, pool, begin, over, booked, weight, weight_now, peak in rows.values_list(
        "reservation_id",
        "gpu__pool_id",
        "start",
        "end",
        "reservation__booked_end",
        "weight",
        "gpu__pool__weight",
        "peak",
    ):
        first, last = unix(begin), unix(min(over, booked))
        if last > first:
            tariff = Tariff.of(
                weight_now if weight is None else weight, read_peak(peak)
            )
            for spend in spends_at(first, last, rate=tariff, pool_pk=pool):
                yield pk, spend


def person_quota(
    membership: Membership,
    low: datetime,
    high: datetime,
    *,
    policy: Policy,
    ignoring: int | None = None,
    ignoring_late: int | None = None,
    extra: Sequence[Spend] = (),
    known: Sequence[Spend],
) -> QuotaInfo | None:
    """Return what one person may hold over all Memberships. None: no limit.

    There is no limit if their quotas together are not above it.

    Args:
        known: the spends of this Membership, if they were read before.
    """
    most = policy.person_quota_gpu_seconds
    own = quotas_of([membership.user_id])[membership.user_id]
    together = sum(
        policy.quota_gpu_seconds if quota is None else quota for quota in own.values()
    )
    if together <= most:
        return None
    others = [pk for pk in own if pk != membership.pk]
    found = spends_of(others, low, high, ignoring=ignoring, ignoring_late=ignoring_late)
    return QuotaInfo(
        account=sentence("All your groups"),
        quota_gpu_seconds=most,
        spends=(*extra, *known, *(spend for _, _, spend in found)),
        own=False,
        person=True,
    )


# --- the calendar --------------------------------------------------------------------


class Held(NamedTuple):
    """One Gpu of a live Reservation, and its holder."""

    gpu_pk: int
    start: datetime
    end: datetime
    user: str
    """Name for people."""
    reservation_pk: int
    kind: str
    booked_end: datetime


def held_between(
    gpu_pks: Collection[int],
    start: datetime,
    end: datetime,
    *,
    ignoring: int | None = None,
) -> list[Held]:
    """Return the holders of these Gpus between two instants.

    Args:
        ignoring: a Reservation that is about to change.
    """
    if not gpu_pks:
        return []
    rows = _rows(
        """
        SELECT a.gpu_id, a.start, a."end", u.display_name, u.username,
               a.reservation_id, r.kind, r.booked_end
          FROM reservations_allocation a
          JOIN reservations_reservation r ON r.id = a.reservation_id
          JOIN reservations_user u ON u.id = r.user_id
         WHERE a.gpu_id IN (%s) AND a.live AND a.start < %s AND a."end" > %s
           AND a.reservation_id <> %s
        """,
        *(gpu_pks, end, start, ignoring or 0),
    )
    return [
        Held(
            gpu,
            _with_utc(begin),
            _with_utc(over),
            shown or login,
            pk,
            kind,
            _with_utc(booked),
        )
        for gpu, begin, over, shown, login, pk, kind, booked in rows
    ]


def overstays(
    gpu_pks: Collection[int], user_pk: int, *, after: datetime, but: int
) -> list[int]:
    """Return the overstays, in pk order.

    Those on these Gpus, and all of one User, if they end after an instant.

    Args:
        but: a Reservation that is left out.
    """
    rows = _rows(
        """
        SELECT DISTINCT r.id
          FROM reservations_reservation r
          JOIN reservations_allocation a ON a.reservation_id = r.id
         WHERE (a.gpu_id IN (%s) OR r.user_id = %s) AND r.state = %s
           AND r.booked_end < r."end" AND r."end" > %s AND r.id <> %s
         ORDER BY r.id
        """,
        *(gpu_pks, user_pk, State.ACTIVE.value, after, but),
    )
    return [pk for (pk,) in rows]


def plans_between(
    start: datetime, end: datetime, taker: Displacer
) -> tuple[PlannedStart, ...]:
    """Return the planned starts between two instants, without the taker's.

    Those inside the freeze are left out, because that time is open to all
    (docs/design/fair-booking.md#rule-3).
    """
    rows = _rows(
        """
        SELECT id, user_id, expected_gpu_ids, expected_start, expected_end, state
          FROM reservations_waitingrequest
         WHERE planned AND expected_start > %s AND expected_start < %s
           AND expected_end > %s AND user_id <> %s
        """,
        *(taker.frozen_until, end, start, taker.user_pk),
    )
    return tuple(
        PlannedStart(
            pk,
            user,
            frozenset(json.loads(gpus)),
            Window(_with_utc(begin), _with_utc(over)),
        )
        for pk, user, gpus, begin, over, state in rows
        # Placed requests are on the calendar.
        if state == WaitingRequest.State.WAITING
    )


def closures_between(start: datetime, end: datetime) -> list[ClosureInfo]:
    """Return the closures that meet [start, end) and are not cancelled."""
    rows = _rows(
        """
        SELECT c.id, c.kind, c.reason, c.start, c."end", c.scope, n.name, c.pool_id,
               c.account_id, o.title, o.name, g.gpu_id
          FROM reservations_closure c
          LEFT JOIN reservations_closure_gpus g ON g.closure_id = c.id
          LEFT JOIN telemetry_node n ON n.id = c.node_id
          LEFT JOIN reservations_account o ON o.id = c.account_id
         WHERE c.cancelled_at IS NULL AND c.start < %s AND c."end" > %s
         ORDER BY c.start, c.id
        """,
        *(end, start),
    )
    gpus: dict[Row, set[int]] = {}
    for *closure, gpu in rows:
        found = gpus.setdefault(tuple(closure), set())
        if gpu is not None:
            found.add(gpu)
    return [_closure_info(row, inside) for row, inside in gpus.items()]


def _closure_info(row: Row, gpu_pks: Collection[int]) -> ClosureInfo:
    pk, kind, reason, start, end, scope, node, pool, account, title, name = row
    return ClosureInfo(
        pk=pk,
        kind=kind,
        reason=reason,
        start=_with_utc(start),
        end=_with_utc(end),
        scope=scope,
        gpu_pks=frozenset(gpu_pks),
        node=node or "",
        pool_pk=pool or 0,
        account_pk=account,
        account=title or name or "",
        account_name=name or "",
    )
