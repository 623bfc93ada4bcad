"""``/status/``: opens for everybody, without database and broker, and names nobody."""

from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace

import pytest
from django.db import OperationalError, connection
from django.utils import timezone

from gpuportal.pages import status_page
from reservations.models import Delivery, Notice
from tests.factories import make_node

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Forget what another test has read."""
    monkeypatch.setattr(status_page, "_found", None)


@contextmanager
def no_database():
    """Let every query fail, as those of a database that is away."""

    def fail(*_):
        raise OperationalError("could not connect to 10.1.2.3 as portal")

    with connection.execute_wrapper(fail):
        yield


def test_a_stranger_sees_what_works_and_no_names(client, alice):
    make_node("atlas", last_seen_at=timezone.now() - timedelta(hours=2))
    notice = Notice.objects.create(user=alice, kind=Notice.Kind.TRIAL)
    Delivery.objects.create(
        notice=notice,
        channel=Delivery.Channel.WEBHOOK,
        tries=2,
        next_at=timezone.now() + timedelta(hours=1),
        error="https://hook.example.org/secret answered 500",
    )
    answer = client.get("/status/")
    page = answer.content.decode()
    assert answer.status_code == 200
    assert "no-store" in answer["Cache-Control"]
    assert "The database answers. Changes are saved." in page
    assert "1 message could not be delivered yet" in page
    for secret in ("atlas", "alice", "hook.example.org", "unix://", "Mail</dt>"):
        assert secret not in page
    # At most one look in five seconds, however many strangers ask.
    with no_database():
        assert "The database answers." in client.get("/status/").content.decode()
    assert client.post("/status/").status_code == 405


def test_without_database_and_broker_it_opens_also_for_those_signed_in(
    client, alice, settings
):
    client.force_login(alice)
    settings.REDIS_URL = "unix:///nowhere/else.sock?db=0"
    with no_database():
        answer = client.get("/status/", headers={"Accept-Language": "de"})
        other = client.get("/mine/")
    page = answer.content.decode()
    assert answer.status_code == 200
    assert "2 Teile des Portals funktionieren nicht." in page
    assert "10.1.2.3" not in page
    assert 'href="/status/"' in other.content.decode()
    assert other.status_code == 503


def test_a_database_that_goes_while_the_page_is_made(client, alice, monkeypatch):
    """The facts are from before, and the top bar needs the database."""
    client.force_login(alice)
    assert client.get("/status/").status_code == 200
    with no_database():
        answer = client.get("/status/")
    assert answer.status_code == 200
    assert "The database does not answer." in answer.content.decode()
    # What was read then is kept for the next visitor.
    assert "The database does not answer." in client.get("/status/").content.decode()


def test_one_thread_reads_and_the_others_do_not_wait_for_it(client, monkeypatch):
    with status_page._reading:
        answer = client.get("/status/")
    assert (answer.status_code, answer["Retry-After"]) == (503, "5")
    assert answer["Content-Type"].startswith("text/plain")
    assert client.get("/status/").status_code == 200
    read_at = status_page._found[0]
    # A state that is too old might say that everything works while a reading hangs.
    for later, status in ((59, 200), (61, 503)):
        clock = SimpleNamespace(monotonic=lambda now=read_at + later: now)
        monkeypatch.setattr(status_page, "time", clock)
        with status_page._reading:
            assert client.get("/status/").status_code == status


def test_a_slow_reading_is_kept_as_long_as_a_quick_one(monkeypatch):
    seconds = [0.0]
    read = status_page.read_facts

    def slow(now):
        seconds[0] += 60
        return read(now)

    clock = SimpleNamespace(monotonic=lambda: seconds[0])
    monkeypatch.setattr(status_page, "time", clock)
    monkeypatch.setattr(status_page, "read_facts", slow)
    first = status_page._recent_facts(5)
    assert status_page._recent_facts(5) is first
    seconds[0] += 6
    assert status_page._recent_facts(5) is not first
