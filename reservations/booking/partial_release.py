"""Return a part of a Reservation: its last hours, or some Gpus. Shows the price first.

A Reservation that has not begun is changed. If it runs, the returned Gpus become a
separate Reservation, which is released like any other: used hours are charged, late
hours cost the price of a return, quotas count the held time, and the rest continues.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction

from reservations.booking.booking_change import _check_row, change
from reservations.booking.counted_returns import given_back
from reservations.booking.release import _release
from reservations.engines import service as engines
from reservations.models import Allocation, Reservation, User
from reservations.notifications import live
from reservations.rules.charges import late_charge_gpu_seconds, late_windows
from reservations.rules.errors import NotChangeable, NotFound, NothingLeft
from reservations.rules.lifecycle import State
from reservations.rules.policy import Policy
from reservations.rules.window import Window, grid_ceil, whole_second
from reservations.store import ledger, locks
from reservations.store.access import check_may_change
from reservations.store.booking_facts import site_policy
from telemetry.protocol.sentences import sentence

Gate = Callable[[Reservation, frozenset[int]], None]
GATES: list[Gate] = []
"""Functions that may refuse to give back Gpus of a running Reservation. Higher apps
register them, for Gpus that are in use.
"""


@dataclass(frozen=True, slots=True)
class Price:
    """The value of a part, and the cost of giving it back."""

    end: datetime
    """The end of the part that is kept."""
    gpu_ids: tuple[int, ...]
    """The Gpus that are kept."""
    returned_gpu_seconds: int
    late_gpu_seconds: int
    """At most: hours that others then hold are not charged."""


def price(
    *,
    reservation_id: int,
    user: User,
    gpu_ids: Sequence[int] = (),
    last_seconds: int = 0,
    now: datetime,
) -> Price:
    """Return the cost of giving these Gpus or these last seconds back.

    Args:
        gpu_ids: those given back.
        last_seconds: how much of the end is given back. Rounded so that the new end is
            on the grid, in the holder's favour.

    Raises:
        NotChangeable: it has ended, or nothing of it would be left.
        NotAllowed, NotFound.
    """
    at = whole_second(now)
    policy = site_policy()
    row = locks.load_reservation(reservation_id)
    check_may_change(user, row, act=sentence("give back"), reason="a look at the price")
    kept, end = _remaining_gpus_and_end(
        row, gpu_ids, last_seconds, policy=policy, at=at
    )
    return _price(row, kept, end, policy=policy, at=at)


def give_back_part(
    *,
    reservation_id: int,
    user: User,
    gpu_ids: Sequence[int] = (),
    last_seconds: int = 0,
    version: int,
    now: datetime,
    reason: str = "",
) -> Reservation:
    """Give back some Gpus, the last part of the time, or both. Return what is left.

    Raises:
        NotChangeable, StaleVersion, Refusal: nothing is changed. One exception: if the
            end of a running Reservation was changed meanwhile, only the Gpus are
            returned.
        NotAllowed, ReasonNeeded, NotFound.
    """
    at = whole_second(now)
    policy = site_policy()
    before = locks.load_reservation(reservation_id)
    check_may_change(user, before, act=sentence("give back"), reason=reason)
    kept, end = _remaining_gpus_and_end(
        before, gpu_ids, last_seconds, policy=policy, at=at
    )
    gone = set(_live_gpu_ids(before)) - set(kept)
    if before.state == State.ACTIVE and gone:
        version = _split_off(
            before, frozenset(gone), user=user, version=version, at=at, reason=reason
        )
        if end == before.end:
            return locks.load_reservation(reservation_id)
    return change(
        reservation_id=reservation_id,
        user=user,
        end=end if end != before.end else None,
        gpu_ids=kept if before.state == State.CONFIRMED else None,
        version=version,
        now=at,
        reason=reason,
    )


def _live_gpu_ids(row: Reservation) -> list[int]:
    rows = row.allocations.filter(live=True).order_by("gpu_id")
    return list(rows.values_list("gpu_id", flat=True))


def _remaining_gpus_and_end(
    row: Reservation,
    gpu_ids: Sequence[int],
    last_seconds: int,
    *,
    policy: Policy,
    at: datetime,
) -> tuple[list[int], datetime]:
    """Return the Gpus and the end that are kept.

    Raises:
        NotChangeable, NotFound.
        NothingLeft: all of it would be given back.
        WholeNodeNeeded, SameNumberNeeded: Slurm does not hold what would be kept.
    """
    if row.state not in State.live() or row.end <= at:
        state = State.ENDED if row.state in State.live() else State(row.state)
        raise NotChangeable(state=state, act=sentence("given back"))
    # An overstay is given back by leaving.
    row.end = min(row.end, row.booked_end)
    held = _live_gpu_ids(row)
    strange = set(gpu_ids) - set(held)
    if strange:
        raise NotFound(
            what=sentence("GPU with the number {gpu} in it", gpu=min(strange))
        )
    kept = [pk for pk in held if pk not in set(gpu_ids)]
    end = row.end
    if last_seconds:
        end = grid_ceil(end - timedelta(seconds=last_seconds), policy.grid_seconds)
    if not kept or min(end, row.end) <= max(row.start, at):
        raise NothingLeft(state=row.state, act=sentence("given back in part"))
    engines.check_parts(kept)
    return kept, min(end, row.end)


def _price(
    row: Reservation,
    kept: Sequence[int],
    end: datetime,
    *,
    policy: Policy,
    at: datetime,
) -> Price:
    never_free = ledger.displaced_windows(row)
    returned = late = 0
    for allocation, part in given_back(row, kept, Window(row.start, end)):
        rest = part.cut(Window(at, row.end)) if row.end > at else None
        if rest is None:
            continue
        tariff = ledger.tariff_of(allocation)
        returned += tariff.cost(rest)
        late += late_charge_gpu_seconds(
            late_windows(rest, at=at, never_free=never_free.get(allocation.gpu_id, ())),
            weight=tariff,
            permille=policy.late_return_permille,
        )
    return Price(end, tuple(kept), returned, late)


def _split_off(
    before: Reservation,
    gone: frozenset[int],
    *,
    user: User,
    version: int,
    at: datetime,
    reason: str,
) -> int:
    """Move the returned Gpus into a separate Reservation, and release it.

    Returns:
        The version of the remaining Reservation.

    Raises:
        StaleVersion, NotChangeable: another change was faster.
    """
    policy = site_policy()
    with transaction.atomic(durable=True):
        row = locks.load_reservation(before.pk, lock=True)
        _check_row(row, version)
        if row.state != State.ACTIVE or row.end <= at or gone - set(_live_gpu_ids(row)):
            raise NotChangeable(state=row.state, act=sentence("given back in part"))
        for gate in GATES:
            gate(row, gone)
        part = _part_of(row, gone, at)
        ledger.audit(
            "given-back-in-part",
            row,
            actor=user,
            now=at,
            reason=reason,
            gpus=sorted(gone),
            part=part.pk,
        )
        _release(
            part,
            user=user,
            at=at,
            reason=sentence("part of #{number}", number=row.pk),
            permille=policy.late_return_permille,
            policy=policy,
        )
        row.refresh_from_db()
        live.publish_reservation(row, gpu_ids=_live_gpu_ids(row), policy=policy)
    return row.version


def _part_of(row: Reservation, gone: frozenset[int], at: datetime) -> Reservation:
    """Split the Reservation in two along its Gpus. The costs add up.

    See docs/design/fair-booking.md#i8.
    """
    allocations = list(row.allocations.select_related("gpu__pool"))
    held = Window(row.start, row.end)
    costs = {a.gpu_id: ledger.tariff_of(a).cost(held) for a in allocations}
    whole = row.cost_gpu_seconds
    cost = whole * sum(costs[pk] for pk in gone) // sum(costs.values())
    part = Reservation.objects.create(
        user=row.user,
        membership=row.membership,
        start=row.start,
        end=row.end,
        booked_end=row.booked_end,
        kind=row.kind,
        state=State.ACTIVE,
        cost_gpu_seconds=cost,
        peaked=row.peaked,
        purpose=row.purpose,
        created_at=row.created_at,
        checked_in_at=row.checked_in_at,
        decision=row.decision,
    )
    ledger.release_hold(row, now=at, reason=sentence("cut in two"))
    moved = [a.pk for a in allocations if a.gpu_id in gone]
    Allocation.objects.filter(pk__in=moved).update(reservation=part)
    displaced = Allocation.objects.filter(reservation__displaced_by=row)
    kept = displaced.exclude(gpu_id__in=gone).values("reservation_id")
    Reservation.objects.filter(displaced_by=row).exclude(pk__in=kept).update(
        displaced_by=part
    )
    row.cost_gpu_seconds = whole - cost
    row.version += 1
    row.save(update_fields=["cost_gpu_seconds", "version"])
    ledger.hold(row, now=at, reason=sentence("cut in two"))
    ledger.hold(part, now=at, reason=sentence("cut off #{number}", number=row.pk))
    return part
