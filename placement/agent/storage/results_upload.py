"""Results of ended Jobs from the node to the web, like logs: whole, when it is there.

The web says how much it wants and how much it has; the node lists what lies in the
Job's ``results`` folder and goes on from there. Files are read by a process that runs
as the Job's own user (results_reader.py), never by the node worker itself.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlencode

from placement.agent import portal_channel
from placement.agent.job_folder import BESIDE, RESULTS, JobFolder, NodeView
from placement.agent.portal_channel import ChannelDown, ChannelRefused
from placement.agent.process import unix_user
from placement.agent.process.job_exec import CHECKPOINT, SCRIPT
from placement.agent.process.unix_user import UnixIdentity
from placement.agent.storage import folder_tree
from placement.agent.storage.log_upload import BACK_OFF_SECONDS, Upload
from placement.protocol.commands import parse_order
from placement.protocol.launchers import FILES
from placement.protocol.node_refusals import OrderRefused
from telemetry.protocol.back_off import BackOff

PIECE_BYTES = 2**20
LOOK_SECONDS = 1.0
LIST_SECONDS = 600.0
CODE_DIR = Path(__file__).resolve().parents[3]

logger = logging.getLogger(__name__)


class ResultUnreadable(Exception):
    """The Job's user cannot read the requested file."""


class ResultCarrier:
    """Brings up the results of one Job after the other."""

    def __init__(self, node: NodeView) -> None:
        self.node = node
        self._back_off = BackOff(BACK_OFF_SECONDS)

    def run(self, stop: threading.Event, todo: Callable[[], Sequence[Upload]]) -> None:
        """Upload until `stop` is set."""
        while not stop.wait(self._back_off.pause_seconds or LOOK_SECONDS):
            for item in todo():
                try:
                    self.carry(item, stop)
                    self._back_off.succeeded()
                except ChannelDown as error:
                    self._back_off.failed()
                    logger.info("results wait: %s", error)
                    break
                except (OSError, ValueError, KeyError, subprocess.SubprocessError):
                    logger.exception("results of job %s", item.folder.name)
                    item.report(results=True)

    def carry(self, item: Upload, stop: threading.Event) -> None:
        """Bring up all that one Job left; nothing where it left nothing.

        Raises:
            ChannelDown: the web cannot take it now.
        """
        folder = item.folder
        place = folder.work / RESULTS
        if not folder_tree.is_folder(place):
            item.report(results=True)
            return
        try:
            identity = identity_of(folder)
            limits = self._request_json(folder, "GET")
            own = folder.work if _is_script(folder) else None
            beside = folder.read(BESIDE).get("paths", [])
            told = _listing(place, own, identity, limits, beside)
            if told["files"] or told["left_out"]:
                wanted = self._request_json(folder, "PUT", json.dumps(told).encode())[
                    "files"
                ]
                for row in wanted:
                    if stop.is_set():
                        return
                    self._send(folder, place, own, identity, row)
        except (ChannelRefused, OrderRefused, ResultUnreadable) as refusal:
            logger.warning("results of job %s: %s", folder.name, refusal)
        item.report(results=True)

    def _request_json(
        self, folder: JobFolder, method: str, body: bytes | None = None
    ) -> dict[str, Any]:
        _, answer = self._request(folder, method, "", body)
        return dict(json.loads(answer))

    def _request(
        self,
        folder: JobFolder,
        method: str,
        part: str,
        body: bytes | None,
        **query: int,
    ) -> tuple[int, bytes]:
        asked = urlencode({"attempt": folder.attempt, **query})
        url = f"{self.node.web_url}/node/v1/jobs/{folder.job}/results{part}?{asked}"
        return portal_channel.request(
            method,
            url,
            node=self.node.name,
            token=self.node.token(),
            body=body,
            key=folder.key,
        )

    def _send(
        self,
        folder: JobFolder,
        place: Path,
        own: Path | None,
        identity: UnixIdentity | None,
        row: dict[str, Any],
    ) -> None:
        """Send one file from where the web has it; a file that changed is left."""
        at, size = int(row["have"]), int(row["size"])
        while at < size or size == 0:
            with _reading(place, own, identity, str(row["path"]), at) as file:
                at = self._stream(folder, int(row["id"]), file, at, size)
            if size == 0:
                return

    def _stream(
        self, folder: JobFolder, pk: int, file: IO[bytes], at: int, size: int
    ) -> int:
        """Send pieces until the end, or until the web is elsewhere; where it is."""
        while True:
            data = file.read(min(PIECE_BYTES, size - at))
            if not data and size:
                raise ResultUnreadable("a file is shorter than it was")
            status, answer = self._request(folder, "PUT", f"/{pk}", data, offset=at)
            have = int(json.loads(answer)["size"])
            if status == 409 and have == at:
                raise ValueError("the web is where it says it is not")
            at = have if status == 409 else at + len(data)
            if status == 409 or at >= size:
                return at


def identity_of(folder: JobFolder) -> UnixIdentity | None:
    """Return the Unix user that a Job ran as; None: the node worker's own.

    Raises:
        OrderRefused: the account is gone.
    """
    order = parse_order(str(folder.read("order")["payload"]))
    return unix_user.identity_of(order, allow_scripts=True)


def _is_script(folder: JobFolder) -> bool:
    """Return whether a Job ran a person's script in its own folder."""
    order = parse_order(str(folder.read("order")["payload"]))
    return order.recipe is None


def _listing(
    place: Path,
    own: Path | None,
    identity: UnixIdentity | None,
    limits: dict[str, Any],
    beside: Sequence[str],
) -> dict[str, Any]:
    """List the results, and what a script left in its own folder.

    The examples of libraries write to the folder in which they are started. The
    portal's own files, the checkpoint and the files ``beside`` the script, which the
    person sent, are no results.
    """
    numbers = (str(int(limits[name])) for name in ("most_files", "most_bytes"))
    left = () if own is None else (str(own), SCRIPT, CHECKPOINT, *FILES, *beside)
    done = subprocess.run(
        _command("list", str(place), *numbers, *left),
        **as_user(identity),
        capture_output=True,
        timeout=LIST_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise ResultUnreadable(done.stderr.decode(errors="replace")[-200:].strip())
    return dict(json.loads(done.stdout))


@contextmanager
def _reading(
    place: Path,
    own: Path | None,
    identity: UnixIdentity | None,
    path: str,
    offset: int,
) -> Iterator[IO[bytes]]:
    """Read one file through a process of the Job's user."""
    process = subprocess.Popen(
        _command("send", str(place), path, str(offset), *([str(own)] if own else [])),
        **as_user(identity),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        yield process.stdout
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "placement.agent.storage.results_reader", *arguments]


def as_user(identity: UnixIdentity | None) -> dict[str, Any]:
    """Return what starts a process as the Job's user, with nothing of the worker's."""
    plain: dict[str, Any] = {
        "cwd": "/",
        "env": {
            "PATH": "/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(CODE_DIR),
        },
        "stdin": subprocess.DEVNULL,
    }
    if identity is None:
        return plain
    return plain | {
        "user": identity.uid,
        "group": identity.gid,
        "extra_groups": list(identity.groups),
    }
