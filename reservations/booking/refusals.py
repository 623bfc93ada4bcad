"""Count refused requests, and store the newest ones with their reasons.

Called after a refusal, when its transaction is rolled back. Reports show the counts as
demand that the Gpus could not serve: a row per day, Membership, Pool and rule. Invalid
requests (off the grid, in the past) and previews do not count.

The decision itself is stored too (docs/design/fair-booking.md#rule-8,
docs/design/fair-booking.md#i14): the numbers, the text, and the inputs that recompute
it. Requests are free, so each Membership keeps only the newest ``KEPT``, and none
longer than ``KEPT_FOR``.
"""

import logging
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from datetime import datetime, timedelta

from django.db import DatabaseError, IntegrityError, transaction
from django.db.models import F
from django.utils import timezone

from reservations.models import Membership, RefusedDemand, RefusedRequest
from reservations.rules.decision_record import refused_inputs
from reservations.rules.errors import GpuTaken, Refusal
from reservations.rules.policy import LONGEST_POSSIBLE_SECONDS
from reservations.rules.request import Request, Snapshot
from reservations.store.locks import wait_for_turn
from telemetry.models import Gpu
from telemetry.protocol.coded_error import json_ready

NO_DEMAND = frozenset(
    {
        "in-the-past",
        "end-not-after-start",
        "over-before-free",
        "off-grid",
        "no-gpus",
        "membership-needed",
        "stale-version",
        "not-changeable",
    }
)
KEPT = 20
"""Refused requests stored per Membership. The oldest are deleted."""
KEPT_FOR = timedelta(days=30)
log = logging.getLogger(__name__)


def count_refusal(
    membership: Membership,
    gpu_ids: Collection[int],
    start: datetime,
    end: datetime,
    *,
    refusal: Refusal,
    now: datetime,
) -> None:
    """Add a refused booking to its day.

    If the row cannot be written, the failure is logged and the User still gets the
    refusal. A report is not worth an error page.
    """
    if refusal.code in NO_DEMAND:
        return
    seconds = int((end - max(start, now)).total_seconds())
    seconds = max(0, min(seconds, LONGEST_POSSIBLE_SECONDS))
    pools = Counter(
        Gpu.objects.filter(pk__in=set(gpu_ids)).values_list("pool_id", flat=True)
    )
    day = timezone.localtime(now, timezone.get_default_timezone()).date()
    try:
        for pool, gpus in sorted(pools.items()):
            key = {
                "day": day,
                "membership": membership,
                "pool_id": pool,
                "rule": refusal.code[:40],
            }
            with wait_for_turn():
                _add(key, gpus * seconds)
    except DatabaseError:
        log.exception("a refusal of membership %s is not counted", membership.pk)
    keep_refusal(membership, gpu_ids, start, end, refusal=refusal, now=now)


def _add(key: dict[str, object], gpu_seconds: int) -> None:
    """Add to one row. The first of a day creates it."""
    rows = RefusedDemand.objects.filter(**key)
    more = {
        "requests": F("requests") + 1,
        "gpu_seconds": F("gpu_seconds") + gpu_seconds,
    }
    if rows.update(**more):
        return
    try:
        with transaction.atomic():
            RefusedDemand.objects.create(**key, requests=1, gpu_seconds=gpu_seconds)
    except IntegrityError:
        # A concurrent refusal of the same kind has just created the row.
        rows.update(**more)


def keep_refusal(
    membership: Membership,
    gpu_ids: Collection[int],
    start: datetime,
    end: datetime,
    *,
    refusal: Refusal,
    now: datetime,
) -> None:
    """Store a refused request with its reason, and delete old ones.

    The text and the numbers leave out the holders of the Gpus, because the right to
    read a name can change and its owner can be erased. Invalid requests are not stored.
    If the row cannot be written, the failure is logged.
    """
    if refusal.code in NO_DEMAND:
        return
    try:
        _store_refusal(membership, gpu_ids, (start, end), refusal, now)
    except DatabaseError:
        log.exception("a refusal of membership %s is not kept", membership.pk)


def forget_old(now: datetime) -> int:
    """Delete refused requests older than ``KEPT_FOR``. Return how many."""
    old = RefusedRequest.objects.filter(asked_at__lt=now - KEPT_FOR)
    return old.delete()[0]


def _store_refusal(
    membership: Membership,
    gpu_ids: Collection[int],
    asked: tuple[datetime, datetime],
    refusal: Refusal,
    now: datetime,
) -> None:
    told = replace(refusal, user="") if isinstance(refusal, GpuTaken) else refusal
    judged = refusal.judged_by
    slot = refusal.next_slot or refusal.works_instead
    inputs = None
    if isinstance(judged, tuple):
        request, snapshot = judged
        assert isinstance(request, Request) and isinstance(snapshot, Snapshot)
        inputs = refused_inputs(request, snapshot)
    rows = RefusedRequest.objects.filter(membership=membership)
    with wait_for_turn(), transaction.atomic():
        rows.create(
            membership=membership,
            asked_at=now,
            gpu_ids=sorted(set(gpu_ids)),
            start=asked[0],
            end=asked[1],
            rule=told.code[:40],
            text=told.text(timezone.get_current_timezone())[:600],
            fields=told.numbers,
            works_instead=None
            if slot is None
            else {
                "gpu_ids": list(slot.gpu_ids),
                "start": json_ready(slot.start),
                "end": json_ready(slot.end),
                "kind": slot.kind.value,
            },
            inputs=inputs,
        )
        old = list(rows.values_list("pk", flat=True)[KEPT : 2 * KEPT])
        if old:
            rows.filter(pk__in=old).delete()
