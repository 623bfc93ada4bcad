"""Charge an overrun to the Reservation that caused it.

See docs/design/fair-booking.md#rule-7.

If a Gpu is in use at the start because its previous holder is still on it, the time
from the start until the new holder has been helped is charged to the previous
Reservation. It costs the full price of late hours, to the second. A person who held
nothing there has no Reservation to charge.
"""

from datetime import datetime, timedelta

from reservations.models import Allocation, LateReturn, LedgerEntry, Reservation
from reservations.rules.booking_alerts import INTRUDER, OVERRUN
from reservations.rules.charges import FULL_PRICE_PERMILLE, late_charge_gpu_seconds
from reservations.rules.lifecycle import State
from reservations.rules.window import Window
from reservations.store import ledger
from telemetry.models import Alert
from telemetry.protocol.sentences import sentence

JUST_BEFORE = timedelta(hours=1)
"""A Reservation that ended longer ago than this is not an overrun."""


def charge(allocation: Allocation, row: Reservation, *, now: datetime) -> bool:
    """Charge the Reservation that overran into this one's start. False: none did.

    Args:
        allocation: with the Gpu that was in use, as it was before a move.
    """
    before = _overran(allocation.gpu_id, row)
    if before is None or now <= row.start:
        return False
    late = Window(row.start, min(now, row.end))
    tariff = ledger.tariff_of(allocation)
    LateReturn.objects.bulk_create(
        LateReturn(
            reservation_id=before.pk,
            membership_id=before.membership_id,
            gpu_id=allocation.gpu_id,
            start=piece.start,
            end=piece.end,
            weight=rate,
            permille=FULL_PRICE_PERMILLE,
            firm=False,
            returned_at=now,
            charged_at=now,
        )
        for piece, rate in tariff.pieces(late)
    )
    amount = late_charge_gpu_seconds([late], weight=tariff, permille=1000)
    LedgerEntry.objects.create(
        membership_id=before.membership_id,
        reservation=before,
        kind=ledger.CHARGE,
        gpu_seconds=amount,
        at=now,
        reason=sentence("overran into #{number}", number=row.pk),
    )
    ledger.audit(
        "overran", before, actor=None, now=now, into=row.pk, gpu_seconds=amount
    )
    return True


def _overran(gpu_id: int, row: Reservation) -> Reservation | None:
    """Return the previous Allocation if its holder's process is on the Gpu."""
    held = (
        Allocation.objects.filter(
            gpu_id=gpu_id,
            end__gt=row.start - JUST_BEFORE,
            end__lte=row.start,
            reservation__state__in=[State.ENDED, State.RELEASED],
        )
        .exclude(reservation__user_id=row.user_id)
        .select_related("reservation__user")
        .order_by("-end")
        .first()
    )
    if held is None:
        return None
    before = held.reservation
    alerts = Alert.objects.open().filter(gpu_id=gpu_id, rule__in=(OVERRUN, INTRUDER))
    for rule, number, detail in alerts.values_list("rule", "reservation_id", "detail"):
        if rule == OVERRUN and number == before.pk:
            return before
        logins = {before.user.username, before.user.unix_user} - {""}
        if rule == INTRUDER and logins & set(detail.get("users", ())):
            return before
    return None
