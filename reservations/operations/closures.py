"""Closures: preview, save, change, end, and keep them clear.

Bookings in the way are moved, cut or refunded when the closure is saved
(``evacuation``). Ending a closure reopens the time and undoes no refund.
"""

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction

from reservations.models import Account, Closure, User
from reservations.notifications import live
from reservations.notifications.text.closure_text import check_times
from reservations.operations import evacuation
from reservations.operations.evacuation_plan import EvacuationOutcome, relieve
from reservations.rules.calendar import CalendarGpu, ClosureInfo
from reservations.rules.closed_time import TEACHING
from reservations.rules.errors import NotFound, StaleVersion
from reservations.rules.policy import Policy
from reservations.rules.review import FieldsInvalid, PreviewStale, mark_of
from reservations.rules.window import whole_second
from reservations.store.audit_log import audit_act
from reservations.store.booking_facts import closures_between, site_policy
from reservations.store.gpu_rows import calendar_gpus
from telemetry.models import Gpu, Node, Pool
from telemetry.protocol.sentences import sentence
from telemetry.rules.isolated_steps import isolated

log = logging.getLogger(__name__)
AHEAD = timedelta(days=2)
"""How far ahead the tick checks coming closures again."""


@dataclass(frozen=True, slots=True)
class ClosureDraft:
    """The values of a closure that an operator wants."""

    kind: str
    scope: str
    start: datetime
    end: datetime
    reason: str
    gpu_ids: tuple[int, ...] = ()
    node_id: int | None = None
    pool_id: int | None = None
    account_id: int | None = None

    def to_info(self, pk: int = 0) -> ClosureInfo:
        """Return it in the form that decisions use."""
        node = Node.objects.filter(pk=self.node_id or 0).first()
        account = Account.objects.filter(pk=self.account_id or 0).first()
        return ClosureInfo(
            pk=pk,
            kind=self.kind,
            reason=self.reason,
            start=self.start,
            end=self.end,
            scope=self.scope,
            gpu_pks=frozenset(self.gpu_ids),
            node=node.name if node else "",
            pool_pk=self.pool_id or 0,
            account_pk=self.account_id,
            account=str(account or ""),
        )


@dataclass(frozen=True, slots=True)
class Preview:
    """The bookings that a closure affects, with the outcome of each."""

    info: ClosureInfo
    gpus: tuple[CalendarGpu, ...]
    """The Gpus that it closes."""
    reliefs: tuple[EvacuationOutcome, ...]
    leaving: evacuation.EvacuatedGpus

    @property
    def mark(self) -> str:
        """Return a mark of this preview, which a save must present."""
        return mark_of([one.to_json() for one in self.reliefs])


def preview(*, draft: ClosureDraft, now: datetime, pk: int | None = None) -> Preview:
    """Return the bookings that a closure would affect if it were saved now.

    Raises:
        FieldsInvalid: by field.
    """
    at = whole_second(now)
    _check(draft, now=at, running=_runs(pk, at))
    return _plan(draft.to_info(pk or 0), now=at, lock=False)


def save(
    *,
    draft: ClosureDraft,
    actor: User,
    now: datetime,
    mark: str,
    pk: int | None = None,
    version: int | None = None,
) -> tuple[Closure, Preview]:
    """Save a new or changed closure, and move the bookings in its way.

    Args:
        mark: of the preview that was shown.

    Raises:
        FieldsInvalid: by field.
        PreviewStale: bookings changed since then. Nothing is written.
        StaleVersion, NotFound.
    """
    at = whole_second(now)
    policy = site_policy()
    with transaction.atomic(durable=True):
        row = _locked(pk, version, at) if pk is not None else None
        _check(draft, now=at, running=row is not None and row.start <= at)
        plan = _plan(draft.to_info(pk or 0), now=at, lock=True)
        if plan.mark != mark:
            raise PreviewStale
        before = _closure_detail(row) if row is not None else {}
        kept = _write(row, draft, actor=actor, now=at)
        _clear(kept, plan, actor=actor, now=at, policy=policy)
        audit_act(
            verb="closure.changed" if pk is not None else "closure.made",
            subject=f"closure:{kept.pk}",
            actor=actor,
            now=at,
            reason=kept.reason,
            before=before,
            after=_closure_detail(kept),
            touched=len(plan.reliefs),
        )
        live.publish_closures()
    return kept, plan


def cancel(*, pk: int, version: int, actor: User, now: datetime) -> Closure:
    """End the closure. Moved and refunded bookings stay as they are.

    Raises:
        StaleVersion, NotFound.
    """
    at = whole_second(now)
    with transaction.atomic(durable=True):
        row = _locked(pk, version, at)
        before = _closure_detail(row)
        if row.start >= at:
            row.cancelled_at = at
        else:
            row.end = at
        row.version += 1
        row.save(update_fields=["cancelled_at", "end", "version"])
        audit_act(
            verb="closure.ended",
            subject=f"closure:{pk}",
            actor=actor,
            now=at,
            reason=row.reason,
            before=before,
            after=_closure_detail(row),
        )
        live.publish_closures()
    return row


def due(at: datetime, policy: Policy) -> dict[str, int]:
    """Move bookings out of near closures if they came into them since the save.

    A Gpu may join a closed pool or node. Each closure has its own transaction.
    """
    cleared = 0
    for info in closures_between(at, at + AHEAD):
        failed = "closure %s: not cleared"
        with isolated(log, failed, info.pk), transaction.atomic(durable=True):
            row = Closure.objects.select_for_update().filter(pk=info.pk).first()
            if row is None or row.cancelled_at is not None or row.end <= at:
                continue
            plan = _plan(info, now=at, lock=True)
            _clear(row, plan, actor=None, now=at, policy=policy)
            cleared += len(plan.reliefs)
    return {"closed": cleared}


def closed_gpus_of(info: ClosureInfo) -> list[CalendarGpu]:
    """Return the Gpus that a closure covers now."""
    return [gpu for gpu in calendar_gpus() if info.closes(gpu)]


def _plan(info: ClosureInfo, *, now: datetime, lock: bool) -> Preview:
    shut = closed_gpus_of(info)
    begin = max(info.start, now)
    found = evacuation.read(
        [gpu.pk for gpu in shut],
        begin,
        info.end,
        exempt=info.account_pk,
        closures=[info],
        lock=lock,
    )
    reliefs = relieve(
        found.booked,
        {gpu.pk for gpu in shut},
        found.room,
        closed_from=begin,
        now=now,
    )
    return Preview(info, tuple(shut), tuple(reliefs), found)


def _clear(
    row: Closure, plan: Preview, *, actor: User | None, now: datetime, policy: Policy
) -> None:
    why = evacuation.EvacuationReason(
        reason=f"{row.get_kind_display().lower()}: {row.reason}"[:200],
        detail={
            "closure": row.kind,
            "start": row.start.isoformat(),
            "end": row.end.isoformat(),
        },
        actor=actor,
        now=now,
        policy=policy,
        key=f"closure:{row.pk}.{row.version}",
    )
    for relief in plan.reliefs:
        evacuation.carry_out(relief, plan.leaving, why)


def _check(draft: ClosureDraft, *, now: datetime, running: bool) -> None:
    """Refuse invalid values, by field.

    Raises:
        FieldsInvalid.
    """
    wrong = check_times(draft.start, draft.end, now=now, running=running)
    if not draft.reason.strip():
        wrong["reason"] = sentence("Give a reason. The affected users see it.")
    if draft.kind not in Closure.Kind.values:
        wrong["kind"] = sentence("Choose a kind from the list.")
    if draft.scope not in Closure.Scope.values:
        wrong["scope"] = sentence("Choose a place from the list.")
    elif (field := _place_missing(draft)) is not None:
        wrong[field] = sentence("Choose what it closes.")
    teaching = draft.kind == TEACHING
    known = Account.objects.filter(pk=draft.account_id or 0).exists()
    if teaching and not known:
        wrong["account"] = sentence(
            "Choose the group for which the teaching slot is kept."
        )
    if not teaching and draft.account_id is not None:
        wrong["account"] = sentence("Only a teaching slot can be kept for a group.")
    if wrong:
        raise FieldsInvalid(wrong)


def _place_missing(draft: ClosureDraft) -> str | None:
    if draft.scope == Closure.Scope.GPUS:
        known = Gpu.objects.filter(pk__in=draft.gpu_ids, retired=False).count()
        return None if draft.gpu_ids and known == len(set(draft.gpu_ids)) else "gpus"
    if draft.scope == Closure.Scope.NODE:
        return None if Node.objects.filter(pk=draft.node_id or 0).exists() else "node"
    if draft.scope == Closure.Scope.POOL:
        return None if Pool.objects.filter(pk=draft.pool_id or 0).exists() else "pool"
    return None


def _runs(pk: int | None, now: datetime) -> bool:
    return Closure.objects.filter(pk=pk, start__lte=now).exists() if pk else False


def _locked(pk: int, version: int | None, now: datetime) -> Closure:
    row = Closure.objects.select_for_update().filter(pk=pk).first()
    if row is None or row.cancelled_at is not None or row.end <= now:
        raise NotFound(what=sentence("open closure with this number"))
    if version is not None and row.version != version:
        raise StaleVersion(shown=version, stored=row.version)
    return row


def _write(
    row: Closure | None, draft: ClosureDraft, *, actor: User, now: datetime
) -> Closure:
    scope = draft.scope
    values = {
        "kind": draft.kind,
        "scope": scope,
        "start": draft.start,
        "end": draft.end,
        "reason": draft.reason.strip(),
        "node_id": draft.node_id if scope == Closure.Scope.NODE else None,
        "pool_id": draft.pool_id if scope == Closure.Scope.POOL else None,
        "account_id": draft.account_id,
    }
    if row is None:
        kept = Closure.objects.create(created_at=now, created_by=actor, **values)
    else:
        kept = row
        for name, value in values.items():
            setattr(kept, name, value)
        kept.version += 1
        kept.save()
    kept.gpus.set(draft.gpu_ids if scope == Closure.Scope.GPUS else ())
    return kept


def _closure_detail(row: Closure) -> dict[str, object]:
    return {
        "kind": row.kind,
        "scope": row.scope,
        "start": row.start.isoformat(),
        "end": row.end.isoformat(),
        "reason": row.reason,
        "gpus": sorted(row.gpus.values_list("pk", flat=True)),
        "node": row.node_id,
        "pool": row.pool_id,
        "account": row.account_id,
        "cancelled": row.cancelled_at is not None,
    }


def places(gpu_pks: Collection[int], known: Sequence[CalendarGpu]) -> str:
    """Return Gpus by name, for a sentence."""
    return ", ".join(gpu.label for gpu in known if gpu.pk in gpu_pks)
