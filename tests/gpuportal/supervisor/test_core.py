"""The supervisor's loop, with small processes of different behaviour."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from gpuportal.supervisor import AlreadyRunning, take_lock
from gpuportal.supervisor.logs import LOG_MAX_BYTES, LogFile, clean
from telemetry.proc_stat import descendants, process_table
from tests.gpuportal.running import ROOT

# The supervisor takes over signals and orphans of its whole process, so it is run in a
# separate one. argv: folder, then one JSON list of (name, code, more).
DRIVER = """
import json, os, sys
from pathlib import Path
from gpuportal.supervisor import ProcessSpec, Supervisor

folder = Path(sys.argv[1])
supervisor = Supervisor(
    root=folder, log_dir=folder, say=lambda text: print(text, flush=True)
)
for name, code, more in json.loads(sys.argv[2]):
    spec = ProcessSpec(name, [sys.executable, "-c", code], dict(os.environ), **more)
    supervisor.start(spec)
print("up", flush=True)
try:
    supervisor.run()
finally:
    supervisor.stop()
print("failed" if supervisor.failed else "done", flush=True)
"""
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open({ready!r}, "w").write("yes")
time.sleep(600)
"""
# Starts a process in a new session and leaves it behind, as a node worker does with a
# shim. That process has a child in another session, as a shim has a job.
PARENT_OF_SHIM = """
import subprocess, sys, time
shim = '''
import os, signal, subprocess, sys, time
{ignore}
job = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                       start_new_session=True)
open("{folder}/job", "w").write(str(job.pid))
time.sleep(600)
'''
subprocess.Popen([sys.executable, "-c", shim], start_new_session=True)
time.sleep(600)
"""


class Driven:
    """A driver process; use as a context."""

    def __init__(
        self, folder: Path, *specs: tuple[str, str, dict[str, object]]
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(folder), json.dumps(specs)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            # A shell's background job ignores SIGINT, and would pass that on.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "up\n"

    def __enter__(self) -> "Driven":
        return self

    def __exit__(self, *_exc: object) -> None:
        mine = descendants(self.process.pid)
        self.process.kill()
        self.process.wait(60)
        for process in mine:
            try:
                os.kill(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def line(self) -> str:
        """Return its next line."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip()

    def stop(self, signum: int = signal.SIGTERM) -> float:
        """Stop it; return how many seconds that took."""
        began = time.monotonic()
        self.process.send_signal(signum)
        self.process.wait(60)
        return time.monotonic() - began


def wait_for(path: Path, seconds: float = 90) -> str:
    deadline = time.monotonic() + seconds
    while not path.exists() or not path.read_text():
        assert time.monotonic() < deadline, f"{path} was never written"
        time.sleep(0.02)
    return path.read_text()


def alive(pid: int) -> bool:
    return any(p.pid == pid and not p.dead for p in process_table())


def test_a_process_that_dies_is_started_again_and_it_says_so(tmp_path):
    code = f"""
from pathlib import Path
mark = Path({str(tmp_path / "mark")!r})
if not mark.exists():
    mark.touch()
    raise SystemExit(3)
Path({str(tmp_path / "again")!r}).write_text("yes")
import time; time.sleep(600)
"""
    with Driven(tmp_path, ("web", code, {})) as driven:
        assert driven.line() == (
            "web ended with exit status 3; starting it again in 0.5 s "
            f"(log: {tmp_path / 'web.log'})"
        )
        assert wait_for(tmp_path / "again") == "yes"
        driven.stop()
        assert driven.line() == "done"


def test_what_dies_again_and_again_ends_all_with_its_last_words(tmp_path):
    dying = "import sys; sys.exit('no such table')"
    specs = (("web", dying, {}), ("beat", "import time; time.sleep(600)", {}))
    with Driven(tmp_path, *specs) as driven:
        said = [driven.line() for _ in range(6)]
        assert "web ended with exit status 1 5 times in a row; giving up." in said[4]
        assert said[5] == "  no such table"
        driven.process.wait(60)
        assert driven.process.stdout is not None
        assert driven.process.stdout.read().endswith("failed\n")


def test_a_stubborn_process_is_killed_and_the_stop_is_short(tmp_path):
    code = STUBBORN.format(ready=str(tmp_path / "ready"))
    specs = (("web", code, {"stop_seconds": 0.5, "stop_rank": 1}),)
    with Driven(tmp_path, *specs) as driven:
        wait_for(tmp_path / "ready")
        assert driven.stop(signal.SIGINT) < 4
        assert driven.line() == "web does not stop; killing it."
        assert driven.line() == "done"


@pytest.mark.parametrize(
    "ignore", ["", "signal.signal(signal.SIGTERM, signal.SIG_IGN)"]
)
def test_orphaned_shims_and_their_jobs_end_with_the_portal(tmp_path, ignore):
    code = PARENT_OF_SHIM.format(folder=tmp_path, ignore=ignore)
    with Driven(tmp_path, ("node", code, {})) as driven:
        job = int(wait_for(tmp_path / "job"))
        assert alive(job)
        assert driven.stop() < 8
        assert driven.line() == "done"
        assert not alive(job)


def test_a_node_worker_that_is_killed_alone_leaves_its_jobs_alive(tmp_path):
    code = PARENT_OF_SHIM.format(folder=tmp_path, ignore="")
    with Driven(tmp_path, ("node", code, {"essential": False})) as driven:
        job = int(wait_for(tmp_path / "job"))
        (worker,) = [
            p for p in descendants(driven.process.pid) if p.ppid == driven.process.pid
        ]
        os.kill(worker.pid, signal.SIGKILL)
        assert "was ended by SIGKILL" in driven.line()
        assert alive(job)
        driven.stop()
        assert not alive(job)


def test_children_die_with_a_killed_supervisor(tmp_path):
    with Driven(tmp_path, ("web", "import time; time.sleep(600)", {})) as driven:
        children = [p.pid for p in descendants(driven.process.pid)]
        assert children
        driven.process.kill()
        driven.process.wait(60)
        deadline = time.monotonic() + 60
        while any(alive(pid) for pid in children) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any(alive(pid) for pid in children)


def test_a_lock_is_held_once_and_says_by_whom(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "lock").touch(0o644)
    first = take_lock(tmp_path / "run" / "lock")
    # Who can open it can lock it.
    assert (tmp_path / "run" / "lock").stat().st_mode & 0o777 == 0o600
    first.write("process 7")
    first.flush()
    with pytest.raises(AlreadyRunning) as caught:
        take_lock(tmp_path / "run" / "lock")
    assert caught.value.holder == "process 7"
    first.close()
    take_lock(tmp_path / "run" / "lock").close()


def test_a_log_is_cut_when_it_is_long_and_loses_no_loud_line(tmp_path):
    said: list[str] = []
    log = LogFile("web", tmp_path / "web.log", said.append)
    with log.path.open("ab") as writer:
        writer.write(b"quiet\n" + b"x" * LOG_MAX_BYTES + b"\nERROR web: it broke\n")
        writer.flush()
        log.repeat_warnings()
        assert said == ["web: ERROR web: it broke"]
        assert log.path.stat().st_size == 0
        writer.write(textwrap.dedent("WARNING web: again\n").encode())
    log.repeat_warnings()
    assert said[-1] == "web: WARNING web: again"
    assert log.path.with_suffix(".log.1").stat().st_size > LOG_MAX_BYTES


def test_a_flood_of_warnings_does_not_flood_the_terminal(tmp_path):
    said: list[str] = []
    log = LogFile("web", tmp_path / "web.log", said.append)
    log.path.write_text("ERROR no\n" * 500)
    log.repeat_warnings()
    assert len(said) == 11
    assert said[-1].startswith("web: and more, see ")


def test_a_log_line_cannot_steer_the_terminal():
    assert clean("\x1b]0;owned\x07\x1b[2Jhello\r") == "]0;owned[2Jhello"
