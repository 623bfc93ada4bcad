"""Past charges and present commitments, weighted for Fair Tree."""

import threading
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime

from django.db import connection, transaction
from django.db.models import Max, Q, Sum

from reservations.models import (
    Account,
    KeptUsage,
    LateReturn,
    LedgerEntry,
    Membership,
    Reservation,
)
from reservations.rules.fairness.fair_tree import (
    AccountShares,
    MemberShares,
    Ranking,
    weight_at,
)
from reservations.rules.fairness.preemption import FairTree
from reservations.rules.fairness.quota import PERMILLE
from reservations.rules.policy import Policy
from reservations.rules.window import unix

PAYMENTS = (LedgerEntry.Kind.CHARGE, LedgerEntry.Kind.IMPORT)
SMALL_LEDGER_ROWS = 20_000
"""Up to this size the ledger is summed each time, which takes milliseconds."""
LOOK_AGAIN_SECONDS = 60
"""docs/design/fair-booking.md#terms: sums of a larger ledger may be this old."""
UNSETTLED_ROWS = 2_000
"""The newest rows: more than are ever written at once."""


@dataclass
class _Sums:
    """Weighted charges of one database at an instant.

    The weight of a charge and the rows never change, so sums are cached and only new
    rows are read. The newest rows are read again each time, because a transaction that
    got its number early may be visible late.
    """

    read_at: int = 0
    half_life_seconds: int = 0
    settled_pk: int = 0
    """Rows up to this one are in ``settled``."""
    settled: dict[int, int] = field(default_factory=dict)
    by_membership: dict[int, int] = field(default_factory=dict)


_kept: dict[str, _Sums] = {}
_lock = threading.Lock()


def usage_by_membership(now: datetime, policy: Policy) -> dict[int, int]:
    """Return the weighted usage of every Membership that has any.

    Decayed past charges plus undecayed commitments (docs/design/fair-booking.md#terms),
    in the units of ``fairshare.weight_at``.
    """
    second = unix(now)
    heavy = weight_at(second, policy.half_life_seconds)
    usage = dict(_charges(second, policy.half_life_seconds))
    for owed in (committed_gpu_seconds(), pending_late_gpu_seconds()):
        for membership, cost in owed.items():
            usage[membership] = usage.get(membership, 0) + cost * heavy
    return usage


def pending_late_gpu_seconds() -> dict[int, int]:
    """Return, by Membership, the possible cost of hours that were returned late."""
    owed: dict[tuple[int, int], int] = {}
    rows = (
        LateReturn.objects.filter(charged_at=None)
        .order_by()
        .values_list(
            "membership_id", "reservation_id", "start", "end", "weight", "permille"
        )
    )
    for membership, row, start, end, weight, part in rows:
        more = (unix(end) - unix(start)) * weight * part
        owed[membership, row] = owed.get((membership, row), 0) + more
    found: dict[int, int] = {}
    for (membership, _), thousandths in owed.items():
        # Rounded as for the charge: once per Reservation.
        found[membership] = found.get(membership, 0) + thousandths // PERMILLE
    return found


def committed_gpu_seconds() -> dict[int, int]:
    """Return, by Membership, the cost of booked and running Reservations."""
    rows = (
        Reservation.objects.live()
        .order_by()
        .values("membership_id")
        .annotate(cost=Sum("cost_gpu_seconds"))
    )
    return {row["membership_id"]: row["cost"] for row in rows}


def past_usage(now: datetime, policy: Policy) -> dict[int, int]:
    """Return the weighted past charges, without booked time."""
    return dict(_charges(unix(now), policy.half_life_seconds))


def _charges(second: int, half_life_seconds: int) -> dict[int, int]:
    """Return weighted charges. Those of a large ledger may be a minute old."""
    rows = LedgerEntry.objects.filter(kind__in=PAYMENTS)
    # pk and not COUNT(*), which scans a large table.
    newest = LedgerEntry.objects.order_by().aggregate(pk=Max("pk"))["pk"] or 0
    if newest <= SMALL_LEDGER_ROWS:
        return _read_charges(rows, half_life_seconds)
    name = str(connection.settings_dict["NAME"])
    sums = _fresh_sums(name, second, half_life_seconds)
    if sums is None:
        # One thread reads. A large ledger takes seconds, concurrent reads take minutes.
        with _lock:
            sums = _fresh_sums(name, second, half_life_seconds)
            if sums is None:
                sums = _updated_sums(
                    _earlier_sums(name, half_life_seconds, newest),
                    rows,
                    second=second,
                    newest=newest,
                )
                _kept[name] = sums
    return sums.by_membership


def _fresh_sums(name: str, second: int, half_life_seconds: int) -> _Sums | None:
    """Return the cached sums, if they are of this half-life and not too old."""
    sums = _kept.get(name)
    if sums is None or sums.half_life_seconds != half_life_seconds:
        return None
    return sums if 0 <= second - sums.read_at < LOOK_AGAIN_SECONDS else None


def _earlier_sums(name: str, half_life_seconds: int, newest: int) -> _Sums:
    """Return the sums to continue from: this process's, or the stored ones."""
    sums = _kept.get(name)
    if sums is None or sums.half_life_seconds != half_life_seconds:
        sums = _stored(half_life_seconds)
    # Another database of the same name (a test's) may have fewer rows.
    if sums.settled_pk > newest:
        return _Sums(half_life_seconds=half_life_seconds)
    return sums


def _stored(half_life_seconds: int) -> _Sums:
    """Return the sums that ``store_usage`` stored, or empty ones."""
    row = KeptUsage.objects.filter(half_life_seconds=half_life_seconds).first()
    if row is None:
        return _Sums(half_life_seconds=half_life_seconds)
    sums = {int(pk): int(total, 16) for pk, total in row.sums.items()}
    return _Sums(
        half_life_seconds=half_life_seconds, settled_pk=row.settled_pk, settled=sums
    )


def settled_charges(now: datetime, policy: Policy) -> tuple[int, dict[int, int]] | None:
    """Return the last summed row of the ledger, and the sums.

    None if the ledger is small. It is then read each time.
    """
    _charges(unix(now), policy.half_life_seconds)
    sums = _kept.get(str(connection.settings_dict["NAME"]))
    if sums is None or sums.half_life_seconds != policy.half_life_seconds:
        return None
    return sums.settled_pk, sums.settled


def _updated_sums(sums: _Sums, rows, *, second: int, newest: int) -> _Sums:  # type: ignore[no-untyped-def]
    """Return the present sums, from the earlier sums and the new rows."""
    settled_pk = max(sums.settled_pk, newest - UNSETTLED_ROWS)
    since = rows.filter(pk__gt=sums.settled_pk)
    old = _add(sums.settled, since.filter(pk__lte=settled_pk), sums.half_life_seconds)
    now = _add(old, since.filter(pk__gt=settled_pk), sums.half_life_seconds)
    return _Sums(
        read_at=second,
        half_life_seconds=sums.half_life_seconds,
        settled_pk=settled_pk,
        settled=old,
        by_membership={pk: max(total, 0) for pk, total in now.items()},
    )


def _read_charges(rows, half_life_seconds: int) -> dict[int, int]:  # type: ignore[no-untyped-def]
    found = _add({}, rows, half_life_seconds)
    return {membership: max(total, 0) for membership, total in found.items()}


def _add(sums: dict[int, int], rows, half_life_seconds: int) -> dict[int, int]:  # type: ignore[no-untyped-def]
    """Return the sums with these rows' charges, each weighted by its instant."""
    found = dict(sums)
    lines = (
        rows.exclude(membership=None)
        .order_by()
        .values_list("membership_id", "gpu_seconds", "at")
    )
    for membership, cost, at in lines.iterator(chunk_size=5000):
        weighed = cost * weight_at(unix(at), half_life_seconds)
        found[membership] = found.get(membership, 0) + weighed
    return found


def ranking(
    now: datetime, policy: Policy, *, extra: dict[int, int] | None = None
) -> Ranking | None:
    """Rank all active Memberships. None: there is no tree.

    Args:
        extra: GPU-seconds by Membership to add as commitments ("what if").
    """
    return rank_with(usage_by_membership(now, policy), now, policy, extra=extra)


def rank_with(
    usage: dict[int, int],
    now: datetime,
    policy: Policy,
    *,
    extra: dict[int, int] | None = None,
) -> Ranking | None:
    """Rank with usage that was read before."""
    tree = fair_tree(usage, now, policy)
    return tree.ranked(extra) if tree is not None else None


def fair_tree(
    usage: dict[int, int],
    now: datetime,
    policy: Policy,
    *,
    also: Collection[int] = (),
) -> FairTree | None:
    """Return the tree as a value. None: there is no Account.

    Args:
        also: deactivated Memberships to include, because they hold flex.
    """
    rows = Account.objects.order_by().values_list(
        "pk", "parent_id", "shares", "archived_at"
    )
    # Archived Accounts do not compete on their level.
    accounts = [
        (pk, parent, 0 if archived_at else shares)
        for pk, parent, shares, archived_at in rows
    ]
    if not accounts:
        return None
    roots = [pk for pk, parent, _shares in accounts if parent is None]
    tree = [AccountShares(*row) for row in accounts]
    if len(roots) > 1:
        # Groups without a parent are siblings.
        tree = [
            AccountShares(pk, parent or 0, shares) for pk, parent, shares in accounts
        ]
        tree.append(AccountShares(0, None))
    chosen = Q(active=True) | Q(pk__in=also) if also else Q(active=True)
    members = [
        MemberShares(pk, account, shares, usage.get(pk, 0))
        for pk, account, shares in Membership.objects.filter(chosen)
        .order_by()
        .values_list("pk", "account_id", "shares")
    ]
    unit = weight_at(unix(now), policy.half_life_seconds)
    return FairTree(tuple(tree), tuple(members), unit)


STORED_EVERY_ROWS = 5_000
"""The most rows that a new process reads, besides the newest."""


def store_usage(now: datetime, policy: Policy) -> bool:
    """Store the settled weighted charges. False: there are few new ones.

    Any number of workers may run it. Each stored row is correct, and none is replaced
    by an older one.
    """
    found = settled_charges(now, policy)
    if found is None:
        return False
    settled_pk, sums = found
    with transaction.atomic(durable=True):
        rows = KeptUsage.objects.select_for_update()
        before = rows.filter(half_life_seconds=policy.half_life_seconds).first()
        if before and settled_pk - before.settled_pk < STORED_EVERY_ROWS:
            return False
        KeptUsage.objects.update_or_create(
            half_life_seconds=policy.half_life_seconds,
            defaults={
                "settled_pk": settled_pk,
                "sums": {str(pk): hex(total) for pk, total in sums.items()},
            },
        )
    return True
