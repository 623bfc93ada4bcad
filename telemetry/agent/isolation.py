"""How far a node keeps jobs apart: `none`, `watched` or `enforced`.

See docs/design/security.md#isolation.

Asked by the node worker for its roster, and by what starts and refuses jobs there; the
answer is a fact about this machine and this process.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Protocol

from telemetry.protocol.hardware import Isolation

SYSTEMD = Path("/run/systemd/system")
"""There where systemd is the first process (sd_booted(3))."""
CONTROLLERS = Path("/sys/fs/cgroup/cgroup.controllers")
"""There where the whole tree is cgroup v2: only then are devices kept by it."""
PROGRAMS = ("systemd-run", "systemctl")


class IsolationSettings(Protocol):
    """What of a node's settings decides it."""

    @property
    def supervisor_pid(self) -> int | None:
        """Process of `manage.py portal`; None in production."""

    @property
    def allow_scripts(self) -> bool:
        """Whether scripts may run without a Unix user of their own."""

    @property
    def isolation(self) -> str:
        """What is wanted: `auto`, `watched` or `enforced`."""


def isolation_of(facts: IsolationSettings) -> Isolation:
    """How far jobs are kept apart here.

    Each student's own user needs a worker that is root, and nothing that lets a
    job run without one; a worker under `make run` has the users of a laptop.
    """
    if why_not_watched(facts):
        return Isolation.NONE
    if facts.isolation == "watched":
        return Isolation.WATCHED
    if not why_not_enforced():
        return Isolation.ENFORCED
    # Who asked for more than the node can give runs nothing: no level to speak of.
    return Isolation.NONE if facts.isolation == "enforced" else Isolation.WATCHED


def why_not(facts: IsolationSettings) -> str:
    """Why the level that was asked for cannot be had; "" where it can."""
    if facts.isolation == "auto":
        return ""
    why = why_not_watched(facts)
    if not why and facts.isolation == "enforced":
        why = why_not_enforced()
    return f"GPUPORTAL_ISOLATION is {facts.isolation}, but {why}" if why else ""


def why_not_watched(facts: IsolationSettings) -> str:
    """Why jobs have no Unix user of their own here; "" where they have."""
    if os.geteuid() != 0:
        return "this node's worker is not root"
    if facts.supervisor_pid is not None:
        return "this node runs under manage.py portal"
    if facts.allow_scripts:
        return "GPUPORTAL_ALLOW_SCRIPTS lets jobs run without a Unix user of their own"
    return ""


def why_not_enforced() -> str:
    """Why systemd cannot keep jobs in units of their own; "" where it can."""
    if not SYSTEMD.is_dir():
        return "systemd does not run this machine"
    if not CONTROLLERS.exists():
        return "this machine's control groups are not version 2 alone"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"{' and '.join(missing)} is not installed" if missing else ""
