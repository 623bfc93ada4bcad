"""What a node reports of its own memory and disk."""

import os
from pathlib import Path

import pytest

from telemetry.agent.host_capacity import host_capacity

GIB = 2**30
MEMINFO = "MemTotal:  67108864 kB\nMemFree: 1024 kB\nMemAvailable:  33554432 kB\n"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine with 64 GiB, of which 32 can be taken, in no container."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "cgroup").mkdir()
    (tmp_path / "proc/meminfo").write_text(MEMINFO)
    return tmp_path


def read(machine: Path, folder: Path | None = None):
    return host_capacity(folder, proc=machine / "proc", cgroup=machine / "cgroup")


def test_what_programs_can_take_counts_as_free(machine):
    told = read(machine, machine)
    assert told.memory_total_bytes == 64 * GIB
    assert told.memory_free_bytes == 32 * GIB
    disk = os.statvfs(machine)
    assert 0 < told.disk_free_bytes <= disk.f_blocks * disk.f_frsize


def test_the_limit_of_a_container_counts(machine):
    group = machine / "cgroup"
    (group / "memory.current").write_text(f"{6 * GIB}\n")
    (group / "memory.max").write_text("max\n")
    assert read(machine).memory_total_bytes == 64 * GIB
    (group / "memory.max").write_text(f"{16 * GIB}\n")
    assert read(machine).memory_free_bytes == 10 * GIB
    (group / "memory.stat").write_text(f"anon 5\ninactive_file {2 * GIB}\n")
    told = read(machine)
    assert (told.memory_total_bytes, told.memory_free_bytes) == (16 * GIB, 12 * GIB)


def test_what_cannot_be_read_is_unknown(tmp_path):
    told = read(tmp_path, tmp_path / "gone")
    assert told.memory_total_bytes is None
    assert told.memory_free_bytes is None
    assert told.disk_free_bytes is None


def test_this_machine_answers(tmp_path):
    told = host_capacity(tmp_path)
    assert 0 < told.memory_free_bytes <= told.memory_total_bytes
