"""Whose a process is, asked of real processes."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from telemetry.agent import process_owners
from telemetry.agent.process_owners import (
    NOBODY,
    JobRegistry,
    ProcessOwners,
    UserNames,
    shorten,
)
from telemetry.proc_stat import read_stat
from telemetry.protocol.sample import COMMAND_LENGTH

pytestmark = pytest.mark.pure

SLEEPER = "import sys, time; print('up', flush=True); time.sleep(60)"
FAMILY = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {SLEEPER!r}], start_new_session=True)
print(child.pid, flush=True)
child.wait()
"""


@pytest.fixture
def start() -> Iterator:
    """Start Python one-liners in sessions of their own; all end with the test."""
    started: list[subprocess.Popen] = []

    def run(code: str = SLEEPER, *arguments: str) -> tuple[subprocess.Popen, str]:
        process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process, process.stdout.readline().strip()

    yield run
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def register(node_dir: Path, job: int, **shim: int) -> None:
    """Write the registry entry that a shim writes."""
    folder = node_dir / "jobs" / f"{job}-1"
    folder.mkdir(parents=True)
    (folder / "shim.json").write_text(json.dumps(shim))


def ticks(pid: int) -> int:
    stat = read_stat(pid)
    assert stat is not None
    return stat.start_ticks


def test_an_owner_is_who_started_it_and_when(start) -> None:
    process, _ = start(SLEEPER, "--lr=0.1")
    owner = ProcessOwners().owner(process.pid)
    assert owner.uid == os.getuid()
    assert owner.user
    assert "--lr=0.1" in owner.command
    assert owner.command.startswith("python")
    assert abs(owner.started_at - time.time()) < 5
    assert owner.job is None


def test_a_process_that_is_gone_belongs_to_nobody() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert ProcessOwners().owner(process.pid) == NOBODY


def test_a_zombie_belongs_to_nobody() -> None:
    process = subprocess.Popen(["true"])
    deadline = time.monotonic() + 60
    while (stat := read_stat(process.pid)) is None or stat.state != "Z":
        assert time.monotonic() < deadline
    assert ProcessOwners().owner(process.pid) == NOBODY
    process.wait()


def test_a_pid_that_is_used_again_has_its_new_owner(tmp_path) -> None:
    """Two processes of one pid cannot be had at will, so /proc is drawn."""
    proc = tmp_path
    (proc / "stat").write_text("cpu 1\nbtime 1700000000\n")
    folder = proc / "77"
    folder.mkdir()

    def draw(uid: int, start_ticks: int, name: str) -> None:
        values = ["S", "1", "77", "77", *["0"] * 15, str(start_ticks), "0"]
        (folder / "stat").write_text(f"77 ({name}) {' '.join(values)}\n")
        (folder / "status").write_text(f"Name:\t{name}\nUid:\t{uid}\t0\t0\t0\n")
        (folder / "cmdline").write_text(f"/bin/{name}\0")

    book = ProcessOwners(proc=proc)
    draw(1001, 500, "old")
    assert book.owner(77).command == "old"
    draw(1002, 900, "new")
    assert (book.owner(77).uid, book.owner(77).command) == (1002, "new")
    assert (
        book.owner(77).started_at
        == 1_700_000_000 + 900 / process_owners.TICKS_PER_SECOND
    )


def test_a_name_with_brackets_does_not_shift_the_fields(tmp_path) -> None:
    folder = tmp_path / "9"
    folder.mkdir()
    values = ["R", "4", "5", "6", *["0"] * 15, "123", "0"]
    (folder / "stat").write_text(f"9 (a) S 1 (b)) {' '.join(values)}\n")
    stat = read_stat(9, tmp_path)
    assert (stat.comm, stat.state, stat.ppid, stat.start_ticks) == (
        "a) S 1 (b)",
        "R",
        4,
        123,
    )


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"/usr/bin/python3\0train.py\0", "python3 train.py"),
        (b"sh\0-c\0a\nb\x1b[31m\0", "sh -c a b [31m"),
        (b"\xff\xfe\0", "��"),
        (b"", ""),
        (b"x" * 500, "x" * (COMMAND_LENGTH - 1) + "…"),
    ],
)
def test_a_command_is_one_short_harmless_line(raw: bytes, shown: str) -> None:
    assert shorten(raw) == shown


def test_a_slow_directory_of_users_never_stops_a_sample(monkeypatch) -> None:
    answered = threading.Event()

    def slow(uid: int):
        answered.wait(60)
        return type("Entry", (), {"pw_name": f"user{uid}"})

    monkeypatch.setattr(process_owners.pwd, "getpwuid", slow)
    names = UserNames(wait_seconds=0.05)
    assert names.name(4001) is None
    assert names.name(4001) is None
    answered.set()
    deadline = time.monotonic() + 60
    while names.name(4001) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert names.name(4001) == "user4001"


def test_a_uid_without_a_name_is_none_and_not_a_crash() -> None:
    assert UserNames(wait_seconds=2.0).name(4_000_000_001) is None


def test_a_job_is_known_by_its_process_group(start, tmp_path) -> None:
    leader, _ = start()
    register(
        tmp_path,
        42,
        pid=os.getpid(),
        start_ticks=ticks(os.getpid()),
        pgid=leader.pid,
        leader_start_ticks=ticks(leader.pid),
    )
    book = ProcessOwners(tmp_path)
    book.refresh(100.0)
    assert book.owner(leader.pid).job == 42


def test_a_worker_in_a_session_of_its_own_belongs_to_its_ancestors_job(
    start, tmp_path
) -> None:
    leader, child = start(FAMILY)
    stranger, _ = start()
    register(
        tmp_path,
        7,
        pid=leader.pid,
        start_ticks=ticks(leader.pid),
        pgid=leader.pid,
        leader_start_ticks=ticks(leader.pid),
    )
    book = ProcessOwners(tmp_path)
    book.refresh(100.0)
    try:
        assert os.getpgid(int(child)) == int(child)
        assert book.owner(int(child)).job == 7
        assert book.owner(stranger.pid).job is None
    finally:
        os.kill(int(child), signal.SIGKILL)


def test_an_old_entry_never_claims_a_pid_that_is_used_again(start, tmp_path) -> None:
    process, _ = start()
    register(
        tmp_path,
        7,
        pid=process.pid,
        start_ticks=ticks(process.pid) - 1,
        pgid=process.pid,
        leader_start_ticks=ticks(process.pid) - 1,
    )
    book = ProcessOwners(tmp_path)
    book.refresh(100.0)
    assert book.owner(process.pid).job is None


def test_a_job_that_starts_later_is_seen_within_seconds(start, tmp_path) -> None:
    leader, _ = start()
    book = ProcessOwners(tmp_path)
    book.refresh(100.0)
    assert book.owner(leader.pid).job is None
    register(
        tmp_path,
        3,
        pid=leader.pid,
        start_ticks=ticks(leader.pid),
        pgid=leader.pid,
        leader_start_ticks=ticks(leader.pid),
    )
    book.refresh(101.0)
    assert book.owner(leader.pid).job is None
    book.refresh(103.0)
    assert book.owner(leader.pid).job == 3


def test_a_broken_registry_is_ignored_and_the_rest_is_read(start, tmp_path) -> None:
    leader, _ = start()
    for name, text in [
        ("1-1", "{"),
        ("2-1", "[]"),
        ("x", "{}"),
        ("3-1", '{"pid":"a"}'),
    ]:
        folder = tmp_path / "jobs" / name
        folder.mkdir(parents=True)
        (folder / "shim.json").write_text(text)
    (tmp_path / "jobs" / "4-1").mkdir()
    register(tmp_path, 9, pid=leader.pid, start_ticks=ticks(leader.pid))
    registry = JobRegistry(tmp_path)
    registry.refresh(0.0)
    assert registry.job_of(leader.pid, read_stat(leader.pid)) == 9


def test_a_node_without_a_registry_has_no_jobs(tmp_path) -> None:
    for folder in (None, tmp_path):
        book = ProcessOwners(folder)
        book.refresh(1.0)
        assert book.owner(os.getpid()).job is None
