"""Lock rows in one order, and read the facts of a request under the locks.

SQLite has no row locks. Its transactions begin IMMEDIATE, one writer at a time. On
PostgreSQL the locks are FOR NO KEY UPDATE, so that a foreign key to a locked User (an
audit row of another User's act) does not wait for them.

Processes that wait for SQLite's one writer poll, up to ten times a second, so under
load some win ten times in a row and others give up after the timeout ("database is
locked"). ``wait_for_turn`` makes them wait in line: flock(2) on a file beside the
database wakes the process that waited longest, and the kernel frees it when a holder
dies. Other writers still poll. The line only improves fairness, and SQLite's lock
decides.

Locks are taken in one order everywhere: Accounts with a quota (pk order), the User, the
Gpus (pk order), the Reservations (pk order: the one that changes and the flex in its
way).
"""

import fcntl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from django.db import connection
from django.db.models import Exists, F, OuterRef, Q

from reservations.models import (
    Account,
    Allocation,
    Membership,
    PoolQuota,
    Reservation,
    User,
)
from reservations.rules.calendar import CalendarGpu
from reservations.rules.errors import MembershipNeeded, NotAllowed, NotFound
from reservations.rules.lifecycle import Kind, State
from reservations.store.booking_facts import is_in_force
from reservations.store.booking_snapshot import account_path
from reservations.store.gpu_rows import gpus_named
from telemetry.models import Gpu
from telemetry.protocol.sentences import sentence

_mine = threading.local()
_WITH_QUOTA = Q(quota_gpu_seconds__isnull=False) | Exists(
    PoolQuota.objects.filter(account=OuterRef("pk"))
)
"""Accounts whose members must not decide at the same moment."""
MOST_RIGHTS = 20
"""Of one person; who has more names the one that pays."""


@dataclass(frozen=True, slots=True)
class LockedRows:
    """The rows that a booking locks."""

    membership: Membership
    path: tuple[Account, ...]
    gpus: tuple[CalendarGpu, ...]


def _rights_of(user: User, membership_pk: int | None = None) -> list[Membership]:
    """Return a User's Memberships that are in force, or the one that is named."""
    rows = Membership.objects.filter(
        active=True, account__archived_at=None, user_id=user.pk
    )
    if membership_pk is not None:
        rows = rows.filter(pk=membership_pk)
    found = list(rows.select_related("account__parent")[:MOST_RIGHTS])
    for membership in found:
        membership.user = user
    return found


def choose_membership(user: User, membership: Membership | None) -> Membership:
    """Return the Membership that pays. If there is exactly one, it need not be named.

    Raises:
        MembershipNeeded: none, or several and none named.
        NotAllowed: not this User's, or deactivated.
    """
    if not user.is_active:
        raise NotAllowed(act=sentence("book: the login is switched off"))
    found = _rights_of(user, membership.pk if membership is not None else None)
    if membership is not None and not found:
        raise NotAllowed(
            act=sentence("book under {account}", account=membership.account)
        )
    if membership is None and len(found) != 1:
        raise MembershipNeeded(accounts=tuple(str(m.account) for m in found))
    return found[0]


def check_still(membership: Membership) -> None:
    """Refuse a Membership that was deactivated before the locks were taken.

    Raises:
        NotAllowed: deactivated, or its Account archived.
    """
    if not is_in_force(membership):
        raise NotAllowed(
            act=sentence("book under {account}", account=membership.account)
        )


def read(membership: Membership, gpu_ids: Sequence[int]) -> LockedRows:
    """Return the same facts without locks, for a preview.

    Raises:
        NotFound: a Gpu that does not exist.
    """
    return _facts(membership, tuple(account_path(membership)), gpu_ids)


def lock(membership: Membership, gpu_ids: Sequence[int]) -> LockedRows:
    """Lock Accounts, User, Gpus, in this order, and return them.

    Raises:
        NotFound: a Gpu that does not exist.
    """
    path = account_path(membership)
    if connection.features.has_select_for_update:
        rows = Account.objects.filter(_WITH_QUOTA, pk__in=[a.pk for a in path])
        fresh = {a.pk: a for a in rows.order_by("pk").select_for_update(no_key=True)}
        path = [fresh.get(account.pk, account) for account in path]
        for model, pks in ((User, [membership.user_id]), (Gpu, gpu_ids)):
            held = model._default_manager.filter(pk__in=pks).order_by("pk")
            list(held.select_for_update(no_key=True).values_list("pk"))
    return _facts(membership, tuple(path), gpu_ids)


def _facts(
    membership: Membership, path: tuple[Account, ...], gpu_ids: Sequence[int]
) -> LockedRows:
    wanted = set(gpu_ids)
    gpus = gpus_named(wanted)
    if len(gpus) != len(wanted):
        missing = wanted - {gpu.pk for gpu in gpus}
        raise NotFound(what=sentence("GPU with the number {gpu}", gpu=min(missing)))
    return LockedRows(membership, path, tuple(gpus))


def lock_flex(
    gpus: Sequence[CalendarGpu],
    start: datetime,
    end: datetime,
    *,
    also: int | None = None,
) -> None:
    """Lock the preemptible rows on these Gpus, and ``also``, in pk order.

    These are flex that has not begun, and overstays past their end. Locked together,
    so that two displacements cannot deadlock.
    """
    if not connection.features.has_select_for_update:
        return
    rows = Allocation.objects.filter(
        gpu_id__in=[gpu.pk for gpu in gpus],
        live=True,
        start__lt=end,
        end__gt=start,
    ).filter(
        Q(reservation__kind=Kind.FLEX, reservation__state=State.CONFIRMED)
        | Q(
            reservation__state=State.ACTIVE,
            reservation__booked_end__lt=F("reservation__end"),
        )
    )
    pks = set(rows.order_by().values_list("reservation_id", flat=True))
    pks |= {also} if also is not None else set()
    if pks:
        held = Reservation.objects.filter(pk__in=pks).order_by("pk")
        list(held.select_for_update(no_key=True, of=("self",)).values_list("pk"))


def load_reservation(pk: int, *, lock: bool = False) -> Reservation:
    """Return one Reservation with its User and Account, locked on request.

    Raises:
        NotFound: no such Reservation.
    """
    rows = Reservation.objects.select_related("user", "membership__account")
    if lock:
        rows = rows.select_for_update(no_key=True, of=("self",))
    found = rows.filter(pk=pk).first()
    if found is None:
        raise NotFound(what=sentence("reservation #{pk}", pk=pk))
    return found


@contextmanager
def wait_for_turn() -> Iterator[None]:
    """Wait in line to write on SQLite. On PostgreSQL do nothing, because it locks rows.

    Use it around a transaction. Inside one it does nothing, because a writer must not
    wait for processes that wait for it.
    """
    name = str(connection.settings_dict["NAME"])
    in_memory = ":memory:" in name or "mode=memory" in name
    writes = getattr(_mine, "holds", False) or connection.in_atomic_block
    if connection.vendor != "sqlite" or in_memory or writes:
        yield
        return
    with Path(f"{name}.line").open("a") as line:
        fcntl.flock(line, fcntl.LOCK_EX)
        _mine.holds = True
        try:
            yield
        finally:
            _mine.holds = False
