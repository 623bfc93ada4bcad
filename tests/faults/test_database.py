"""The database: writers are killed during a transaction, and so is the server
itself.
"""

import os
import shutil
import signal
import sqlite3
import time
from datetime import timedelta

import pytest
from django.db import DatabaseError, InterfaceError, connection, connections
from django.utils import timezone

from placement.jobs.nodes.event_intake import record_fact
from placement.jobs.tick import job_tick
from placement.models import Job, JobEvent
from reservations import tick
from reservations.models import LedgerEntry
from tests.placement.nodes import until

pytestmark = pytest.mark.django_db(transaction=True)
POSTGRES = connection.vendor == "postgresql"


def hear(job, event, **more):
    said = {"v": 1, "kind": "job", "job": job.pk, "attempt": 1, "event": event}
    record_fact("red", {**said, "at": time.time(), **more}, timezone.now())


def started(job):
    hear(job, "started")


def killed_while(act):
    """Run a function in a process that is killed at the write of its last row."""
    connections.close_all()
    child = os.fork()
    if child == 0:

        def die(*_args, **_fields):
            os.kill(os.getpid(), signal.SIGKILL)

        JobEvent.objects.create = LedgerEntry.objects.create = die
        LedgerEntry.objects.bulk_create = die
        try:
            act()
        finally:
            os._exit(7)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "it was to be killed in the middle"
    assert os.WTERMSIG(status) == signal.SIGKILL


def test_a_tick_that_is_killed_half_way_orders_nothing_and_the_next_does(
    job, redis_client
):
    killed_while(lambda: job_tick.tick(timezone.now()))
    job.refresh_from_db()
    assert (job.state, job.attempt) == ("queued", 0)
    assert redis_client.llen("node.red") == 0
    assert job_tick.tick(timezone.now())["ordered"] == 1
    job.refresh_from_db()
    assert (job.state, job.attempt) == ("starting", 1)
    assert redis_client.llen("node.red") == 1


@pytest.mark.parametrize(
    ("state", "event", "after"),
    [
        ("starting", "started", "running"),
        ("running", "exited", "failed"),
        ("moving", "exited", "stopped"),
        ("stopping", "exited", "stopped"),
        ("running", "lost", "lost"),
    ],
)
def test_a_fact_whose_reader_is_killed_half_way_moves_once(job, state, event, after):
    job_tick.tick(timezone.now())
    Job.objects.filter(pk=job.pk).update(state=state)
    killed_while(lambda: hear(job, event, exit_code=3))
    job.refresh_from_db()
    assert (job.state, job.started_at, job.ended_at) == (state, None, None)
    for _ in range(2):
        hear(job, event, exit_code=3)
    job.refresh_from_db()
    assert job.state == after
    assert job.events.filter(new=after).count() == 1


def test_a_charge_whose_writer_is_killed_half_way_is_made_once(job):
    held = job.reservation
    before = LedgerEntry.objects.count()
    over = held.end + timedelta(seconds=1)
    killed_while(lambda: tick.tick(over))
    held.refresh_from_db()
    assert (held.state, LedgerEntry.objects.count()) == ("active", before)
    for _ in range(2):
        tick.tick(over)
    held.refresh_from_db()
    assert held.state == "ended"
    kinds = list(LedgerEntry.objects.filter(reservation=held).values_list("kind"))
    assert len(kinds) == len(set(kinds)) > 0


def test_a_database_that_is_killed_in_the_middle_has_all_or_nothing(
    job, tmp_path, monkeypatch
):
    """kill -9 of the server's process. For SQLite, the state after a power cut."""
    if POSTGRES:
        with connection.cursor() as cursor:
            # The suite's own server does not wait for its journal, but a site's does.
            cursor.execute("SET synchronous_commit TO on")
            # The whole suite's journal must not be replayed.
            cursor.execute("CHECKPOINT")
    job_tick.tick(timezone.now())
    left = tmp_path / "left.sqlite3"
    create = JobEvent.objects.create

    def cut(**fields):
        if POSTGRES:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_backend_pid()")
                os.kill(cursor.fetchone()[0], signal.SIGKILL)
        else:
            for tail in ("", "-wal"):
                name = f"{connection.settings_dict['NAME']}{tail}"
                shutil.copy(name, f"{left}{tail}")
            raise DatabaseError("the machine is gone")
        return create(**fields)

    monkeypatch.setattr(JobEvent.objects, "create", cut)
    with pytest.raises((DatabaseError, InterfaceError)):
        started(job)
    monkeypatch.undo()
    connection.close()
    if not POSTGRES:
        with sqlite3.connect(left) as copy:
            assert copy.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            row = copy.execute(
                "SELECT state FROM placement_job WHERE id = ?", [job.pk]
            ).fetchone()
        assert row == ("starting",)
    assert until(lambda: state_of(job), 60, "the server to be there again") == (
        "starting"
    )
    started(job)
    assert state_of(job) == "running"
    assert job.events.filter(new="running").count() == 1


def state_of(job):
    """Return the state; None while the server restarts."""
    try:
        return Job.objects.values_list("state", flat=True).get(pk=job.pk)
    except DatabaseError:
        connection.close()
        return None
