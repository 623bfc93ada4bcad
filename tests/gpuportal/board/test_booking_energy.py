"""The energy of the running bookings, for the cards."""

from datetime import timedelta

import pytest
from django.core.cache import cache
from django.utils import timezone

from reservations.rules.lifecycle import State
from telemetry.models import HourDue, SampleHour, SampleMinute
from tests.factories import make_gpus, make_reservation

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
EMPTY = {
    "n": 60,
    "util_n": 0,
    "util_sum_pct": 0,
    "idle_n": 0,
    "memory_n": 0,
    "memory_sum_bytes": 0,
    "power_n": 0,
    "power_sum_watts": 0,
    "process_n": 0,
}


@pytest.fixture(autouse=True)
def nothing_kept():
    cache.clear()
    yield
    cache.clear()


def test_full_hours_come_from_hour_rows_and_the_rest_from_minutes(
    client, alice, bob, django_assert_max_num_queries
) -> None:
    gpu, other, free = make_gpus(3)
    hour = timezone.now().replace(minute=0, second=0, microsecond=0)
    start = hour - 2 * HOUR - 30 * MINUTE
    held = make_reservation(
        alice, [gpu, other], start=start, end=hour + 2 * HOUR, state=State.ACTIVE
    )
    for one in (gpu, free):
        SampleMinute.objects.bulk_create(
            SampleMinute(
                gpu=one, minute_at=hour + back * MINUTE, energy_joules=3600, **EMPTY
            )
            for back in range(-200, 0)
        )
        # Energy that is in the rows twice is counted once: the size of the hour's row
        # shows it.
        SampleHour.objects.create(
            gpu=one, hour_at=hour - 2 * HOUR, energy_joules=7_200_000, **EMPTY
        )
    HourDue.objects.create(hour_at=hour - HOUR, changed_at=hour)
    client.force_login(bob)
    with django_assert_max_num_queries(6):
        told = client.get("/board/energy").json()
    # 30 min and the hour that is not rolled up yet by minutes: 90 x 1 Wh.
    assert told == {
        str(gpu.pk): {"reservation": held.pk, "kwh": pytest.approx(2.09, abs=0.001)}
    }
    with django_assert_max_num_queries(2):
        assert client.get("/board/energy").json() == told


def test_nobody_reads_it_without_signing_in(client, db) -> None:
    assert client.get("/board/energy").status_code == 302
