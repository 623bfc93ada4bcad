"""Responses to processes of intruders, and their results."""

from datetime import datetime, timedelta

from django.db import IntegrityError, transaction

from telemetry.live import broadcast
from telemetry.models import Alert, Response

NO_ANSWER = "no answer"


def note_response(
    *,
    alert: Alert,
    step: str,
    pid: int,
    process_started_at: float,
    uid: int,
    login: str,
    user_id: int | None,
    dry_run: bool,
    nonce: str,
    now: datetime,
) -> Response | None:
    """Record a response before it is taken. None: another process recorded it first."""
    try:
        with transaction.atomic():
            made = Response.objects.create(
                alert=alert,
                step=step,
                pid=pid,
                process_started_at=process_started_at,
                uid=uid,
                login=login[:64],
                user_id=user_id,
                dry_run=dry_run,
                nonce=nonce,
                at=now,
            )
    except IntegrityError:
        return None
    broadcast.announce_alerts()
    return made


def take_back_response(*, response_id: int) -> None:
    """Delete a response that could not be sent, so that it is tried again later."""
    Response.objects.filter(pk=response_id, outcome="").delete()


def finish_response(
    *, node_name: str, nonce: str, outcome: str, reason: str, now: datetime
) -> Response | None:
    """Record a node's report about its command. None: no such command waits."""
    waiting = Response.objects.filter(
        nonce=nonce, outcome="", alert__gpu__node__name=node_name, dry_run=False
    ).exclude(nonce="")
    changed = waiting.update(
        outcome=outcome[:20], outcome_reason=reason[:300], outcome_at=now
    )
    if not changed:
        return None
    broadcast.announce_alerts()
    return Response.objects.select_related("alert__gpu__node").get(nonce=nonce)


def give_up_responses(*, now: datetime, after_seconds: float) -> list[Response]:
    """Mark commands that no node answered for so long, and return them."""
    limit = now - timedelta(seconds=after_seconds)
    silent = Response.objects.filter(outcome="", dry_run=False, at__lt=limit)
    given_up = []
    for row in silent.exclude(nonce="").select_related("alert__gpu__node"):
        mine = Response.objects.filter(pk=row.pk, outcome="")
        if mine.update(outcome=NO_ANSWER, outcome_at=now):
            given_up.append(row)
    return given_up
