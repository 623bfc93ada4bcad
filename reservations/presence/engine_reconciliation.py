"""Compare the reservations on nodes of Slurm with what Slurm holds.

Runs every 15 s. Slurm is asked once, the rules decide about each reservation on its
own, and each request is made under the locks of its rows. If Slurm does not answer,
nothing is changed and nothing is cancelled: the next run continues.
"""

import logging
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction

from reservations.booking.refunds import refund
from reservations.booking.release import free_unused
from reservations.engines import service as engines
from reservations.engines.engine_port import (
    EngineAnswer,
    EngineAway,
    EngineDeclined,
    EngineView,
    HoldInfo,
    ReservationEngine,
)
from reservations.engines.queries import facts_of, to_reconcile
from reservations.engines.rules import (
    SHORTENED_SECONDS,
    HoldFacts,
    Step,
    covers,
    next_step,
    strange_names,
)
from reservations.models import EngineHold, Reservation
from reservations.models.engine_hold import stored_failure
from reservations.presence.check_in import check_in
from reservations.rules.engine_names import hold_name
from reservations.rules.lifecycle import State
from reservations.rules.policy import Policy
from reservations.rules.window import whole_second
from reservations.store import locks
from reservations.store.booking_facts import site_policy
from telemetry.models import Node
from telemetry.protocol.sentences import sentence
from telemetry.rules.isolated_steps import isolated

MOST_SECONDS = 60.0
"""A run ends after this time. The next one continues."""
AWAY = "engine_away"
"""The count of requests that the engine did not answer."""
log = logging.getLogger(__name__)


def reconcile(
    now: datetime,
    *,
    engine: ReservationEngine | None = None,
    watched_since: datetime | None = None,
) -> dict[str, int]:
    """Compare everything once. Return how many requests of each kind were made.

    Args:
        watched_since: since when runs have followed each other without a gap. None: it
            is not known, and nobody gets a strike.
    """
    engine = engine or engines.engine_of(Node.Engine.SLURM)
    at, policy = whole_second(now), site_policy()
    begun = time.monotonic()
    try:
        view = engine.observe(now=at)
    except EngineAway as error:
        log.warning("Slurm is not asked for reservations: %s", error)
        return {AWAY: 1}
    done: Counter[str] = Counter()
    pks = to_reconcile()
    for pk in pks:
        if time.monotonic() - begun > MOST_SECONDS:
            break
        with isolated(log, "the hold of reservation %s is not reconciled", pk):
            if _name(pk) in view.used:
                done["checked_in"] += check_in(reservation_id=pk, now=at, by="job")
            did = _reconcile_one(pk, view, engine, at, policy, watched_since)
            done[did] += 1
            if did == AWAY:
                break
    # Each further request would lock the database until its time is over.
    if not done[AWAY]:
        with isolated(log, "holds without a reservation are not deleted"):
            names = {_name(pk) for pk in pks}
            done["strange"] += _release_strange(view, engine, names)
    del done[Step.NOTHING]
    return {str(name): count for name, count in done.items() if count}


@transaction.atomic(durable=True)
def _reconcile_one(
    pk: int,
    view: EngineView,
    engine: ReservationEngine,
    now: datetime,
    policy: Policy,
    watched_since: datetime | None,
) -> str:
    """Make the next request about one hold. Return what was done."""
    row = locks.load_reservation(pk, lock=True)
    engines.lock_engine()
    kept = EngineHold.objects.filter(pk=pk).first()
    seen = view.holds.get(_name(pk))
    facts = facts_of(row, kept, now=now, policy=policy)
    facts = replace(facts, watched_since=watched_since)
    step = next_step(facts, seen, seen_at=view.at, now=now)
    if step is Step.NOTHING:
        return step
    try:
        bounded = engine.within(engines.STEP_SECONDS)
        _carry_out(step, row, facts, seen, bounded, now)
    except EngineAway as error:
        engines.record_failure(row, str(error), now=now)
        return AWAY
    except EngineDeclined as error:
        before = kept.failure if kept else ""
        lost = facts.wanted
        if seen and lost and covers(seen, lost, now=now):
            lost = None
        return _declined(step, row, error, before, lost, now=now, policy=policy)
    return step


def _carry_out(
    step: Step,
    row: Reservation,
    facts: HoldFacts,
    seen: HoldInfo | None,
    engine: ReservationEngine,
    now: datetime,
) -> None:
    wanted = facts.wanted
    if step in (Step.NO_SHOW, Step.UNUSED) and wanted is not None:
        engine.check_rights()
        absent = wanted.start + timedelta(seconds=facts.idle_seconds)
        if row.state == State.ACTIVE and absent < row.end:
            reason = sentence("nobody came")
            if step is Step.UNUSED and wanted.is_part:
                reason = sentence("nothing ran in it in Slurm")
            elif step is Step.UNUSED:
                reason = sentence("Slurm ended it, because nothing ran in it")
            no_show = step is Step.NO_SHOW
            free_unused(
                reservation_id=row.pk, now=absent, reason=reason, no_show=no_show
            )
    elif step is Step.RESERVE and wanted is not None:
        engine.reserve(wanted, now=now, lost=facts.confirmed)
        engines.confirm(row, wanted.nodes, now=now)
    elif step is Step.CHANGE and wanted is not None and seen is not None:
        engine.change(wanted, seen=seen, now=now)
        engines.confirm(row, wanted.nodes, now=now)
    elif step is Step.FORGET:
        EngineHold.objects.filter(pk=row.pk).update(gone_at=now, failure="")
    elif step is Step.RELEASE or step is Step.STOP:
        holds = EngineHold.objects.filter(pk=row.pk)
        holds.filter(leaving_since=None).update(leaving_since=now)
        if step is Step.STOP:
            engine.stop(_name(row.pk))
        engine.release(_name(row.pk))
        holds.update(gone_at=now, failure="")
    elif step is Step.SHORTEN and seen is not None:
        engine.stop(seen.name)
        end = now + timedelta(seconds=SHORTENED_SECONDS)
        engine.change(replace(seen, end=end), seen=seen, now=now)


def _declined(
    step: Step,
    row: Reservation,
    error: EngineDeclined,
    before: str,
    lost: HoldInfo | None,
    *,
    now: datetime,
    policy: Policy,
) -> str:
    """Refund the holder if the nodes are lost. Otherwise the next run tries again.

    Args:
        before: why the request before failed; "": it did not.
        lost: what is not held. None: Slurm still holds all that was booked.
    """
    if error.answer is EngineAnswer.IN_USE:
        return "waits"
    again = stored_failure(str(error)) == before
    if not again:
        log.warning("reservation %s, %s: Slurm refuses it: %s", row.pk, step, error)
    engines.record_failure(row, str(error), now=now)
    if lost and _is_lost(step, error.answer, State(row.state), again=again):
        why = engines.refused_by(error, lost)
        refund(row, now=now, reason=why.text(), policy=policy)
        return "refunded"
    return "declined"


def _is_lost(step: Step, answer: EngineAnswer, state: State, *, again: bool) -> bool:
    """Return whether the holder cannot have the nodes any more.

    One refusal may be of a moment: a job that is ending, a controller that has not
    heard of its nodes since its start. Another reservation stays.

    Args:
        again: the request before was refused for the same reason.
    """
    if answer is EngineAnswer.DENIED:
        # Slurm may hold it still, and hide it from the portal.
        return False
    taken = answer in (EngineAnswer.TAKEN, EngineAnswer.BUSY, EngineAnswer.SHORT)
    if step is Step.RESERVE:
        return answer is EngineAnswer.TAKEN or (
            again and (taken or state is State.ACTIVE)
        )
    return step is Step.CHANGE and taken and again


@transaction.atomic(durable=True)
def _release_strange(
    view: EngineView, engine: ReservationEngine, known: Collection[str]
) -> int:
    """Release this site's idle holds that no reservation has, of bookings that were
    rolled back. Those in which jobs run stay, because they may be real bookings.

    Args:
        known: names of the holds that were reconciled.
    """
    if not strange_names(view.holds, known):
        return 0
    # A booking that is not committed yet holds this lock.
    engines.lock_engine()
    names = strange_names(view.holds, {*known, *map(_name, to_reconcile())})
    released = 0
    engine = engine.within(engines.STEP_SECONDS)
    for name in names:
        if view.running.get(name):
            continue
        try:
            engine.release(name)
        except EngineDeclined as error:
            if error.answer is not EngineAnswer.IN_USE:
                raise
            continue
        log.warning("%s is released: no reservation has it", name)
        released += 1
    return released


def _name(pk: int) -> str:
    return hold_name(settings.SLURM_SITE, pk)
