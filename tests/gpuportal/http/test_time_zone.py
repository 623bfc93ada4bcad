"""Times in the zone of the reader: pages, scripts, refusals, mails and quiet hours."""

from datetime import UTC, datetime, time, timedelta

import pytest
from django.utils import timezone

from reservations.models import Notice, NoticeSettings
from reservations.notifications.channels import after_quiet
from reservations.notifications.queries import notices_with_text
from tests.factories import make_gpus, make_node, make_reservation

pytestmark = pytest.mark.django_db


@pytest.fixture
def berlin(alice):
    alice.time_zone = "Europe/Berlin"
    alice.save()
    return alice


def test_pages_and_scripts_use_the_zone_of_the_reader(client, berlin, bob):
    start = datetime(2027, 1, 12, 9, tzinfo=UTC)
    made = make_reservation(
        berlin, make_gpus(1, make_node("node-a")), start, start + timedelta(hours=2)
    )
    path = f"/reservations/{made.pk}/"
    client.force_login(berlin)
    page = client.get(path).content.decode()
    assert 'data-time-zone="Europe/Berlin"' in page
    assert "Tue 12 Jan 10:00 to 12:00" in page
    assert '"zone": "Europe/Berlin"' in client.get("/calendar/").content.decode()
    client.force_login(bob)
    page = client.get(path).content.decode()
    assert 'data-time-zone="UTC"' in page
    assert "Tue 12 Jan 09:00 to 11:00" in page
    assert timezone.get_current_timezone_name() == "UTC"


def test_the_zone_is_chosen_in_the_settings(client, alice):
    client.force_login(alice)
    page = client.post("/me/zone/", {"time_zone": "Europe/Berlin"}, follow=True)
    assert "Times are now shown in Europe/Berlin." in page.content.decode()
    alice.refresh_from_db()
    assert alice.time_zone == "Europe/Berlin"
    back = client.post("/me/zone/", {"time_zone": "", "back": "/calendar/?view=week"})
    assert back.url == "/calendar/?view=week"
    evil = client.post("/me/zone/", {"time_zone": "", "back": "https://evil.example/"})
    assert evil.url == "/me/"


@pytest.mark.once
@pytest.mark.parametrize("name", ["Europe/Berlun", "../etc/passwd", "x" * 65, "\0"])
def test_a_zone_that_does_not_exist_is_refused_by_the_field(client, alice, name):
    client.force_login(alice)
    answer = client.post("/me/zone/", {"time_zone": name})
    assert answer.status_code == 422
    assert 'aria-invalid="true"' in answer.content.decode()
    alice.refresh_from_db()
    assert alice.time_zone == ""


def test_a_zone_that_is_no_longer_known_falls_back_to_the_sites(client, alice):
    alice.time_zone = "Mars/Olympus"
    alice.save()
    client.force_login(alice)
    assert 'data-time-zone="UTC"' in client.get("/me/").content.decode()


def test_messages_and_quiet_hours_use_the_zone_of_their_reader(berlin):
    start = datetime(2027, 1, 12, 9, tzinfo=UTC)
    made = make_reservation(
        berlin, make_gpus(1, make_node("node-a")), start, start + timedelta(hours=2)
    )
    notice = Notice.objects.create(
        user=berlin,
        kind=Notice.Kind.ENDING_SOON,
        reservation=made,
        detail={"end_at": "2027-01-12T11:00:00+00:00"},
    )
    assert "12:00" in notices_with_text([notice], berlin)[0].text
    how = NoticeSettings(user=berlin, quiet_from=time(22), quiet_until=time(7))
    assert after_quiet(how, datetime(2027, 1, 12, 21, 30, tzinfo=UTC)) == datetime(
        2027, 1, 13, 6, tzinfo=UTC
    )
