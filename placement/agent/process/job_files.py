"""The files in a Job's own folder at its start: its script and its Plan's files.

Fetched over the channel, checked by the hashes in the signed order, and written as the
Job's user.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

from placement.agent.job_folder import BESIDE, JobFolder
from placement.agent.process.job_exec import SCRIPT
from placement.agent.process.unix_user import UnixIdentity
from placement.agent.storage.results_reader import FOLDER
from placement.protocol.commands import Order
from placement.protocol.launchers import FILES, PLAN, beside_problem
from placement.protocol.node_refusals import OrderRefused
from telemetry.protocol.codec import Malformed, decode


def lay_out(
    order: Order,
    work: Path,
    identity: UnixIdentity | None,
    *,
    web_url: str,
    token_file: Path,
    given_up: Callable[[], bool],
) -> list[str]:
    """Write the script, the files beside it and the Plan's. Return the Plan's names.

    Raises:
        OrderRefused: they could not be fetched, or differ from the order.
    """

    def fetched(part: str, sha256: str) -> bytes:
        from placement.agent import portal_channel

        return portal_channel.download_part(
            part,
            web_url=web_url,
            node=order.node,
            token_file=token_file,
            job=order.job,
            key=order.key,
            sha256=sha256,
            until=order.deadline_at,
            given_up=given_up,
        )

    if order.checkpoints:
        from placement.agent.storage import checkpoint_transfer

        checkpoint_transfer.fetch(
            order,
            work.parent,
            identity,
            web_url=web_url,
            token_file=token_file,
            given_up=given_up,
        )
    files: dict[str, str] = {}
    if order.plan:
        files[PLAN] = json.dumps(dict(order.plan), indent=1)
    if order.files_sha256:
        files |= _read(fetched("files", order.files_sha256))
    if order.recipe is None:
        body = fetched("script", order.script_sha256)
        _write_file(work / SCRIPT, body, identity, mode=0o700)
    if order.beside_sha256:
        beside = _beside(fetched("beside", order.beside_sha256))
        JobFolder.at(work.parent).write(BESIDE, {"paths": sorted(beside)})
        for name, text in beside.items():
            _write_inside(work, name, text.encode(), identity)
    for name, text in files.items():
        _write_file(work / name, text.encode(), identity, mode=0o600)
    return list(files)


def _read(body: bytes) -> dict[str, str]:
    """Return the allowed names with their texts. Nothing else is written anywhere."""
    try:
        files = json.loads(body)
    except ValueError as error:
        raise OrderRefused("files", "the files are no JSON") from error
    if (
        not isinstance(files, dict)
        or not files.keys() <= FILES.keys()
        or not all(isinstance(text, str) for text in files.values())
    ):
        raise OrderRefused("files", f"the files are not among {', '.join(FILES)}")
    return files


def _beside(body: bytes) -> dict[str, str]:
    """Return the files beside a script, checked as the web checks them."""
    try:
        files = decode(dict[str, str], body, most_bytes=len(body))
    except Malformed as error:
        raise OrderRefused("beside", f"the files beside the script: {error}") from None
    if why := beside_problem(files):
        raise OrderRefused("beside", f"the files beside the script: {why}")
    return files


def _write_inside(
    work: Path, name: str, body: bytes, identity: UnixIdentity | None
) -> None:
    """Write a file of the Job's user below its folder, and the folders on its path.

    Each step uses the descriptor of a real folder, so no link is followed, even if
    another process of the user puts one there meanwhile. A new folder is handed over
    only if it is the one that was made: nobody else can move a folder of root here.

    Raises:
        OSError: another process of the user interferes.
    """
    *folders, last = name.split("/")
    handle = os.open(work, FOLDER)
    try:
        for folder in folders:
            made = False
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, 0o700, dir_fd=handle)
                made = True
            inner = os.open(folder, FOLDER, dir_fd=handle)
            os.close(handle)
            handle = inner
            if made and identity is not None:
                if os.fstat(handle).st_uid != os.geteuid():
                    raise OSError(errno.EEXIST, "was replaced meanwhile", folder)
                os.fchown(handle, identity.uid, identity.gid)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with os.fdopen(os.open(last, flags, 0o600, dir_fd=handle), "wb") as file:
            file.write(body)
            if identity is not None:
                os.fchown(file.fileno(), identity.uid, identity.gid)
    finally:
        os.close(handle)


def _write_file(
    path: Path, body: bytes, identity: UnixIdentity | None, *, mode: int
) -> None:
    """Write a file of the Job's user into its folder."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags, mode), "wb") as file:
        file.write(body)
        if identity is not None:
            os.fchown(file.fileno(), identity.uid, identity.gid)
