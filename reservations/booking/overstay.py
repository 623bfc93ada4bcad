"""Stay on past the end until the Gpus are claimed.

See docs/design/fair-booking.md#rule-3.

The same Reservation goes on: ``end`` moves past ``booked_end``, so its Jobs and its
processes continue without a move, and the time past ``booked_end`` is flex that counts
in no quota. In the calendar of a requesting User it ends after ten minutes of notice,
and a booking then shortens it. It ends at the latest when another Reservation begins,
or after the site's longest stay.

Call each function inside a transaction, with the row locked.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import F

from reservations.engines import service as engines
from reservations.models import Allocation, Reservation, SitePolicy, User
from reservations.notifications import live
from reservations.notifications.service import notify
from reservations.rules.calendar import CalendarGpu
from reservations.rules.errors import NotChangeable
from reservations.rules.gaps import gap_notice_seconds
from reservations.rules.lifecycle import State
from reservations.rules.overstay_terms import is_gap, latest_end, notice_end, tail_end
from reservations.rules.policy import Policy
from reservations.rules.prices import cost_gpu_seconds
from reservations.rules.window import Window, instant, whole_second
from reservations.store import ledger, locks
from reservations.store.access import check_may_change
from reservations.store.booking_facts import overstays, own_holdings, site_policy
from reservations.store.booking_snapshot import (
    account_path,
    calendar_of,
    load_membership,
    right_to_book,
)
from reservations.store.free_gaps import whole_holdings
from reservations.store.gpu_rows import calendar_gpus
from telemetry.models import Gpu
from telemetry.protocol.sentences import sentence


def set_overstay(
    *,
    reservation_id: int,
    user: User,
    wanted: bool = True,
    now: datetime,
    reason: str = "",
) -> Reservation:
    """Turn staying on past the end, while nobody claims the Gpus, on or off.

    Raises:
        NotChangeable: it has ended, or the site allows no overstays.
        NotAllowed, ReasonNeeded, NotFound.
    """
    at = whole_second(now)
    policy = site_policy()
    before = locks.load_reservation(reservation_id)
    check_may_change(user, before, act=sentence("stay on with"), reason=reason)
    with transaction.atomic(durable=True):
        _lock(before)
        row = locks.load_reservation(reservation_id, lock=True)
        if row.state not in State.live() or row.end <= at:
            raise NotChangeable(state=row.state, act=sentence("kept past its end"))
        if wanted and not policy.overstay_seconds:
            raise NotChangeable(
                state="live", act=sentence("kept past its end at this site")
            )
        row.overstay = wanted
        row.version += 1
        row.save(update_fields=["overstay", "version"])
        verb = "overstay-asked" if wanted else "overstay-dropped"
        ledger.audit(verb, row, actor=user, now=at, reason=reason)
        if wanted:
            grow(row, now=at, policy=policy)
        elif row.end > row.booked_end:
            set_end(
                row, max(row.booked_end, at), now=at, why=sentence("no longer stays on")
            )
        publish(row, policy)
    return row


def _lock(row: Reservation) -> None:
    membership = load_membership(row.membership_id)
    assert membership is not None
    gpu_ids = list(row.allocations.values_list("gpu_id", flat=True))
    locks.lock(membership, gpu_ids)


# --- the tick -----------------------------------------------------------------------


def due(now: datetime) -> list[int]:
    """Return running Reservations that may stay on and have not been extended yet."""
    rows = Reservation.objects.active().filter(
        end__gt=now, end=F("booked_end"), overstay=True
    )
    return list(rows.order_by("pk").values_list("pk", flat=True))


def extend_past_end(pk: int, now: datetime, policy: Policy) -> bool:
    """Extend a Reservation that may stay on, if the time is free."""
    _lock(locks.load_reservation(pk))
    row = locks.load_reservation(pk, lock=True)
    if not row.overstay or row.end != row.booked_end or row.end <= now:
        return False
    if not grow(row, now=now, policy=policy):
        return False
    publish(row, policy)
    return True


def grow(row: Reservation, *, now: datetime, policy: Policy) -> bool:
    """Extend a running row to the next Reservation. False: it ends there already."""
    path = account_path(row.membership)
    right = right_to_book(row.membership, path)
    latest = latest_end(row.start, row.booked_end, policy)
    if right is not None:
        latest = min(latest, right.until)
    if row.state != State.ACTIVE or row.end > row.booked_end:
        return False
    # There the next hour is not known to be free.
    if engines.belongs_to_other_engine(row):
        return False
    if latest <= row.booked_end:
        return False
    gpu_ids = list(row.allocations.values_list("gpu_id", flat=True))
    gpus = calendar_gpus(Gpu.objects.filter(pk__in=gpu_ids))
    window = Window(row.booked_end, latest)
    asking = {account.pk for account in path}
    calendar = calendar_of(
        gpus, window.start, window.end, ignoring=row.pk, asking=asking
    )
    taken = [
        instant(span.start) for gpu in gpus for span in calendar.clashes(gpu.pk, window)
    ]
    for own in own_holdings(row.user_id, ignoring=row.pk):
        if own.shared:
            continue
        crowded = len(own.gpu_pks) + len(gpu_ids) > policy.gpus_at_once
        if crowded and own.window.meets(window):
            taken.append(own.window.start)
    end = tail_end(row.booked_end, latest, taken)
    if end == row.end:
        return False
    set_end(row, end, now=now, why=sentence("stays on"))
    return True


def set_end(row: Reservation, end: datetime, *, now: datetime, why: str) -> None:
    """Move the end of a running row. Time past ``booked_end`` is its overstay."""
    rate = ledger.rate_of(row)
    ledger.release_hold(row, now=now, reason=why)
    row.end = end
    # A gap may be claimed in the second in which it was taken.
    held = Window(row.start, end) if end > row.start else None
    row.cost_gpu_seconds = cost_gpu_seconds(held, rate=rate) if held else 0
    row.version += 1
    row.save(update_fields=["end", "cost_gpu_seconds", "version"])
    Allocation.objects.filter(reservation=row).update(end=end)
    ledger.hold(row, now=now, reason=why)
    ledger.audit("end-moved", row, actor=None, now=now, reason=why, end=end.isoformat())


# --- claims ---------------------------------------------------------------------------


def free_from(
    gpu_ids: Sequence[int], *, now: datetime, policy: Policy, gaps: bool = False
) -> datetime:
    """Return when Gpus with an overstay become free. ``now`` without an overstay.

    A Job in a gap gets its grace period, an overstay the policy's notice.

    Args:
        gaps: consider only Jobs in gaps.
    """
    rows = Allocation.objects.filter(
        gpu_id__in=gpu_ids,
        live=True,
        start__lte=now,
        end__gt=now,
        reservation__state=State.ACTIVE,
        reservation__booked_end__lt=F("end"),
    ).values_list("start", "reservation__booked_end", "end")
    leave = [now]
    for start, booked_end, end in rows:
        if is_gap(start, booked_end):
            leave.append(min(end, now + gap_notice(policy)))
        elif not gaps and booked_end <= notice_end(now, policy):
            leave.append(min(end, notice_end(now, policy)))
    return max(leave)


def gap_notice(policy: Policy) -> timedelta:
    """Return how long before its claimed start a gap has to be left."""
    grace_seconds = SitePolicy.current().stop_grace_seconds
    return timedelta(seconds=gap_notice_seconds(policy, grace_seconds))


def shorten_overstays(
    made: Reservation,
    gpus: Sequence[CalendarGpu],
    window: Window,
    *,
    now: datetime,
    policy: Policy,
) -> None:
    """Shorten overstays on these Gpus, and the taker's above their limit. Notify."""
    asked = {gpu.pk for gpu in gpus}
    for pk in overstays(asked, made.user_id, after=window.start, but=made.pk):
        # The rows on these Gpus are locked here. The taker's other rows are not.
        row = locks.load_reservation(pk, lock=True)
        if row.state != State.ACTIVE or row.end <= row.booked_end:
            continue
        if row.booked_end >= window.end:
            continue
        held = set(row.allocations.values_list("gpu_id", flat=True))
        if row.booked_end >= window.end:
            continue
        if not held & asked and not _exceeds_gpu_limit(
            row, made, held, asked, window, policy
        ):
            continue
        leave_at = max(window.start, row.booked_end, now)
        if leave_at >= row.end:
            continue
        set_end(
            row, leave_at, now=now, why=sentence("claimed by #{number}", number=made.pk)
        )
        # The Job continues in the next gap, so its owner needs no notice.
        if not is_gap(row.start, row.booked_end):
            notify(
                user=row.user,
                kind="overstay_claimed",
                reservation=row,
                detail={"leave_at": leave_at.isoformat(), "by": made.pk},
                now=now,
                key=f"claimed:{row.pk}:{made.pk}",
            )
        publish(row, policy)


def clear_gaps(gpu_ids: Iterable[int], start: datetime, *, now: datetime) -> None:
    """Have Jobs in gaps leave these Gpus for a booking that is moved to them."""
    rows = Reservation.objects.filter(
        state=State.ACTIVE,
        booked_end__lte=F("start"),
        end__gt=max(start, now),
        allocations__gpu__in=list(gpu_ids),
    )
    policy = site_policy()
    for pk in sorted(set(rows.order_by().values_list("pk", flat=True))):
        row = locks.load_reservation(pk, lock=True)
        leave_at = max(start, now, row.start)
        if row.state == State.ACTIVE and leave_at < row.end:
            set_end(row, leave_at, now=now, why=sentence("its GPUs are needed"))
            publish(row, policy)


def _exceeds_gpu_limit(
    row: Reservation,
    made: Reservation,
    held: set[int],
    asked: set[int],
    window: Window,
    policy: Policy,
) -> bool:
    """Return whether the taker would hold too many Gpus with this overstay."""
    if row.user_id != made.user_id:
        return False
    own = whole_holdings(made.user_id)
    beside = sum(
        len(h.gpu_pks)
        for h in own
        if h.window.meets(window) and h.reservation_pk not in (made.pk, row.pk)
    )
    return len(held) + len(asked) + beside > policy.gpus_at_once


def publish(row: Reservation, policy: Policy) -> None:
    """Publish a row to all pages once it is committed."""
    gpu_ids = list(row.allocations.values_list("gpu_id", flat=True))
    live.publish_reservation(row, gpu_ids=gpu_ids, policy=policy)
