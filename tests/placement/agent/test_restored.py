"""A portal that was restored from a backup gives numbers again: Jobs are never
mixed.
"""

import secrets
import time
from datetime import timedelta

import pytest
from django.utils import timezone

from placement.agent import portal_channel
from placement.agent.job_folder import job_folders
from placement.jobs import service as jobs_service
from placement.jobs.nodes import command_queue, event_intake, log_store
from placement.jobs.nodes.event_intake import record_fact
from placement.jobs.tick import job_tick
from placement.models import Job
from placement.protocol import signing
from reservations.rules.lifecycle import State
from tests.factories import make_gpus, make_node, make_reservation
from tests.placement import nodes
from tests.placement.nodes import until
from tests.placement.serving.kitchen import Kitchen, token_of

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def desk(node, redis_client, live_server, settings):
    """A node's worker against the live site."""
    settings.ALLOW_UNISOLATED_SCRIPTS = True
    row = make_node("node1")
    gpus = make_gpus(2, row)
    here = nodes.make_settings(
        node.node_dir.parent, redis_url=node.redis_url, web_url=live_server.url
    )
    token_of(row, here)
    nodes.write_simulation(here, tuple(gpu.uuid for gpu in gpus))
    made = Kitchen(here, redis_client)
    made.row, made.gpus = row, gpus
    yield made
    made.close()


def ordered(desk, job):
    """Send a Job's order as the tick does."""
    job_tick.tick(timezone.now())
    job.refresh_from_db()
    payload = command_queue.start_order(job, now=timezone.now()).payload()
    assert desk.desk.take(payload, signing.sign(payload))


def launch(desk, user, gpu, script):
    held = make_reservation(user, [gpu], state=State.ACTIVE)
    return jobs_service.launch(
        user=user,
        reservation_id=held.pk,
        name="try",
        kind="script",
        script=script,
        now=timezone.now(),
    )


def told(desk, condition, seconds=30):
    """Bring facts to the web until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)
        desk.tell()


def test_a_student_never_sees_the_job_that_had_the_number_before(
    desk, alice, carol, monkeypatch
):
    monkeypatch.setattr("placement.jobs.nodes.event_intake.STRANGER_SECONDS", 2.0)
    carols = launch(desk, carol, desk.gpus[0], "echo secret of carol; sleep 60\n")
    ordered(desk, carols)
    desk.until_running(carols)
    until(lambda: b"secret" in b"".join(map(logs_of, [carols])))
    # The backup is older, so its next number goes to another Job.
    mine = make_reservation(alice, [desk.gpus[1]], state=State.ACTIVE)
    Job.objects.filter(pk=carols.pk).update(
        owner=alice,
        reservation=mine,
        key=secrets.token_hex(8),
        script="echo hello alice\n",
        state="queued",
        attempt=0,
        order_nonce="",
        started_at=None,
        ordered_at=None,
        log_bytes=0,
        last_lines=[],
        seen_at=None,
        told_end=None,
        started_with="",
    )
    job = Job.objects.get(pk=carols.pk)
    assert log_store.tail(job).data == ""
    ordered(desk, job)
    told(desk, lambda: Job.objects.get(pk=job.pk).state == "done")
    until(lambda: "hello" in log_store.tail(job).data)
    job.refresh_from_db()
    assert log_store.tail(job).data == "hello alice\n"
    assert job.last_lines == ["hello alice"]
    assert (job.reason, job.exit_code) == ("", 0)
    folders = list(job_folders(desk.settings.node_dir / "jobs"))
    assert [(one.job, one.attempt) for one in folders] == [(job.pk, 1)] * 2
    assert len({one.key for one in folders}) == 2
    assert [one.read("status")["started_at"] for one in folders]
    assert folders[0].path != folders[1].path
    other = next(one for one in folders if one.key == carols.key)

    def ended():
        for payload in sent:
            desk.desk.take(payload, signing.sign(payload))
        sent.clear()
        return other.read("status").get("event") == "exited"

    sent = []
    monkeypatch.setattr(
        command_queue,
        "send",
        lambda order: sent.append(order.payload()) or True,
    )
    told(desk, ended)
    assert "restored from a backup" in other.read("status")["reason"]
    desk.tell()
    job.refresh_from_db()
    assert (job.state, job.reason) == ("done", "")


def logs_of(job):
    path = log_store.path_of(job)
    return path.read_bytes() if path.exists() else b""


@pytest.mark.once
def test_what_a_node_keeps_of_another_job_of_that_number_is_refused(desk, alice):
    job = launch(desk, alice, desk.gpus[0], "true\n")
    Job.objects.filter(pk=job.pk).update(attempt=1, state="running")
    up = {
        "web_url": desk.settings.web_url,
        "node": "node1",
        "token": desk.settings.token(),
        "job": job.pk,
        "attempt": 1,
        "offset_bytes": 0,
        "data": b"secret\n",
    }
    for strange in ("", "ab" * 8):
        with pytest.raises(portal_channel.ChannelRefused, match="another job"):
            portal_channel.upload_log(**up, key=strange)
    assert logs_of(job) == b""
    assert portal_channel.upload_log(**up, key=job.key) == 7


@pytest.mark.once
def test_a_fact_or_belief_of_another_job_of_that_number_moves_nothing(desk, alice):
    job = launch(desk, alice, desk.gpus[0], "true\n")
    Job.objects.filter(pk=job.pk).update(attempt=1, state="starting")
    now = timezone.now()
    fact = {
        "v": 1,
        "kind": "job",
        "job": job.pk,
        "attempt": 1,
        "key": "ab" * 8,
        "event": "exited",
        "at": now.timestamp(),
        "last_lines": ["secret"],
    }
    running = {
        "job": job.pk,
        "attempt": 1,
        "key": "ab" * 8,
        "started_at": 1.0,
        "deadline_at": 2.0,
    }
    belief = {
        "v": 1,
        "kind": "jobs",
        "at": now.timestamp(),
        "running": [running],
        "ended": [fact],
    }
    assert not record_fact("node1", fact, now)
    assert not record_fact("node1", belief, now + timedelta(seconds=1))
    job.refresh_from_db()
    assert (job.state, job.started_at, job.last_lines) == ("starting", None, [])
    assert record_fact("node1", fact | {"key": job.key, "exit_code": 0}, now)


@pytest.mark.once
def test_a_node_that_names_a_thousand_unknown_jobs_gets_few_stop_orders(
    monkeypatch, caplog, redis_client
):
    """It causes them itself, in every message."""
    make_node("node1")
    sent: list[int] = []
    monkeypatch.setattr(
        command_queue, "send", lambda order: sent.append(order.job) or True
    )
    now = timezone.now()

    def belief(jobs, at):
        running = [
            {
                "job": job,
                "attempt": 1,
                "key": "0" * 16,
                "started_at": at.timestamp() - 3600,
            }
            for job in jobs
        ]
        at_unix = at.timestamp()
        return {"v": 1, "kind": "jobs", "at": at_unix, "running": running, "ended": []}

    for second in range(10):
        at = now + timedelta(seconds=second)
        record_fact("node1", belief(range(1, 1001), at), at)
    assert len(sent) == len(set(sent)) == event_intake.MOST_STRANGERS
    assert "runs 1000 jobs that the portal does not know" in caplog.text

    # Few of them are stopped at once, and stopped again if they continue.
    redis_client.flushdb()
    sent.clear()
    for second in range(60):
        at = now + timedelta(seconds=100 + second)
        record_fact("node1", belief((2001, 2002), at), at)
    assert sorted(sent) == [2001, 2001, 2002, 2002]
