"""Closed time, for the calendar and for the banner of every page."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypedDict

from reservations.models import Closure
from reservations.rules.calendar import CalendarGpu
from reservations.store.account_tree import booked_under
from reservations.store.booking_facts import closures_between
from reservations.store.gpu_rows import barred_pools
from telemetry.models import Gpu
from telemetry.protocol.sentences import joined, sentence
from telemetry.web.answer_types import UtcInstant

NEAR = timedelta(hours=24)
"""From this long before its start, every page announces maintenance."""


class CalendarClosure(TypedDict):
    """Time in which GPUs are closed, or reserved for teaching."""

    id: int
    kind: str
    """maintenance, blackout or teaching."""
    start: UtcInstant
    end: UtcInstant
    reason: str
    gpu_ids: list[int]
    account: str | None
    """Name of the group that may book in it. Null: none."""
    open: bool
    """Whether it is a teaching slot in which the caller may book."""


def closures_page(
    start: datetime, end: datetime, gpus: Sequence[CalendarGpu], *, user_pk: int
) -> list[CalendarClosure]:
    """Return the closures of a span in the form of the calendar's API."""
    found = closures_between(start, end)
    if not found:
        return []
    own = booked_under(user_pk) if any(one.account_pk for one in found) else frozenset()
    return [
        {
            "id": one.pk,
            "kind": one.kind,
            "start": _iso(one.start),
            "end": _iso(one.end),
            "reason": one.reason,
            "gpu_ids": [gpu.pk for gpu in gpus if one.closes(gpu)],
            "account": one.account_name or None,
            "open": one.admits(own),
        }
        for one in found
    ]


def _iso(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, slots=True)
class NearMaintenance:
    """Maintenance or a blackout that runs or begins within a day."""

    kind: str
    start: datetime
    end: datetime
    reason: str
    where: str
    runs: bool


def near_maintenance(now: datetime) -> list[NearMaintenance]:
    """Return the present and near closures for all Users.

    It is one query where there are none, as on most days.
    """
    rows = (
        Closure.objects.standing(now, now + NEAR)
        .exclude(kind=Closure.Kind.TEACHING)
        .prefetch_related("node", "pool")
        .order_by("start", "pk")[:3]
    )
    return [
        NearMaintenance(
            kind=row.get_kind_display(),
            start=row.start,
            end=row.end,
            reason=row.reason,
            where=_place_text(row),
            runs=row.start <= now,
        )
        for row in rows
    ]


def _place_text(row: Closure) -> str:
    if row.scope == Closure.Scope.SITE:
        return sentence("all GPUs")
    if row.scope == Closure.Scope.NODE:
        return str(row.node)
    if row.scope == Closure.Scope.POOL:
        return sentence("every {pool}", pool=row.pool)
    return sentence("some GPUs")


def shut_to(
    user_pk: int | None, gpus: Sequence[Gpu], start: datetime, end: datetime
) -> dict[int, str]:
    """Return, by Gpu, why a User could not book it then, in words.

    Args:
        gpus: rows with their Node and Pool loaded.
    """
    found: dict[int, str] = {
        gpu.pk: sentence("draining: no new bookings")
        for gpu in gpus
        if gpu.draining or gpu.node.draining
    }
    closures = closures_between(start, end)
    kept = [gpu for gpu in gpus if _is_restricted(gpu)]
    if not closures and not kept:
        return found
    own = frozenset[int]() if user_pk is None else booked_under(user_pk)
    barred = barred_pools([_known(gpu) for gpu in kept], own)
    for gpu in gpus:
        if gpu.pool_id in barred:
            found[gpu.pk] = sentence(
                "kept for {accounts}",
                accounts=joined(barred[gpu.pool_id], by=sentence(" and ")),
            )
        for one in closures:
            if one.closes(_known(gpu)) and not one.admits(own):
                found.setdefault(
                    gpu.pk, sentence("closed then: {reason}", reason=one.reason)
                )
    return found


def _is_restricted(gpu: Gpu) -> bool:
    rule = getattr(gpu.pool, "rule", None)
    return rule is not None and rule.restricted


def _known(gpu: Gpu) -> CalendarGpu:
    return CalendarGpu(
        pk=gpu.pk,
        node=gpu.node.name,
        index=gpu.index,
        gpu_class=gpu.pool.gpu_class,
        memory_total_bytes=gpu.memory_total_bytes,
        weight=gpu.pool.weight,
        pool_pk=gpu.pool_id,
        restricted=_is_restricted(gpu),
    )
