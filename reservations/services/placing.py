"""The waitlist's step of the tick: place, offer, plan (POLICY.md rule 5).

One look reads everything once, places the first in order that fits, and looks again
until nobody can be placed; then it makes offers and says where each of the others
would land. Every placement is a transaction of its own, judged again under the locks
of ``services.booking``. ``WaitlistLook`` is locked before them: its ``turn`` says
whether somebody placed since it was read, so that two beats at once serve in the same
order as one.

A look costs; it is taken when something was written since the last one (every act
leaves an audit row, in its own transaction) and every ``look_again_seconds``.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from django.db import DatabaseError, IntegrityError, transaction
from django.db.models import F, Max

from reservations.domain.calendar import Plan
from reservations.domain.decision import Request, Snapshot, decide
from reservations.domain.errors import BookingError
from reservations.domain.lifecycle import Kind
from reservations.domain.planned import Expected, beside, expect
from reservations.domain.policy import Policy
from reservations.domain.waiting_words import OfferLapsed
from reservations.domain.waitlist import (
    Choice,
    choose,
    first_placed,
    offer_until,
    reason,
)
from reservations.domain.window import Window
from reservations.models import (
    AuditEntry,
    Notice,
    Reservation,
    User,
    WaitingRequest,
    WaitlistLook,
)
from reservations.services import booking, displacing, locking, notices
from reservations.services.auditing import audit_act
from reservations.services.turns import turn as in_line
from reservations.snapshots.waiting import Look, look

MOST_LOOKS = 100
"""Placements a step makes at most; the next tick goes on."""
PAUSE_SECONDS = 2 * 3600
"""After an offer that was not taken, nothing is offered to it for so long."""
WAITING, PLACED, DECLINED, CANCELLED, EXPIRED = WaitingRequest.State
URL = "/waiting/"
log = logging.getLogger(__name__)


class TurnLost(Exception):
    """Somebody placed since the waitlist was read: look again."""


def place(at: datetime, policy: Policy) -> dict[str, int]:
    """Place whoever fits, in order; offer and plan for the others."""
    done = {"placed": 0, "offered": 0, "waiting_expired": 0}
    if not WaitingRequest.objects.waiting().exists():
        return done
    before = WaitlistLook.objects.get_or_create(pk=1)[0]
    # Read before anything else: what is written from here on asks for another look.
    newest: int | None = _newest_entry()
    age = (at - before.looked_at).total_seconds() if before.looked_at else None
    if (
        age is not None
        and 0 <= age < policy.look_again_seconds
        and newest == before.seen_entry
    ):
        return done
    try:
        done["waiting_expired"] = _expire(at, policy)
        done["placed"], found = _place_all(at, policy)
        done["offered"] = _tell_rest(found, at, policy)
        if done["placed"]:
            newest = None
    except (BookingError, DatabaseError, ArithmeticError, LookupError, ValueError):
        log.exception("the waitlist could not be looked at")
        newest = None
    if newest is not None:
        WaitlistLook.objects.filter(pk=1).update(looked_at=at, seen_entry=newest)
    return done


def _newest_entry() -> int:
    return AuditEntry.objects.order_by().aggregate(pk=Max("pk"))["pk"] or 0


def _expire(at: datetime, policy: Policy) -> int:
    """End what cannot be over in time any more."""
    ended = 0
    for row in WaitingRequest.objects.waiting().filter(
        latest__lte=at + _longest(policy)
    ):
        if row.latest - timedelta(seconds=row.duration_seconds) >= at:
            continue
        with transaction.atomic(durable=True):
            moved = WaitingRequest.objects.move(
                row.pk, old=WAITING, new=EXPIRED, ended_at=at, planned=False
            )
            if not moved:
                continue
            ended += 1
            _audit("expired", row, at)
            _tell(row, "declined", at, latest=row.latest.isoformat())
    return ended


def _longest(policy: Policy) -> timedelta:
    return timedelta(seconds=policy.longest_seconds)


# --- place ---------------------------------------------------------------------------


def _place_all(at: datetime, policy: Policy) -> tuple[int, Look]:
    """Place the first that fits until nobody does; how many, and the last look."""
    placed = 0
    skip: set[int] = set()
    for _ in range(MOST_LOOKS):
        turn = WaitlistLook.objects.values_list("turn", flat=True).get(pk=1)
        found = look(at, policy)
        choice = first_placed(found.queue, found.facts, now=at, skip=skip)
        if choice is None:
            break
        try:
            place_one(
                found.rows[choice.waiting.pk],
                choice.slot.gpu_ids,
                choice.slot.window,
                now=at,
                policy=policy,
                turn=turn,
                choice=choice,
                why=reason(choice, found.queue, found.ranks),
            )
            placed += 1
        except TurnLost:
            continue
        except (BookingError, IntegrityError) as refused:
            # Taken in this moment, or a rule that only the locks show: the next look.
            log.info("waiting request %s is not placed: %s", choice.waiting.pk, refused)
            skip.add(choice.waiting.pk)
    return placed, found


def place_one(
    row: WaitingRequest,
    gpu_ids: Sequence[int],
    window: Window,
    *,
    now: datetime,
    policy: Policy,
    actor: User | None = None,
    turn: int | None = None,
    choice: Choice | None = None,
    why: dict[str, object] | None = None,
) -> Reservation:
    """Book this slot for a waiting request, by the rules of any booking.

    Args:
        actor: who accepted it; None: the portal placed it.
        turn: the waitlist's when the choice was made; None: whichever it is.
        why: what is kept of the choice.

    Raises:
        TurnLost: somebody placed meanwhile, or it waits no more.
        Refusal: the rules say no now.
    """
    chosen = locking.choose_membership(row.user, row.membership)
    with in_line(), transaction.atomic(durable=True):
        first = WaitlistLook.objects.select_for_update(no_key=True).get_or_create(pk=1)
        if turn is not None and first[0].turn != turn:
            raise TurnLost
        locked = locking.lock(chosen, gpu_ids)
        request = booking.wish_of(
            locked, window.start, window.end, now=now, policy=policy
        )
        displacing.lock_flex(locked.gpus, request.window.start, request.window.end)
        decision = booking.judge(
            request, locked, policy=policy, names=policy.names_visible, taking=True
        )
        if decision.refusal is not None:
            raise decision.refusal
        if decision.displaced and decision.kind is Kind.FLEX and not row.may_take:
            raise OfferLapsed(taken=True)
        made = booking.write_decision(
            request, decision, locked, purpose=row.purpose, actor=actor, policy=policy
        )
        _note_placed(row, made, gpu_ids, choice, why or {}, now=now)
        WaitlistLook.objects.filter(pk=1).update(turn=F("turn") + 1)
        _tell_placed(row, made, actor, now=now, policy=policy)
    return made


def _note_placed(
    row: WaitingRequest,
    made: Reservation,
    gpu_ids: Sequence[int],
    choice: Choice | None,
    why: dict[str, object],
    *,
    now: datetime,
) -> None:
    """Move the request by compare-and-set.

    Raises:
        TurnLost: it waits no more; nothing may be written.
    """
    moved = WaitingRequest.objects.move(
        row.pk,
        old=WAITING,
        new=PLACED,
        reservation=made,
        placed_at=now,
        planned=choice is not None and choice.keeps_plan,
        expected_start=made.start,
        expected_end=made.end,
        expected_gpu_ids=sorted(gpu_ids),
        decision=why,
    )
    if not moved:
        raise TurnLost


def _tell_placed(
    row: WaitingRequest,
    made: Reservation,
    actor: User | None,
    *,
    now: datetime,
    policy: Policy,
) -> None:
    _audit("placed", row, now, actor=actor, reservation=made.pk)
    freeze = timedelta(seconds=policy.freeze_seconds)
    until = (made.start - freeze).isoformat() if made.start - now > freeze else None
    _tell(row, "placed", now, reservation=made, kind=made.kind, decline_until=until)


# --- offer and plan ------------------------------------------------------------------


def _tell_rest(found: Look, at: datetime, policy: Policy) -> int:
    """Offer what needs an answer, and keep where everybody would land."""
    expected = expect(found.queue, found.facts, now=at, policy=policy)
    offered = 0
    taken: list[Plan] = []
    for one in found.queue:
        row = found.rows[one.pk]
        # One offer a slot: who stands behind is asked when it was not taken.
        facts = found.facts(one)
        facts = replace(facts, calendar=beside(facts.calendar, taken))
        if (standing := offered_of(row, at)) is not None:
            if _can_be_had(row, standing, facts, at):
                taken.append(standing)
                continue
            _end_offer(row)
        elif not _may_be_offered(row, at):
            continue
        choice = choose(one, facts, now=at)
        if choice is None or not choice.ask:
            continue
        if _offer(row, choice, offer_until(one, choice.slot, now=at), at):
            offered += 1
            gpu_pks = frozenset(choice.slot.gpu_ids)
            taken.append(Plan(row.pk, row.user_id, gpu_pks, choice.slot.window))
    for pk, row in found.rows.items():
        _expect(row, expected.get(pk), at)
    return offered


def offered_of(row: WaitingRequest, at: datetime) -> Plan | None:
    """Return what is offered to a request at this moment."""
    start, end, until = row.offer_start, row.offer_end, row.offer_until
    if start is None or end is None or until is None or until <= at:
        return None
    gpu_pks = frozenset(row.offer_gpu_ids)
    return Plan(row.pk, row.user_id, gpu_pks, Window(start, end))


def _can_be_had(
    row: WaitingRequest, standing: Plan, facts: Snapshot, at: datetime
) -> bool:
    gpus = tuple(gpu for gpu in facts.calendar.gpus if gpu.pk in standing.gpu_pks)
    window = Window(max(standing.window.start, at), standing.window.end)
    return decide(Request(gpus, window, at), facts).kind is not None


def _end_offer(row: WaitingRequest) -> None:
    """Forget an offer that somebody booked: another may be made at once."""
    same = WaitingRequest.objects.waiting().filter(pk=row.pk, version=row.version)
    if same.update(offer_until=None, version=F("version") + 1):
        row.version += 1


def _may_be_offered(row: WaitingRequest, at: datetime) -> bool:
    if row.offer_until is None:
        return True
    return row.offer_until + timedelta(seconds=PAUSE_SECONDS) <= at


def _offer(row: WaitingRequest, choice: Choice, until: datetime, at: datetime) -> bool:
    slot = choice.slot
    with transaction.atomic(durable=True):
        moved = (
            WaitingRequest.objects.waiting()
            .filter(pk=row.pk, version=row.version)
            .update(
                offer_gpu_ids=list(slot.gpu_ids),
                offer_start=slot.start,
                offer_end=slot.end,
                offer_until=until,
                version=F("version") + 1,
            )
        )
        if not moved:
            return False
        row.version += 1
        _audit("offered", row, at, start=slot.start.isoformat(), gpus=slot.gpu_ids)
        _tell(
            row,
            "slot_offered",
            at,
            start=slot.start.isoformat(),
            end=slot.end.isoformat(),
            until=until.isoformat(),
        )
    return True


def _expect(row: WaitingRequest, found: Expected | None, at: datetime) -> None:
    """Keep where a request would land, the first time for ever; tell of a plan."""
    start = found.start if found else None
    end = found.plan.window.end if found else None
    gpu_ids = sorted(found.plan.gpu_pks) if found else []
    held = found is not None and found.held
    now = (start, end, gpu_ids, held)
    if now == (row.expected_start, row.expected_end, row.expected_gpu_ids, row.planned):
        return
    fields: dict[str, object] = {
        "expected_start": start,
        "expected_end": end,
        "expected_gpu_ids": gpu_ids,
        "planned": held,
    }
    if row.first_estimate is None and start is not None:
        fields |= {"first_estimate": start, "first_estimate_at": at}
    with transaction.atomic(durable=True):
        rows = WaitingRequest.objects.waiting().filter(pk=row.pk, version=row.version)
        if not rows.update(version=F("version") + 1, **fields) or start is None:
            return
        later = row.planned and row.expected_start and start > row.expected_start
        if held and (later or not row.planned):
            before = row.expected_start if later else None
            _audit("planned", row, at, start=start.isoformat())
            _tell(
                row,
                "planned",
                at,
                start=start.isoformat(),
                before=before.isoformat() if before else None,
            )


def _tell(
    row: WaitingRequest,
    what: str,
    at: datetime,
    /,
    *,
    reservation: Reservation | None = None,
    **detail: object,
) -> Notice | None:
    return notices.tell(
        user=row.user,
        kind=what,
        reservation=reservation,
        detail={"waiting": row.pk, "url": URL, **detail},
        now=at,
    )


def _audit(
    verb: str,
    row: WaitingRequest,
    at: datetime,
    *,
    actor: User | None = None,
    reason: str = "",
    **detail: object,
) -> None:
    audit_act(
        verb=f"waiting.{verb}",
        subject=f"waiting:{row.pk}",
        actor=actor,
        now=at,
        reason=reason,
        **detail,
    )
