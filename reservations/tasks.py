"""Tasks that beat sends: the tick every second, deliveries every few seconds."""

from datetime import UTC, datetime
from typing import Any

from celery import shared_task
from django.utils import timezone

from reservations import tick as tick_service
from reservations.accounts.tasks import (
    invite,
    mail_address_notice,
    mail_lock_notice,
    mail_password_link,
    mail_password_notice,
)
from reservations.booking import refusals
from reservations.engines.bound_cards import bind_cards
from reservations.engines.queries import is_reconciled
from reservations.fairshare.tasks import import_slurm
from reservations.models import RequestKey
from reservations.notifications import delivery
from reservations.presence import engine_reconciliation
from reservations.reports import service as reports
from reservations.reports.replay.tasks import replay_past
from reservations.rules.window import whole_second
from reservations.store import usage
from reservations.store.booking_facts import site_policy
from reservations.waitlist import scheduler
from telemetry.live.broker_client import BROKER
from telemetry.live.broker_turn import turn

# Celery finds the tasks in this module, including those of capabilities.
__all__ = [
    "deliver",
    "import_slurm",
    "invite",
    "mail_address_notice",
    "mail_lock_notice",
    "mail_password_link",
    "mail_password_notice",
    "place",
    "reconcile_engine",
    "replay_past",
    "roll_months",
    "store_usage",
    "tick",
]

DELIVERING = "reservations.delivering"
DELIVERING_SECONDS = 60
"""Longer than a run: `delivery.RUN_SECONDS` and one message's timeouts."""

RECONCILING = "reservations.reconciling"
WATCHED = "reservations.engine-watched"
WATCHED_SECONDS = 90
"""A longer time between two looks at Slurm is a gap: somebody may have come in it."""
RECONCILING_SECONDS = 120
"""Longer than a run of `engine_reconciliation.MOST_SECONDS`, and one command."""

PLACING = "reservations.placing"
PLACING_RESTS = 3
"""A run of 2 s is followed by a pause of 6 s: at most a quarter of one process."""
PLACING_SECONDS = 60
"""Longer than a run: `placing.BUSY_SECONDS`, and one more run."""


@shared_task(name="reservations.tasks.tick")  # type: ignore[untyped-decorator]
def tick() -> dict[str, int]:
    """Run the calendar's tick (see ``tick`` for its steps)."""
    return tick_service.tick(timezone.now(), waitlist=False)


@shared_task(name="reservations.tasks.place")  # type: ignore[untyped-decorator]
def place() -> dict[str, int]:
    """Process the waitlist, in one process of the worker at a time.

    The database orders the placements. The mark in the broker only keeps the other
    process free for the ticks.
    """
    with turn(PLACING, seconds=PLACING_SECONDS, rests=PLACING_RESTS) as mine:
        if not mine:
            return {}
        return scheduler.place(whole_second(timezone.now()), site_policy())


@shared_task(name="reservations.tasks.deliver")  # type: ignore[untyped-decorator]
def deliver() -> dict[str, int]:
    """Send Notices by mail and webhook, in one process of the worker at a time.

    Other servers are slow, and the ticks need the other process. Rows are claimed in
    the database. The mark in the broker only keeps the other process free.
    """
    with turn(DELIVERING, seconds=DELIVERING_SECONDS) as mine:
        return delivery.due(now=timezone.now()) if mine else {}


@shared_task(name="reservations.tasks.reconcile_engine")  # type: ignore[untyped-decorator]
def reconcile_engine() -> dict[str, int]:
    """Compare the reservations on nodes of Slurm with what Slurm holds, in one process
    at a time.

    Slurm may be slow, and the ticks need the other process. The rows are locked in the
    database. The mark in the broker only keeps the other process free.
    """
    if not is_reconciled():
        return {}
    with turn(RECONCILING, seconds=RECONCILING_SECONDS) as mine:
        if not mine:
            return {}
        now = timezone.now()
        since: Any = BROKER.get(WATCHED)
        watched = datetime.fromtimestamp(float(since), UTC) if since else now
        done = engine_reconciliation.reconcile(now, watched_since=watched)
        if bound := bind_cards(now, site_policy()):
            done["bound"] = bound
        if engine_reconciliation.AWAY not in done:
            BROKER.set(WATCHED, watched.timestamp(), ex=WATCHED_SECONDS)
        return done


@shared_task(name="reservations.tasks.roll_months")  # type: ignore[untyped-decorator]
def roll_months() -> int:
    """Sum the months that are due, for the reports.

    This also deletes old refusals, deliveries that ended long ago, and old answers of
    ``Idempotency-Key``.
    """
    RequestKey.objects.old(timezone.now()).delete()
    refusals.forget_old(timezone.now())
    delivery.forget_old(timezone.now())
    return reports.roll_months(timezone.now())


@shared_task(name="reservations.tasks.store_usage")  # type: ignore[untyped-decorator]
def store_usage() -> bool:
    """Store the sums of a large ledger, for new processes."""
    return usage.store_usage(timezone.now(), site_policy())
