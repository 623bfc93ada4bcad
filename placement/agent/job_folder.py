"""The layout of a Job's folder on the node, and the interface of a Runner.

    <NODE_DIR>/jobs/<job>-<attempt>[-<key>]/
        order.json     the order, as it was signed
        shim.json      {"pid", "start_ticks", "pgid", "leader_start_ticks"}
        status.json    the shim's report: started, ended, how and why
        deadline.json  the Reservation's end, when it has moved since the order
        stop.json      the reason of a stop (written before the shim gets TERM)
        reported.json  the facts that the web has received
        beside.json    the paths of the files beside the script, which are no results
        size.json      the folder's size on the disk, and when it was measured
        lock           held by the shim as long as it lives
        status.room, stop.room    reserved space for these files on a full disk
        log            the Job's standard output and error
        serve.sock     the socket of a Job that serves models
        text.sock      the socket of a Job that serves a language model
        workspace.sock the socket of a Job that is a workspace
        models/        the files that it serves, readable for its Unix user
        tmp/           its temporary files: /tmp and /var/tmp if it runs in a unit,
                       $TMPDIR elsewhere
        work/          the Job's own folder: it may write here and in tmp only
        work/results/  the files that are uploaded when it has ended

Everything except ``work`` belongs to the node worker. JSON files are written completely
and renamed, so that a reader never sees a part of one.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from placement.protocol.commands import Order

NAME = re.compile(r"(\d{1,18})-(\d{1,9})(?:-([0-9a-f]{1,32}))?")
RESULTS = "results"
"""The folder in a Job's own folder whose files are uploaded when it has ended."""
BESIDE = "beside"
"""Name of the file with the paths of the files beside a script."""
ENDS = frozenset({"exited", "refused", "lost"})
"""Events after which nothing of an attempt runs."""
LAST_LINES = 60
"""With the report of torchrun about a failed rank, which follows the cause."""
LAST_LINES_BYTES = 8192


class NodeView(Protocol):
    """The settings of a node that this package needs."""

    @property
    def name(self) -> str:
        """The node's name."""

    @property
    def redis_url(self) -> str:
        """Broker and streams."""

    @property
    def web_url(self) -> str:
        """The web's address, for the HTTPS channel."""

    @property
    def token_file(self) -> Path:
        """File of the node's token."""

    @property
    def node_dir(self) -> Path:
        """The node's own folder."""

    @property
    def backend(self) -> str:
        """The backend that reads the Gpus: `auto`, `nvml` or `simulated`."""

    @property
    def sim_dir(self) -> Path | None:
        """The simulator's folder."""

    @property
    def supervisor_pid(self) -> int | None:
        """The process with which Jobs end."""

    @property
    def own_ids(self) -> bool:
        """Whether people without a Unix user get an id of their own on this node."""

    @property
    def allow_scripts(self) -> bool:
        """Whether scripts may run without a separate Unix user."""

    @property
    def isolation(self) -> str:
        """The isolation of Jobs: `auto`, `watched` or `enforced`."""

    @property
    def sshd_port(self) -> int:
        """The port of this node's ssh server; 0: it offers no ssh."""

    def token(self) -> str:
        """Read the node's token."""

    def order_key_pem(self) -> bytes:
        """Read the key that orders are checked against."""


class Runner(Protocol):
    """Starts, polls and stops Jobs on one node."""

    def accept(self, order: Order, payload: str) -> JobFolder:
        """Accept an order to start. The same order twice is one Job."""

    def start(self, folder: JobFolder) -> None:
        """Start the process that supervises the Job."""

    def stop(self, folder: JobFolder, reason: str) -> bool:
        """Request an end. False: nothing of it runs."""

    def alive(self, folder: JobFolder) -> bool:
        """Return whether the supervising process runs."""


@dataclass(frozen=True)
class JobFolder:
    """One attempt of one Job on this node."""

    path: Path
    job: int
    attempt: int
    key: str = ""
    """The Job's key, because a number may be used again after a restore."""

    @classmethod
    def of(cls, jobs: Path, job: int, attempt: int, key: str = "") -> JobFolder:
        """Return the folder of an attempt, whether it exists or not."""
        name = f"{job}-{attempt}-{key}" if key else f"{job}-{attempt}"
        return cls(jobs / name, job, attempt, key)

    @classmethod
    def at(cls, path: Path) -> JobFolder:
        """Return the folder at a path.

        Raises:
            ValueError: the name is not ``<job>-<attempt>`` with a key or without.
        """
        found = NAME.fullmatch(path.name)
        if found is None:
            raise ValueError(f"{path.name} is no Job's folder")
        return cls(path, int(found[1]), int(found[2]), found[3] or "")

    @property
    def name(self) -> str:
        """The folder's name, ``<job>-<attempt>`` and the key if there is one."""
        return self.path.name

    @property
    def log(self) -> Path:
        """The log file."""
        return self.path / "log"

    @property
    def work(self) -> Path:
        """The Job's own folder."""
        return self.path / "work"

    @property
    def models(self) -> Path:
        """The folder of the models that the Job serves."""
        return self.path / "models"

    @property
    def lock(self) -> Path:
        """The file that the living shim holds locked."""
        return self.path / "lock"

    def read(self, name: str) -> dict[str, Any]:
        """Return ``<name>.json``. {}: it does not exist."""
        return read_json(self.path / f"{name}.json")

    def write(self, name: str, body: Mapping[str, Any]) -> None:
        """Write ``<name>.json`` completely, mode 600."""
        write_json(self.path / f"{name}.json", body)

    def log_bytes(self) -> int:
        """Return the log's size."""
        try:
            return self.log.stat().st_size
        except FileNotFoundError:
            return 0

    def last_lines(self) -> list[str]:
        """Return the log's last lines, at most 60 and 8 KiB."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log_bytes() - LAST_LINES_BYTES))
                text = file.read(LAST_LINES_BYTES).decode(errors="replace")
        except FileNotFoundError:
            return []
        return text.splitlines()[-LAST_LINES:]


def job_folders(jobs: Path) -> Iterator[JobFolder]:
    """Yield every Job's folder, oldest Job first."""
    found = []
    for path in jobs.iterdir() if jobs.is_dir() else ():
        try:
            found.append(JobFolder.at(path))
        except ValueError:
            continue
    yield from sorted(found, key=lambda folder: (folder.job, folder.attempt))


def read_json(path: Path) -> dict[str, Any]:
    """Return a file's object. {}: there is no such file."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return {}
    body = json.loads(text)
    return body if isinstance(body, dict) else {}


def write_json(path: Path, body: Mapping[str, Any]) -> None:
    """Write an object completely: a reader sees the old file or the new one."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(body, file)
    except OSError:
        # On a full disk each attempt would leave an empty file.
        draft.unlink()
        raise
    draft.replace(path)
