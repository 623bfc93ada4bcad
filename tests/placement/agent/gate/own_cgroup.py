"""A separate control group below the root, and students in it.

The gate of a test is never at the machine's own root. A guardian in another session
removes the control group when the test's process has gone, however it ended. The kernel
drops the programs of a control group that is removed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Self

import pytest

from placement.agent.gate.bpf_system_call import GateUnavailable
from placement.agent.gate.cgroup_gate import DeviceGate, root_cgroup
from placement.agent.gate.device_program import GatedMajor

MEMORY_MAJOR = 1
"""Major number of /dev/null and its like (devices.txt)."""
CARD = Path("/dev/full")
CARD_MINOR = 7
OTHER_CARD = Path("/dev/zero")
OTHER_MINOR = 5
CONTROL = Path("/dev/null")
STAND_INS = (GatedMajor(MEMORY_MAJOR, frozenset({3, 8, 9})),)
"""/dev/full and /dev/zero are used as cards; null, random and urandom are open."""
STUDENT = 61_345
OTHER_STUDENT = 61_346

GUARDIAN = """
import os, pathlib, signal, sys, time
sys.stdin.read()
top = pathlib.Path(sys.argv[1])
for _ in range(200):
    for folder in sorted(top.rglob("*/"), reverse=True) + [top]:
        try:
            for pid in (folder / "cgroup.procs").read_text().split():
                os.kill(int(pid), signal.SIGKILL)
            folder.rmdir()
        except OSError:
            pass
    if not top.exists():
        break
    time.sleep(0.05)
"""
OPENER = """
import os, pathlib, sys
pathlib.Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
uid = int(sys.argv[2])
os.setgroups([])
os.setresgid(uid, uid, uid)
os.setresuid(uid, uid, uid)
held = []
print("ready", flush=True)
for line in sys.stdin:
    word, _, path = line.strip().partition(" ")
    try:
        handle = os.open(path, os.O_RDWR)
    except OSError as error:
        print(error.strerror, flush=True)
        continue
    held.append(handle) if word == "hold" else os.close(handle)
    print("opened", flush=True)
"""


class Student:
    """A process of an ordinary user in the control group, which opens devices on
    request.
    """

    def __init__(self, cgroup: Path, uid: int = STUDENT) -> None:
        self.uid = uid
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", OPENER, str(cgroup), str(uid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._answer() == "ready"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()

    def opens(self, path: Path) -> bool:
        """Open a device and close it; False: the kernel refused with EPERM."""
        return self._ask("open", path)

    def holds(self, path: Path) -> bool:
        """Open a device and keep it open."""
        return self._ask("hold", path)

    def _ask(self, word: str, path: Path) -> bool:
        assert self.process.stdin
        self.process.stdin.write(f"{word} {path}\n")
        self.process.stdin.flush()
        answer = self._answer()
        assert answer in ("opened", "Operation not permitted"), answer
        return answer == "opened"

    def _answer(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()


@contextmanager
def own_cgroup() -> Iterator[Path]:
    """Yield a new control group. Skips the test if the kernel allows no gate."""
    if os.geteuid() != 0:
        pytest.skip("a gate needs root")
    try:
        path = Path(mkdtemp(prefix="gp-gate-test-", dir=root_cgroup()))
    except (GateUnavailable, OSError) as error:
        pytest.skip(f"no control group of the test's own: {error}")
    guardian = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", GUARDIAN, str(path)],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        gate = DeviceGate(path)
        try:
            gate.attach(STAND_INS, refuse=False)
            gate.detach()
        except GateUnavailable as error:
            pytest.skip(str(error))
        yield path
    finally:
        assert guardian.stdin
        guardian.stdin.close()
        guardian.wait(30)
    assert not path.exists()
