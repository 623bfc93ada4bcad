"""A Job's own view of the machine's folders: mount_namespaces(7), by system call.

Called by root between fork and exec; the view ends with the Job's last process.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

CLONE_NEWNS = 0x0002_0000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT = 1, 2, 4, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16_384, 1 << 18
PR_SET_NO_NEW_PRIVS = 38
SYSTEM = ("/usr", "/etc", "/boot", "/efi")
"""What a Job may not change whoever it becomes: ProtectSystem=full."""
_libc = ctypes.CDLL(None, use_errno=True)


def close_off(
    places: Sequence[tuple[Path, Path]], *, kept: Sequence[Path] = ()
) -> None:
    """Show other folders in the place of some, and the system's own read-only.

    Args:
        places: (what is shown, where); both exist.
        kept: folders that stay where they are, read-only, also below such a place.

    Raises:
        OSError: the kernel refuses, or a folder would hide what is shown.
    """
    for source, shown in places:
        if source.is_relative_to(shown):
            raise OSError(f"{source} lies in {shown} itself, which is to be private")
    _checked(_libc.unshare(CLONE_NEWNS), "unshare")
    _mount(None, "/", MS_REC | MS_PRIVATE)
    hidden = [
        (os.open(path, os.O_PATH | os.O_DIRECTORY), path)
        for path in kept
        if any(path.is_relative_to(shown) for _, shown in places)
        and not any(path.is_relative_to(other) for other in kept if other != path)
    ]
    for source, shown in places:
        _mount(str(source), str(shown), MS_BIND)
        _mount(None, str(shown), MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV)
    for descriptor, path in hidden:
        for folder in (*reversed(path.parents), path):
            if not folder.exists():
                folder.mkdir()
                folder.chmod(0o711)
        _mount(f"/proc/self/fd/{descriptor}", str(path), MS_BIND | MS_REC)
        _mount(None, str(path), MS_REMOUNT | MS_BIND | MS_RDONLY)
        os.close(descriptor)
    for path in map(Path, SYSTEM):
        if path.is_dir() and not path.is_symlink():
            _mount(str(path), str(path), MS_BIND | MS_REC)
            _mount(None, str(path), MS_REMOUNT | MS_BIND | MS_RDONLY)


def no_new_privileges() -> None:
    """From here on no program gives more rights than its caller has (prctl(2))."""
    _checked(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")


def _mount(source: str | None, target: str, flags: int) -> None:
    told = None if source is None else os.fsencode(source)
    done = _libc.mount(told, os.fsencode(target), None, ctypes.c_ulong(flags), None)
    _checked(done, f"mount {target}")


def _checked(done: int, what: str) -> None:
    if done != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
