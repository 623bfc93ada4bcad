"""Folders that a Job's user may change, handled by root without following a path.

A student can rename, replace and link everything in a folder of their own while root
works there. So a folder is finished before it is handed over, and what lies in it later
is reached by descriptors of real folders only (openat(2) with O_NOFOLLOW), never by a
path. docs/design/security.md#job-folder lists every place where root does this.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Sequence
from pathlib import Path

from placement.agent.process.unix_user import UnixIdentity
from placement.agent.storage.results_reader import FOLDER

MOST_OPEN = 64
"""Folders in folders that are held open while a tree is removed."""
MOST_ROUNDS = 100
"""How often a folder is emptied that is filled again meanwhile."""


def make_owned(
    path: Path, identity: UnixIdentity | None, inner: Sequence[str] = ()
) -> list[int]:
    """Make a folder with inner folders that only the Job's user may open.

    No link is followed: the folder is new, and closed to its later owner until all of
    it is finished. An existing folder is not reused.

    Args:
        path: the new folder. The node worker must own its parent folder.
        identity: the Job's user; None: the node worker's user.
        inner: names of folders to make inside.

    Returns:
        A descriptor of each inner folder, which the caller closes.

    Raises:
        OSError: it exists already, or the disk is full.
    """
    above = os.open(path.parent, FOLDER)
    try:
        os.mkdir(path.name, 0o700, dir_fd=above)
        handle = os.open(path.name, FOLDER, dir_fd=above)
    finally:
        os.close(above)
    made: list[int] = []
    try:
        for name in inner:
            os.mkdir(name, 0o700, dir_fd=handle)
            made.append(os.open(name, FOLDER, dir_fd=handle))
        # The outer folder comes last: from then on its owner can reach the inner ones.
        for one in (*made, handle):
            os.fchmod(one, 0o700)
            if identity is not None:
                os.fchown(one, identity.uid, identity.gid)
    except OSError:
        close_all(made)
        raise
    finally:
        os.close(handle)
    return made


def close_all(handles: Sequence[int]) -> None:
    """Close descriptors."""
    for handle in handles:
        os.close(handle)


def is_folder(path: Path) -> bool:
    """Return whether the path is a real folder, not a link to one."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def remove(path: Path) -> None:
    """Remove a folder and its contents, even if its owner interferes.

    Links are removed and never followed. Depth costs neither stack nor descriptors:
    deep folders are first moved up, inside the folder to remove.

    Args:
        path: the folder. The node worker must own its parent folder.

    Raises:
        OSError: something cannot be removed, or is created again too fast.
    """
    above = os.open(path.parent, FOLDER)
    try:
        _remove_inside(above, path.name)
    finally:
        os.close(above)


def _remove_inside(above: int, name: str) -> None:
    for _ in range(MOST_ROUNDS):
        try:
            top = os.open(name, FOLDER, dir_fd=above)
        except NotADirectoryError:  # a link, or no folder at all
            os.unlink(name, dir_fd=above)
            return
        except FileNotFoundError:
            return
        try:
            _remove_contents(top, top, 0)
        finally:
            os.close(top)
        try:
            os.rmdir(name, dir_fd=above)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
    raise OSError(errno.ENOTEMPTY, "it is filled again while it is removed", name)


def _remove_contents(handle: int, top: int, depth: int) -> None:
    """Remove what an open folder holds; ``top`` takes what lies too deep."""
    with os.scandir(handle) as entries:
        names = [entry.name for entry in entries]
    for name in names:
        # Gone meanwhile, or replaced by something else: the next round sees it.
        with contextlib.suppress(FileNotFoundError):
            _empty_entry(handle, name, top, depth)


def _empty_entry(handle: int, name: str, top: int, depth: int) -> None:
    try:
        os.unlink(name, dir_fd=handle)
        return
    except (IsADirectoryError, PermissionError):  # POSIX allows either for a folder
        pass
    if depth >= MOST_OPEN:
        moved = f".removed-{secrets.token_hex(8)}"
        os.rename(name, moved, src_dir_fd=handle, dst_dir_fd=top)
        return
    try:
        inner = os.open(name, FOLDER, dir_fd=handle)
    except NotADirectoryError:  # a link stands there now
        os.unlink(name, dir_fd=handle)
        return
    try:
        _remove_contents(inner, top, depth + 1)
    finally:
        os.close(inner)
    with contextlib.suppress(OSError):  # filled again: the next round empties it
        os.rmdir(name, dir_fd=handle)
