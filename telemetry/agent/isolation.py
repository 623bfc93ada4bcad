"""How far a node keeps jobs apart: `none`, `watched` or `enforced`.

See docs/design/security.md#isolation.

The node worker reports the level with its roster, and the code that starts and refuses
jobs uses it. It is a fact about this machine and this process.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Protocol

from telemetry.protocol.hardware import Isolation, NotIsolated

SYSTEMD = Path("/run/systemd/system")
"""This folder exists if systemd is the first process (sd_booted(3))."""
CONTROLLERS = Path("/sys/fs/cgroup/cgroup.controllers")
"""This file exists if the whole tree is cgroup v2. Only then can cgroups restrict
devices."""
PROGRAMS = ("systemd-run", "systemctl")


class IsolationSettings(Protocol):
    """The part of a node's settings that decides the level."""

    @property
    def supervisor_pid(self) -> int | None:
        """Process of `manage.py portal`; None in production."""

    @property
    def allow_scripts(self) -> bool:
        """Whether scripts may run without a Unix user of their own."""

    @property
    def own_ids(self) -> bool:
        """Whether each person's jobs have a Unix user id that the node gives."""

    @property
    def isolation(self) -> str:
        """The wanted level: `auto`, `watched` or `enforced`."""


def isolation_of(facts: IsolationSettings) -> Isolation:
    """Return how far this node keeps jobs apart.

    Separate Unix users need a worker that runs as root and a setting that lets no job
    run without a user. A worker under `make run` has only the users of a laptop, unless
    it gives each person a separate id.
    """
    if _not_watched(facts):
        return Isolation.NONE
    if facts.isolation == "watched":
        return Isolation.WATCHED
    if not why_not_enforced():
        return Isolation.ENFORCED
    # A node that cannot give the wanted level runs no job, so it has no level.
    return Isolation.NONE if facts.isolation == "enforced" else Isolation.WATCHED


def not_isolated_of(facts: IsolationSettings) -> NotIsolated:
    """Return why this node does not keep jobs apart; UNKNOWN if it does."""
    if isolation_of(facts) is not Isolation.NONE:
        return NotIsolated.UNKNOWN
    return _not_watched(facts) or NotIsolated.UNITS


def why_not(facts: IsolationSettings) -> str:
    """Return why the wanted level is impossible; "" if it is possible."""
    if facts.isolation == "auto":
        return ""
    why = why_not_watched(facts)
    if not why and facts.isolation == "enforced":
        why = why_not_enforced()
    return f"GPUPORTAL_ISOLATION is {facts.isolation}, but {why}" if why else ""


def why_not_watched(facts: IsolationSettings) -> str:
    """Return why jobs have no separate Unix users here; "" if they have."""
    return _WHY[_not_watched(facts)]


_WHY = {
    NotIsolated.UNKNOWN: "",
    NotIsolated.PORTAL: "this node runs under manage.py portal",
    NotIsolated.NOT_ROOT: "this node's worker is not root",
    NotIsolated.SCRIPTS: "GPUPORTAL_ALLOW_SCRIPTS lets jobs run without a separate "
    "Unix user",
}


def _not_watched(facts: IsolationSettings) -> NotIsolated:
    if facts.supervisor_pid is not None and not facts.own_ids:
        return NotIsolated.PORTAL
    if os.geteuid() != 0:
        return NotIsolated.NOT_ROOT
    return NotIsolated.SCRIPTS if facts.allow_scripts else NotIsolated.UNKNOWN


def why_not_enforced() -> str:
    """Return why systemd cannot run each job in its own unit; "" if it can."""
    if not SYSTEMD.is_dir():
        return "systemd does not run this machine"
    if not CONTROLLERS.exists():
        return "this machine's control groups are not version 2 alone"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"{' and '.join(missing)} is not installed" if missing else ""
