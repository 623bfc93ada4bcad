"""The size of the folders of one person's Jobs on a node."""

import os
import subprocess
import time
from dataclasses import replace

import pytest

from placement.agent.command_handler import OrderDesk
from placement.agent.keeper import JobKeeper, KeptFolder
from placement.agent.local_runner import LocalRunner
from placement.agent.storage import disk_quota
from placement.agent.storage.disk_quota import FolderSizes
from placement.protocol import signing
from placement.protocol.commands import JobLimits, parse_order
from tests.placement.nodes import make_order

MIB = 2**20
MOST = JobLimits(person_bytes=10 * MIB)
TOLD = {"ended": True, "uploaded": True, "results": True}


@pytest.fixture
def told():
    return []


@pytest.fixture
def desk(node, told):
    return OrderDesk(node, publish=told.append)


@pytest.fixture
def keeper(node):
    made = JobKeeper(node)
    made.runner.prepare()
    yield made
    made.stop()


def folder_of(node, job, mib, *, ended=None, reported=None, **changes):
    """A Job's folder with a file of so many mebibytes in its own part."""
    order = make_order(job=job, limits=MOST, **changes)
    folder = LocalRunner(node).accept(order, order.payload())
    folder.work.mkdir()
    (folder.work / "data").write_bytes(os.urandom(mib * MIB))
    if ended is not None:
        folder.write("status", {"event": "exited", "ended_at": ended})
        folder.write("reported", TOLD if reported is None else reported)
    return folder


def tidied(keeper):
    """Measure, look and tidy once, with no shim started; what is left."""
    FolderSizes(keeper.runner.jobs).measure_folders()
    for folder in disk_quota.job_folders(keeper.runner.jobs):
        if folder.read("status"):
            keeper._process_folder(
                keeper.kept.setdefault(folder.name, KeptFolder(folder))
            )
        else:
            keeper.kept.setdefault(folder.name, KeptFolder(folder))
    keeper.tidy(time.time())
    return sorted(int(path.name.split("-")[0]) for path in keeper.runner.jobs.iterdir())


def give(desk, order):
    payload = order.payload()
    return desk.take(payload, signing.sign(payload))


def test_the_oldest_folders_of_a_person_go_first(node, keeper):
    now = time.time()
    folder_of(node, 1, 5, ended=now - 100)
    folder_of(node, 2, 4, ended=now - 300)
    folder_of(node, 3, 4, ended=now - 200)
    folder_of(node, 4, 9, ended=now - 900, user="bob")
    assert tidied(keeper) == [1, 3, 4], "13 MiB of 10: the oldest one is enough"
    folder_of(node, 5, 4)
    assert tidied(keeper) == [1, 4, 5], "what runs counts"
    folder_of(node, 6, 8)
    assert tidied(keeper) == [4, 5, 6], "what runs is never removed"


def test_what_is_not_with_the_portal_or_still_needed_stays(node, keeper):
    now = time.time()
    folder_of(node, 1, 8, ended=now - 500, reported=TOLD | {"results": False})
    folder_of(node, 2, 8, ended=now - 400).write("carry", {"at": now})
    folder_of(node, 3, 8, ended=now - 300)
    folder_of(node, 4, 8, ended=now - 200, resume_job=3, resume_attempt=1)
    folder_of(node, 5, 1, resume_job=4, resume_attempt=1)
    folder_of(node, 6, 1, ended=now - 100)
    assert tidied(keeper) == [1, 2, 3, 4, 5]


def test_no_limit_removes_and_refuses_nothing(node, keeper, desk):
    now = time.time()
    folder_of(node, 1, 20, ended=now - 500)
    folder_of(node, 2, 20)
    assert give(desk, make_order(job=9, issued_at=now + 1))
    assert tidied(keeper) == [1, 2, 9]


def test_a_new_job_is_refused_with_the_numbers_while_running_ones_fill_it(
    node, keeper, desk, told
):
    now = time.time()
    folder_of(node, 1, 7)
    running = folder_of(node, 2, 4)
    folder_of(node, 3, 4, ended=now - 10)
    FolderSizes(keeper.runner.jobs).measure_folders()
    assert give(desk, make_order(job=8, user="bob", limits=MOST))
    assert not give(desk, make_order(job=9, limits=MOST))
    (fact,) = told
    assert fact["code"] == "storage", "the portal orders it again"
    assert fact["reason"] == (
        "the folders of your jobs hold 11 MiB here, and may hold 10 MiB: job 1 7 MiB, "
        "job 2 4 MiB. Delete files in the folders of these jobs, or stop one of them"
    )
    assert not LocalRunner(node).folder(9, 1).path.exists()
    (running.work / "data").unlink()
    running.write(disk_quota.SIZE, {"bytes": 4 * MIB, "at": now - 60})
    FolderSizes(keeper.runner.jobs).measure_folders()
    assert give(desk, make_order(job=9, limits=MOST))


def test_links_are_not_followed_and_no_depth_hides_a_folder(node, keeper, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "large").write_bytes(os.urandom(30 * MIB))
    linked = folder_of(node, 1, 1, ended=time.time() - 20)
    (linked.work / "link").symlink_to(outside)
    (linked.work / "file").symlink_to(outside / "large")
    assert tidied(keeper) == [1]
    assert 1 * MIB <= linked.read(disk_quota.SIZE)["bytes"] < 2 * MIB
    deep = folder_of(node, 2, 1, ended=time.time() - 10)
    script = "for _ in $(seq 250); do mkdir d && cd d || exit 1; done"
    subprocess.run(["/bin/sh", "-c", script], cwd=deep.work, check=True)
    assert tidied(keeper) == [], "it counts as much as there may be"
    assert (outside / "large").exists()


def test_a_folder_is_measured_again_after_its_end_and_when_it_is_old(node, keeper):
    folder = folder_of(node, 1, 1)
    sizes = FolderSizes(keeper.runner.jobs)
    assert [sizes.measure_folders(), sizes.measure_folders()] == [1, 0]
    (folder.work / "more").write_bytes(os.urandom(MIB))
    folder.write("status", {"event": "exited", "ended_at": time.time()})
    assert [sizes.measure_folders(), sizes.measure_folders()] == [1, 0]
    known = folder.read(disk_quota.SIZE)
    assert 2 * MIB <= known["bytes"] < 2.2 * MIB
    for at in (time.time() - 700, time.time() + 700):
        folder.write(disk_quota.SIZE, known | {"at": at})
        assert sizes.measure_folders() == 1


def test_an_order_without_the_limit_is_one_that_older_nodes_read():
    plain, limited = make_order(), make_order(limits=MOST)
    assert "person_bytes" not in plain.payload()
    assert parse_order(plain.payload()) == plain
    assert parse_order(limited.payload()) == limited
    assert replace(limited, limits=JobLimits()) == parse_order(
        replace(limited, limits=JobLimits()).payload()
    )
