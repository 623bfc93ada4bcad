"""Test a gate from outside: an ordinary user must fail to open a card.

A child becomes ``nobody`` and opens the device file. Where the file's own permissions
refuse that already, the child tries again with root's rights and the real uid of
``nobody``: the gate judges the real uid, so it is the only one that can refuse then.
"""

from __future__ import annotations

import subprocess
import sys
from enum import StrEnum
from pathlib import Path

from placement.protocol.process_commands import NOBODY_UID

SECONDS = 20.0
CHILD = """
import errno, os, sys
path, cgroup, uid = sys.argv[1], sys.argv[2], int(sys.argv[3])
if cgroup:
    with open(cgroup + "/cgroup.procs", "w") as file:
        file.write(str(os.getpid()))
def attempt(*uids):
    os.setresuid(*uids)
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error.errno))
    return "opened"
os.setgroups([])
os.setresgid(uid, uid, uid)
word = attempt(uid, uid, 0)
print(attempt(uid, 0, 0) if word == "EACCES" else word)
"""


class Verdict(StrEnum):
    """The result of the test."""

    REFUSED = "refused"
    """As it should be."""
    OPENED = "opened"
    """The gate does not work."""
    UNKNOWN = "unknown"
    """The test could not be made."""


def try_card(path: Path, cgroup: Path) -> tuple[Verdict, str]:
    """Return what happened to an ordinary user, and the reason if it was not refused.

    Args:
        path: the device file of a card.
        cgroup: where the gate is.
    """
    # Every process is below the root. Elsewhere the child has to go there.
    joined = str(cgroup) if (cgroup / "cgroup.events").exists() else ""
    command = [sys.executable, "-I", "-S", "-c", CHILD, str(path), joined]
    try:
        done = subprocess.run(
            [*command, str(NOBODY_UID)], capture_output=True, timeout=SECONDS, text=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        return Verdict.UNKNOWN, f"the test could not be made: {type(error).__name__}"
    word = done.stdout.strip()
    if word == "EPERM":
        return Verdict.REFUSED, ""
    if word == "opened":
        return Verdict.OPENED, f"an ordinary user could open {path}"
    why = word or (done.stderr.strip().splitlines() or ["no answer"])[-1]
    return Verdict.UNKNOWN, f"the test of {path} ended with {why}"
