"""Faults of moving Jobs: their ranks, the node's disk, and their checkpoints."""

import signal
from dataclasses import replace

import pytest
from django.utils import timezone

from placement.agent.command_handler import OrderDesk
from placement.agent.local_runner import LocalRunner
from placement.agent.process.process_tree import send
from placement.jobs import service as jobs
from placement.models import CarriedCheckpoint, Job
from placement.protocol import signing
from placement.protocol.job_lifecycle import JobState
from placement.rebalance.rebalance_tick import rebalance_jobs
from tests.faults.test_disk_full import fill, root
from tests.placement import nodes
from tests.placement.moving_on import moves, runs_on_blue
from tests.placement.nodes import ended, script_order, until

HANGS = 'mkdir draft; echo "$n" > draft/step; while :; do sleep 0.05; done;'


def test_ranks_that_are_killed_while_it_moves_lose_no_checkpoint(near, redis_client):
    job = runs_on_blue(near, redis_client, asked=f"echo half-way now; {HANGS}")
    move, after = moves(job)
    # It saves, and its processes are killed in the middle of that.
    near.says(job, "half-way")
    job.refresh_from_db()
    assert job.state == JobState.MOVING
    for pid in near.processes_of(job):
        send(pid, signal.SIGKILL)  # a `sleep` of its may have ended meanwhile
    near.until_state(job, "stopped")
    assert job.exit_signal == signal.SIGKILL and not near.processes_of(job)
    assert job.reason == (
        "moves to red:0, ended by SIGKILL before it had saved: the next run resumes "
        "from the last complete checkpoint"
    )
    # The next one is sent and runs, but is killed before anything is reported.
    near.until(lambda: state_of(after) == "starting", "its order")
    until(lambda: near.processes_of(after), what="its first process")
    until(lambda: "saved" in near.log(after), what="a checkpoint of its own")
    begun, saved = near.says(after, "begins at"), near.says(after, "saved")
    assert begun == near.says(job, "saved")
    assert state_of(after) == "starting"
    for pid in near.processes_of(after):
        send(pid, signal.SIGKILL)
    near.until_state(after, "failed")
    assert after.reason == "ended by SIGKILL" and not near.processes_of(after)
    rebalance_jobs(timezone.now())
    move.refresh_from_db()
    assert move.state == "moved", "it did begin"
    again = launched_again(after)
    near.until_state(again, "running")
    assert near.says(again, "begins at") == saved
    assert not near.processes_of(job) and not near.processes_of(after)


def state_of(job):
    return Job.objects.values_list("state", flat=True).get(pk=job.pk)


def launched_again(job, **more):
    return jobs.launch(
        user=job.owner,
        reservation_id=job.reservation_id,
        name="again",
        kind="script",
        script=job.script,
        plan_id=job.plan_id,
        resume_from=job.pk,
        now=timezone.now(),
        **more,
    )


@root
def test_a_full_disk_of_the_node_that_it_leaves_costs_no_checkpoint(
    near, redis_client, small_disk
):
    near.kill("blue")
    near.start("blue", GPUPORTAL_NODE_DIR=str(small_disk / "node"))
    job = runs_on_blue(near, redis_client, size=200_000)
    rest = fill(small_disk)
    _, after = moves(job)
    near.until_state(job, "stopped")
    assert job.exit_code == 3 and not near.processes_of(job)
    assert job.reason == (
        "moves to red:0, the disk of the node is full before it had saved: the next "
        "run resumes from the last complete checkpoint"
    )
    # There is a checkpoint, but no room to pack it: reported, and not taken for none.
    full = f"the node has no room for the checkpoint of job {job.pk}: it takes 1 MiB"
    near.until(lambda: full in waits(after), "word of the full disk")
    assert near.processes_of(after) == []
    rest.unlink()
    near.until_state(after, "running")
    assert near.says(after, "begins at") == near.says(job, "saved")


def waits(job):
    job.refresh_from_db()
    assert job.state == JobState.QUEUED, (job.state, job.reason)
    assert job.reason == "" or job.reason.startswith("waits for"), job.reason
    return job.reason


@root
def test_a_checkpoint_arrives_through_a_full_portal_and_killed_nodes(
    near, redis_client, small_disk, settings, serve
):
    settings.MEDIA_ROOT = small_disk
    away = serve()
    away.down = True
    near.kill("red")
    near.start("red", GPUPORTAL_WEB_URL=away.url)
    half = small_disk / "half"
    half.write_bytes(bytes(700_000))
    job = runs_on_blue(near, redis_client, size=600_000)
    _, after = moves(job)
    full = "the portal cannot store it: No space left on device"
    near.until(lambda: full in waits(after), "word of the full portal")
    coming = CarriedCheckpoint.objects.filter(have_bytes__gt=0)
    stands = near.until(coming.first, "what there was room for")
    assert stands.have_bytes < stands.size_bytes
    # The node that brings it is killed, and the room that becomes free is not used.
    near.kill("blue")
    half.unlink()
    for _ in range(3):
        near.step()
    stands.refresh_from_db()
    assert stands.state == CarriedCheckpoint.State.COMING
    near.start("blue")
    near.until_state(after, "starting")
    # The node that fetches it is killed, including the shim.
    near.until(lambda: near.at(after).read("shim"), "its shim")
    near.kill("red", after)
    near.start("red", GPUPORTAL_WEB_URL=near.web_url)
    near.until_state(after, "lost")
    assert after.started_at is None
    # It has retries: the next one fetches the checkpoint of that one.
    others = Job.objects.filter(resume_from=job).exclude(pk=after.pk)
    again = near.until(others.first, "the next")
    assert (again.retries, again.node.name) == (1, "red")
    near.until_state(again, "running")
    assert near.says(again, "begins at") == near.log(job).splitlines()[-1][6:]
    assert not near.processes_of(job) and not near.processes_of(after)
    rest = small_disk / "checkpoints"
    near.until(lambda: not list(rest.iterdir()), "nothing to be left")


@root
@pytest.mark.pure
def test_what_goes_on_waits_for_room_and_never_begins_anew_beside_a_checkpoint(
    node, serve, small_disk
):
    web = serve(
        "[ -f checkpoint/step ] && exec cksum checkpoint/step\n"
        "mkdir checkpoint; head -c 300000 /dev/urandom > checkpoint/step\n"
        "cksum checkpoint/step; while :; do sleep 0.05; done\n"
    )
    here = replace(node, node_dir=small_disk / "node", web_url=web.url)
    told: list[dict] = []
    desk, runner = OrderDesk(here, publish=told.append), LocalRunner(here)

    def give(**changes):
        order = script_order(web, **changes)
        payload = order.payload()
        return desk.take(payload, signing.sign(payload))

    first = nodes.start(here, script_order(web, grace_seconds=0.2))
    saved = until(lambda: first.log.exists() and first.log.read_text())
    assert not give(job=8, resume_job=7, resume_attempt=1)
    assert (told[-1]["code"], told[-1]["reason"]) == (
        "busy",
        "job 7, which it resumes from, has not ended",
    )
    runner.stop(first, "moves")
    ended(first)
    rest = small_disk / "rest"
    rest.write_bytes(bytes(500_000))
    assert not give(job=8, resume_job=7, resume_attempt=1)
    assert told[-1]["code"] == "storage"
    assert "no room for the checkpoint of job 7: it takes 1 MiB" in told[-1]["reason"]
    # The room is used up between that look and the copy.
    second = nodes.start(here, script_order(web, job=8, resume_job=7, resume_attempt=1))
    assert ended(second)["exit_code"] == 126
    words = second.log.read_text()
    assert (
        "the checkpoint of job 7 could not be copied here" in words
        and "No space left" in words
    )
    assert {path.name for path in second.work.iterdir()} == {"results", "script"}
    rest.unlink()
    # A Job that continues from that one uses the checkpoint that it could not copy.
    assert give(job=9, resume_job=8, resume_attempt=1)
    third = runner.folder(9, 1)
    runner.start(third)
    assert ended(third)["exit_code"] == 0
    assert third.log.read_text().splitlines()[-1] == saved.strip()
