"""``/healthz`` and ``/readyz``: open, quick, correct, and without other information."""

import time
from collections import namedtuple

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection
from django.db.migrations.recorder import MigrationRecorder

from gpuportal import checks, ticks
from gpuportal.celery import app, note_tick, say_ready
from gpuportal.monitoring import health, migrations_due
from placement.protocol.job_lifecycle import JobState
from tests.factories import make_reservation
from tests.placement.job_pages.test_job_page import make_job


@pytest.mark.django_db
def test_a_healthy_portal_says_so_to_a_stranger(client):
    answer = client.get("/healthz")
    assert answer.status_code == 200
    assert answer.json() == {"status": "ok", "database": True, "broker": True}
    assert "no-store" in answer["Cache-Control"]


@pytest.mark.django_db
def test_a_dead_broker_is_told_and_nothing_else_leaks(client, settings):
    settings.REDIS_URL = "unix:///nowhere/else.sock?db=0"
    answer = client.get("/healthz")
    assert answer.status_code == 503
    assert answer.json() == {
        "status": "unavailable",
        "database": True,
        "broker": False,
    }
    assert b"nowhere" not in answer.content


@pytest.mark.django_db
def test_a_dead_database_is_told_and_nothing_else_leaks(client, monkeypatch):
    class Gone:
        def cursor(self):
            raise OperationalError("could not connect to 10.1.2.3 as portal")

    monkeypatch.setattr(health, "connection", Gone())
    answer = client.get("/healthz")
    assert answer.status_code == 503
    assert answer.json()["database"] is False
    assert b"10.1.2.3" not in answer.content


def test_health_is_read_only(client):
    assert client.post("/healthz").status_code == 405


# --- /readyz ------------------------------------------------------------------


@pytest.fixture
def ticking():
    """Worker and beat are there: each periodic task was just done."""
    ticks.broker().delete(ticks.KEY)
    for task in ticks.allowed_seconds():
        note_tick(sender=app.tasks.get(task) or namedtuple("Task", "name")(task))
    yield
    ticks.broker().delete(ticks.KEY)


@pytest.fixture
def stopped():
    """Worker and beat were ended 45 s ago."""
    for task in ticks.allowed_seconds():
        ticks.broker().hset(ticks.KEY, task, repr(time.time() - 45))
    yield
    ticks.broker().delete(ticks.KEY)


@pytest.fixture
def migrated(monkeypatch):
    """Forget the cached result of another test."""
    monkeypatch.setattr(migrations_due, "_found", None)


@pytest.fixture
def waits(monkeypatch, db):
    """The database is older than the code."""
    monkeypatch.setattr(migrations_due, "_found", None)
    newest = max(
        name
        for app_label, name in MigrationRecorder(connection).applied_migrations()
        if app_label == "reservations"
    )
    MigrationRecorder(connection).record_unapplied("reservations", newest)
    yield f"reservations.{newest}"
    monkeypatch.setattr(migrations_due, "_found", None)


@pytest.mark.django_db
def test_a_portal_that_works_is_ready(client, ticking, migrated):
    answer = client.get("/readyz")
    assert answer.status_code == 200
    assert answer.json() == {
        "status": "ok",
        **dict.fromkeys(("database", "broker", "ticks", "disk", "migrations"), True),
    }


@pytest.mark.once
@pytest.mark.django_db
def test_a_stopped_clock_is_seen_by_monitoring_operators_and_who_waits(
    client, omar, alice, stopped, migrated
):
    assert client.get("/healthz").status_code == 200
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["ticks"] is False
    assert "tick_age_seconds" not in answer.json()

    client.force_login(omar)
    ages = client.get("/readyz").json()["tick_age_seconds"]
    assert 45 <= ages["reservations.tasks.tick"] < 60
    page = client.get("/").content.decode()
    assert 'id="troubles-banner"' in page
    assert "The portal&#x27;s periodic tasks are late: no job starts or ends" in page
    with pytest.raises(CommandError, match="periodic tasks are late"):
        call_command("health")

    client.force_login(alice)
    assert 'id="troubles-banner"' not in client.get("/").content.decode()
    job = make_job(make_reservation(alice), state=JobState.QUEUED)
    page = client.get(f"/jobs/{job.pk}/").content.decode()
    assert "The portal starts and ends no job at the moment" in page


@pytest.mark.once
@pytest.mark.django_db
def test_nobody_is_warned_while_all_is_well(
    client, omar, alice, ticking, migrated, capsys
):
    client.force_login(omar)
    assert 'id="troubles-banner"' not in client.get("/").content.decode()
    job = make_job(make_reservation(alice), state=JobState.QUEUED)
    client.force_login(alice)
    assert 'id="job-clock"' not in client.get(f"/jobs/{job.pk}/").content.decode()
    call_command("health")
    assert capsys.readouterr().out.startswith("All is well")


def test_a_worker_that_starts_lets_the_time_run(monkeypatch):
    ticks.broker().delete(ticks.KEY)
    assert ticks.late(ticks.ages())
    say_ready()
    assert not ticks.late(ticks.ages())
    moment = time.time
    monkeypatch.setattr(time, "time", lambda: moment() + 6 * 3600)
    # A second worker does not set the clock back.
    say_ready()
    assert len(ticks.late(ticks.ages())) == len(ticks.allowed_seconds())
    ticks.broker().delete(ticks.KEY)


def test_a_broker_that_lost_its_notes_is_no_alarm_once_ticks_come():
    ticks.broker().delete(ticks.KEY)
    ticks.note("reservations.tasks.tick")
    assert not ticks.late(ticks.ages())
    ticks.broker().delete(ticks.KEY)


@pytest.mark.django_db
def test_a_full_disk_is_said(client, omar, ticking, migrated, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(
        health.shutil, "disk_usage", lambda _: usage(2**40, 2**40, 300 * 2**20)
    )
    assert client.get("/readyz").json()["disk"] is False
    client.force_login(omar)
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["disk_free_bytes"] == 300 * 2**20
    assert "disk is nearly full: 0.29 GiB are free" in client.get("/").content.decode()


@pytest.mark.django_db
def test_a_forgotten_migrate_is_said_and_no_unit_starts(client, omar, ticking, waits):
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["migrations"]) == (503, False)
    client.force_login(omar)
    assert client.get("/readyz").json()["migrations_waiting"] == [waits]
    page = client.get("/").content.decode()
    assert f"Not applied: {waits}." in page
    (found,) = checks.database_is_migrated(databases=["default"])
    assert found.id == "gpuportal.E006"
    assert waits in found.msg


@pytest.mark.django_db
def test_a_database_of_a_newer_version_is_said(migrated):
    assert checks.database_is_migrated(databases=["default"]) == []
    MigrationRecorder(connection).record_applied("reservations", "9999_of_tomorrow")
    (found,) = checks.database_is_migrated(databases=["default"])
    assert found.id == "gpuportal.W002"
    assert "reservations.9999_of_tomorrow" in found.msg
