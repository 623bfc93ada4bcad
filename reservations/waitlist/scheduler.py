"""The waitlist's step of the tick: place, offer, plan.

See docs/design/fair-booking.md#rule-5.

One run reads everything once, places the first request in order that fits, and repeats
until no request can be placed. Then it makes offers and stores an estimate for each of
the others. Every placement has its own transaction and is judged again under the locks
of ``booking.service``. ``WaitlistLook`` is locked before them. Its ``turn`` shows
whether another process has placed a request since it was read, so two concurrent runs
serve in the same order as one.

A run is expensive (bench/waiting.py). It happens when a write since the last run may
have freed time or changed ranks (every act leaves an audit row in its transaction), at
most every ``REST_SECONDS`` during a rush, and in any case every ``look_again_seconds``.
A run that places for longer than ``BUSY_SECONDS`` ends, and the next one continues. In
the live portal it is a separate task, so no other step waits for it.
"""

import logging
import time
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db import IntegrityError, transaction
from django.db.models import F, Max

from reservations.booking import co_user_transfer
from reservations.booking import service as booking
from reservations.engines import service as engines
from reservations.engines.engine_refusals import EngineRefused
from reservations.models import (
    AuditEntry,
    Reservation,
    User,
    WaitingRequest,
    WaitlistLook,
)
from reservations.notifications.text.waitlist_text import OfferLapsed
from reservations.rules.lifecycle import Kind
from reservations.rules.policy import Policy
from reservations.rules.window import Window
from reservations.store import locks
from reservations.store.audit_log import something_new
from reservations.store.locks import wait_for_turn
from reservations.waitlist.estimates import (
    audit_waiting,
    notify_waiting,
    store_estimates,
)
from reservations.waitlist.rules import (
    WaitlistMatch,
    first_placed,
    reason,
)
from reservations.waitlist.waitlist_snapshot import WaitlistSnapshot, read_waitlist
from telemetry.protocol.coded_error import CodedError
from telemetry.rules.isolated_steps import isolated

MOST_TRIES = 100
"""Placements that one step tries at most. The next tick continues."""
BUSY_SECONDS = 5.0
"""After this time no further placement begins in this run."""
REST_SECONDS = 5
"""The pause between two runs while rows are written continuously."""
WAITING, PLACED, DECLINED, CANCELLED, EXPIRED = WaitingRequest.State
log = logging.getLogger(__name__)


class TurnLost(Exception):
    """Another process placed a request since the waitlist was read: run again."""


def place(at: datetime, policy: Policy) -> dict[str, int]:
    """Place the requests that fit, in order. Make offers and plans for the others."""
    done = {"placed": 0, "offered": 0, "waiting_expired": 0}
    if not WaitingRequest.objects.waiting().exists():
        return done
    before = WaitlistLook.objects.get_or_create(pk=1)[0]
    # Read first: every later write causes another run.
    newest: int | None = _newest_entry()
    age = (at - before.looked_at).total_seconds() if before.looked_at else None
    rests = age is not None and 0 < age < REST_SECONDS
    recent = age is not None and 0 <= age < policy.look_again_seconds
    if rests or (recent and not something_new(before.seen_entry)):
        return done
    looked = False
    with isolated(log, "the waitlist could not be looked at"):
        done["waiting_expired"] = _expire(at, policy)
        done["placed"], found, vain = _place_all(at, policy)
        if vain is not None:
            done["offered"] = store_estimates(found, at, policy, vain)
        looked = not done["placed"]
    if looked:
        WaitlistLook.objects.filter(pk=1).update(looked_at=at, seen_entry=newest)
    return done


def _newest_entry() -> int:
    return AuditEntry.objects.order_by().aggregate(pk=Max("pk"))["pk"] or 0


def _expire(at: datetime, policy: Policy) -> int:
    """End requests that can no longer be over in time."""
    ended = 0
    for row in WaitingRequest.objects.waiting().filter(
        latest__lte=at + _longest_span(policy)
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
            audit_waiting("expired", row, at)
            notify_waiting(row, "declined", at, latest=row.latest.isoformat())
    return ended


def _longest_span(policy: Policy) -> timedelta:
    return timedelta(seconds=policy.longest_seconds)


# --- place ---------------------------------------------------------------------------


def _place_all(
    at: datetime, policy: Policy
) -> tuple[int, WaitlistSnapshot, dict[int, WaitlistMatch | None] | None]:
    """Place the first request that fits until none does.

    Returns:
        The number of placements, the last snapshot, and the slots that could be offered
        to the requests considered on it; None for these if the time was too short, and
        the next run continues.

    A request that did not fit is skipped until a booking was displaced, and considered
    once more at the end: a placement only takes time away, but it may change ranks.
    """
    placed = 0
    refused: set[int] = set()
    vain: dict[int, WaitlistMatch | None] = {}
    fresh: dict[int, WaitlistMatch | None] = {}
    found, turn = _read_waitlist(at, policy)
    closed: frozenset[tuple[int, str]] = frozenset()
    begun = time.monotonic()
    for _ in range(MOST_TRIES):
        if placed and time.monotonic() - begun > BUSY_SECONDS:
            return placed, found, None
        fresh = {}
        choice = first_placed(
            found.queue, found.facts, now=at, skip={*refused, *vain}, vain=fresh
        )
        if choice is None and not vain:
            break
        vain |= fresh
        if choice is None:
            vain.clear()
            found, turn = _read_waitlist(at, policy, closed)
            continue
        try:
            book_waiting_request(
                found.rows[choice.waiting.pk],
                choice.slot.gpu_ids,
                choice.slot.window,
                now=at,
                policy=policy,
                turn=turn,
                choice=choice,
                why=reason(choice, found.queue, found.ranks),
            )
        except EngineRefused as refusal:
            # The next choice for the request is on another node.
            log.info("waiting request %s: %s", choice.waiting.pk, refusal)
            nodes = {g.node for g in found.gpus if g.pk in choice.slot.gpu_ids}
            closed |= {(choice.waiting.pk, node) for node in nodes}
        except (CodedError, IntegrityError) as refusal:
            # It has just been taken, or a rule refuses that only the locks show. Next
            # run.
            log.info("waiting request %s is not placed: %s", choice.waiting.pk, refusal)
            refused.add(choice.waiting.pk)
            continue
        except TurnLost:
            vain.clear()
        else:
            placed += 1
            if choice.decision.displaced:
                vain.clear()
        found, turn = _read_waitlist(at, policy, closed)
    return placed, found, fresh


def _read_waitlist(
    at: datetime, policy: Policy, closed: frozenset[tuple[int, str]] = frozenset()
) -> tuple[WaitlistSnapshot, int]:
    """Read the waitlist, and the turn before it was read."""
    turn = WaitlistLook.objects.values_list("turn", flat=True).get(pk=1)
    return read_waitlist(at, policy, closed), turn


def book_waiting_request(
    row: WaitingRequest,
    gpu_ids: Sequence[int],
    window: Window,
    *,
    now: datetime,
    policy: Policy,
    actor: User | None = None,
    turn: int | None = None,
    choice: WaitlistMatch | None = None,
    why: dict[str, object] | None = None,
) -> Reservation:
    """Book this slot for a waiting request, by the rules of any booking.

    Args:
        actor: the User who accepted it. None: the portal placed it.
        turn: the waitlist's turn at the choice. None: it is not compared.
        why: the stored reason of the choice.

    Raises:
        TurnLost: another request was placed meanwhile, or this one no longer waits.
        Refusal: the rules refuse it now.
    """
    chosen = locks.choose_membership(row.user, row.membership)
    engine = engines.engine_for_many(gpu_ids, now=now)
    with wait_for_turn(), transaction.atomic(durable=True):
        first = WaitlistLook.objects.select_for_update(no_key=True).get_or_create(pk=1)
        if turn is not None and first[0].turn != turn:
            raise TurnLost
        locked = locks.lock(chosen, gpu_ids)
        request = booking.request_after_notice(
            locked, window.start, window.end, now=now, policy=policy
        )
        locks.lock_flex(locked.gpus, request.window.start, request.window.end)
        decision = booking.judge(
            request, locked, policy=policy, names=policy.names_visible, taking=True
        )
        if decision.refusal is not None:
            raise decision.refusal
        if decision.displaced and decision.kind is Kind.FLEX and not row.may_take:
            raise OfferLapsed(taken=True)
        made = booking.write_decision(
            request,
            decision,
            locked,
            purpose=row.purpose,
            actor=actor,
            policy=policy,
            engine=engine and engine.within(engines.STEP_SECONDS),
        )
        _note_placed(row, made, gpu_ids, choice, why or {}, now=now)
        if row.displaced_from is not None:
            co_user_transfer.carry(row.displaced_from, made, now=now)
        WaitlistLook.objects.filter(pk=1).update(turn=F("turn") + 1)
        _notify_placed(row, made, actor, now=now, policy=policy)
    return made


def _note_placed(
    row: WaitingRequest,
    made: Reservation,
    gpu_ids: Sequence[int],
    choice: WaitlistMatch | None,
    why: dict[str, object],
    *,
    now: datetime,
) -> None:
    """Change the request's state by compare-and-set.

    Raises:
        TurnLost: it no longer waits. The caller must roll back.
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


def _notify_placed(
    row: WaitingRequest,
    made: Reservation,
    actor: User | None,
    *,
    now: datetime,
    policy: Policy,
) -> None:
    audit_waiting("placed", row, now, actor=actor, reservation=made.pk)
    freeze = timedelta(seconds=policy.freeze_seconds)
    until = (made.start - freeze).isoformat() if made.start - now > freeze else None
    notify_waiting(
        row, "placed", now, reservation=made, kind=made.kind, decline_until=until
    )
