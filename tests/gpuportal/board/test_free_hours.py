"""The page of free hours: from the calendar and the samples, per class."""

import csv
import io
from datetime import timedelta

import pytest
from django.core.cache import cache
from django.test import Client, override_settings
from django.utils import timezone

from reservations import tick
from telemetry.history.hourly_rollup import roll_hours
from telemetry.history.minute_store import record_minutes
from telemetry.rules.rollup import MinuteTotals
from tests.factories import make_gpu, make_gpus, make_node, make_pool, make_reservation

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def fresh():
    """The page caches its counts for some minutes."""
    cache.clear()


@pytest.fixture
def hour():
    """The hour before the last full one."""
    return timezone.now().replace(minute=0, second=0, microsecond=0) - 2 * HOUR


@pytest.fixture
def lab(alice, hour):
    """Two A100, one 3090; Alice held one A100 for an hour and let it idle."""
    node = make_node("node-a")
    big = make_gpus(2, node, pool=make_pool("A100"))
    small = make_gpu(node, pool=make_pool("3090"))
    make_reservation(alice, big[:1], hour, hour + HOUR, state="ended")
    record_minutes(
        totals={
            (gpu.pk, int(hour.timestamp()) + 60 * number): MinuteTotals(
                n=60, util_n=60, idle_n=0 if gpu == small else 60
            )
            for gpu in (*big, small)
            for number in range(60)
        }
    )
    roll_hours(now=timezone.now())
    tick.tick(timezone.now())
    return big, small


def sheet(user, query: str = "") -> dict[tuple[str, str], str]:
    client = Client()
    client.force_login(user)
    answer = client.get(f"/free/?format=csv&{query}")
    _head, *rows = csv.reader(io.StringIO(answer.content.decode()))
    return {(day, hour): ratio for day, hour, ratio, _n in rows if ratio}


@pytest.mark.parametrize(
    ("query", "free"),
    [
        ("", 2 / 3),
        ("gpu_class=A100", 1 / 2),
        ("gpu_class=3090", 1),
        ("measure=working", 2 / 3),
        ("measure=working&gpu_class=A100", 1),
        ("measure=working&gpu_class=3090", 0),
    ],
)
def test_free_is_what_nobody_held_or_what_did_not_compute(
    lab, alice, hour, query, free
):
    told = sheet(alice, query)
    wall = timezone.localtime(hour)
    assert list(told) == [(f"{wall:%a}", f"{wall:%H}:00")]
    assert float(next(iter(told.values()))) == pytest.approx(free, abs=1e-3)


@override_settings(TIME_ZONE="Asia/Kolkata")
def test_hours_are_those_of_the_site_s_clocks(lab, alice, hour):
    from zoneinfo import ZoneInfo

    wall = hour.astimezone(ZoneInfo("Asia/Kolkata"))
    with timezone.override("Asia/Kolkata"):
        told = sheet(alice)
    assert list(told) == [(f"{wall:%a}", f"{wall:%H}:00")]


@pytest.mark.once
def test_the_page_shows_the_week_and_names_the_classes(lab, alice, hour):
    client = Client()
    client.force_login(alice)
    page = client.get("/free/").content.decode()
    assert page.count('<td class="heat') == 168
    assert page.count("no reading") == 167
    assert "67 %" in page
    assert "<option>A100</option>" in page


def test_before_the_first_full_hour_the_page_teaches(alice):
    client = Client()
    client.force_login(alice)
    page = client.get("/free/").content.decode()
    assert "Not enough data yet" in page


@pytest.mark.once
def test_an_address_that_is_not_understood_is_said_and_the_rest_is_shown(lab, alice):
    client = Client()
    client.force_login(alice)
    answer = client.get("/free/?weeks=9999&measure=luck&gpu_class=nothing")
    assert answer.status_code == 200
    page = answer.content.decode()
    assert page.count("was not understood") == 2
    assert "Not enough data yet" in page


@pytest.mark.once
def test_it_is_few_queries_and_kept_for_the_next_reader(
    lab, alice, django_assert_max_num_queries
):
    client = Client()
    client.force_login(alice)
    with django_assert_max_num_queries(12):
        client.get("/free/")
    with django_assert_max_num_queries(10):
        client.get("/free/")


@pytest.mark.once
def test_board_and_calendar_lead_there_and_strangers_sign_in_first(alice):
    client = Client()
    assert client.get("/free/").status_code == 302
    client.force_login(alice)
    for page in ("/", "/calendar/"):
        assert 'href="/free/"' in client.get(page).content.decode()
