"""Limits that a process sets for itself before it reads a person's file.

Kernel limits come first: address space, processor time, size of written files, no new
processes, no core dump, no new privileges, memory that other processes of the user
cannot read. Then the network: an empty network namespace, if the kernel lets an
ordinary user make one. Otherwise no new descriptors (so no sockets). A process that
must still open files gets an audit hook that ends it at the first socket.

Source: man 2 setrlimit, unshare, prctl; https://peps.python.org/pep-0578.
"""

import ctypes
import json
import os
import resource
import stat
import sys
from pathlib import Path
from typing import Any

from placement.planner.values.errors import FileRefused

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
PR_SET_DUMPABLE, PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 4, 1, 38
SIGKILL = 9
OUTPUT_MAX_BYTES = 48 * 2**20
"""A ModelSpec of 4,096 layers is a few MB."""
EXIT_REFUSED = 2
EXIT_NETWORK = 97


def open_regular(path: Path) -> int:
    """Return a descriptor of a regular file. Links and devices are refused."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        detail = error.strerror or "cannot be opened"
        raise FileRefused("unreadable", "file", detail) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileRefused("unreadable", "file", "is not a regular file")
    return descriptor


def limit(*, address_bytes: int, cpu_seconds: int, files: int | None) -> bool:
    """Limit this process permanently. Return whether a namespace hides the network.

    `address_bytes`: in addition to the bytes mapped now. `files`: the highest new
    descriptor. None leaves a limit unchanged.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    apart = libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0
    # After unshare, which resets it. No process may read this one through /proc.
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    mapped_pages = int(Path("/proc/self/statm").read_text().split()[0])
    mapped = mapped_pages * os.sysconf("SC_PAGE_SIZE")
    bounds = [
        (resource.RLIMIT_AS, mapped + address_bytes),
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_FSIZE, OUTPUT_MAX_BYTES),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
    ]
    if files is not None:
        bounds.append((resource.RLIMIT_NOFILE, files))
    for which, bound in bounds:
        _, hard = resource.getrlimit(which)
        ceiling = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        resource.setrlimit(which, (ceiling, ceiling))
    return apart


def own_output() -> int:
    """Return a descriptor of standard output that other code does not have.

    The output of libraries and of others' code goes to standard error.
    """
    answers = os.dup(1)
    os.set_inheritable(answers, False)
    os.dup2(2, 1)
    return answers


def problem(code: str, field: str, detail: str) -> dict[str, str]:
    """Return a refusal in its printed form."""
    return {"error": code, "field": field[:120], "detail": detail[:400]}


def say(answers: int, value: Any, code: int) -> int:
    """Write the single line of JSON. Return the exit code."""
    with os.fdopen(answers, "w") as file:
        file.write(json.dumps(value) + "\n")
    return code


def end_at_sockets() -> None:
    """End this process at the first socket, name look-up or new process. Permanent."""

    def hook(event: str, _arguments: tuple[Any, ...]) -> None:
        if event.startswith("socket.") and event not in _HARMLESS:
            os._exit(EXIT_NETWORK)
        if event in ("subprocess.Popen", "os.system", "os.fork", "os.exec"):
            os._exit(EXIT_NETWORK)

    sys.addaudithook(hook)


_HARMLESS = ("socket.gethostname",)
