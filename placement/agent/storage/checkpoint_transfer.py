"""Upload requested checkpoints to the web, and download them before a start.

A transfer order leaves ``carry.json`` in the ended Job's folder. This thread packs the
Job's ``checkpoint/`` as the Job's user into ``carry.tar`` (where the Job cannot write),
announces its size and sum, and uploads it by byte offset. All state is in the folder,
so a restart continues at the web's offset. Nothing is uploaded without a request or
before the Job has ended. If the disk has no room for the archive, the thread reports it
and waits. It gives up only on a checkpoint that cannot be read.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from placement.agent.job_folder import ENDS, JobFolder, NodeView, job_folders
from placement.agent.portal_channel import (
    RETRY_SECONDS,
    ChannelDown,
    ChannelRefused,
    download_file,
    request,
)
from placement.agent.process import previous_attempt, unix_user
from placement.agent.process.job_exec import CHECKPOINT
from placement.agent.process.unix_user import UnixIdentity
from placement.agent.storage import checkpoint_archive, disk_space, folder_tree
from placement.agent.storage.results_upload import as_user
from placement.protocol.commands import Order, parse_order
from placement.protocol.node_refusals import OrderRefused
from placement.protocol.rendezvous import LATER, NONE, REFUSED
from telemetry.token_files import TokenFiles

PIECE_BYTES = 2**20
LOOK_SECONDS = 1.0
ROOM_SECONDS = 2.0
"""Between two looks whether there is room to pack a checkpoint."""
PACK_SECONDS = 3600.0

logger = logging.getLogger(__name__)


class CheckpointUnreadable(Exception):
    """There is a checkpoint, and its own user cannot read it."""


class CheckpointTransfer:
    """Uploads the requested checkpoints one after another."""

    def __init__(self, node: NodeView) -> None:
        self.node = node
        self._again_at: dict[str, float] = {}

    def run(self, stop: threading.Event) -> None:
        """Look for transfer orders each second until `stop` is set."""
        while not stop.wait(LOOK_SECONDS):
            for folder in job_folders(self.node.node_dir / "jobs"):
                try:
                    asked = folder.read("carry")
                    if asked and not asked.get("done") and self._due(folder):
                        self.bring(folder, asked, stop)
                except ChannelDown as error:
                    logger.info("checkpoint of job %s waits: %s", folder.name, error)
                except (OSError, ValueError, subprocess.SubprocessError) as error:
                    logger.error("checkpoint of job %s: %s", folder.name, error)

    def _due(self, folder: JobFolder) -> bool:
        """Return whether it has ended, and whether there may be room by now."""
        ended = folder.read("status").get("event") in ENDS
        return ended and time.monotonic() >= self._again_at.get(folder.name, 0.0)

    def bring(
        self, folder: JobFolder, asked: dict[str, Any], stop: threading.Event
    ) -> None:
        """Pack, announce and upload one checkpoint; what the web has is not sent again.

        Raises:
            ChannelDown: the web cannot take it now.
        """
        packed = folder.path / "carry.tar"
        outcome, why = NONE, ""
        try:
            if not packed.is_file():
                why = _packed(folder, packed, asked)
        except OrderRefused as refusal:
            outcome, why = LATER, refusal.detail
        except OSError as error:
            outcome, why = LATER, disk_space.folder_problem(error)
        except CheckpointUnreadable as error:
            outcome, why = REFUSED, f"it cannot be read: {error}"
        if outcome == LATER:
            self._again_at[folder.name] = time.monotonic() + ROOM_SECONDS
        try:
            have = self._announce(folder, packed, why, outcome)
            size = 0 if why else packed.stat().st_size
            while have < size and not stop.is_set():
                have = self._piece(folder, packed, have)
            if have < size:
                return
        except ChannelRefused as refusal:
            # Too large, or no longer requested: the web knows why.
            logger.info("checkpoint of job %s stays: %s", folder.name, refusal)
        packed.unlink(missing_ok=True)
        folder.write("carry", {**asked, "done": True})

    def _announce(self, folder: JobFolder, packed: Path, why: str, outcome: str) -> int:
        """Announce the archive to the web. Return how many bytes the web has of it."""
        body: dict[str, Any] = {"problem": why, "outcome": outcome}
        if not why:
            with packed.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            body = {"size_bytes": packed.stat().st_size, "sha256": digest}
        elif why.isdecimal():  # how large it is: the web says what that means
            body = {"size_bytes": int(why), "sha256": "0" * 64}
        return self._upload_part(folder, "checkpoint/about", json.dumps(body).encode())

    def _piece(self, folder: JobFolder, packed: Path, offset: int) -> int:
        with packed.open("rb") as file:
            file.seek(offset)
            data = file.read(PIECE_BYTES)
        return self._upload_part(folder, f"checkpoint?offset={offset}", data)

    def _upload_part(self, folder: JobFolder, part: str, body: bytes) -> int:
        url = f"{self.node.web_url}/node/v1/jobs/{folder.job}/{part}"
        sums = {"X-Sha256": hashlib.sha256(body).hexdigest()}
        _, answer = request(
            "PUT",
            url,
            node=self.node.name,
            token=self.node.token(),
            body=body,
            headers=sums,
            key=folder.key,
        )
        size = json.loads(answer).get("size")
        if type(size) is not int or size < 0:
            raise ChannelDown("the web answered without a size")
        return size


def _packed(folder: JobFolder, target: Path, asked: dict[str, Any]) -> str:
    """Pack a Job's checkpoint; return why it is missing, or its size if too large.

    Raises:
        OrderRefused, OSError: the disk has no room for it now.
        Unreadable: the Job's user cannot read it.
    """
    payload = str(folder.read("order").get("payload", ""))
    source = previous_attempt.checkpoint_of(folder)
    if not payload or not folder_tree.is_folder(source):
        return "it left none on this node"
    most_bytes = int(asked["most_bytes"])
    try:
        size = previous_attempt.size_of(source)
    except OrderRefused as refusal:  # no room that may come can mend that
        raise CheckpointUnreadable(refusal.detail) from refusal
    if size <= most_bytes:
        disk_space.check_room(size, folder.path, folder.job)
    try:
        identity = unix_user.identity_of(parse_order(payload), allow_scripts=True)
    except OrderRefused as refusal:
        raise CheckpointUnreadable(refusal.detail) from refusal
    draft = folder.path / ".carry.tar.part"
    with draft.open("wb") as file:
        draft.chmod(0o600)
        done = subprocess.run(
            _command("pack", str(source), str(most_bytes)),
            **{**as_user(identity), "stdout": file, "stderr": subprocess.PIPE},
            timeout=PACK_SECONDS,
        )
    if done.returncode == checkpoint_archive.DONE:
        draft.replace(target)
        return ""
    draft.unlink()
    if done.returncode == checkpoint_archive.TOO_LARGE:
        return done.stderr.decode(errors="replace").strip()
    if done.returncode == checkpoint_archive.NONE:
        return "it left none on this node"
    words = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
    if done.returncode == checkpoint_archive.NO_ROOM:
        raise OSError(errno.ENOSPC, words[0])
    raise CheckpointUnreadable(" ".join(words)[:200] or f"code {done.returncode}")


def fetch(
    order: Order,
    folder: Path,
    identity: UnixIdentity | None,
    *,
    web_url: str,
    token_file: Path,
    given_up: Callable[[], bool],
) -> None:
    """Download all parts of a checkpoint into the Job's folder and check their sums.

    Args:
        folder: the attempt's folder. The Job's own folder is ``work`` inside it.

    Raises:
        OrderRefused: ``checkpoint``, with the reason.
    """
    for part in sorted(order.checkpoints, key=lambda one: one.number):
        path = folder / f"checkpoint-{part.number}.tar"
        url = f"{web_url}/node/v1/jobs/{order.job}/checkpoint/{part.number}"
        _download(order, url, path, part.size_bytes, part.sha256, token_file, given_up)
        with path.open("rb") as file:
            done = subprocess.run(
                _command("unpack", str(folder / "work" / CHECKPOINT)),
                **{**as_user(identity), "stdin": file, "capture_output": True},
                timeout=PACK_SECONDS,
            )
        path.unlink()
        if done.returncode != checkpoint_archive.DONE:
            words = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
            why = " ".join(words)[:200] or f"code {done.returncode}"
            raise OrderRefused("checkpoint", f"it cannot be unpacked: {why}")


def _download(
    order: Order,
    url: str,
    path: Path,
    size_bytes: int,
    sha256: str,
    token_file: Path,
    given_up: Callable[[], bool],
) -> None:
    """Fetch one part; try again while the web is away, until the Reservation's end."""
    tries = 0
    while True:
        try:
            return download_file(
                url,
                path,
                node=order.node,
                token=TokenFiles(token_file).shown_token,
                key=order.key,
                sha256=sha256,
                most_bytes=size_bytes,
            )
        except ChannelRefused as error:
            raise OrderRefused(
                "checkpoint", f"the web refused the checkpoint: {error}"
            ) from error
        except ChannelDown as error:
            pause = RETRY_SECONDS[min(tries, len(RETRY_SECONDS) - 1)]
            tries += 1
            if given_up() or time.time() + pause >= order.deadline_at:
                raise OrderRefused(
                    "checkpoint", f"the checkpoint could not be fetched: {error}"
                ) from error
            time.sleep(pause)


def _command(*arguments: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "placement.agent.storage.checkpoint_archive",
        *arguments,
    ]
