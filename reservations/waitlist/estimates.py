"""Offers, plans and estimates for requests that keep waiting.

An offer is made if a placement needs the person's answer. It blocks other placements
that need an answer. It blocks neither bookings nor placements that need no answer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import F

from reservations.models import Notice, Reservation, User, WaitingRequest
from reservations.notifications import service as notices
from reservations.rules.calendar import PlannedStart
from reservations.rules.decision import decide
from reservations.rules.policy import Policy
from reservations.rules.request import Request, Snapshot
from reservations.rules.window import Window
from reservations.store.audit_log import audit_act
from reservations.waitlist.planned_starts import ExpectedStart, beside, expect
from reservations.waitlist.rules import (
    PAUSE_SECONDS,
    WaitlistMatch,
    choose,
    offer_until,
)
from reservations.waitlist.waitlist_snapshot import WaitlistSnapshot

URL = "/waiting/"


def store_estimates(
    found: WaitlistSnapshot,
    at: datetime,
    policy: Policy,
    chosen: Mapping[int, WaitlistMatch | None],
) -> int:
    """Make the offers that need an answer, and store the estimate of every request.

    Args:
        chosen: slots already chosen for some requests in this run. They are kept unless
            they overlap an offer to another request.
    """
    expected = expect(found.queue, found.facts, now=at, policy=policy)
    offered = 0
    taken: list[PlannedStart] = []
    for one in found.queue:
        row = found.rows[one.pk]
        if one.consents:
            # It needs no answer, so it has already received every possible slot.
            continue
        facts = found.facts(one)
        if taken:
            # One offer per slot. The next person is asked if the offer is not accepted.
            facts = replace(facts, calendar=beside(facts.calendar, taken))
        if (standing := offered_of(row, at)) is not None:
            if _can_be_had(row, standing, facts, at):
                taken.append(standing)
                continue
            _end_offer(row)
        elif not _may_be_offered(row, at):
            continue
        choice = chosen.get(one.pk)
        if one.pk not in chosen or (
            choice is not None and _overlaps_taken(choice, taken)
        ):
            choice = choose(one, facts, now=at)
        if choice is None or not choice.ask:
            continue
        if _offer(row, choice, offer_until(one, choice.slot, now=at), at):
            offered += 1
            gpu_pks = frozenset(choice.slot.gpu_ids)
            taken.append(PlannedStart(row.pk, row.user_id, gpu_pks, choice.slot.window))
    for pk, row in found.rows.items():
        _expect(row, expected.get(pk), at)
    return offered


def _overlaps_taken(choice: WaitlistMatch, taken: Sequence[PlannedStart]) -> bool:
    gpu_pks = set(choice.slot.gpu_ids)
    return any(
        plan.window.meets(choice.slot.window) and plan.gpu_pks & gpu_pks
        for plan in taken
    )


def offered_of(row: WaitingRequest, at: datetime) -> PlannedStart | None:
    """Return the present offer to a request, or None."""
    start, end, until = row.offer_start, row.offer_end, row.offer_until
    if start is None or end is None or until is None or until <= at:
        return None
    gpu_pks = frozenset(row.offer_gpu_ids)
    return PlannedStart(row.pk, row.user_id, gpu_pks, Window(start, end))


def _can_be_had(
    row: WaitingRequest, standing: PlannedStart, facts: Snapshot, at: datetime
) -> bool:
    gpus = tuple(gpu for gpu in facts.calendar.gpus if gpu.pk in standing.gpu_pks)
    window = Window(max(standing.window.start, at), standing.window.end)
    return decide(Request(gpus, window, at), facts).kind is not None


def _end_offer(row: WaitingRequest) -> None:
    """Delete an offer whose time was booked. Another may follow at once."""
    same = WaitingRequest.objects.waiting().filter(pk=row.pk, version=row.version)
    if same.update(offer_until=None, version=F("version") + 1):
        row.version += 1


def _may_be_offered(row: WaitingRequest, at: datetime) -> bool:
    if row.offer_until is None:
        return True
    return row.offer_until + timedelta(seconds=PAUSE_SECONDS) <= at


def _offer(
    row: WaitingRequest, choice: WaitlistMatch, until: datetime, at: datetime
) -> bool:
    slot = choice.slot
    with transaction.atomic(durable=True):
        moved = (
            WaitingRequest.objects.waiting()
            .filter(pk=row.pk, version=row.version)
            .update(
                offer_gpu_ids=list(slot.gpu_ids),
                offer_start=slot.start,
                offer_end=slot.end,
                offer_until=until,
                version=F("version") + 1,
            )
        )
        if not moved:
            return False
        row.version += 1
        audit_waiting(
            "offered", row, at, start=slot.start.isoformat(), gpus=slot.gpu_ids
        )
        notify_waiting(
            row,
            "slot_offered",
            at,
            start=slot.start.isoformat(),
            end=slot.end.isoformat(),
            until=until.isoformat(),
        )
    return True


def _expect(row: WaitingRequest, found: ExpectedStart | None, at: datetime) -> None:
    """Store the estimate of a request. The first one is never replaced. Notify of a
    plan.
    """
    start = found.start if found else None
    end = found.plan.window.end if found else None
    gpu_ids = sorted(found.plan.gpu_pks) if found else []
    held = found is not None and found.held
    now = (start, end, gpu_ids, held)
    if now == (row.expected_start, row.expected_end, row.expected_gpu_ids, row.planned):
        return
    fields: dict[str, object] = {
        "expected_start": start,
        "expected_end": end,
        "expected_gpu_ids": gpu_ids,
        "planned": held,
    }
    if row.first_estimate is None and start is not None:
        fields |= {"first_estimate": start, "first_estimate_at": at}
    with transaction.atomic(durable=True):
        rows = WaitingRequest.objects.waiting().filter(pk=row.pk, version=row.version)
        if not rows.update(version=F("version") + 1, **fields) or start is None:
            return
        later = row.planned and row.expected_start and start > row.expected_start
        if held and (later or not row.planned):
            before = row.expected_start if later else None
            audit_waiting("planned", row, at, start=start.isoformat())
            notify_waiting(
                row,
                "planned",
                at,
                start=start.isoformat(),
                before=before.isoformat() if before else None,
            )


def notify_waiting(
    row: WaitingRequest,
    what: str,
    at: datetime,
    /,
    *,
    reservation: Reservation | None = None,
    **detail: object,
) -> Notice | None:
    return notices.notify(
        user=row.user,
        kind=what,
        reservation=reservation,
        detail={"waiting": row.pk, "url": URL, **detail},
        now=at,
    )


def audit_waiting(
    verb: str,
    row: WaitingRequest,
    at: datetime,
    *,
    actor: User | None = None,
    **detail: Any,
) -> None:
    audit_act(
        verb=f"waiting.{verb}",
        subject=f"waiting:{row.pk}",
        actor=actor,
        now=at,
        **detail,
    )
