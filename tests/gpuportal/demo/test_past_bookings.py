"""The demo lab's charts, heat map and summaries are not empty, and fit together."""

import random
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from django.core.cache import cache
from django.db.models import Sum
from django.test import Client
from django.utils import timezone

from gpuportal.demo.load import load
from gpuportal.demo.past_bookings import DemoGpu, PastBookings, draw
from placement.models import Job
from reservations import tick
from reservations.models import (
    Account,
    CoUser,
    Offer,
    Reservation,
    Series,
    TreeChange,
    User,
)
from telemetry.history import queries as history
from telemetry.history.hourly_rollup import roll_hours
from telemetry.models import AccountHour, Gpu, SampleHour, UsageSummary


@pytest.mark.django_db
def test_a_first_start_has_a_fortnight_to_look_at(tmp_path, settings, monkeypatch):
    monkeypatch.setenv("GPUPORTAL_VAR", str(tmp_path))
    cache.clear()
    now = timezone.now()
    load(now=now, simulation=tmp_path / "sim")
    assert roll_hours(now=now) >= 23
    tick.tick(now)
    gpu = Gpu.objects.get(node__name="node-a", index=1)
    asked = history.HistoryRange(
        int((now - timedelta(days=13)).timestamp()), int(now.timestamp()), 400
    )
    told = history.read_history(history.of_gpu(gpu), asked, now=now)
    assert told["step_seconds"] == 3600
    assert told["n"].count(0) <= 2
    assert max(x for x in told["util_avg_pct"] if x is not None) > 50
    held = AccountHour.objects.aggregate(held=Sum("held_seconds"))["held"]
    whole = 3600 * SampleHour.objects.count()
    assert 0.05 < held / whole < 0.95
    ended = Reservation.objects.filter(state="ended")
    assert set(ended.values_list("pk", flat=True)) == set(
        UsageSummary.objects.filter(kind="reservation", gpu=None).values_list(
            "reservation_id", flat=True
        )
    )
    assert Series.objects.get().occurrences.filter(state="booked").exists()
    assert Offer.objects.filter(state="open", taker__user__username="alice").exists()
    assert CoUser.objects.sharing().exists() and TreeChange.objects.count() == 2
    assert Account.objects.get(name="dl-course").ends_at > now
    client = Client()
    client.force_login(User.objects.get(username="omar"))
    assert "no reading" not in client.get("/free/").content.decode()
    job = Job.objects.filter(state="done").first()
    assert job is not None
    assert "Usage" in client.get(f"/jobs/{job.pk}/").content.decode()


@pytest.mark.pure
@pytest.mark.parametrize("hour", range(0, 24, 3))
def test_whoever_signs_in_can_book_at_every_hour_of_the_day(hour):
    now = datetime(2026, 11, 23, hour, 17, tzinfo=UTC)
    book = PastBookings(10**9, 8, 6, now, frozenset({0, 1}))
    draw(
        book,
        [DemoGpu(pk, "node-a", pk, 1) for pk in range(12)],
        students=4,
        first=now - timedelta(days=1),
        last=now + timedelta(days=7),
        tries_per_day=200,
        chance=random.Random(hour),
    )
    live = Counter(draft.student for draft in book.drafts if draft.end > now)
    assert live == {0: 2, 1: 2, 2: 6, 3: 6}
