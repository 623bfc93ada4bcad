"""Starts, watches and stops all processes of one machine. No Django here.

``core`` is the loop. ``kernel`` arranges with Linux that children die with the
supervisor and that a folder is started once. ``logs`` writes and shows the output of
processes. ``process_table`` decides which processes there are.
"""

from gpuportal.supervisor.core import ProcessSpec, Supervisor
from gpuportal.supervisor.kernel import AlreadyRunning, take_lock

__all__ = ["AlreadyRunning", "ProcessSpec", "Supervisor", "take_lock"]
