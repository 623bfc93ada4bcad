"""Checkpoints in transfer: only requested ones, only to the ordered place."""

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from unittest.mock import Mock

import pytest
from django.test import Client

import gpuportal.celery  # noqa: F401  (orders go to the test's own broker)
from placement.jobs import service as jobs
from placement.jobs.nodes import checkpoint_relay, checkpoint_store
from placement.jobs.tick import job_tick
from placement.models import CarriedCheckpoint, Job, PlacementPolicy
from placement.planner.values.errors import LaunchInvalid
from reservations.rules.lifecycle import State
from tests.factories import make_gpus, make_node, make_reservation
from tests.placement.stage import NOW, after, fact, record

BODY = b"weights" * 1000
SIZE = len(BODY)
SUM = hashlib.sha256(BODY).hexdigest()


@pytest.fixture
def lab(alice, settings, tmp_path, redis_client):
    """Alice's ended Job 1 on red, and Job 2 on blue that continues from it."""
    settings.MEDIA_ROOT = tmp_path
    made = {}
    for name in ("red", "blue", "green"):
        node = make_node(name, last_seen_at=NOW)
        token = node.new_token()
        node.save()
        made[name] = (make_gpus(1, node), f"Node {name}:{token}")
    ended = Job.objects.create(
        reservation=make_reservation(alice, made["red"][0], start=NOW),
        owner=alice,
        node=made["red"][0][0].node,
        name="before",
        kind="recipe",
        recipe="burn-in",
        state="stopped",
        attempt=1,
        ended_at=NOW,
    )
    booked = make_reservation(alice, made["blue"][0], start=NOW, state=State.ACTIVE)

    def launch(**more):
        return jobs.launch(
            user=alice,
            reservation_id=booked.pk,
            name="after",
            kind="recipe",
            recipe="burn-in",
            now=NOW,
            **({"resume_from": ended.pk} | more),
        )

    def call(method, job, part, node, body=b"", **headers):
        return (
            getattr(Client(), method)(
                f"/node/v1/jobs/{job.pk}/checkpoint{part}",
                body,
                "application/octet-stream",
                headers={"Authorization": made[node][1], **headers},
            )
            if method == "put"
            else Client().get(
                f"/node/v1/jobs/{job.pk}/checkpoint{part}",
                headers={"Authorization": made[node][1]},
            )
        )

    return ended, launch, call


def about(size=SIZE, sha256=SUM, **problem):
    return json.dumps({"size_bytes": size, "sha256": sha256, **problem}).encode()


def put(call, job, node, offset, data, sha256=""):
    known = {"X-Sha256": sha256 or hashlib.sha256(data).hexdigest()}
    return call("put", job, f"?offset={offset}", node, data, **known)


@pytest.mark.django_db(transaction=True)
def test_a_checkpoint_goes_from_its_node_to_the_one_it_was_ordered_to(lab, monkeypatch):
    before, launch, call = lab
    assert call("put", before, "/about", "red", about()).status_code == 404  # unasked
    job = launch()
    job_tick.tick(NOW)
    job.refresh_from_db()
    assert job.reason == f"waits for the checkpoint of job #{before.pk} from red"
    job_tick.tick(after(1))
    row = CarriedCheckpoint.objects.get()
    assert (row.node.name, row.state, row.ordered_at) == ("red", "wanted", after(1))
    # A node whose clock is off refuses to bring it: reported, and requested again.
    record(fact(before, "refused", code="clock", reason="its clock is 3540 s behind"))
    job_tick.tick(after(2))
    job.refresh_from_db()
    assert job.reason.endswith("from red: red: its clock differs from the portal's")

    for node in ("blue", "green"):  # nobody else brings it
        assert call("put", before, "/about", node, about()).status_code == 404
    for wrong in (b"x", b"[]", b'{"size_bytes": 1}', about(sha256="no"), about(0)):
        assert call("put", before, "/about", "red", wrong).status_code == 422
    assert call("put", before, "/about", "red", about()).json() == {"size": 0}
    half = BODY[:3000]
    assert put(call, before, "green", 0, half).status_code == 404
    assert put(call, before, "red", 0, half, sha256=SUM).status_code == 503
    assert put(call, before, "red", 0, half).json() == {"size": 3000}
    assert put(call, before, "red", 0, half).json()["size"] == 3000  # 409: go on here
    assert put(call, before, "red", 3000, BODY).status_code == 409  # over its end
    # A restarted node worker announces it again and continues.
    assert call("put", before, "/about", "red", about()).json() == {"size": 3000}
    assert call("get", job, "/0?offset=0", "blue").status_code == 404  # not whole
    job_tick.tick(after(2))
    job.refresh_from_db()
    assert job.reason.endswith("from red (42 %)")
    # The web is killed after it has everything, before it can report that.
    with monkeypatch.context() as killed:
        killed.setattr(Path, "replace", Mock(side_effect=OSError(5, "killed")))
        assert put(call, before, "red", 3000, BODY[3000:]).status_code == 507
    assert call("put", before, "/about", "red", about()).json() == {"size": len(BODY)}

    assert call("get", job, "/0?offset=0", "blue").status_code == 404  # not ordered
    job_tick.tick(after(3))
    job.refresh_from_db()
    assert job.state == "starting"
    (part,) = checkpoint_relay.start_checkpoints(job)
    assert (part.number, part.size_bytes, part.sha256) == (0, len(BODY), SUM)
    assert call("get", job, "/0?offset=0", "blue").content == BODY
    assert call("get", job, "/0?offset=6999", "blue").content == BODY[6999:]
    for past in (7000, 2**40, 10**18 - 1):
        assert call("get", job, f"/0?offset={past}", "blue").content == b""
    assert call("get", job, "/0?offset=x", "blue").status_code == 422
    assert call("get", job, "/1?offset=0", "blue").status_code == 404
    for node in ("red", "green"):  # another node learns nothing of it
        assert call("get", job, "/0?offset=0", node).status_code == 404
    assert call("get", before, "/0?offset=0", "red").status_code == 404
    Job.objects.filter(pk=job.pk).update(state="running", started_at=after(4))
    assert checkpoint_relay.delete_unneeded_bytes() == 1
    row.refresh_from_db()
    assert row.state == "dropped" and not checkpoint_store.path_of(row).exists()
    assert call("get", job, "/0?offset=0", "blue").status_code == 404


@pytest.mark.django_db(transaction=True)
def test_what_is_too_large_or_not_there_is_said_in_words(lab):
    before, launch, call = lab
    PlacementPolicy.objects.update_or_create(pk=1, defaults={"checkpoint_bytes": 0})
    with pytest.raises(LaunchInvalid, match="its checkpoint lies on red"):
        launch()
    PlacementPolicy.objects.update(checkpoint_bytes=2**30)
    job = launch()
    for seconds in (0, 1):
        job_tick.tick(after(seconds))
    answer = call("put", before, "/about", "red", about(size=3 * 2**30))
    assert answer.status_code == 413 and "3.0 GiB" in answer.json()["detail"]
    job_tick.tick(after(2))
    job.refresh_from_db()
    assert job.state == "failed"
    assert job.reason == (
        f"the checkpoint of job #{before.pk} lies on red, it has 3.0 GiB, and the "
        "limit for copying between nodes is 1.0 GiB. "
        "Book on the same node to resume from it"
    )
    # That one never began: its checkpoint is there for the next one.
    unread = launch()
    job.refresh_from_db()
    assert (unread.resume_from, job.resume_from) == (before, None)
    for seconds in (2, 3):
        job_tick.tick(after(seconds))
    full = about(problem="no room", outcome="later")
    assert call("put", before, "/about", "red", full).status_code == 503
    job_tick.tick(after(3))
    unread.refresh_from_db()
    assert unread.reason.endswith("from red: no room")
    bad = about(problem="it cannot be read: EIO", outcome="refused")
    assert call("put", before, "/about", "red", bad).status_code == 413
    job_tick.tick(after(3))
    unread.refresh_from_db()
    assert unread.state == "failed" and unread.reason.endswith("cannot be read: EIO")
    again = launch(resume_from=unread.pk)
    assert again.resume_from == before
    for seconds in (3, 4):
        job_tick.tick(after(seconds))
    none = call("put", before, "/about", "red", about(problem="it left none"))
    assert none.status_code == 413
    job_tick.tick(after(5))
    again.refresh_from_db()
    # It begins from the start, and its log will have that.
    assert again.state == "starting" and checkpoint_relay.start_checkpoints(again) == ()


def packing(*arguments, **more):
    command = [
        sys.executable,
        "-m",
        "placement.agent.storage.checkpoint_archive",
        *arguments,
    ]
    return subprocess.run(command, capture_output=True, **more)


@pytest.mark.pure
def test_only_regular_files_travel_and_none_leaves_its_folder(tmp_path):
    folder, secret = tmp_path / "checkpoint", tmp_path / "secret"
    assert packing("pack", str(folder), "9").returncode == 3
    (folder / "deep").mkdir(parents=True)
    secret.write_text("secret")
    (folder / "deep" / "a").write_bytes(BODY)
    (folder / ".metadata").write_text("m")
    (folder / "link").symlink_to(secret)
    (folder / "up").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe")
    large = packing("pack", str(folder), "6000")
    assert (large.returncode, large.stderr) == (4, b"7001")
    packed = packing("pack", str(folder), "99999")
    assert packed.returncode == 0 and b"secret" not in packed.stdout
    target = tmp_path / "target"
    for _ in range(2):  # what is there stays
        assert packing("unpack", str(target), input=packed.stdout).returncode == 0
    found = sorted(path.name for path in target.rglob("*") if path.is_file())
    assert found == [".metadata", "a"] and (target / "deep/a").read_bytes() == BODY
    for name, kind in (("../out", b"0"), ("/out", b"0"), ("x", b"2")):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            head = tarfile.TarInfo(name)
            head.type, head.linkname = kind, str(secret)
            archive.addfile(head)
        done = packing("unpack", str(target), input=buffer.getvalue())
        assert done.returncode == 5
    assert not (tmp_path / "out").exists()
