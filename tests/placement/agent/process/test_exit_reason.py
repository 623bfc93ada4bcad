"""The reason of a job that the kernel ended because the memory ran out."""

import signal

import pytest

from placement.agent.process import exit_reason
from placement.agent.process.exit_reason import OUT_OF_MEMORY, out_of_memory

pytestmark = pytest.mark.pure


@pytest.fixture
def vmstat(tmp_path, monkeypatch):
    """Return the file that stands for /proc/vmstat."""
    path = tmp_path / "vmstat"
    path.write_text("nr_free_pages 5\noom_kill 3\npgfault 7\n")
    monkeypatch.setattr(exit_reason, "VMSTAT", path)
    return path


@pytest.mark.parametrize(
    ("status", "kills_before", "reason"),
    [
        (signal.SIGKILL, 2, OUT_OF_MEMORY),
        ((128 + signal.SIGKILL) << 8, 2, OUT_OF_MEMORY),
        (signal.SIGKILL, 3, ""),
        (signal.SIGSEGV, 2, ""),
        (1 << 8, 2, ""),
        (0, 2, ""),
    ],
)
def test_only_a_killed_job_during_which_memory_ran_out(
    vmstat, status, kills_before, reason
):
    assert out_of_memory(status, kills_before) == reason


def test_a_kernel_that_does_not_count_gives_no_reason(vmstat):
    vmstat.write_text("nr_free_pages 5\n")
    assert exit_reason.memory_kills() == 0
    vmstat.unlink()
    assert exit_reason.memory_kills() == 0
