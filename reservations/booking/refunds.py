"""Full refunds for failures of the site.

See docs/design/fair-booking.md#rule-7.

The person gets a full refund, a Voucher, and the Voucher that was spent on the booking.
The lost time is charged to the site. Call it inside a transaction, with the row locked.
"""

from collections.abc import Collection
from datetime import datetime, timedelta

from reservations.models import Allocation, Reservation, Voucher
from reservations.notifications import live
from reservations.notifications.service import notify
from reservations.rules.charges import Settlement
from reservations.rules.lifecycle import State
from reservations.rules.overstay_terms import is_gap
from reservations.rules.policy import Policy
from reservations.rules.prices import combined_tariff, cost_gpu_seconds
from reservations.rules.window import Window
from reservations.store import ledger
from reservations.store.booking_facts import site_policy
from reservations.store.ledger import rate_of
from telemetry.protocol.sentences import sentence


def refund(
    row: Reservation,
    *,
    now: datetime,
    reason: str,
    policy: Policy,
    never_had: Collection[Allocation] = (),
    told: bool = False,
) -> bool:
    """Refund everything. The held time is charged to the site.

    Args:
        never_had: Gpus that another person used from the start and pays for.
        told: the caller notifies the holder itself.

    Returns:
        False: another worker moved the row first, and nothing is written.
    """
    over = min(max(now, row.start), row.end)
    held = ledger.held_gpu_seconds(row)
    used = Window(row.start, over) if over > row.start else None
    rate = rate_of(row) - combined_tariff(ledger.tariff_of(one) for one in never_had)
    site = cost_gpu_seconds(used, rate=rate) if used else 0
    moved = Reservation.objects.move(
        row.pk,
        old=State(row.state),
        new=State.REFUNDED,
        end=over,
        ended_at=now,
        cost_gpu_seconds=site,
    )
    if not moved:
        return False
    Allocation.objects.filter(reservation=row).update(live=False, end=over)
    if never_had:
        pks = [one.pk for one in never_had]
        Allocation.objects.filter(pk__in=pks).update(end=row.start)
    ledger.settle(
        row,
        Settlement(-held, 0, site),
        at=now,
        reason=sentence("refunded: {reason}", reason=reason),
    )
    ledger.ask_summary(row, now=now)
    ledger.audit("refunded", row, actor=None, now=now, reason=reason)
    if not told:
        notify(
            user=row.user,
            kind="refunded",
            reservation=row,
            detail={"reason": reason, "refund_gpu_seconds": held},
            now=now,
            key=f"refunded:{row.pk}",
        )
    _token_back(row, now=now, policy=policy)
    give_voucher(row, now=now, reason=reason)
    publish(row, policy, gone=True)
    return True


def _token_back(row: Reservation, *, now: datetime, policy: Policy) -> None:
    """Give back the Voucher that was spent on it, valid for as long as a new one."""
    good_until = now + timedelta(seconds=policy.token_seconds)
    spent = Voucher.objects.filter(used_for=row)
    if spent.update(used_for=None, expires_at=good_until):
        ledger.audit("token-back", row, actor=None, now=now)


def give_voucher(row: Reservation, *, now: datetime, reason: str) -> bool:
    """Give the Membership a Voucher. False: this Reservation gave one before.

    A Job in a gap gets none, because nobody had booked the gap.
    """
    if is_gap(row.start, row.booked_end):
        return False
    policy = site_policy()
    _voucher, made = Voucher.objects.get_or_create(
        given_for=row,
        defaults={
            "membership_id": row.membership_id,
            "reason": reason[:200],
            "given_at": now,
            "expires_at": now + timedelta(seconds=policy.token_seconds),
        },
    )
    if made:
        notify(
            user=row.user,
            kind="token_given",
            reservation=row,
            detail={"reason": reason},
            now=now,
            key=f"token:{row.pk}",
        )
    return made


def publish(row: Reservation, policy: Policy, *, gone: bool = False) -> None:
    """Read a row again and publish it once it is committed."""
    row.refresh_from_db()
    gpu_ids = list(row.allocations.values_list("gpu_id", flat=True))
    live.publish_reservation(row, gpu_ids=gpu_ids, policy=policy, gone=gone)
