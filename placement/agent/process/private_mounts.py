"""A Job's private view of the machine's folders: mount_namespaces(7), by system call.

Called by root between fork and exec. The view ends with the Job's last process. What
lies in a folder that the Job's user may change is mounted by descriptor, never by path.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from placement.agent.storage.folder_tree import close_all
from placement.agent.storage.results_reader import FOLDER

CLONE_NEWNS = 0x0002_0000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT = 1, 2, 4, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16_384, 1 << 18
PR_SET_NO_NEW_PRIVS = 38
SYSTEM = ("/usr", "/etc", "/boot", "/efi")
"""Folders that a Job may never change, as any user: ProtectSystem=full."""
_libc = ctypes.CDLL(None, use_errno=True)


def check_outside(folder: Path, shown: Iterable[Path]) -> None:
    """Raise OSError if a folder is inside one of those that become private."""
    for place in shown:
        if folder.is_relative_to(place):
            raise OSError(f"{folder} lies in {place} itself, which is to be private")


def leave_shared_view() -> None:
    """Give the calling process a private copy of the mounts.

    Raises:
        OSError: the kernel refuses.
    """
    _checked(_libc.unshare(CLONE_NEWNS), "unshare")
    _mount(None, "/", MS_REC | MS_PRIVATE)


def close_off(places: Sequence[tuple[int, Path]], *, kept: Sequence[Path] = ()) -> None:
    """Replace some folders, and make the system's own ones read-only.

    Call ``leave_shared_view`` first.

    Args:
        places: (descriptor of the folder that is shown, path).
        kept: folders that stay visible, read-only, also below such a place.

    Raises:
        OSError: the kernel refuses, or a kept folder is replaced meanwhile.
    """
    hidden = [
        (os.open(path, os.O_PATH | os.O_DIRECTORY), path)
        for path in kept
        if any(path.is_relative_to(shown) for _, shown in places)
        and not any(path.is_relative_to(other) for other in kept if other != path)
    ]
    for handle, shown in places:
        _mount(f"/proc/self/fd/{handle}", str(shown), MS_BIND)
        _mount(None, str(shown), MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV)
    for descriptor, path in hidden:
        place = next(shown for _, shown in places if path.is_relative_to(shown))
        _show_again(descriptor, path, place)
        os.close(descriptor)
    for path in map(Path, SYSTEM):
        if path.is_dir() and not path.is_symlink():
            _mount(str(path), str(path), MS_BIND | MS_REC)
            _mount(None, str(path), MS_REMOUNT | MS_BIND | MS_RDONLY)


def _show_again(descriptor: int, path: Path, place: Path) -> None:
    """Show a folder at its path again, in a private place that its owner may change.

    Each step uses the descriptor of a real folder, so a link that the owner inserts
    ends it with an error.
    """
    handles = [os.open(place, FOLDER)]
    try:
        for name in path.relative_to(place).parts:
            handles.append(_enter(handles[-1], name))
        target = f"/proc/self/fd/{handles[-1]}"
        _mount(f"/proc/self/fd/{descriptor}", target, MS_BIND | MS_REC)
        # The earlier descriptor is that of the folder underneath the mount.
        handles.append(os.open(path.name, FOLDER, dir_fd=handles[-2]))
        if not os.path.sameopenfile(handles[-1], descriptor):
            raise OSError(errno.ESTALE, f"{path} was replaced while it was mounted")
        target = f"/proc/self/fd/{handles[-1]}"
        _mount(None, target, MS_REMOUNT | MS_BIND | MS_RDONLY)
    finally:
        close_all(handles)


def _enter(above: int, name: str) -> int:
    """Open a folder inside an open one. It is created if it is missing."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o711, dir_fd=above)
    handle = os.open(name, FOLDER, dir_fd=above)
    if os.fstat(handle).st_uid == os.geteuid():
        os.fchmod(handle, 0o711)  # whatever the umask says
    return handle


def no_new_privileges() -> None:
    """Prevent programs from gaining more rights than their caller has (prctl(2))."""
    _checked(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")


def _mount(source: str | None, target: str, flags: int) -> None:
    told = None if source is None else os.fsencode(source)
    done = _libc.mount(told, os.fsencode(target), None, ctypes.c_ulong(flags), None)
    _checked(done, f"mount {target}")


def _checked(done: int, what: str) -> None:
    if done != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
