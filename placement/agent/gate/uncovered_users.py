"""The people that the gate cannot stop: they can become root.

A member of ``docker`` starts a container as root, and a member of ``sudo`` or ``wheel``
runs any command as root. Only members that the groups name are found, and not users who
have such a group as their primary one.
"""

from __future__ import annotations

import grp

ROOT_GROUPS = ("docker", "sudo", "wheel")
MOST_NAMES = 64


def uncovered_users(groups: tuple[str, ...] = ROOT_GROUPS) -> tuple[str, ...]:
    """Return names in order, each with its group: ``ada (docker)``."""
    found = set()
    for name in groups:
        try:
            members = grp.getgrnam(name).gr_mem
        except KeyError:
            continue  # no such group here
        found |= {f"{member} ({name})" for member in members if member != "root"}
    return tuple(sorted(found)[:MOST_NAMES])
