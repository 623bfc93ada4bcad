"""A Job's unit under a real systemd: the kernel keeps its processes, memory, devices.

Where the machine does not run systemd, one is started as the first process of new
namespaces, with no unit but an empty target. The test needs root.
"""

import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from placement.agent.process.systemd_scope import ScopeLimits, scope_command
from tests.placement.nodes import PATIENCE_SECONDS, until

pytestmark = pytest.mark.pure
SYSTEMD = "/lib/systemd/systemd"
TASKS, MIB = 20, 2**20
START = f"""
set -e
mount --make-rprivate /
mount -t proc proc /proc
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/system
printf '[Unit]\\nDefaultDependencies=no\\n' > /run/systemd/system/empty.target
exec env -i PATH="$PATH" container=lxc {SYSTEMD} --unit=empty.target --log-level=err
"""
GREEDY = """
import errno, json, os, signal
found, children = {}, []
try:
    while len(children) < 1000:
        if not (pid := os.fork()):
            signal.pause()
        children.append(pid)
except OSError as refused:
    found["fork"] = errno.errorcode[refused.errno]
found["children"] = len(children)
for pid in children:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
if not (pid := os.fork()):
    held = [bytes([n + 1]) * 2**20 for n in range(200)]
    os._exit(0)
found["signal"] = os.WTERMSIG(os.waitpid(pid, 0)[1])
for path in ("/dev/null", "/dev/kmsg"):
    try:
        os.close(os.open(path, os.O_RDONLY))
        found[path] = "open"
    except OSError as refused:
        found[path] = errno.errorcode[refused.errno]
print(json.dumps(found))
"""


@pytest.fixture
def first_process():
    """Return the process id of a systemd. Start it if there is none."""
    if Path("/run/systemd/system").exists() and not os.geteuid():
        yield "1"
        return
    missing = [
        name for name in ("unshare", "nsenter", "systemd-run") if not shutil.which(name)
    ]
    if os.geteuid() or missing or not Path(SYSTEMD).exists():
        pytest.skip("needs root and systemd")
    words = ["unshare", "--pid", "--fork", "--mount", "--uts", "--ipc", "--kill-child"]
    with subprocess.Popen([*words, "sh", "-c", START], stderr=subprocess.PIPE) as made:
        try:
            until(lambda: made.poll() is not None or _listens(made.pid), what="systemd")
            if made.poll() is not None:
                pytest.skip(f"no namespaces here: {made.stderr.read().decode()}")
            yield _child(made.pid)
        finally:
            made.kill()
    for made in Path("/sys/fs/cgroup").glob("*/gpuportal.slice"):
        for group, _, _ in os.walk(made, topdown=False):
            with suppress(OSError):  # one in which processes still run
                Path(group).rmdir()


def _child(pid):
    """Return the only child of a process, or ""."""
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().strip()


def _listens(pid):
    """Return whether the systemd that a process started takes commands."""
    with suppress(OSError):
        child = _child(pid)
        return child and Path("/proc", child, "root", "run/systemd/private").exists()
    return False


def inside(pid, words):
    """Run a command in the namespaces of a process."""
    line = ["nsenter", "-t", pid, "-m", "-p", "--", *words]
    return subprocess.run(line, capture_output=True, timeout=PATIENCE_SECONDS)


def test_the_kernel_keeps_the_limits_of_a_unit(first_process):
    limits = ScopeLimits(memory_bytes=64 * MIB, tasks=TASKS)
    program = (sys.executable, "-I", "-S", "-c", GREEDY)
    words = scope_command(7, os.getpid(), program=program, devices=(), ceilings=limits)
    made = inside(first_process, words)
    assert made.returncode == 0, made.stderr.decode()
    assert json.loads(made.stdout) == {
        "fork": "EAGAIN",
        "children": TASKS - 1,
        "signal": 9,
        "/dev/null": "open",
        "/dev/kmsg": "EPERM",
    }
