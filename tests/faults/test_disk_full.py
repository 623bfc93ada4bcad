"""Full disks: the node's, and the portal's storage."""

import json
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.test import Client
from django.utils import timezone

from gpuportal.backup.backup_refusals import BackupNotMade, BackupUnusable
from gpuportal.backup.database_copy import unpack_sqlite
from gpuportal.backup.service import make_backup
from gpuportal.backup.verification import verify_backup
from placement.agent.command_handler import OrderDesk
from placement.agent.keeper import JobKeeper
from placement.agent.storage.log_upload import Uploader
from placement.jobs import service as jobs
from placement.jobs.nodes import log_store
from placement.protocol import signing
from placement.protocol.commands import OrderKind
from reservations.rules.lifecycle import State
from tests.factories import make_gpus, make_node, make_reservation
from tests.faults.running_portal import Ended
from tests.placement import nodes
from tests.placement.lab import onnx_bytes, signed_in
from tests.placement.nodes import ended, living, make_order, script_order, until

KEPT_FREE_BYTES = 2**16
root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a disk needs root")


def fill(disk: Path) -> Path:
    """Write until nothing more fits."""
    path = disk / "everything-else"
    with path.open("wb", buffering=0) as file:
        for size in (2**16, 4096, 1):
            try:
                while file.write(b"x" * size):
                    pass
            except OSError:
                continue
    return path


def give(desk, order):
    payload = order.payload()
    return desk.take(payload, signing.sign(payload))


@root
def test_a_node_whose_disk_is_full_starts_nothing_loses_nothing_and_stops_what_it_must(
    node, serve, small_disk, redis_client, marker
):
    web = serve("trap 'exit 0' TERM\necho up\nwhile :; do sleep 0.05; done\n")
    here = replace(node, node_dir=small_disk / "node", web_url=web.url)
    told: list[dict] = []
    desk, keeper = OrderDesk(here, publish=told.append), JobKeeper(here)
    keeper.start()
    end = time.time() + 62
    assert give(desk, script_order(web, argv=(marker,), deadline_at=end))
    running = desk.runner.folder(7, 1)
    until(running.log_bytes)
    rest = fill(small_disk)
    waits = make_order(job=8, settings={"seconds": 0, "lines_per_second": 1})
    assert not give(desk, waits)
    assert told[0]["code"] == "storage"
    assert told[0]["reason"] == "the node cannot keep the job: No space left on device"
    # The warning of its last minute has no room in the log.
    until(lambda: time.time() > end - 59)
    assert living(marker), "a full disk is no reason to end what runs"
    assert give(desk, script_order(web, kind=OrderKind.STOP, reason="enough"))
    status = ended(running)
    assert (status["event"], status["reason"]) == ("exited", "enough")
    assert living(marker) == []

    def said():
        entries = redis_client.xrange("facts.node1")
        facts = [json.loads(fields[b"m"]) for _, fields in entries]
        return [f["event"] for f in facts if f["kind"] == "job" and f["job"] == 7]

    until(lambda: said() == ["started", "exited"])
    # The keeper writes down by a draft what it has told.
    until(lambda: list(running.path.glob(".*")) == [], what="no draft to be left")
    assert [path.name for path in running.path.parent.glob(".*")] == []
    rest.unlink()
    # The portal sends it again, with another nonce.
    assert give(desk, replace(waits, nonce="f" * 16))
    assert ended(desk.runner.folder(8, 1))["exit_code"] == 0
    keeper.stop()


@root
def test_a_job_that_fills_the_disk_fails_by_that_and_its_log_arrives_whole(
    node, serve, small_disk
):
    web = serve("echo begins\nhead -c 4000000 /dev/zero | tr '\\0' x\nexit 9\n")
    here = replace(node, node_dir=small_disk / "node", web_url=web.url)
    folder = nodes.start(here, script_order(web))
    status = ended(folder)
    assert (status["event"], status["exit_code"]) == ("exited", 9)
    assert status["reason"] == "the disk of the node is full"
    assert status["log_bytes"] == folder.log_bytes() > 500_000
    uploader, item = Uploader(here), Ended(folder)
    while uploader.piece(item):
        pass
    assert web.log_of(7) == folder.log.read_bytes()


@root
def test_a_shim_that_finds_no_room_refuses_in_words(node, serve, small_disk):
    web = serve("echo never\n" + "#" * 600_000)
    here = replace(node, node_dir=small_disk / "node", web_url=web.url)
    (small_disk / "half").write_bytes(bytes(700_000))
    status = ended(nodes.start(here, script_order(web)))
    assert status["event"] == "refused"
    assert status["reason"] == "the node cannot keep the job: No space left on device"


@root
def test_a_training_without_room_for_a_checkpoint_keeps_the_one_before(
    small_disk, monkeypatch
):
    import torch
    from torch import distributed

    from placement.agent.runtime import training_checkpoint

    monkeypatch.chdir(small_disk)
    weights = {"w": torch.zeros(50_000)}
    monkeypatch.setattr(training_checkpoint, "_positions", lambda _trainer: {})
    monkeypatch.setattr(
        training_checkpoint, "_checkpoint_header", lambda _trainer, step: {"step": step}
    )
    trainer = SimpleNamespace(
        ranks=SimpleNamespace(rank=0), held=lambda to_read: dict(weights)
    )
    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        training_checkpoint.save(trainer, 1)
        whole = contents(small_disk / "checkpoint")
        fill(small_disk)
        weights["w"] += 1
        with pytest.raises((OSError, distributed.checkpoint.CheckpointException)):
            training_checkpoint.save(trainer, 2)
    finally:
        distributed.destroy_process_group()
    assert contents(small_disk / "checkpoint") == whole
    assert json.loads(whole["about.json"]) == {"step": 1}


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# --- the portal's storage ---------------------------------------------------------


@root
@pytest.mark.django_db
def test_a_full_storage_of_the_portal_refuses_uploads_and_lets_logs_wait(
    alice, small_disk, settings
):
    settings.MEDIA_ROOT = small_disk
    row = make_node("node1")
    held = make_reservation(alice, make_gpus(1, row), state=State.ACTIVE)
    job = jobs.launch(
        user=alice,
        reservation_id=held.pk,
        name="try",
        kind="recipe",
        recipe="burn-in",
        now=held.start,
    )
    type(job).objects.update(attempt=1)
    job.refresh_from_db()
    row.token_hash = type(row).hash_token("secret")
    row.save()
    web = Client(headers={"authorization": "Node node1:secret"})
    log = os.urandom(600_000)

    def put(offset):
        return web.put(
            f"/node/v1/jobs/{job.pk}/log?attempt=1&offset={offset}",
            log[offset:],
            content_type="application/octet-stream",
        )

    half = small_disk / "half"
    half.write_bytes(bytes(800_000))
    answer = put(0)
    assert answer.status_code == 507
    assert (
        answer.json()["detail"] == "the log cannot be stored: No space left on device"
    )
    body = onnx_bytes()
    fill(small_disk)
    page = signed_in(alice).post(
        "/api/v1/serve/files", {"file": SimpleUploadedFile("tiny.onnx", body)}
    )
    assert (page.status_code, page.json()["code"]) == (507, "storage-full")
    assert not list((small_disk / "models").glob("*"))
    half.unlink()
    (small_disk / "everything-else").unlink()
    # The node sends its assumed position of the web, and gets the right one.
    told = put(0)
    size = told.json()["size"]
    assert put(size).status_code == 200 if told.status_code == 409 else size
    assert log_store.path_of(job).read_bytes() == log


@root
@pytest.mark.django_db(transaction=True)
def test_a_backup_that_fills_its_disk_or_the_scratch_folder_leaves_nothing(
    small_disk, tmp_path, settings, monkeypatch
):
    settings.MEDIA_ROOT = str(tmp_path / "media")
    whole = make_backup(tmp_path / "backups", None, timezone.now()).folder
    (small_disk / "backups").mkdir()
    everything_else = fill(small_disk)
    os.truncate(everything_else, everything_else.stat().st_size - KEPT_FREE_BYTES)
    before = sorted(small_disk.iterdir())
    with pytest.raises(
        BackupNotMade, match=r"the disk is full|No space left on device"
    ):
        make_backup(small_disk / "backups", None, timezone.now())
    assert not list((small_disk / "backups").iterdir())
    if connection.vendor == "sqlite":
        monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
        with pytest.raises(BackupUnusable, match="the disk is full"):
            verify_backup(whole)
        # A restore that begins again finds no half of a database.
        with pytest.raises(OSError, match="No space left"):
            unpack_sqlite(whole / "database.sqlite3.gz", small_disk / "db.sqlite3")
    assert sorted(small_disk.iterdir()) == before
