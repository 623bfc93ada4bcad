"""Starts, watches and stops all processes of one machine. No Django here.

``kernel`` asks Linux for what it can promise (children die with the supervisor,
orphans come to it, one start per folder), ``logs`` writes and shows what
processes say, ``core`` is the loop. Which processes there are is decided in
``gpuportal/supervisor/process_table.py``.
"""

from gpuportal.supervisor.core import Spec, Supervisor
from gpuportal.supervisor.kernel import AlreadyRunning, take_lock

__all__ = ["AlreadyRunning", "Spec", "Supervisor", "take_lock"]
