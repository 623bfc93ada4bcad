"""The gate in a real kernel, at a control group of the test's own."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from placement.agent.gate import bpf_system_call
from placement.agent.gate.bpf_system_call import GateUnavailable, reason
from placement.agent.gate.cgroup_gate import (
    DeviceGate,
    DeviceGrant,
    boot_ns,
    root_cgroup,
)
from placement.agent.gate.device_program import GatedMajor, device_number
from tests.placement.agent.gate.own_cgroup import (
    CARD,
    CARD_MINOR,
    CONTROL,
    MEMORY_MAJOR,
    OTHER_CARD,
    OTHER_STUDENT,
    STAND_INS,
    STUDENT,
    Student,
    own_cgroup,
)

pytestmark = pytest.mark.pure
HOUR_NS = 3_600 * 10**9
CARD_GRANT = DeviceGrant(STUDENT, device_number(MEMORY_MAJOR, CARD_MINOR))


@pytest.fixture(scope="module")
def cgroup() -> Iterator[Path]:
    with own_cgroup() as path:
        yield path


@pytest.fixture
def gate(cgroup: Path) -> Iterator[DeviceGate]:
    gate = DeviceGate(cgroup)
    try:
        yield gate
    finally:
        gate.detach()


def test_only_the_holder_opens_the_card_and_only_until_the_end(
    gate: DeviceGate, cgroup: Path
) -> None:
    gate.attach(STAND_INS, refuse=True)
    with Student(cgroup) as holder, Student(cgroup, OTHER_STUDENT) as other:
        assert holder.opens(CONTROL) and not holder.opens(CARD)
        gate.put(CARD_GRANT, boot_ns() + HOUR_NS)
        assert holder.opens(CARD) and not holder.opens(OTHER_CARD)
        assert not other.opens(CARD)
        gate.put(CARD_GRANT, boot_ns())
        assert not holder.opens(CARD), "the kernel ends a grant at its end"
    assert gate.refusals() == {STUDENT: 3, OTHER_STUDENT: 1}
    assert CARD.open("rb").close() is None, "root opens every card"


def test_watch_refuses_nobody_and_counts(gate: DeviceGate, cgroup: Path) -> None:
    gate.attach(STAND_INS, refuse=False)
    with Student(cgroup) as student:
        assert student.opens(CARD) and student.opens(CARD)
        gate.put(CARD_GRANT, boot_ns() + HOUR_NS)
        assert student.opens(CARD)
    assert gate.refusals() == {STUDENT: 2}


def test_a_worker_that_starts_again_finds_gate_and_grants(
    gate: DeviceGate, cgroup: Path
) -> None:
    gate.attach(STAND_INS, refuse=True)
    end_ns = boot_ns() + HOUR_NS
    gate.put(CARD_GRANT, end_ns)
    gate.close()
    with Student(cgroup) as student:
        assert student.opens(CARD) and not student.opens(OTHER_CARD)
        later = DeviceGate(cgroup)
        assert not later.attach(STAND_INS, refuse=True)
        assert later.grants() == {CARD_GRANT: end_ns}
        assert later.attach(STAND_INS, refuse=False), "another mode, the same grants"
        assert later.grants() == {CARD_GRANT: end_ns}
        assert student.opens(OTHER_CARD)
        later.remove(CARD_GRANT)
        later.remove(CARD_GRANT)
        assert later.grants() == {}
        later.detach()
        assert not later.attached and not DeviceGate(cgroup).find()


KILLED_WORKER = """
import os, signal, sys
from pathlib import Path
from placement.agent.gate import bpf_system_call
from placement.agent.gate.cgroup_gate import DeviceGate
from tests.placement.agent.gate.own_cgroup import STAND_INS
gate = DeviceGate(Path(sys.argv[1]))
gate.attach(STAND_INS, refuse=True)
bpf_system_call.detach = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
gate.attach(STAND_INS, refuse=False)
"""


def test_a_worker_killed_while_it_replaces_the_program_leaves_no_gap(
    gate: DeviceGate, cgroup: Path
) -> None:
    """Both programs are attached. The next worker leaves one, with the same maps."""
    done = subprocess.run([sys.executable, "-c", KILLED_WORKER, str(cgroup)])
    assert done.returncode == -signal.SIGKILL
    assert len(_attached(cgroup)) == 2
    with Student(cgroup) as student:
        assert not student.opens(CARD)
        assert gate.attach(STAND_INS, refuse=True)
        assert len(_attached(cgroup)) == 1
        assert not student.opens(CARD)
    assert gate.refusals()[STUDENT] >= 2


def _attached(cgroup: Path) -> list[int]:
    handle = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return bpf_system_call.attached_ids(handle)
    finally:
        os.close(handle)


def test_what_the_kernel_refuses_is_named(
    gate: DeviceGate, cgroup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(GateUnavailable, match="not attached"):
        gate.grants()
    monkeypatch.setattr(
        "placement.agent.gate.cgroup_gate.device_program",
        lambda majors, **_: b"\x95\0\0\0\0\0\0\0",
    )
    with pytest.raises(GateUnavailable, match="R0 !read_ok"):
        gate.attach((GatedMajor(250),), refuse=True)
    assert not gate.attached and not _attached(cgroup)


def test_a_machine_without_the_calls_says_what_is_missing(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text("tmpfs /run tmpfs rw 0 0\n")
    with pytest.raises(GateUnavailable, match="no control groups of version 2"):
        root_cgroup(mounts)
    (tmp_path / "cgroup.events").write_text("")
    mounts.write_text(f"cgroup2 {tmp_path} cgroup2 rw 0 0\n")
    with pytest.raises(GateUnavailable, match="in a container"):
        root_cgroup(mounts)
    assert "root" in reason("load a BPF program", PermissionError(1, "no"))
    assert "Linux 5.8" in reason("load a BPF program", OSError(22, "no"))
    assert "No space" in reason("store a grant", OSError(28, "No space left"))
