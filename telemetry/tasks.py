"""Telemetry's tick: the work of each minute."""

import logging
import time
from collections.abc import Callable
from datetime import datetime

import redis
from celery import shared_task
from django.conf import settings
from django.db import close_old_connections
from django.utils import timezone

from telemetry.alerts.service import (
    close_unseen_alerts,
    judge_channels,
    judge_refused,
    mark_silent_nodes,
)
from telemetry.history.hourly_rollup import prune_hours, roll_hours
from telemetry.history.minute_store import prune_minutes
from telemetry.history.stored_usage import fill_summaries
from telemetry.inventory import broker_log
from telemetry.inventory.xid_counts import judge_xids
from telemetry.live.broadcast import CALENDAR_CHANGED, FRAME_LATEST
from telemetry.live.broker_turn import turn
from telemetry.models import TelemetryPolicy
from telemetry.protocol.errors import FrameRefused
from telemetry.protocol.frame import decode
from telemetry.rules.finding_rules import UNSEEN_SECONDS
from telemetry.rules.isolated_steps import isolated
from telemetry.slurm.service import read_cluster
from telemetry.slurm.slurm_commands import SlurmCommands

BLIND_AFTER_SECONDS = 30.0
"""Without a frame for this time ingest is not running."""

SLURM_TURN = "telemetry.slurm.turn"
"""Key in the broker of the process that reads Slurm now."""
SLURM_TURN_SECONDS = 60
"""Longer than all of Slurm's commands together may take."""

logger = logging.getLogger(__name__)


def sees(now: float) -> bool:
    """Return whether ingest works. While it does not, silence is not the fault of a
    node.
    """
    with redis.Redis.from_url(settings.REDIS_URL, socket_timeout=5) as client:
        data = client.get(FRAME_LATEST)
    if not isinstance(data, bytes):
        return False
    try:
        return now - decode(data).server_at < BLIND_AFTER_SECONDS
    except FrameRefused:
        return False


@shared_task(name="telemetry.tasks.tick")
def tick() -> dict[str, int]:
    """Run each step. A step that fails is logged and does not stop the next.

    1. close Alerts whose finder no longer sees their cause
    2. open Alerts for nodes that are silent for long, and close them; the same
       for XIDs, which are over some time after the last one, for nodes that
       cannot show themselves to the web, and for nodes that the broker refuses
    3. roll up the hours that are over and have new minutes
    4. fill in the summaries of what has ended
    5. delete what is older than its tier is kept

    Safe to run twice and at the same time: every step is a compare-and-set, or counts
    the same again. Steps 1 and 2 wait while ingest is down, because then nothing is
    known.
    """
    now = timezone.now()
    close_old_connections()
    done: dict[str, int] = {}
    steps: list[tuple[str, Callable[[datetime], int]]] = [
        ("hours_rolled", _roll_up),
        ("summaries_filled", _fill),
        ("minutes_deleted", _prune),
        ("hours_deleted", _prune_hours),
    ]
    if sees(time.time()):
        steps = [
            ("alerts_closed", _close),
            ("nodes_silent", _mark),
            ("channels_judged", _judge_channels),
            ("refusals_judged", _judge_refused),
            ("xids_judged", _judge_xids),
            *steps,
        ]
    for name, step in steps:
        with isolated(logger, "telemetry tick: %s failed", name):
            done[name] = step(now)
    return done


def _close(now: datetime) -> int:
    return close_unseen_alerts(now=now, unseen_seconds=UNSEEN_SECONDS)


def _judge_xids(now: datetime) -> int:
    return judge_xids(now=now)


def _mark(now: datetime) -> int:
    opened, _closed = mark_silent_nodes(now=now)
    return opened


def _judge_channels(now: datetime) -> int:
    opened, _closed = judge_channels(now=now)
    return opened


def _judge_refused(now: datetime) -> int:
    refused = broker_log.refused_nodes()
    opened, _closed = judge_refused(refused=refused, now=now)
    return opened


def _prune(now: datetime) -> int:
    kept = TelemetryPolicy.current().to_keeping()
    return prune_minutes(now=now, keep_days=kept.keep_minute_days)


def _roll_up(now: datetime) -> int:
    return roll_hours(now=now)


def _fill(now: datetime) -> int:
    return fill_summaries(now=now)


def _prune_hours(now: datetime) -> int:
    kept = TelemetryPolicy.current().to_keeping()
    return prune_hours(now=now, keep_days=kept.keep_hour_days)


@shared_task(name="telemetry.tasks.read_slurm")
def read_slurm() -> dict[str, int]:
    """Read the Slurm cluster of `SLURM_CLUSTER`, and tell open boards what changed.

    It is the only reader: however many boards are open, the controller gets four
    requests in 15 seconds. A reading that is due while another one runs is left out.
    """
    if not settings.SLURM_CLUSTER:
        return {}
    close_old_connections()
    with (
        redis.Redis.from_url(settings.REDIS_URL, socket_timeout=5) as client,
        turn(SLURM_TURN, seconds=SLURM_TURN_SECONDS, client=client) as mine,
    ):
        if not mine:
            return {}
        commands = SlurmCommands(conf=settings.SLURM_CONF, folder=settings.SLURM_FOLDER)
        changes = read_cluster(settings.SLURM_CLUSTER, commands)
        if changes.changed:
            client.publish(CALENDAR_CHANGED, b"")
    return {"slurm_nodes": changes.nodes, "slurm_gpus_changed": changes.changed}
