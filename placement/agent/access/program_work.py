"""Whether VS Code and marimo compute, for the rule of idle GPUs.

Neither tells what its kernels and terminals do: VS Code reports a heartbeat that an
open page keeps alive, and marimo reports nothing. So the CPU time of the job's
processes decides. An open page and an editor that nobody uses take a few percent of a
core. The shim is a subreaper, so all processes of the job descend from it.
"""

from __future__ import annotations

import time

from placement.agent.job_folder import JobFolder
from placement.agent.process import process_tree
from telemetry.proc_stat import cpu_seconds, descendants

WORKING_SHARE = 0.5
"""Of one core. More than that since the last look is work."""


class ProgramWork:
    """The CPU time of jobs at the last look."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, float]] = {}
        """Name of the job's folder -> instant (monotonic) and CPU seconds."""

    def forget_others(self, names: set[str]) -> None:
        """Forget jobs that have ended."""
        for name in set(self._before) - names:
            del self._before[name]

    def works(self, folder: JobFolder) -> bool:
        """Return whether a job computed since the last look. The first one says no."""
        now, spent = time.monotonic(), _spent_seconds(folder)
        before = self._before.get(folder.name)
        self._before[folder.name] = (now, spent)
        if before is None:
            return False
        # Time of a process that its parent did not wait for is lost, and is no work.
        return spent - before[1] > WORKING_SHARE * (now - before[0])


def _spent_seconds(folder: JobFolder) -> float:
    shim = folder.read("shim")
    pid, ticks = shim.get("pid"), shim.get("start_ticks")
    if not isinstance(pid, int) or not process_tree.alive(pid, ticks):
        return 0.0
    pids = [pid, *(process.pid for process in descendants(pid))]
    return sum(cpu_seconds(one) for one in pids)
