"""A month's Reservations for the reports, in few queries."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import islice
from typing import Any

from django.db.models import Sum

from reservations.models import Allocation, LedgerEntry
from reservations.reports.rules import HELD, ReportedBooking, ReportedGpu
from reservations.rules.lifecycle import State
from reservations.rules.policy import LONGEST_POSSIBLE_SECONDS
from reservations.rules.prices import read_peak
from reservations.rules.window import instant, unix
from telemetry.models import UsageSummary

LONGEST = timedelta(seconds=LONGEST_POSSIBLE_SECONDS)
AT_ONCE = 1000
"""Reservations whose summaries and charges one query reads."""
_FIELDS = (
    "reservation_id",
    "gpu_id",
    "start",
    "end",
    "weight",
    "gpu__pool__weight",
    "reservation__membership_id",
    "reservation__state",
    "reservation__no_show",
    "reservation__end",
    "reservation__booked_end",
    "peak",
)
Row = tuple[Any, ...]
Measured = dict[tuple[int, int], tuple[float | None, float, float]]
"""By Reservation and Gpu: utilization, part with samples, joules."""


def month_bookings(start: int, end: int) -> Iterator[ReportedBooking]:
    """Read the bookings in [start, end), Unix seconds. Two queries per thousand."""
    begin, over = instant(start), instant(end)
    rows = (
        # Filtered by the start alone, which has an index. A booking returned before
        # the month may still have its booked end in it.
        Allocation.objects.filter(start__lt=over, start__gt=begin - LONGEST)
        .filter(reservation__booked_end__gt=begin)
        .order_by("reservation_id", "gpu_id", "start")
        .values_list(*_FIELDS)
    )
    groups = _grouped(rows.iterator(chunk_size=5000))
    while chunk := list(islice(groups, AT_ONCE)):
        pks = [rows_[0][0] for rows_ in chunk]
        measured, charged = _measured(pks), _charged(pks)
        for own in chunk:
            yield _booking(own, measured, charged.get(own[0][0], (0, 0)))


def _grouped(rows: Iterator[Row]) -> Iterator[list[Row]]:
    """Group the rows of each Reservation, which are consecutive."""
    own: list[Row] = []
    for row in rows:
        if own and own[0][0] != row[0]:
            yield own
            own = []
        own.append(row)
    if own:
        yield own


def _measured(pks: Sequence[int]) -> Measured:
    rows = UsageSummary.objects.filter(
        kind=UsageSummary.Kind.RESERVATION, reservation_id__in=pks, gpu__isnull=False
    ).order_by()
    fields = (
        "reservation_id",
        "gpu_id",
        "n",
        "util_n",
        "util_sum_pct",
        "energy_joules",
        "gpu_seconds",
    )
    found: Measured = {}
    for pk, gpu, n, util_n, util_sum_pct, joules, seconds in rows.values_list(*fields):
        util = util_sum_pct / util_n / 100 if util_n else None
        found[pk, gpu] = (util, n / seconds if seconds else 0.0, joules or 0.0)
    return found


def _charged(pks: Sequence[int]) -> dict[int, tuple[int, int]]:
    """By Reservation: the charge of its Membership, and of the site."""
    rows = (
        LedgerEntry.objects.filter(reservation_id__in=pks, kind=LedgerEntry.Kind.CHARGE)
        .order_by()
        .values_list("reservation_id", "membership_id")
        .annotate(charged=Sum("gpu_seconds"))
    )
    found: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for pk, membership, charged in rows:
        found[pk][membership is None] += charged
    return {pk: (own, site) for pk, (own, site) in found.items()}


def _booking(
    rows: Sequence[Row], measured: Measured, charged: tuple[int, int]
) -> ReportedBooking:
    _pk, _gpu, _start, _end, _weight, _now, membership, state, no_show, *_ = rows[0]
    return ReportedBooking(
        membership_pk=membership,
        state=State(state),
        no_show=no_show,
        pieces=tuple(_reported_gpu(row, measured) for row in rows),
        charged_gpu_seconds=charged[0],
        site_gpu_seconds=charged[1],
    )


def _reported_gpu(row: Row, measured: Measured) -> ReportedGpu:
    pk, gpu, start, end, weight, weight_now, _member, state, _gone, *times, peak = row
    over, booked = times
    util, seen, joules = measured.get((pk, gpu), (None, 0.0, 0.0))
    if state not in HELD:
        util, seen, joules = None, 0.0, 0.0
    return ReportedGpu(
        gpu_pk=gpu,
        start=unix(start),
        end=unix(end),
        # A Gpu that was left before the others was booked no longer than it was held.
        booked_end=max(unix(end), unix(booked) if end == over else unix(end)),
        weight=weight_now if weight is None else weight,
        peak=read_peak(peak),
        util_ratio=util,
        seen_ratio=seen,
        energy_joules=joules,
    )
