"""The past of Gpus, seen through the calendar: charts, hours, summaries, access."""

import csv
import io
from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client
from django.utils import timezone

from reservations import tick
from reservations.booking.release import release
from reservations.models import Account, Reservation
from reservations.store.gpu_history import held_in_hour, reservation_usage
from telemetry.history.hourly_rollup import roll_hours
from telemetry.history.minute_store import record_minutes
from telemetry.history.stored_usage import fill_summaries
from telemetry.models import AccountHour, SampleMinute, UsageSummary
from telemetry.rules.rollup import MinuteTotals
from tests.factories import make_gpus, make_membership, make_node, make_reservation

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


def hour_ago(hours: int) -> datetime:
    """The begin of the hour so many hours before this one."""
    now = timezone.now().replace(minute=0, second=0, microsecond=0)
    return now - hours * HOUR


def store(gpu, first: datetime, *utils: float) -> None:
    """Store one minute after another."""
    record_minutes(
        totals={
            (gpu.pk, int(first.timestamp()) + 60 * number): MinuteTotals(
                n=60, util_n=60, util_sum_pct=60 * util, energy_joules=60.0
            )
            for number, util in enumerate(utils)
        }
    )


def told(user, path: str) -> dict:
    client = Client()
    client.force_login(user)
    return client.get(f"/api/v1{path}").json()


@pytest.fixture
def held(alice, carol):
    """Alice held the first Gpu from 30 minutes into an hour, Carol before her."""
    gpus = make_gpus(2, make_node("node-a"))
    nine = hour_ago(4)
    half = nine + HOUR / 2
    carols = make_reservation(carol, gpus[:1], nine - HOUR, half, state="ended")
    alices = make_reservation(alice, gpus[:1], half, half + 2 * HOUR, state="ended")
    store(gpus[0], nine, *[10] * 30, *[90] * 30)
    store(gpus[1], nine, *[50] * 60)
    return gpus, nine, alices, carols


def test_a_minute_counts_for_whoever_held_the_gpu(held, alice, carol):
    _gpus, nine, _alices, _carols = held
    by_account = {
        Account.objects.get(pk=account).name: (total.util_mean_pct, total.n, seconds)
        for (account, _pool), (total, seconds) in held_in_hour(nine).items()
    }
    assert by_account == {"vision": (90, 1800, 1800), "nlp": (10, 1800, 1800)}


def test_what_was_cancelled_or_never_began_held_nothing(alice):
    gpu = make_gpus(1)[0]
    nine = hour_ago(3)
    for state in ("cancelled", "displaced", "confirmed"):
        made = make_reservation(alice, [gpu], nine, nine + HOUR, state="ended")
        Reservation.objects.filter(pk=made.pk).update(state=state)
    assert held_in_hour(nine) == {}


def test_the_tick_rolls_up_accounts_and_may_run_twice(held, alice, omar):
    _gpus, nine, _alices, _carols = held
    now = timezone.now()
    assert tick.tick(now)["hours_rolled"] == 1
    assert tick.tick(now)["hours_rolled"] == 0
    row = AccountHour.objects.get(account_id=alice.memberships.get().account_id)
    assert (row.hour_at, row.n, row.held_seconds) == (nine, 1800, 1800)


@pytest.mark.once
def test_an_account_s_chart_is_of_what_it_held_at_both_tiers(held, alice):
    account = alice.memberships.get().account_id
    path = f"/accounts/{account}/history?hours=6&points="
    fine = told(alice, path + "720")["series"]
    tick.tick(timezone.now())
    roll_hours(now=timezone.now())
    coarse = told(alice, path + "6")["series"]
    assert (fine["step_seconds"], coarse["step_seconds"]) == (60, 3600)
    for series in (fine, coarse):
        assert sum(series["n"]) == 1800
        assert {x for x in series["util_avg_pct"] if x is not None} == {90}


@pytest.mark.once
def test_a_reservation_s_chart_has_only_its_own_minutes(held, alice):
    _gpus, nine, alices, _carols = held
    since = int(nine.timestamp())
    path = f"/reservations/{alices.pk}/history?from={since}&to={since + 7200}"
    series = told(alice, path)["series"]
    assert sum(series["n"]) == 1800
    assert {x for x in series["util_avg_pct"] if x is not None} == {90}


def test_an_institution_sees_its_groups_together(held, alice, omar):
    _gpus, _nine, _alices, _carols = held
    root = Account.objects.create(name="institute")
    Account.objects.exclude(pk=root.pk).update(parent=root)
    head = make_membership(omar, root, is_head=True)
    series = told(head.user, f"/accounts/{root.pk}/history?hours=6")["series"]
    assert sum(series["n"]) == 3600


def test_strangers_see_neither_an_account_nor_a_reservation(held, alice, carol, omar):
    _gpus, _nine, alices, _carols = held
    account = alice.memberships.get().account_id
    pages = [
        f"/api/v1/accounts/{account}/history",
        f"/api/v1/reservations/{alices.pk}/history",
        f"/api/v1/reservations/{alices.pk}/usage",
        f"/accounts/{account}/history/",
    ]
    for user, status in ((carol, 404), (alice, 200), (omar, 200)):
        client = Client()
        client.force_login(user)
        assert [client.get(page).status_code for page in pages] == [status] * 4
    assert Client().get(pages[0]).status_code == 401


def test_a_reservation_s_usage_is_counted_so_far_and_kept_at_the_end(alice):
    gpus = make_gpus(2)
    nine = hour_ago(2)
    made = make_reservation(alice, gpus, nine, nine + HOUR, state="active")
    store(gpus[0], nine, 40, 40)
    half = nine + HOUR / 2
    so_far = reservation_usage(made, now=half)
    assert so_far is not None
    assert (so_far.totals.util_mean_pct, so_far.gpu_seconds) == (40, 3600)
    assert tick.tick(nine + HOUR)["ended"] == 1
    assert UsageSummary.objects.filter(reservation_id=made.pk).count() == 3
    fill_summaries(now=nine + HOUR * 3)
    SampleMinute.objects.all().delete()
    made.refresh_from_db()
    kept = reservation_usage(made, now=timezone.now())
    assert kept is not None
    assert (kept.totals.util_mean_pct, kept.gpu_seconds) == (40, 7200)
    answer = told(alice, f"/reservations/{made.pk}/usage")["usage"]
    assert (answer["util_mean_pct"], answer["util_p95_pct"]) == (40, 40)


def test_releasing_asks_for_a_summary_of_the_time_that_was_held(alice):
    gpu = make_gpus(1)[0]
    now = timezone.now().replace(microsecond=0)
    made = make_reservation(alice, [gpu], now - HOUR, now + HOUR, state="active")
    release(reservation_id=made.pk, user=alice, now=now)
    whole = UsageSummary.objects.get(reservation_id=made.pk, gpu=None)
    assert (whole.to_at, whole.gpu_seconds) == (now, 3600)


def test_what_has_not_begun_has_no_usage(alice):
    now = timezone.now()
    made = make_reservation(alice, None, now + HOUR, now + 2 * HOUR)
    assert reservation_usage(made, now=now) is None
    assert told(alice, f"/reservations/{made.pk}/usage")["usage"] is None


def test_an_account_with_an_odd_name_makes_no_formula_in_the_sheet(held, alice):
    account = alice.memberships.get().account
    Account.objects.filter(pk=account.pk).update(name="=2+5")
    client = Client()
    client.force_login(alice)
    path = f"/api/v1/accounts/{account.pk}/history?hours=6&points=6&format=csv"
    answer = client.get(path)
    assert answer["Content-Type"].startswith("text/csv")
    head, *rows = csv.reader(io.StringIO(answer.content.decode()))
    assert head[:3] == ["of", "at", "seconds"]
    assert {row[0] for row in rows} == {"'=2+5"}
    empty = [row for row in rows if row[3] == "0"]
    assert empty and all(cell == "" for row in empty for cell in row[4:])


@pytest.mark.once
@pytest.mark.parametrize(
    "query",
    [
        "hours=0",
        "hours=99999999",
        "from=5&to=5",
        "to=5",
        "from=0&to=900000000",
        "points=5000",
        "points=0",
        "format=xml",
        "from=-1",
        "to=99999999999999999999",
    ],
)
def test_what_cannot_be_charted_is_a_422_that_says_why(alice, query):
    gpu = make_gpus(1)[0]
    client = Client()
    client.force_login(alice)
    answer = client.get(f"/api/v1/gpus/{gpu.pk}/history?{query}")
    assert answer.status_code == 422
    assert answer.json()["fields"]


def test_the_future_is_cut_off(alice):
    gpu = make_gpus(1)[0]
    second = int(datetime.now(UTC).timestamp())
    path = f"/gpus/{gpu.pk}/history?from={second - 3600}&to={second + 86_400}"
    answer = told(alice, path)
    assert second <= answer["end"] <= second + 5
    assert len(answer["series"]["at"]) <= 62


def test_charts_are_few_queries(held, alice, django_assert_max_num_queries):
    _gpus, _nine, alices, _carols = held
    account = alice.memberships.get().account_id
    client = Client()
    client.force_login(alice)
    for path in (
        f"/accounts/{account}/history?hours=17000&points=1000",
        f"/accounts/{account}/history?hours=24",
        f"/reservations/{alices.pk}/history?hours=2000",
        "/nodes/node-a/history?hours=17000",
    ):
        client.get(f"/api/v1{path}")
        with django_assert_max_num_queries(13):
            assert client.get(f"/api/v1{path}").status_code == 200
