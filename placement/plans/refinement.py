"""Refinements: symbolic Estimates that a worker computes, stored by content.

The plan page shows the closed form at once and requests the refinement. The same
request of another person is answered from the table. A row changes by compare-and-set,
so two workers never compute the same case, and the work of a dead worker is taken over.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from django.db import transaction
from django.db.models import F, OuterRef, Subquery

from placement.jobs import job_broadcast
from placement.models import Refinement, RegisteredModel
from placement.planner.model.well_known import WELL_KNOWN
from placement.planner.symbolic import child_process
from placement.planner.symbolic.case import Adapter, Case, of_workload
from placement.planner.symbolic.torch_check import torch_installed
from placement.planner.values.errors import BadInput, SpecInvalid
from placement.planner.values.workload import Workload
from reservations.models import User
from reservations.rules.errors import NotFound
from telemetry.protocol.coded_error import CodedError
from telemetry.protocol.sentences import sentence

ANSWERS_VERSION = 1
"""Increased when the same case may get another answer."""
MOST_KEPT = 2000
MOST_OPEN_PER_USER = 3
LIMIT_SECONDS = 90.0
"""Wall time of one child, including its imports."""
STALE_SECONDS = 150
"""A row that runs for longer has lost its worker. A waiting one has lost its
message.
"""
State = Refinement.State


def refine(
    *,
    user: User,
    well_known: str,
    model_id: int | None,
    workload: Workload,
    replicas: int = 1,
    adapter: Adapter | None = None,
    now: datetime,
) -> tuple[Refinement, bool]:
    """Return the Refinement of a model and Workload, and whether it must be sent.

    Args:
        user: the requesting User. They may name a well-known model or their upload.
        adapter: LoRA on the frozen model; None: all parameters are trained.
        now: aware UTC.

    Raises:
        SpecInvalid: no such model, no code for it, or no symbolic form.
        BadInput: this User has too many open ones, or torch is missing.
    """
    if not torch_installed():
        detail = sentence(
            "this portal has no torch to follow a model with: closed form only"
        )
        raise BadInput({"refine": detail})
    config = config_of(user, well_known, model_id)
    case = of_workload({"config": config}, {}, workload, replicas=replicas)
    return ask(replace(case, adapter=adapter), user=user, now=now)


def ask(case: Case, *, user: User, now: datetime) -> tuple[Refinement, bool]:
    """Return the Refinement of a Case, and whether it must be sent.

    Raises:
        BadInput: this User has too many open ones.
    """
    key = key_of(case)
    with transaction.atomic(durable=True):
        row = Refinement.objects.select_for_update().filter(key=key).first()
        if row is not None and not _must_be_asked_again(row, now):
            return row, False
        mine = Refinement.objects.filter(asked_by=user, state__in=Refinement.OPEN)
        fresh = now - timedelta(seconds=STALE_SECONDS)
        if (
            mine.filter(asked_at__gt=fresh).exclude(key=key).count()
            >= MOST_OPEN_PER_USER
        ):
            detail = sentence(
                "{most_open_per_user} of yours are still being followed; wait",
                most_open_per_user=MOST_OPEN_PER_USER,
            )
            raise BadInput({"refine": detail})
        row, _ = Refinement.objects.update_or_create(
            key=key,
            defaults={
                "asked_by": user,
                "case": case.to_json(),
                "state": State.WAITING,
                "doing": "",
                "done_ratio": 0.0,
                "answer": None,
                "problem": "",
                "asked_at": now,
                "started_at": None,
                "ended_at": None,
            },
        )
        old = Refinement.objects.exclude(state__in=Refinement.OPEN)[MOST_KEPT:]
        Refinement.objects.filter(pk__in=[one.pk for one in old]).delete()
    return row, True


def stored(case: Case) -> Refinement | None:
    """Return the Refinement of a Case. None: nobody has asked for it."""
    return Refinement.objects.filter(key=key_of(case)).first()


def compute_refinement(*, refinement_id: int, clock: Callable[[], datetime]) -> str:
    """Compute one waiting Refinement in a child process; return its final state.

    `clock`: aware UTC, read at the start and at the end. Progress is stored and sent to
    the waiting pages. Cancelling the Refinement ends the child.
    """
    taken = Refinement.objects.filter(pk=refinement_id, state=State.WAITING).update(
        state=State.RUNNING, started_at=clock()
    )
    row = Refinement.objects.filter(pk=refinement_id).first()
    if not taken or row is None:
        return row.state if row is not None else "gone"
    running = Refinement.objects.filter(pk=refinement_id, state=State.RUNNING)

    def tell(_case: int, doing: str, ratio: float) -> None:
        running.update(doing=doing[:80], done_ratio=ratio)
        job_broadcast.publish_refinement(refinement_id)

    try:
        outcome = child_process.run(
            [Case.from_json(row.case)],
            listener=tell,
            cancelled=lambda: not running.exists(),
            seconds=LIMIT_SECONDS,
        )
        ended = _ended_fields(outcome.answers[0])
    except CodedError as error:
        ended = _ended_fields(error)
    running.update(ended_at=clock(), doing="", **ended)
    job_broadcast.publish_refinement(refinement_id)
    return Refinement.objects.values_list("state", flat=True).get(pk=refinement_id)


def make_next_refinement(*, refinement_id: int, clock: Callable[[], datetime]) -> str:
    """Compute the next Refinement. Return its final state.

    `refinement_id`: the one that was sent. If another worker has taken the next one
    first, the one after it is computed.
    """
    state = str(State.RUNNING)
    for _ in range(MOST_OPEN_PER_USER):
        state = compute_refinement(
            refinement_id=next_refinement(refinement_id), clock=clock
        )
        if state != State.RUNNING:
            break
    return state


def next_refinement(refinement_id: int) -> int:
    """Return the waiting Refinement to compute now, in place of the one sent.

    Every waiting Refinement has been sent as a task, so the order of computation may
    differ and none is left over. The User whose last Refinement began longest ago comes
    first, then the oldest request. Three requests of one User do not make another User
    wait for all three.
    """
    waiting = Refinement.objects.filter(state=State.WAITING)
    begun = (
        Refinement.objects.filter(asked_by=OuterRef("asked_by"))
        .exclude(started_at=None)
        .order_by("-started_at")
        .values("started_at")[:1]
    )
    turns = waiting.annotate(begun=Subquery(begun))
    first = turns.order_by(F("begun").asc(nulls_first=True), "asked_at", "pk").first()
    return refinement_id if first is None else first.pk


def cancel_refinement(*, user: User, key: str, now: datetime) -> bool:
    """Cancel an open Refinement of the User; False: it has ended already.

    Raises:
        NotFound: no such Refinement of this User.
    """
    row = Refinement.objects.filter(key=key, asked_by=user).first()
    if row is None:
        raise NotFound(what=sentence("refinement of yours with this key"))
    moved = Refinement.objects.filter(pk=row.pk, state__in=Refinement.OPEN).update(
        state=State.CANCELLED, ended_at=now, doing=""
    )
    if moved:
        job_broadcast.publish_refinement(row.pk)
    return bool(moved)


def key_of(case: Case) -> str:
    """Return the content's address: the case, and the versions that compute it."""
    content = {
        "case": case.to_json(),
        "answers": ANSWERS_VERSION,
        "torch": _version("torch"),
        "transformers": _version("transformers"),
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def config_of(user: User, well_known: str, model_id: int | None) -> Mapping[str, Any]:
    """Return the config.json of a choice.

    Raises:
        SpecInvalid: no such model, or sizes without code.
    """
    if model_id is None:
        if well_known not in WELL_KNOWN:
            raise SpecInvalid({"known": sentence("is not a well-known model")})
        return dict(WELL_KNOWN[well_known].config)
    row = RegisteredModel.objects.filter(owner=user, pk=model_id).first()
    if row is None:
        raise SpecInvalid({"upload": sentence("that upload is gone: upload it again")})
    config = row.spec.get("config")
    if not isinstance(config, dict):
        raise SpecInvalid(
            {"upload": sentence("has sizes but no code: only a config.json has")}
        )
    return config


def _must_be_asked_again(row: Refinement, now: datetime) -> bool:
    if row.state in Refinement.OPEN:
        since = row.started_at or row.asked_at
        return now - since > timedelta(seconds=STALE_SECONDS)
    if row.state == State.FAILED:
        # Problems of the model fail again. Problems of the worker may not.
        return not row.problem or now - row.asked_at > timedelta(seconds=STALE_SECONDS)
    return row.state == State.CANCELLED


def _ended_fields(answer: dict[str, Any] | CodedError) -> dict[str, Any]:
    """Return the fields of a Refinement that has ended."""
    if isinstance(answer, CodedError):
        return {"state": State.FAILED, "problem": str(answer)[:500]}
    return {"state": State.DONE, "answer": answer, "done_ratio": 1.0}
