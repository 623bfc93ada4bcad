"""The login session or container in which a process runs, and its owner.

`/proc/<pid>/cgroup` shows both (cgroups(7)): systemd puts logins into
`user-<uid>.slice`, and docker and podman put each container into a group named by its
64 hexadecimal digits. A label of the container, read from the engine's socket, names
its owner.

Anyone can write a label, so it is not trusted. It counts only if it names an account of
this machine that belongs to a person. A process in a container without such a label has
no owner, because the uid inside a container does not show who started it.
"""

from __future__ import annotations

import http.client
import json
import os
import pwd
import re
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from telemetry.agent.slow_answers import SlowAnswer, SlowAnswers
from telemetry.protocol.sample import USER_LENGTH

CGROUP_BYTES = 16 * 1024
PERSONS_FROM = 1000
"""Lower uids are system accounts (Debian policy manual, 9.2.2)."""
NOBODY_UID = 65_534
LABELS = ("gpuportal.user",)
"""Labels that name the owner. GPUPORTAL_OWNER_LABELS sets others."""
SOCKETS = ("/run/docker.sock", "/run/podman/podman.sock")
"""Sockets of the engines. GPUPORTAL_CONTAINER_SOCKETS sets others."""
ASK_WITHIN_SECONDS = 2.0
REPLY_MOST_BYTES = 2**20
ASK_AGAIN_SECONDS = 60.0
"""Time after which a container is looked up again if no engine knew it or answered."""

_SLICE = re.compile(r"^/user\.slice/user-(\d{1,10})\.slice(?:/|$)")
_CONTAINER = re.compile(r"(?:^|[/:-])([0-9a-f]{64})(?:\.scope)?(?=/|$)")


class CgroupPlace(NamedTuple):
    """The cgroup of a process: a login session or a container."""

    slice_uid: int | None = None
    """Uid of the login session."""
    container: str | None = None


def place_of(cgroup: str) -> CgroupPlace:
    """Parse a process's cgroup file. A login's slice takes precedence over a container.

    >>> place_of("0::/user.slice/user-1001.slice/session-4.scope")
    CgroupPlace(slice_uid=1001, container=None)
    >>> place_of("0::/system.slice/docker-" + "a" * 64 + ".scope").container[:4]
    'aaaa'
    """
    container = None
    for line in cgroup.splitlines():
        path = line.split(":", 2)[-1]
        login = _SLICE.match(path)
        if login and PERSONS_FROM <= int(login[1]) != NOBODY_UID:
            return CgroupPlace(slice_uid=int(login[1]))
        found = _CONTAINER.findall(path)
        if found:
            container = found[-1]  # of nested containers the inner one
    return CgroupPlace(container=container)


def read_place(pid: int, proc: Path) -> CgroupPlace:
    """Return the place of a process; an empty one if it is gone or hidden."""
    try:
        with (proc / str(pid) / "cgroup").open("rb") as file:
            return place_of(file.read(CGROUP_BYTES).decode("utf-8", "replace"))
    except OSError:
        return CgroupPlace()


class ContainerUsers:
    """Maps containers to logins without ever delaying a Sample."""

    def __init__(
        self,
        *,
        sockets: Sequence[str] | None = None,
        labels: Sequence[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sockets = sockets or _words_of_setting(
            "GPUPORTAL_CONTAINER_SOCKETS", SOCKETS
        )
        self._labels = labels or _words_of_setting("GPUPORTAL_OWNER_LABELS", LABELS)
        self._clock = clock
        self._unanswered: dict[str, float] = {}
        self._answers = SlowAnswers[str](self._query_engines, name="containers")

    def user(self, container: str) -> SlowAnswer:
        """Return the login that a container's label names, or None."""
        asked_at = self._unanswered.get(container)
        if asked_at is not None and self._clock() - asked_at >= ASK_AGAIN_SECONDS:
            self._unanswered.pop(container, None)
            self._answers.forget(container)
        return self._answers.get(container)

    def refresh(self, at: float) -> None:
        """Forget old answers. `at`: monotonic seconds."""
        self._answers.refresh(at)
        if len(self._unanswered) > 1000:
            self._unanswered.clear()

    def _query_engines(self, container: str) -> str | None:
        for path in self._sockets:
            labels = labels_of(container, path)
            if labels is not None:
                return next(
                    filter(None, map(login_of, self._owner_labels(labels))), None
                )
        self._unanswered[container] = self._clock()
        return None

    def _owner_labels(self, labels: dict[str, Any]) -> list[Any]:
        return [labels.get(key) for key in self._labels]


def login_of(name: object) -> str | None:
    """Return the name if it is a person's account on this machine."""
    if not isinstance(name, str) or not 0 < len(name) <= USER_LENGTH:
        return None
    if not name.isprintable() or "\0" in name:
        return None
    try:
        entry = pwd.getpwnam(name)
    except (KeyError, OSError):
        return None
    return name if PERSONS_FROM <= entry.pw_uid != NOBODY_UID else None


def labels_of(container: str, socket_path: str) -> dict[str, Any] | None:
    """Return a container's labels from an engine's API (docker's; podman has the same).
    None: the engine is absent, slow, refuses access, or does not know it."""
    connection = _UnixConnection(socket_path)
    try:
        connection.request("GET", f"/containers/{container}/json")
        reply = connection.getresponse()
        if reply.status != http.client.OK:
            return None
        values = json.loads(_read_all(reply, connection.ends_at))
        labels = values["Config"]["Labels"] or {}
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return None
    except RecursionError:
        return None
    finally:
        connection.close()
    return labels if isinstance(labels, dict) else None


def _read_all(reply: http.client.HTTPResponse, ends_at: float) -> bytes:
    """Return the reply's body. Raises OSError if it is too long or too slow."""
    parts, left = [], REPLY_MOST_BYTES
    while chunk := reply.read1(65_536):
        parts.append(chunk)
        left -= len(chunk)
        if left < 0 or time.monotonic() > ends_at:
            raise OSError("the reply is too long or too slow")
    return b"".join(parts)


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket with a limit on the total time."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=ASK_WITHIN_SECONDS)
        self._path = path
        self.ends_at = time.monotonic() + ASK_WITHIN_SECONDS

    def connect(self) -> None:
        """Open the socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(ASK_WITHIN_SECONDS)
        self.sock.connect(self._path)


def _words_of_setting(variable: str, default: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words of a comma-separated setting."""
    words = tuple(x.strip() for x in os.environ.get(variable, "").split(","))
    return tuple(filter(None, words)) or default
