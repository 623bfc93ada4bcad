"""Find the programs with which a Job starts. The search runs as the Job's user.

A folder that the owner names comes first on the PATH. A folder that everybody may write
to is not used: any user could place a program there that runs as the Job's user.
"""

from __future__ import annotations

import os
import shutil
import socket
import stat
from collections.abc import Sequence
from pathlib import Path

SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
OTHER_NAMES = {"python": ("python", "python3")}
"""Systems that have no ``python`` call it ``python3``."""


def search_path(environment_folder: str) -> str:
    """Return the Job's PATH."""
    return f"{environment_folder}:{SYSTEM_PATH}" if environment_folder else SYSTEM_PATH


def checked_argv(
    argv: Sequence[str], needed: Sequence[str], environment_folder: str
) -> list[str]:
    """Return argv with its program's whole path.

    Args:
        argv: the command line.
        needed: programs of a launcher. Where an environment is named they must be in
            it: the system's would run without its packages.
        environment_folder: of the environment's programs. "" without an environment.

    Raises:
        OSError: a program is not installed, or its folder is not trusted.
    """
    if environment_folder:
        _check_folder(Path(environment_folder))
    path = search_path(environment_folder)
    for name in needed:
        _program_path(name, environment_folder or path)
    within = environment_folder if environment_folder and needed else path
    program = argv[0] if "/" in argv[0] else _program_path(argv[0], within)
    if environment_folder and program.startswith(f"{environment_folder}/"):
        _check_mode(Path(program))
    return [program, *argv[1:]]


def free_port() -> int:
    """Return a port of this machine that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _program_path(name: str, path: str) -> str:
    words = OTHER_NAMES.get(name, (name,))
    for word in words:
        if program := shutil.which(word, path=path):
            return program
    for folder in path.split(":"):
        for word in words:
            if (place := Path(folder, word)).is_symlink():
                raise FileNotFoundError(
                    f"{place} is a link to {os.path.realpath(place)}, which your user "
                    "cannot run. Make the environment with a Python that all users "
                    "can run"
                )
    raise FileNotFoundError(f"{name} is not installed: it is not in {path}")


def _check_folder(folder: Path) -> None:
    if not folder.is_dir() or not os.access(folder, os.X_OK):
        raise FileNotFoundError(f"the environment folder {folder} cannot be entered")
    check_closed(folder)


def check_closed(path: Path) -> None:
    """Raise OSError if everybody may write to a file, a folder, or a folder above."""
    for place in (real := path.resolve(), *real.parents):
        _check_mode(place)


def _check_mode(place: Path) -> None:
    mode = place.stat().st_mode
    sticky = stat.S_ISDIR(mode) and mode & stat.S_ISVTX
    if mode & stat.S_IWOTH and not sticky:
        raise PermissionError(f"everybody may write {place}: it is not used")
