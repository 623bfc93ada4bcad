"""Replace Gpu A by Gpu B: preview it, move the bookings, retire A when it is free.

Summaries and samples stay with A. B refers to A, so that the history can be followed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from django.db import IntegrityError, transaction

from reservations.booking import refunds
from reservations.booking.service import OVERLAP
from reservations.models import Allocation, Reservation, User
from reservations.notifications import holder_notices
from reservations.operations import evacuation
from reservations.operations.replacement_rules import (
    Carry,
    ReplacedBooking,
    carry,
)
from reservations.rules.calendar import CalendarGpu
from reservations.rules.policy import Policy
from reservations.rules.review import FieldsInvalid, PreviewStale, mark_of
from reservations.rules.window import Window, whole_second
from reservations.store import ledger
from reservations.store.audit_log import audit_act
from reservations.store.booking_facts import closures_between, site_policy
from reservations.store.gpu_rows import calendar_gpus
from telemetry.inventory.operator_actions import retire, set_replaced
from telemetry.models import Gpu
from telemetry.protocol.sentences import sentence


@dataclass(frozen=True, slots=True)
class Replacement:
    """The bookings that move along, and those that cannot."""

    old: CalendarGpu
    new: CalendarGpu
    carried: tuple[ReplacedBooking, ...]
    rows: Mapping[int, Reservation]

    @property
    def mark(self) -> str:
        """Return a mark of this preview, which the act must present."""
        return mark_of([one.to_json() for one in self.carried])


def preview(*, old_id: int, new_id: int, now: datetime) -> Replacement:
    """Return what replacing one Gpu by another would do now.

    Raises:
        FieldsInvalid: by field.
    """
    return _plan(old_id, new_id, now=whole_second(now), lock=False)


def replace(
    *, old_id: int, new_id: int, actor: User, now: datetime, reason: str, mark: str
) -> Replacement:
    """Move the bookings, link the two Gpus, and let the old one take no new bookings.

    Raises:
        FieldsInvalid: by field.
        PreviewStale: bookings changed since then. Nothing is written.
    """
    at = whole_second(now)
    policy = site_policy()
    if not reason.strip():
        raise FieldsInvalid(
            {
                "reason": sentence(
                    "Give a reason. The people whose bookings move see it."
                )
            }
        )
    try:
        with transaction.atomic(durable=True):
            plan = _plan(old_id, new_id, now=at, lock=True)
            if plan.mark != mark:
                raise PreviewStale
            for one in plan.carried:
                if one.what is Carry.CARRIED:
                    _move_booking(
                        one, plan, actor=actor, now=at, reason=reason, policy=policy
                    )
            set_replaced(gpu_id=old_id, by_id=new_id)
            audit_act(
                verb="gpu.replaced",
                subject=f"gpu:{old_id}",
                actor=actor,
                now=at,
                reason=reason,
                by=new_id,
                carried=[c.pk for c in plan.carried if c.what is Carry.CARRIED],
                stay=[c.pk for c in plan.carried if c.what is not Carry.CARRIED],
            )
            _retire([old_id], now=at)
    except IntegrityError as error:
        if OVERLAP not in str(error):
            raise
        raise PreviewStale from error
    return plan


def due(at: datetime, policy: Policy) -> dict[str, int]:
    """Retire replaced Gpus once nothing is booked on them."""
    rows = Gpu.objects.filter(retired=False, replaced_by__isnull=False)
    pks = list(rows.order_by("pk").values_list("pk", flat=True))
    if not pks:
        return {}
    with transaction.atomic(durable=True):
        return {"gpus_retired": _retire(pks, now=at)}


def _retire(pks: list[int], *, now: datetime) -> int:
    held = Allocation.objects.filter(gpu_id__in=pks, live=True).order_by()
    free = sorted(set(pks) - set(held.values_list("gpu_id", flat=True)))
    for pk in free:
        audit_act(
            verb="gpu.retired",
            subject=f"gpu:{pk}",
            actor=None,
            now=now,
            reason=sentence("replaced, and no booking is left on it"),
        )
    return retire(gpu_ids=free)


def _plan(old_id: int, new_id: int, *, now: datetime, lock: bool) -> Replacement:
    _check(old_id, new_id)
    found = evacuation.read([old_id], now, None, lock=lock, also=[new_id])
    known = {gpu.pk: gpu for gpu in calendar_gpus() if gpu.pk in (old_id, new_id)}
    old, new = known[old_id], known[new_id]
    for field, gpu in (("old", old), ("new", new)):
        if gpu.engine:
            why = sentence(
                "{gpu} belongs to Slurm. It cannot be replaced here.",
                gpu=gpu.label,
            )
            raise FieldsInvalid({field: why})
    if not new.bookable:
        raise FieldsInvalid(
            {"new": sentence("{gpu}: {why}.", gpu=new.label, why=new.out)}
        )
    own = [one.pk for one in found.booked]
    held = Allocation.objects.filter(gpu_id=new_id, live=True, end__gt=now)
    parts = Allocation.objects.filter(gpu_id=old_id, live=True, reservation_id__in=own)
    latest = max((one.window.end for one in found.booked), default=now)
    carried = carry(
        found.booked,
        new,
        held=[
            (pk, Window(start, end))
            for pk, start, end in held.order_by("start").values_list(
                "reservation_id", "start", "end"
            )
        ],
        closures=closures_between(now, latest),
        tariffs={
            part.reservation_id: ledger.tariff_of(part)
            for part in parts.select_related("gpu__pool")
        },
    )
    return Replacement(old, new, tuple(carried), found.rows)


def _check(old_id: int, new_id: int) -> None:
    """Refuse two Gpus of which one cannot replace the other.

    Raises:
        FieldsInvalid: by field.
    """
    rows = {
        gpu.pk: gpu
        for gpu in Gpu.objects.filter(pk__in=[old_id, new_id], retired=False)
    }
    for field, pk in (("old", old_id), ("new", new_id)):
        if pk not in rows:
            raise FieldsInvalid({field: sentence("There is no such GPU in service.")})
    if old_id == new_id:
        raise FieldsInvalid({"new": sentence("A GPU cannot replace itself.")})
    if rows[old_id].replaced_by_id is not None:
        raise FieldsInvalid({"old": sentence("This GPU has been replaced already.")})
    if Gpu.objects.filter(replaced_by_id=new_id).exists():
        raise FieldsInvalid({"new": sentence("This GPU replaces another GPU already.")})
    if rows[new_id].replaced_by_id is not None:
        raise FieldsInvalid({"new": sentence("This GPU has been replaced itself.")})


def _move_booking(
    one: ReplacedBooking,
    plan: Replacement,
    *,
    actor: User,
    now: datetime,
    reason: str,
    policy: Policy,
) -> None:
    """Move one booking's part to the new Gpu, and refund a lower price."""
    row = plan.rows[one.pk]
    Allocation.objects.filter(reservation=row, gpu_id=plan.old.pk, live=True).update(
        gpu_id=plan.new.pk, weight=one.weight
    )
    row.version += 1
    if one.less_gpu_seconds:
        ledger.release_hold(row, now=now, reason=sentence("moved to a lighter GPU"))
        row.cost_gpu_seconds -= one.less_gpu_seconds
    row.save(update_fields=["version", "cost_gpu_seconds"])
    if one.less_gpu_seconds:
        ledger.hold(row, now=now, reason=sentence("on the GPU that took its place"))
    names = {plan.old.label: plan.new.label}
    ledger.audit("moved", row, actor=actor, now=now, reason=reason, gpus=names)
    refunds.publish(row, policy)
    holder_notices.moved(row, names, reason=reason, now=now)
