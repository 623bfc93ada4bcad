"""Respond to intruders: warn and stop their processes, step by step.

Runs on a thread of the leading ingest. Each look decides again from the newest sample
(reservations/presence/intruder_escalation.py). A step is recorded and audited before it
is taken, so that none is taken twice or without a record. In a dry run, with which
every pool begins, nothing else happens.
"""

import logging
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from django.db import close_old_connections, transaction
from django.utils import timezone

from gpuportal.alerts.broken_gpus import judge_broken
from gpuportal.alerts.calendar_judge import (
    CalendarJudge,
    HoldingsPicture,
    IntruderScene,
)
from placement.device_gate import service as device_gate
from placement.jobs.nodes import event_intake
from placement.jobs.nodes.command_queue import new_nonce, send_process_order
from placement.protocol.device_grants import is_gate_fact
from placement.protocol.node_refusals import FactRefused, OrderRefused
from placement.protocol.process_commands import (
    ProcessOrder,
    ProcessOrderKind,
    is_process_fact,
    parse_process_fact,
)
from reservations.models import SitePolicy
from reservations.presence.intruder_escalation import (
    EscalationCase,
    EscalationStep,
    Suspect,
    next_step,
)
from reservations.rules.booking_alerts import INTRUDER
from reservations.store.audit_log import audit_act
from telemetry.alerts.process_responses import (
    NO_ANSWER,
    finish_response,
    give_up_responses,
    note_response,
    take_back_response,
)
from telemetry.models import Alert, Gpu, Pool, Response
from telemetry.rules.command_line import short_command
from telemetry.rules.isolated_steps import isolated

STEP_SECONDS = 2.0
BROKEN_SECONDS = 15.0
ORDER_SECONDS = 60.0
"""A command that a node did not read by then expires."""
ANSWER_SECONDS = 120.0
"""Time from a command's expiry and grace to giving up on its answer."""
SENT = {
    EscalationStep.WARN: ProcessOrderKind.WARN,
    EscalationStep.STOP: ProcessOrderKind.STOP,
}

logger = logging.getLogger(__name__)


class Responder:
    """Looks at every intruder that the judge found, every two seconds."""

    def __init__(self, judge: CalendarJudge, *, leads: Callable[[], bool]) -> None:
        self._judge = judge
        self._leads = leads
        self._broken_at: datetime | None = None

    def run(self, stop: threading.Event) -> None:
        """Work until `stop`. Failures are logged, and the next look tries again."""
        while not stop.wait(STEP_SECONDS):
            if not self._leads():
                continue
            close_old_connections()
            with isolated(logger, "intruders are not looked at"):
                self.run_round(timezone.now())
        close_old_connections()

    def run_round(self, now: datetime) -> int:
        """Look once. Return how many steps were taken."""
        if self._broken_at is None or now - self._broken_at >= timedelta(
            seconds=BROKEN_SECONDS
        ):
            self._broken_at = now
            judge_broken(now)
            self._close_unanswered(now)
        scenes = {scene.gpu_id: scene for scene in self._judge.scenes()}
        picture = self._judge.picture
        if not scenes or picture is None:
            return 0
        alerts = Alert.objects.open().filter(rule=INTRUDER, gpu__in=scenes)
        taken = 0
        for alert in alerts.select_related("gpu__pool", "gpu__node"):
            assert alert.gpu_id is not None
            taken += self._escalate(alert, scenes[alert.gpu_id], picture, now)
        return taken

    def _escalate(
        self,
        alert: Alert,
        scene: IntruderScene,
        picture: HoldingsPicture,
        now: datetime,
    ) -> int:
        assert alert.gpu is not None
        pool = alert.gpu.pool
        if pool.response == Pool.Response.OBSERVE:
            return 0
        if alert.reservation_id != scene.holding.reservation_pk:
            return 0  # the finding belongs to the previous holder: wait for a new one
        steps = list(
            alert.responses.filter(dry_run=pool.response_dry_run).values_list(
                "pid", "process_started_at", "step", "at"
            )
        )
        taken = 0
        for suspect in scene.suspects:
            one = (suspect.process.pid, suspect.process.started_at)
            case = EscalationCase(
                suspect=suspect,
                holding=scene.holding,
                reach=pool.response,
                age_seconds=(now - scene.arrived_at).total_seconds(),
                stood_seconds=(now - alert.opened_at).total_seconds(),
                done={
                    EscalationStep(step): (now - at).total_seconds()
                    for pid, started_at, step, at in steps
                    if (pid, started_at) == one
                },
                settled=alert.acknowledged_at is not None or alert.snoozed(now),
            )
            step = next_step(case, owners=picture.owners, policy=picture.policy.judge)
            if step is not None:
                taken += take_step(alert, scene, suspect, step, now=now)
        return taken

    def _close_unanswered(self, now: datetime) -> None:
        grace = SitePolicy.current().stop_grace_seconds
        after = ORDER_SECONDS + grace + ANSWER_SECONDS
        for row in give_up_responses(now=now, after_seconds=after):
            _audit(row, NO_ANSWER, now=now)


def take_step(
    alert: Alert,
    scene: IntruderScene,
    suspect: Suspect,
    step: EscalationStep,
    *,
    now: datetime,
) -> bool:
    """Record, audit and take one step. Return False if it was taken before or not
    sent."""
    assert alert.gpu is not None
    process, dry_run = suspect.process, alert.gpu.pool.response_dry_run
    assert process.uid is not None and process.started_at is not None
    nonce = new_nonce() if step in SENT and not dry_run else ""
    with transaction.atomic():
        row = note_response(
            alert=alert,
            step=step.value,
            pid=process.pid,
            process_started_at=process.started_at,
            uid=process.uid,
            login=process.user or "",
            user_id=suspect.owner if isinstance(suspect.owner, int) else None,
            dry_run=dry_run,
            nonce=nonce,
            now=now,
        )
        if row is None:
            return False
        word = "dry-run" if dry_run else "ordered" if nonce else "done"
        _audit(
            row,
            word,
            now=now,
            command=short_command(process.command),
            samples=suspect.samples,
            holder=scene.holding.username,
        )
    if not nonce or _send(row, alert.gpu, scene, now):
        return True
    _audit(row, "not sent", now=now)
    take_back_response(response_id=row.pk)
    return False


def _send(row: Response, gpu: Gpu, scene: IntruderScene, now: datetime) -> bool:
    issued_at = now.timestamp()
    try:
        order = ProcessOrder(
            kind=SENT[EscalationStep(row.step)],
            node=gpu.node.name,
            nonce=row.nonce,
            issued_at=issued_at,
            expires_at=issued_at + ORDER_SECONDS,
            pid=row.pid,
            uid=row.uid,
            started_at=row.process_started_at,
            gpu_uuid=gpu.uuid,
            grace_seconds=float(SitePolicy.current().stop_grace_seconds),
            text=warning(row, gpu, scene) if row.step == EscalationStep.WARN else "",
        )
    except OrderRefused as refusal:
        # For example a scripted process of a simulated Gpu, which no signal reaches.
        finish_response(
            node_name=gpu.node.name,
            nonce=row.nonce,
            outcome="refused",
            reason=refusal.detail,
            now=now,
        )
        _audit(row, "refused", now=now, why=refusal.detail)
        return True
    return send_process_order(order, now=now)


def warning(row: Response, gpu: Gpu, scene: IntruderScene) -> str:
    """Return the text for the intruder's terminal. Names follow the site's setting."""
    holding = scene.holding
    end = timezone.localtime(holding.end)
    named = SitePolicy.current().names_visible
    who = holding.username if named else f"a member of {holding.account}"
    after = (
        ""
        if gpu.pool.response != Pool.Response.STOP
        else (" If it stays, the portal stops it.")
    )
    return (
        f"GPU Portal: your process {row.pid} runs on {gpu}, which {who} has booked "
        f"until {end:%a %H:%M}. End it, and book a GPU of your own.{after}"
    )


def _audit(row: Response, word: str, *, now: datetime, **more: Any) -> None:
    audit_act(
        verb=f"response.{row.step}.{word.replace(' ', '-')}",
        subject=f"alert:{row.alert_id}",
        actor=None,
        now=now,
        reason=f"{row.alert.words} on {row.alert.place}",
        pid=row.pid,
        uid=row.uid,
        login=row.login,
        process_started_at=row.process_started_at,
        dry_run=row.dry_run,
        **more,
    )


# --- reports of nodes
# -------------------------------------------------------------------


def record_fact(node_name: str, fact: dict[str, Any], now: datetime) -> bool:
    """Process one message of ``facts.<node_name>``. Placement handles those of Jobs
    and of the device gate."""
    if is_gate_fact(fact):
        return device_gate.record_fact(node_name, fact, now)
    if not is_process_fact(fact):
        return event_intake.record_fact(node_name, fact, now)
    try:
        said = parse_process_fact(fact)
    except FactRefused as refusal:
        logger.warning("fact of %s refused: %s", node_name, refusal)
        return False
    with transaction.atomic():
        row = finish_response(
            node_name=node_name,
            nonce=said.nonce,
            outcome=said.outcome.value,
            reason=said.reason,
            now=now,
        )
        if row is None:
            logger.warning("%s answers an order that nobody waits for", node_name)
            return False
        _audit(row, said.outcome.value, now=now, why=said.reason)
    return True
