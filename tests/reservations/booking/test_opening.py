"""The calendar opens, small: a course books over HTTP and every promise holds."""

from collections import Counter
from urllib.parse import urlsplit

from django.utils import timezone

from bench.rig import opening as opening
from reservations.models import Reservation
from reservations.rules.lifecycle import State
from telemetry.models import Gpu


def test_a_course_that_books_at_once_breaks_no_promise(
    live_asgi, valkey_url, settings, monkeypatch
):
    monkeypatch.setattr(opening, "TRIES", 2)
    settings.BOOK_RATE_PER_MINUTE = 1000
    now = timezone.now()
    students = opening.make_course(30, 10, now=now)
    gpu_ids = list(Gpu.objects.order_by("pk").values_list("pk", flat=True))
    told, _took = opening.open_calendar(
        students,
        gpu_ids,
        [urlsplit(live_asgi).port],
        hour=now.replace(minute=0, second=0, microsecond=0),
        seconds=1.0,
    )
    assert [one.error for one in told if one.error] == []
    statuses = Counter(status for one in told for status in one.statuses)
    assert set(statuses) <= {200, 201, 409}
    assert opening.overlaps() == 0
    assert opening.over_quota() == []
    assert opening.over_caps() == []
    hours = opening.granted_hours(students)
    # Flex that went to firm was booked too.
    kept = sum(one.booked for one in told)
    kept -= Reservation.objects.filter(state=State.DISPLACED).count()
    assert kept * opening.LENGTH_HOURS == sum(hours.values())
    assert opening.fairness(told, hours)["jain"] > 0.5


def test_the_check_of_quotas_sees_one_second_too_much():
    day, week = 24 * 3600, opening.WEEK_SECONDS
    spends = [(0, day, day), (week - day, week, day), (week, week + 10, 10)]
    assert opening.fullest(spends[:2]) == 2 * day
    assert opening.fullest(spends) == 2 * day
    assert opening.fullest([*spends, (day - 1, day, 1)]) == 2 * day + 1
