"""Rows of the ledger and the audit log. Called inside a service's transaction."""

from collections.abc import Collection, Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from django.db.models import Q, Sum

from reservations.models import (
    Allocation,
    AuditEntry,
    EarlyReturn,
    LateReturn,
    LedgerEntry,
    Offer,
    Reservation,
    User,
)
from reservations.rules.calendar import CalendarGpu
from reservations.rules.charges import Settlement, late_windows
from reservations.rules.fairness.early_returns import GRACE_SECONDS, SLIPS_A_DAY
from reservations.rules.fairness.quota import Spend
from reservations.rules.lifecycle import Kind, State
from reservations.rules.prices import Tariff, combined_tariff, read_peak
from reservations.rules.window import Window, unix, without
from telemetry.history import stored_usage
from telemetry.models import Gpu
from telemetry.protocol.sentences import sentence
from telemetry.rules.usage_summary import GpuSpan

HOLD, RELEASE = LedgerEntry.Kind.HOLD, LedgerEntry.Kind.RELEASE
CHARGE = LedgerEntry.Kind.CHARGE


def hold(reservation: Reservation, *, now: datetime, reason: str) -> None:
    """Write a HOLD of a Reservation's whole cost."""
    entry = LedgerEntry(
        membership_id=reservation.membership_id,
        reservation=reservation,
        kind=HOLD,
        gpu_seconds=reservation.cost_gpu_seconds,
        at=now,
        reason=reason,
    )
    entry.save(force_insert=True)


def held_gpu_seconds(reservation: Reservation) -> int:
    """Return what a Reservation holds now: the sum of HOLD and RELEASE."""
    rows = LedgerEntry.objects.filter(reservation=reservation, kind__in=[HOLD, RELEASE])
    return rows.aggregate(held=Sum("gpu_seconds"))["held"] or 0


def settle(
    reservation: Reservation, settlement: Settlement, *, at: datetime, reason: str
) -> None:
    """Write the rows that end a Reservation: RELEASE, CHARGE, and the site's part."""
    lines = (
        (RELEASE, settlement.release_gpu_seconds, reservation.membership_id, reason),
        (CHARGE, settlement.charge_gpu_seconds, reservation.membership_id, reason),
        (
            CHARGE,
            settlement.site_gpu_seconds,
            None,
            sentence("{reason}: the site pays", reason=reason),
        ),
    )
    LedgerEntry.objects.bulk_create(
        LedgerEntry(
            membership_id=membership,
            reservation=reservation,
            kind=kind,
            gpu_seconds=amount,
            at=at,
            reason=why[:200],
        )
        for kind, amount, membership, why in lines
        if amount
    )


def release_hold(reservation: Reservation, *, now: datetime, reason: str) -> None:
    """Write the RELEASE of everything a Reservation holds."""
    held = held_gpu_seconds(reservation)
    settle(reservation, Settlement(-held, 0), at=now, reason=reason)


def late_return(
    reservation: Reservation,
    returned: Iterable[tuple[Allocation, Window]],
    *,
    now: datetime,
    permille: int,
) -> None:
    """Store the hours that were returned too late to be free.

    See docs/design/fair-booking.md#rule-6.
    """
    if not permille:
        return
    displaced = displaced_windows(reservation)
    LateReturn.objects.bulk_create(
        LateReturn(
            reservation=reservation,
            membership_id=reservation.membership_id,
            gpu_id=allocation.gpu_id,
            start=piece.start,
            end=piece.end,
            weight=rate,
            permille=permille,
            firm=reservation.kind == Kind.FIRM,
            returned_at=now,
        )
        for allocation, window in returned
        for late in late_windows(
            window, at=now, never_free=displaced.get(allocation.gpu_id, ())
        )
        for piece, rate in tariff_of(allocation).pieces(late)
    )


def early_return(
    reservation: Reservation,
    returned: Iterable[tuple[Allocation, Window]],
    *,
    by: User,
    now: datetime,
) -> None:
    """Record a return before the start. See ``rules.fairness.early_returns``.

    It counts for the holder, even if the head of the group returns it for them.
    Otherwise a head and a member could hold time far ahead for free. A cancellation by
    an admin, or a slip right after booking, is not recorded.
    """
    holder = reservation.user
    if reservation.start <= now or (by.is_operator and by.pk != holder.pk):
        return
    new = now - reservation.created_at <= timedelta(seconds=GRACE_SECONDS)
    if (
        new
        and cancelled_today(holder, now) <= SLIPS_A_DAY
        and not was_handed_over(reservation)
    ):
        return
    gpu_seconds = sum(
        tariff_of(allocation).cost(window) for allocation, window in returned
    )
    if gpu_seconds:
        EarlyReturn.objects.create(
            user=holder,
            reservation=reservation,
            gpu_seconds=gpu_seconds,
            returned_at=now,
        )


def cancelled_today(user: User, now: datetime) -> int:
    """Return how many bookings of the last 24 h a User cancelled or undid."""
    return Reservation.objects.filter(
        user=user, state=State.CANCELLED, created_at__gt=now - timedelta(days=1)
    ).count()


def was_handed_over(reservation: Reservation) -> bool:
    """Return whether its holder got it from another User, as a gift or in a swap.

    It keeps the age of the original booking, so it cannot be undone as a new one.
    """
    return Offer.objects.filter(
        Q(given=reservation) | Q(given_back=reservation)
    ).exists()


def late_spends(
    reservation: Reservation,
    returned: Iterable[tuple[Allocation, Window]],
    *,
    now: datetime,
    permille: int,
) -> list[Spend]:
    """Return the spends that ``late_return`` of the same hours would count in
    quotas.
    """
    if reservation.kind != Kind.FIRM:
        return []
    displaced = displaced_windows(reservation)
    return [
        Spend(
            unix(piece.start),
            unix(piece.end),
            rate * permille,
            allocation.gpu.pool_id,
        )
        for allocation, window in returned
        for late in late_windows(
            window, at=now, never_free=displaced.get(allocation.gpu_id, ())
        )
        for piece, rate in tariff_of(allocation).pieces(late)
    ]


def displaced_windows(reservation: Reservation) -> dict[int, list[Window]]:
    """Return, by Gpu, the time for which flex of others was displaced."""
    found: dict[int, list[Window]] = {}
    rows = Allocation.objects.filter(reservation__displaced_by=reservation)
    for gpu, start, end in rows.order_by().values_list("gpu_id", "start", "end"):
        if start < end:
            found.setdefault(gpu, []).append(Window(start, end))
    return found


def remaining_late_hours(
    reservation: Reservation, gpu_pks: Collection[int], window: Window
) -> list[LateReturn]:
    """Return the late hours that remain, unsaved, if these Gpus are held again.

    An hour that is held again is paid by its new hold. Earlier charges stay.
    """
    return [
        late_piece(part, piece, charged_at=part.charged_at)
        for part in reservation.late_returns.all()
        for piece in without(
            Window(part.start, part.end),
            [window] if part.gpu_id in gpu_pks and part.charged_at is None else [],
        )
    ]


def strike_late_hours(
    reservation: Reservation, gpu_pks: Collection[int], window: Window
) -> None:
    """Remove the late hours that a Reservation holds again."""
    left = remaining_late_hours(reservation, gpu_pks, window)
    reservation.late_returns.filter(charged_at=None).delete()
    LateReturn.objects.bulk_create(part for part in left if part.charged_at is None)


def remaining_late_spends(
    reservation: Reservation, gpu_pks: Collection[int], window: Window
) -> list[Spend]:
    """Return the spends of the hours of ``remaining_late_hours`` in quotas."""
    left = [
        part for part in remaining_late_hours(reservation, gpu_pks, window) if part.firm
    ]
    pools = _pools_of({part.gpu_id for part in left})
    return [
        Spend(
            unix(part.start),
            unix(part.end),
            part.weight * part.permille,
            pools[part.gpu_id],
        )
        for part in left
    ]


def _pools_of(gpu_pks: Collection[int]) -> dict[int, int]:
    if not gpu_pks:
        return {}
    return dict(Gpu.objects.filter(pk__in=gpu_pks).values_list("pk", "pool_id"))


def late_piece(
    part: LateReturn, piece: Window, *, charged_at: datetime | None
) -> LateReturn:
    """Return a part of a late return as a new row, unsaved."""
    return LateReturn(
        reservation_id=part.reservation_id,
        membership_id=part.membership_id,
        gpu_id=part.gpu_id,
        start=piece.start,
        end=piece.end,
        weight=part.weight,
        permille=part.permille,
        firm=part.firm,
        returned_at=part.returned_at,
        charged_at=charged_at,
    )


def rate_of(
    reservation: Reservation, held: Iterable[Allocation] | None = None
) -> Tariff:
    """Return the weighted Gpus of a Reservation: the cost of one second.

    Args:
        held: its Allocations, if they have been read.
    """
    if reservation.peaked:
        if held is None:
            held = reservation.allocations.select_related("gpu__pool")
        return combined_tariff(tariff_of(allocation) for allocation in held)
    seconds = unix(reservation.end) - unix(reservation.start)
    return Tariff(reservation.cost_gpu_seconds // seconds if seconds else 0)


def weight_of(allocation: Allocation) -> int:
    """Return the booked weight of an Allocation."""
    if allocation.weight is None:
        return allocation.gpu.pool.weight
    return allocation.weight


def tariff_of(allocation: Allocation) -> Tariff:
    """Return the price of an Allocation at booking. Later prices do not matter."""
    return Tariff.of(weight_of(allocation), read_peak(allocation.peak))


def as_booked(
    gpus: Iterable[CalendarGpu], allocations: Iterable[Allocation]
) -> tuple[CalendarGpu, ...]:
    """Return Gpus at the prices at which these Allocations already hold them."""
    held = {one.gpu_id: one for one in allocations}
    return tuple(
        replace(gpu, weight=weight_of(one), peak=read_peak(one.peak))
        if (one := held.get(gpu.pk)) is not None
        else gpu
        for gpu in gpus
    )


def ask_summary(reservation: Reservation, *, now: datetime) -> None:
    """Have the use of its Gpus counted once it is over and its Allocations are
    final.
    """
    stored_usage.ask_summary(
        reservation_id=reservation.pk, spans=spans_of(reservation, now=now), now=now
    )


def spans_of(reservation: Reservation, *, now: datetime) -> list[GpuSpan]:
    """Return the spans in which it held its Gpus, until now if it is running."""
    rows = reservation.allocations.order_by("gpu_id")
    return [
        GpuSpan(gpu_id, start, min(end, now))
        for gpu_id, start, end in rows.values_list("gpu_id", "start", "end")
    ]


def audit(
    verb: str,
    reservation: Reservation,
    *,
    actor: User | None,
    now: datetime,
    reason: str = "",
    **detail: object,
) -> None:
    """Record an act on a Reservation. ``actor`` None: the portal."""
    entry = AuditEntry(
        at=now,
        actor=actor,
        verb=f"reservation.{verb}",
        subject=f"reservation:{reservation.pk}",
        reason=reason[:400],
        detail=detail,
    )
    entry.save(force_insert=True)
