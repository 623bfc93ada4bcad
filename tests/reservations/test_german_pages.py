"""The reservations' pages in German, without a browser: no English is left."""

from datetime import date, time, timedelta

import pytest
from django.test import Client
from django.utils import timezone, translation

from reservations.accounts.tree.tree_text import Names, value_text
from reservations.models import Notice, Offer, User
from reservations.series.recurrence import Repeat, Rule
from telemetry.web.translation import translated
from tests.factories import make_gpus, make_reservation
from tests.german import source_in_english

pytestmark = pytest.mark.django_db


@pytest.fixture
def german(client: Client):
    """Return what opens pages as a reader of German."""

    def opened(user: User, *paths: str) -> None:
        user.language = "de"
        user.save()
        client.force_login(user)
        for path in paths:
            page = client.get(path)
            assert page.status_code == 200, path
            assert page.headers["Content-Language"] == "de"
            assert source_in_english(page.content.decode()) == [], path

    return opened


def test_a_student_reads_german(client, german, alice, bob) -> None:
    now = timezone.now()
    gpus = make_gpus(4)
    running = make_reservation(
        alice,
        gpus[:2],
        now - timedelta(minutes=30),
        now + timedelta(hours=3),
        state="active",
        purpose="Ablation",
    )
    ahead = now + timedelta(hours=20)
    flex = make_reservation(
        alice, gpus[2:3], ahead, ahead + timedelta(hours=2), kind="flex"
    )
    Notice.objects.create(user=alice, kind="released", told_at=now)
    german(alice, f"/reservations/{flex.pk}/")
    client.post(f"/reservations/{flex.pk}/offer/", {"to": bob.username})
    assert Offer.objects.get().state == "open"
    german(
        alice,
        "/calendar/",
        "/series/",
        "/series/?state=ended",
        "/series/new/",
        "/offers/",
        "/offers/?state=declined",
        "/waiting/",
        "/standing/",
        "/notices/",
        "/notices/?unread=on",
        "/me/notices/",
        f"/reservations/{running.pk}/",
        f"/reservations/{flex.pk}/",
    )


@pytest.mark.once
def test_the_reasons_of_the_ledger_are_read_in_german(client, german, alice) -> None:
    ahead = timezone.now().replace(minute=0, second=0, microsecond=0)
    ahead += timedelta(hours=20)
    wish = {
        "gpu_ids": [make_gpus(1)[0].pk],
        "start": ahead.isoformat(),
        "end": (ahead + timedelta(hours=2)).isoformat(),
    }
    german(alice)
    booked = client.post("/api/v1/reservations", wish, "application/json")
    assert booked.status_code == 201, booked.content
    path = f"/api/v1/reservations/{booked.json()['id']}/cancel"
    assert client.post(path, {}, "application/json").status_code == 200
    ledger = client.get("/standing/").content.decode()
    assert "reserviert, garantiert" in ledger
    assert "booked firm" not in ledger
    assert ">storniert<" in ledger


def test_the_calendar_says_in_german_why_a_gpu_is_out(client, german, alice) -> None:
    gpu = make_gpus(1)[0]
    gpu.maintenance = True
    gpu.save()
    german(alice)
    span = {"start": "2026-03-02T00:00:00Z", "end": "2026-03-03T00:00:00Z"}
    (told,) = client.get("/api/v1/calendar", span).json()["gpus"]
    assert (told["out"], told["out_reason"]) == ("Wartung", "Sie ist in Wartung.")


def test_an_admin_reads_german(german, alice, omar) -> None:
    pool = make_gpus(2)[0].pool_id
    account = alice.memberships.first().account_id
    german(
        omar,
        "/manage/accounts/",
        "/manage/accounts/changes/",
        "/manage/accounts/draft/",
        "/manage/accounts/import/",
        "/manage/courses/",
        "/manage/courses/new/",
        "/manage/pools/",
        "/manage/gpus/",
        "/manage/gpus/replace/",
        "/manage/closures/",
        "/manage/closures/new/",
        "/manage/policy/booking/",
        "/manage/policy/telemetry/",
        "/manage/reports/",
        "/manage/replay/",
        f"/manage/pools/{pool}/",
        f"/manage/accounts/?account={account}",
        f"/standing/?account={account}",
        f"/group/?account={account}",
        f"/group/{account}/report/",
    )


def test_the_dates_of_a_series_and_of_a_change_are_german():
    series = Rule(
        repeat=Repeat.WEEKLY,
        first_day=date(2026, 9, 5),
        local_start=time(9),
        zone="UTC",
        duration_seconds=3600,
        until=date(2026, 10, 3),
    )
    assert series.words == "every week at 09:00, until 3 Oct 2026"
    changed = value_text("ends_at", "2026-10-03T08:30:00+00:00", Names())
    assert changed == "3 Oct 2026 08:30"
    with translation.override("de"):
        assert translated(series.words).endswith("um 09:00, bis 3. Okt 2026")
        assert translated(changed) == "3. Okt 2026 08:30"
