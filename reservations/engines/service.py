"""Ask the engine of a node to hold it, inside the transaction of a booking.

A booking asks Slurm last, under its own locks. If Slurm refuses, the transaction is
rolled back and nothing is written. If the transaction fails after that, Slurm has a
hold that no reservation knows, and the next reconciliation deletes it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta

from django.conf import settings
from django.db import connection

from reservations.engines.engine_port import (
    EngineAnswer,
    EngineAway,
    EngineDeclined,
    HoldInfo,
    PortalEngine,
    ReservationEngine,
)
from reservations.engines.engine_refusals import (
    EngineRefused,
    SameNumberNeeded,
    WholeNodeNeeded,
)
from reservations.engines.queries import (
    closed_nodes,
    cluster_is_silent,
    engine_nodes_named,
    facts_of,
    held_gpus,
    names_of_nodes,
)
from reservations.engines.rehearsed_engine import RehearsedEngine
from reservations.engines.rules import HoldFacts, meets
from reservations.engines.slurm_engine import SlurmEngine
from reservations.models import EngineHold, Reservation, User
from reservations.models.engine_hold import stored_failure
from reservations.rules.calendar import CalendarGpu
from reservations.rules.engine_names import UNIX_USER, hold_name
from reservations.rules.errors import Refusal
from reservations.rules.policy import Policy
from telemetry.models import Node
from telemetry.rules.slurm_use import SlurmUse
from telemetry.slurm.slurm_commands import SlurmCommands

STEP_SECONDS = 8.0
"""All requests about one hold, under locks, take so long at most."""
log = logging.getLogger(__name__)


def engine_of(name: str) -> ReservationEngine:
    """Return an engine by its name, a value of ``Node.Engine``; "": the portal."""
    if name == Node.Engine.SLURM:
        commands = SlurmCommands(conf=settings.SLURM_CONF, folder=settings.SLURM_FOLDER)
        return SlurmEngine(commands, settings.SLURM_SITE)
    return PortalEngine()


def refusal_of(
    gpus: Sequence[CalendarGpu],
    user: User,
    *,
    start: datetime | None,
    now: datetime,
) -> Refusal | None:
    """Return why these Gpus cannot be booked in their engine, without asking it.

    None: it may be asked, or they are the portal's own.

    Args:
        start: of the booking. None: the engine holds them already, so that a node that
            was closed since is no reason.
    """
    held = [gpu for gpu in gpus if engine_of(gpu.engine).capabilities().holds]
    if not held:
        return None
    names = sorted({gpu.node for gpu in held})
    words = ", ".join(names)
    chosen = {gpu.pk for gpu in held}
    if refused := _part_refusal(names, chosen) or search_refusal(words, user):
        return refused
    if start is not None and start <= now and (closed := closed_nodes(names)):
        node, (use, why) = min(closed.items())
        # Slurm gives no reason before a node reports after a restart of slurmctld.
        cause = "closed" if why or use is SlurmUse.CLOSED else "unreported"
        return EngineRefused(cause, node, why or "-")
    return None


def search_refusal(nodes: str, user: User) -> EngineRefused | None:
    """Return why a User is given no Gpus of these nodes of Slurm, at any time."""
    if not UNIX_USER.fullmatch(user.unix_user):
        return EngineRefused("no-login", nodes)
    return EngineRefused("away", nodes) if cluster_is_silent() else None


def rehearsal_of(gpu_ids: Iterable[int], *, now: datetime) -> ReservationEngine | None:
    """Ask the engine of these Gpus once, and return one that answers from that.

    Call it outside of a transaction. None: they are the portal's own.
    """
    if not names_of_nodes(gpu_ids):
        return None
    engine = engine_of(Node.Engine.SLURM)
    able = engine.capabilities()
    if cluster_is_silent():
        return RehearsedEngine(able, None, "it did not answer before")
    try:
        view = engine.within(STEP_SECONDS).observe(now=now)
    except EngineAway as error:
        return RehearsedEngine(able, None, str(error))
    return RehearsedEngine(able, view)


def engine_for_many(
    gpu_ids: Iterable[int], *, now: datetime
) -> ReservationEngine | None:
    """Return the engine for many bookings in one transaction, which asks for them all
    within `STEP_SECONDS` together.

    Call it outside of a transaction: it looks first whether the engine answers. If not,
    nobody is asked while the database is locked. None: the Gpus are the portal's own.
    """
    rehearsal = rehearsal_of(gpu_ids, now=now)
    if isinstance(rehearsal, RehearsedEngine) and rehearsal.view is None:
        return rehearsal
    return None if rehearsal is None else engine_of(Node.Engine.SLURM)


def hold(
    row: Reservation,
    gpus: Sequence[CalendarGpu],
    *,
    now: datetime,
    policy: Policy,
    engine: ReservationEngine | None = None,
) -> None:
    """Have the engine hold a Reservation as it is now. Call it last in a transaction.

    Does nothing for the portal's own Gpus, and for flex that may still be taken.

    Args:
        engine: one whose time is limited, for many bookings. None: the engine of the
            Gpus, for `STEP_SECONDS`.

    Raises:
        Refusal: the engine refuses it, or does not answer.
    """
    own = _engine_for(gpus)
    if own is None:
        # If it moved to other nodes, the reconciliation gives those of Slurm back.
        return
    kept = EngineHold.objects.filter(pk=row.pk).first()
    start = None if kept else row.start
    refused = refusal_of(gpus, row.user, start=start, now=now)
    if refused is not None:
        raise refused
    lock_engine()
    facts = facts_of(row, kept, now=now, policy=policy)
    if facts.wanted is None:
        return
    words = ", ".join(facts.wanted.nodes)
    engine = engine or own.within(STEP_SECONDS)
    try:
        _give_back_first(facts, engine, now=now)
        seen = engine.observe(now=now).holds.get(facts.wanted.name) if kept else None
        if seen is None:
            engine.reserve(facts.wanted, now=now)
        else:
            engine.change(facts.wanted, seen=seen, now=now)
    except EngineAway as error:
        log.warning("reservation %s is not held in Slurm: %s", row.pk, error)
        raise EngineRefused("away", words) from error
    except EngineDeclined as error:
        log.info("reservation %s is refused by Slurm: %s", row.pk, error)
        raise refused_by(error, facts.wanted) from error
    confirm(row, facts.wanted.nodes, now=now)


def confirm(row: Reservation, nodes: Sequence[str], *, now: datetime) -> None:
    """Store that the engine holds these nodes."""
    kept = EngineHold.objects.filter(pk=row.pk).first() or EngineHold(reservation=row)
    kept.nodes, kept.asked_at, kept.failure = list(nodes), now, ""
    kept.confirmed_at = kept.confirmed_at or now
    kept.leaving_since = kept.gone_at = None
    kept.save()


def record_failure(row: Reservation, why: str, *, now: datetime) -> None:
    """Store why a request about a hold failed."""
    kept = EngineHold.objects.filter(pk=row.pk).first() or EngineHold(reservation=row)
    kept.failure, kept.asked_at = stored_failure(why), now
    kept.save()


def lock_engine() -> None:
    """Lock the nodes of Slurm, so that one process at a time changes what it holds.

    Call it in a transaction, after all other locks (``store.locks``).
    """
    if connection.features.has_select_for_update:
        rows = Node.objects.filter(engine=Node.Engine.SLURM).order_by("pk")
        list(rows.select_for_update(no_key=True).values_list("pk"))


def belongs_to_other_engine(row: Reservation) -> bool:
    """Return whether a Reservation has GPUs that the portal does not give out."""
    other = row.allocations.exclude(gpu__node__engine=Node.Engine.PORTAL)
    return other.exists()


def refused_by(error: EngineDeclined, wanted: HoldInfo) -> EngineRefused:
    """Return why the engine refuses a hold, in the portal's words."""
    return EngineRefused(
        error.answer,
        ", ".join(wanted.nodes),
        str(error),
        asked_gpus=wanted.gpus_each,
        all_gpus=wanted.of_each,
        held_gpus=error.held_gpus,
    )


def check_parts(gpu_ids: Iterable[int]) -> None:
    """Refuse Gpus that the engine cannot hold together.

    Raises:
        WholeNodeNeeded: some Gpus of a node are missing that is given out as a whole.
        SameNumberNeeded: the number or the type is another on each node.
    """
    chosen = set(gpu_ids)
    if refused := _part_refusal(names_of_nodes(chosen), chosen):
        raise refused


def _part_refusal(
    names: Collection[str], chosen: Collection[int]
) -> WholeNodeNeeded | SameNumberNeeded | None:
    nodes = engine_nodes_named(names).values()
    parts = [one for one in nodes if one.gpus.keys() - set(chosen)]
    for one in parts:
        if one.cpus is None:
            missing = [name for pk, name in one.gpus.items() if pk not in chosen]
            return WholeNodeNeeded(
                node=one.name,
                missing=", ".join(missing),
                gpu_ids=tuple(one.gpus),
                because=one.whole_because,
            )
    # Whole nodes need no number.
    if parts and not held_gpus(frozenset(chosen))[0]:
        counts = ((one.name, len(one.gpus.keys() & set(chosen))) for one in nodes)
        return SameNumberNeeded(tuple(counts))
    return None


def _give_back_first(
    facts: HoldFacts, engine: ReservationEngine, *, now: datetime
) -> None:
    """Release the holds in the way of a new one whose Reservation is over.

    The reconciliation would do so within seconds, but the next booking is now. Jobs get
    their grace here, too.

    Raises:
        EngineRefused: jobs of the former holder still run.
        EngineAway, EngineDeclined.
    """
    wanted = facts.wanted
    rows = EngineHold.objects.filter(gone_at=None).exclude(
        reservation__in=Reservation.objects.live()
    )
    over = [old for old in rows if wanted and set(old.nodes) & set(wanted.nodes)]
    if not over:
        return
    holds = engine.observe(now=now).holds
    for old in over:
        name = hold_name(settings.SLURM_SITE, old.pk)
        seen = holds.get(name)
        if seen is None or wanted is None or not meets(seen, wanted):
            continue
        try:
            engine.release(name)
        except EngineDeclined as error:
            if error.answer is not EngineAnswer.IN_USE:
                raise
            if wanted.is_part:
                continue  # other GPUs of the node may be free
            if old.leaving_since and now >= old.leaving_since + timedelta(
                seconds=facts.grace_seconds
            ):
                engine.stop(name)
            raise EngineRefused("leaving", ", ".join(old.nodes)) from error


def _engine_for(gpus: Sequence[CalendarGpu]) -> ReservationEngine | None:
    """Return the engine that has to be told of a booking. None: nobody has."""
    for gpu in gpus:
        engine = engine_of(gpu.engine)
        if engine.capabilities().holds:
            return engine
    return None
