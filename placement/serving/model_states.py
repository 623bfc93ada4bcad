"""The states of served models as nodes report them, and notices about failures.

Every two seconds a node asks for its list of models and reports their states. If the
reports stop or a model cannot be loaded, the owners of the model and of the endpoint
are notified once.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import F, Q
from django.db.models.functions import Coalesce

from placement.jobs.job_notices import notify_model_owners
from placement.models import Endpoint, ServedModel
from placement.protocol.job_lifecycle import JobState
from reservations.rules.lifecycle import State
from telemetry.protocol.sentences import sentence

STATES = ("loading", "ready", "failed")
SILENT = timedelta(seconds=45)
"""After this long without a report an endpoint counts as down."""
MOST_TOLD = 32
MOST_ROWS = 200


def record(endpoint: Endpoint, said: object, now: datetime) -> int:
    """Store a node's report on an endpoint's models. Return how many rows changed.

    Nodes are not trusted: rows of other endpoints and unknown states are ignored.
    """
    Endpoint.objects.filter(pk=endpoint.pk).update(heard_at=now)
    rows = {row.pk: row for row in endpoint.models.filter(removed_at=None)}
    changed = 0
    for one in said[:MOST_TOLD] if isinstance(said, list) else ():
        known = one.get("id") if isinstance(one, Mapping) else None
        row = rows.get(known) if type(known) is int else None
        if row is not None:
            changed += _save_state(row, one, now)
    return changed


def _save_state(row: ServedModel, said: Mapping[str, Any], now: datetime) -> bool:
    """Store one model's state, and notify its owner of a failure."""
    state = said.get("state")
    note = "".join(c for c in str(said.get("note") or "") if c.isprintable())[:300]
    if state not in STATES or (row.state, row.note) == (state, note):
        return False
    ready_at = row.ready_at or (now if state == "ready" else None)
    with transaction.atomic():
        taken = ServedModel.objects.filter(pk=row.pk, state=row.state).update(
            state=state, note=note, ready_at=ready_at
        )
        if taken and state == "failed":
            job = row.endpoint.job
            notify_model_owners(
                job,
                [row],
                sentence(
                    "Model {model} of “{job}” cannot be served: {why}.",
                    model=row.name,
                    job=job.name,
                    why=note or sentence("it does not load"),
                ),
                key=f"served:{row.pk}:failed",
                now=now,
            )
    return bool(taken)


def silent(now: datetime) -> Iterable[Endpoint]:
    """Return endpoints that should run but whose nodes report nothing."""
    heard = Coalesce(F("heard_at"), F("job__started_at"))
    rows = Endpoint.objects.annotate(last_at=heard).select_related(
        "job__owner", "job__node", "job__reservation"
    )
    return rows.filter(
        ~Q(successors__took_over_at__isnull=False),
        job__state=JobState.RUNNING,
        job__reservation__state=State.ACTIVE,
        last_at__lt=now - SILENT,
    ).order_by("pk")[:MOST_ROWS]


def notify_of_silence(endpoint: Endpoint, now: datetime) -> bool:
    """Notify the owners of silent models once per silence. False: sent before."""
    job, last = endpoint.job, endpoint.heard_at or endpoint.job.started_at
    assert last is not None
    with transaction.atomic():
        return notify_model_owners(
            job,
            endpoint.models.filter(removed_at=None).select_related("added_by"),
            sentence(
                "“{job}” on {node} has not answered for {total} s.",
                job=job.name,
                node=job.node.name,
                total=f"{(now - last).total_seconds():.0f}",
            ),
            key=f"serve:{endpoint.pk}:{last.isoformat()}",
            now=now,
        )
