"""A hostile process of the Job's user changes folders while root works in them.

Needs root. The attacker is a real process of another uid, in C if there is a compiler.
It repeats its moves as fast as it can, without end. It aims at a folder of root's:
nothing there may change its owner, its mode or its content, in any try.

``RACE_TRIES`` (60): tries of each race. The level ``enforced`` is tested by the
functions that it calls, in a mount namespace. One race uses a real unit, if systemd
runs the machine (``deploy/rehearse --races``), a tenth as often.
"""

import contextlib
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from placement.agent.job_folder import JobFolder
from placement.agent.local_runner import LocalRunner
from placement.agent.process import (
    job_files,
    job_process,
    previous_attempt,
    private_mounts,
    systemd_unit,
)
from placement.agent.process.job_exec import JobStart
from placement.agent.process.shim import Shim
from placement.agent.process.unix_user import UnixIdentity
from placement.agent.storage import folder_size, folder_tree
from placement.protocol.commands import JobLimits
from placement.protocol.node_refusals import OrderRefused
from telemetry.agent import isolation
from telemetry.protocol.codec import encode
from tests.placement import nodes

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="becoming a user needs root")
UID = 54_321
TRIES = int(os.environ.get("RACE_TRIES", "60"))
STUDENT = UnixIdentity("student", UID, UID, (UID,), Path("/nonexistent"))
HELD_BYTES = 2**20
IN_C = r"""
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
int main(int n, char **word) {
  for (;;)
    for (int i = 1; i + 2 < n; i += 3) {
      const char *a = word[i + 1], *b = word[i + 2];
      switch (word[i][0]) {
        case 's': symlink(a, b); break;
        case 'r': rename(a, b); break;
        case 'm': mkdir(a, 0700); break;
        case 'u': unlink(a); rmdir(a); break;
      }
    }
}
"""
IN_PYTHON = """
import os, sys
do = {"s": os.symlink, "r": os.rename, "m": lambda a, b: os.mkdir(a, 0o700)}
def gone(a, b):
    for one in (os.unlink, os.rmdir):
        try:
            one(a)
        except OSError:
            pass
do["u"] = gone
words = sys.argv[1:]
moves = [(do[words[i]], *words[i + 1 : i + 3]) for i in range(0, len(words), 3)]
while True:
    for act, a, b in moves:
        try:
            act(a, b)
        except OSError:
            pass
"""
Moves = list[tuple[str, Path, Path | str]]


@pytest.fixture(scope="module")
def attacker() -> Iterator[list[str]]:
    """Return the command of a process that repeats moves without end."""
    folder = Path(tempfile.mkdtemp(prefix="gpu-portal-attacker-", dir="/var/lib"))
    folder.chmod(0o755)
    if compiler := shutil.which("cc"):
        (folder / "a.c").write_text(IN_C)
        made = [compiler, "-O1", "-w", "-o", str(folder / "a"), str(folder / "a.c")]
        subprocess.run(made, check=True)
        (folder / "a").chmod(0o755)
        yield [str(folder / "a")]
    else:
        yield [sys.executable, "-c", IN_PYTHON]
    shutil.rmtree(folder)


@dataclass
class Race:
    """A node's folder, root's own folder as the target, and the attacker."""

    base: Path
    command: list[str]
    settings: nodes.NodeSettings

    @property
    def target(self) -> Path:
        """Root's own folder."""
        return self.base / "target"

    @property
    def path(self) -> Path:
        """The folder of the Job that the attacker waits for."""
        return self.settings.node_dir / "jobs" / "7-1"

    @property
    def work(self) -> Path:
        """The folder that it may change."""
        return self.path / "work"

    @contextlib.contextmanager
    def against(self, moves: Moves) -> Iterator[None]:
        """Let the attacker run its moves. Check the target at the end."""
        words = [str(word) for move in moves for word in move]
        process = subprocess.Popen(
            [*self.command, *words], user=UID, group=UID, extra_groups=[], cwd="/"
        )
        try:
            time.sleep(0.1)
            yield
            assert process.poll() is None, "the attacker has ended"
        finally:
            process.kill()
            process.wait()
        self.check()

    def check(self) -> None:
        """Check that root's folder is unchanged."""
        about = self.target.stat()
        assert (about.st_uid, oct(about.st_mode & 0o7777)) == (0, "0o755")
        assert [path.name for path in self.target.iterdir()] == ["kept"]
        kept = self.target / "kept"
        assert (kept.stat().st_uid, kept.stat().st_mode & 0o7777) == (0, 0o644)
        assert kept.read_bytes() == bytes(HELD_BYTES)

    def tries(self, act: Callable[[], object], count: int = TRIES) -> int:
        """Repeat an action, each time in a new folder. Return how often it
        succeeded.
        """
        well = 0
        for number in range(count):
            try:
                act()
                well += 1
            except (OSError, OrderRefused):
                pass  # the student spoiled their own job
            self.check()
            with contextlib.suppress(FileNotFoundError):
                self.path.rename(self.base / "old" / str(number))
        return well

    def make(self) -> None:
        """Make the Job's folder with the student's own inside."""
        self.path.mkdir(mode=0o711)
        self.path.chmod(0o711)
        folder_tree.close_all(folder_tree.make_owned(self.work, STUDENT))


@pytest.fixture
def race(attacker) -> Iterator[Race]:
    """Folders outside /tmp, of which a Job in a unit sees a private one."""
    base = Path(tempfile.mkdtemp(prefix="gpu-portal-race-", dir="/var/lib"))
    base.chmod(0o711)
    settings = nodes.make_settings(base, allow_scripts=False)
    LocalRunner(settings).prepare()
    (base / "target").mkdir()
    (base / "target").chmod(0o755)
    (base / "target" / "kept").write_bytes(bytes(HELD_BYTES))
    (base / "target" / "kept").chmod(0o644)
    (base / "old").mkdir(mode=0o700)
    yield Race(base, attacker, settings)
    for left in (base / "old").iterdir():
        folder_tree.remove(left)
    folder_tree.remove(base)


def in_child(act: Callable[[], None]) -> None:
    """Run it in a child. Raises OSError if it failed there."""
    pid = os.fork()
    if pid == 0:
        code = 9
        try:
            act()
            code = 0
        except OSError:
            code = 3
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == 3:
        raise OSError("the job could not begin")
    assert code == 0


def test_a_link_in_the_place_of_results_is_not_followed(race, monkeypatch):
    monkeypatch.setenv("GPUPORTAL_WEB_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("GPUPORTAL_NODE_TOKEN_FILE", str(race.settings.token_file))
    order = nodes.make_order(unix_user="student", user="alice")

    def prepare():
        folder = LocalRunner(race.settings).accept(order, order.payload())
        shim = Shim(folder, order)
        try:
            shim._prepare(STUDENT)
        finally:
            os.close(shim.wake_read)
            os.close(shim.wake_write)

    results = race.work / "results"
    moves: Moves = [
        ("s", race.target, results),
        ("r", results, race.work / "moved"),
        ("s", race.target, results),
    ]
    with race.against(moves):
        assert race.tries(prepare) > 0


def begin(race: Race) -> JobStart:
    """Do the remaining steps for a Job in a unit."""
    return JobStart(
        argv=("/bin/true",),
        env={},
        work=race.work,
        identity=STUDENT,
        limits=JobLimits(),
        shim_pid=os.getpid(),
        private_tmp=race.path / "tmp",
    )


def test_a_link_in_the_place_of_the_private_tmp_is_not_followed(race):
    private = race.path / "tmp"

    def close_off():
        begin(race)._close_off(private)
        # What is shown as /tmp is the student's, and never root's folder.
        assert Path("/tmp").stat().st_uid == Path("/var/tmp").stat().st_uid == UID

    def start():
        race.make()
        in_child(close_off)

    moves: Moves = []
    for name in ("tmp", "var-tmp"):
        moves += [
            ("s", race.target, private / name),
            ("r", private / name, private / f"{name}.moved"),
            ("s", race.target, private / name),
        ]
    with race.against(moves):
        assert race.tries(start) > 0


@pytest.mark.skipif(isolation.why_not_enforced() != "", reason="needs systemd")
def test_a_unit_of_systemd_follows_no_link_either(race):
    """As the shim does it: systemd-run, then unit_entry.py in the scope, then the
    Job.
    """
    private = race.path / "tmp"
    numbers = itertools.count(1)
    python = {"PATH": os.environ["PATH"], "PYTHONPATH": str(systemd_unit.CODE_DIR)}

    def start():
        race.make()
        order = nodes.make_order(job=next(numbers), simulated=True)
        done = subprocess.run(
            systemd_unit.command(order),
            input=encode(begin(race)).decode(),
            env=python,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            assert "Failed to" not in done.stderr, done.stderr
            raise OSError(done.stderr)

    moves: Moves = []
    for name in ("tmp", "var-tmp"):
        moves += [
            ("s", race.target, private / name),
            ("r", private / name, private / f"{name}.moved"),
            ("s", race.target, private / name),
        ]
    with race.against(moves):
        # Each try starts another Python.
        assert race.tries(start, max(20, TRIES // 10)) > 0


def test_a_link_on_the_way_to_a_kept_folder_is_not_followed(race):
    kept = Path(tempfile.mkdtemp(prefix="gpu-portal-kept-"))
    (kept / "a/b").mkdir(parents=True)
    private = race.path / "tmp"

    def close_off():
        private_mounts.leave_shared_view()
        handles = folder_tree.make_owned(private, STUDENT, ("tmp",))
        private_mounts.close_off([(handles[0], Path("/tmp"))], kept=(kept / "a/b",))

    def start():
        race.make()
        in_child(close_off)

    shown = private / "tmp" / kept.name
    moves: Moves = [
        ("s", race.target, shown),
        ("u", shown, ""),
        ("r", shown, f"{shown}.moved"),
        ("s", race.target, shown / "a"),
    ]
    try:
        with race.against(moves):
            race.tries(start)
    finally:
        shutil.rmtree(kept)


def test_a_script_that_is_replaced_is_neither_written_over_nor_followed(race):
    script = race.work / "script"
    order = nodes.make_order(recipe=None, settings={}, argv=())

    def put():
        race.make()
        job_files._write_file(script, b"#!/bin/sh\n", STUDENT, mode=0o700)
        job_process.command(order, race.work)

    moves: Moves = [
        ("s", race.target / "kept", script),
        ("r", script, race.work / "moved"),
    ]
    with race.against(moves):
        race.tries(put)


def test_a_script_that_became_a_link_or_a_pipe_is_refused(race):
    race.make()
    order = nodes.make_order(recipe=None, settings={}, argv=())
    script = race.work / "script"
    script.symlink_to(race.target / "kept")
    with pytest.raises(OrderRefused, match="replaced"):
        job_process.command(order, race.work)
    script.unlink()
    os.mkfifo(script)
    with pytest.raises(OrderRefused, match="replaced"):
        job_process.command(order, race.work)


def test_a_checkpoint_that_is_a_link_is_neither_walked_nor_measured(race):
    race.make()
    folder = JobFolder.at(race.path)
    checkpoint = race.work / "checkpoint"
    checkpoint.symlink_to(race.target)
    assert not folder_tree.is_folder(previous_attempt.checkpoint_of(folder))
    assert previous_attempt.size_of(checkpoint) == 0
    checkpoint.unlink()
    race.path.rename(race.base / "old" / "first")

    def measure():
        race.make()
        for _ in range(20):
            assert previous_attempt.size_of(previous_attempt.checkpoint_of(folder)) == 0
            assert folder_size.size_bytes(race.work) < HELD_BYTES

    moves: Moves = [
        ("m", checkpoint, ""),
        ("u", checkpoint, ""),
        ("s", race.target, checkpoint),
        ("u", checkpoint, ""),
    ]
    with race.against(moves):
        assert race.tries(measure) == TRIES


def test_removing_a_folder_follows_no_link(race):
    inner, moved = race.work / "inner", race.work / "moved"

    def remove():
        race.path.mkdir(mode=0o711)
        race.path.chmod(0o711)
        handles = folder_tree.make_owned(race.work, STUDENT, ("inner",))
        for number in range(20):
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
            os.close(os.open(str(number), flags, dir_fd=handles[0]))
        folder_tree.close_all(handles)
        folder_tree.remove(race.path)

    moves: Moves = [
        ("r", inner, moved),
        ("s", race.target, inner),
        ("u", inner, ""),
        ("r", moved, inner),
    ]
    with race.against(moves):
        race.tries(remove)


def test_a_folder_of_any_depth_can_be_removed(race):
    race.make()
    handle = os.open(race.work, folder_tree.FOLDER)
    for _ in range(3000):
        os.mkdir("d", dir_fd=handle)
        inner = os.open("d", folder_tree.FOLDER, dir_fd=handle)
        os.close(handle)
        handle = inner
    os.close(handle)
    folder_tree.remove(race.path)
    assert not race.path.exists()
