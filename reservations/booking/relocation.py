"""Move the rest of a Reservation to other Gpus, in one transaction.

A running Job may run better elsewhere, or its Gpu may be broken. Then the rest of its
Window continues as a new Reservation on the new Gpus. The old one is released and pays
for its use. Its return is free, because the portal requested it. The new one is judged
by every rule like any request. Either both happen or neither does, and the database's
constraint prevents a double booking.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from django.db import IntegrityError, transaction

from reservations.booking import co_user_transfer
from reservations.booking.release import _release
from reservations.booking.service import (
    judge,
    overlap_refusal,
    request_of,
    write_decision,
)
from reservations.models import Reservation, User
from reservations.rules.errors import NotChangeable
from reservations.rules.lifecycle import Kind, State
from reservations.rules.window import whole_second
from reservations.store import ledger, locks
from reservations.store.access import check_may_change
from reservations.store.booking_facts import site_policy
from reservations.store.booking_snapshot import load_membership
from telemetry.protocol.sentences import sentence


def relocate_rest(
    *,
    reservation_id: int,
    gpu_ids: Sequence[int],
    actor: User | None,
    now: datetime,
    reason: str,
) -> Reservation:
    """Release a running Reservation and book its rest on these Gpus.

    Call it in a transaction, so that the caller's own rows change with it.

    Args:
        gpu_ids: all Gpus of the rest, kept ones included.
        actor: the User who agreed; None: the portal, by the site's policy.

    Raises:
        NotChangeable: it does not run.
        Refusal: the rules refuse it, or another booking was faster; nothing is changed.
        NotAllowed, NotFound.
    """
    at = whole_second(now)
    before = locks.load_reservation(reservation_id)
    if actor is not None:
        check_may_change(actor, before, act=sentence("move"), reason=reason)
    membership = load_membership(before.membership_id)
    assert membership is not None
    wanted = set(gpu_ids)
    old = set(before.allocations.values_list("gpu_id", flat=True))
    with transaction.atomic():
        both = locks.lock(membership, sorted(wanted | old))
        locked = replace(both, gpus=tuple(g for g in both.gpus if g.pk in wanted))
        row = locks.load_reservation(reservation_id, lock=True)
        made = _rebook_rest(row, locked, actor=actor, at=at, reason=reason)
        ledger.audit(
            "moved-on",
            row,
            actor=actor,
            now=at,
            reason=reason,
            to=made.pk,
            gpus=sorted(wanted),
            gave_back=sorted(old - wanted),
        )
    return made


def _rebook_rest(
    row: Reservation,
    locked: locks.LockedRows,
    *,
    actor: User | None,
    at: datetime,
    reason: str,
) -> Reservation:
    """Release the locked row, judge its rest like any request, book it."""
    policy = site_policy()
    if row.state != State.ACTIVE or row.end <= at:
        state = State.ENDED if row.state == State.ACTIVE else State(row.state)
        raise NotChangeable(state=state, act=sentence("moved to other GPUs"))
    if row.booked_end <= at:
        raise NotChangeable(
            state=sentence("past its booked end"), act=sentence("moved to other GPUs")
        )
    end, kind, purpose = row.booked_end, Kind(row.kind), row.purpose
    came, keep_used, kept_at = row.checked_in_at, row.keep_used, row.kept_at
    _release(row, user=actor, at=at, reason=reason, permille=0, policy=policy)
    request = request_of(locked.gpus, at, end, now=at)
    decision = judge(request, locked, policy=policy, names=policy.names_visible)
    if decision.refusal is not None:
        raise decision.refusal
    if kind is Kind.FIRM and decision.why_not_firm is not None:
        raise decision.why_not_firm
    try:
        with transaction.atomic():
            made = write_decision(
                request, decision, locked, purpose=purpose, actor=actor, policy=policy
            )
    except IntegrityError as error:
        raise overlap_refusal(error, locked.gpus[0], request.window) from error
    # The holder is the same and was present.
    made.checked_in_at, made.keep_used, made.kept_at = came, keep_used, kept_at
    made.overstay, made.created_at = row.overstay, row.created_at
    carried = ["checked_in_at", "keep_used", "kept_at", "overstay", "created_at"]
    made.save(update_fields=carried)
    co_user_transfer.carry(row, made, now=at)
    return made
