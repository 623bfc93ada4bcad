"""Find the environment that a Job's owner names. The search runs as the Job's user.

A name is one of these:

- the folder of a virtual or conda environment, or its ``bin``
- the folder of a uv project, or of any project whose environment is ``.venv``
- the name of a conda environment

A requirements file and a uv project without ``.venv`` name what environment_cache.py
builds.

Conda's places: docs.conda.io "Managing environments", and the list
``~/.conda/environments.txt`` that conda keeps. uv's: docs.astral.sh/uv "Projects".
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

from placement.agent.process.environment_cache import LOCK_FILE
from placement.protocol.launchers import REQUIREMENTS

CONDA_ROOTS = (
    "miniconda3",
    "anaconda3",
    "miniforge3",
    "mambaforge",
    "micromamba",
    ".local/share/mamba",
    ".conda",
)
"""Folders in a home where installers put conda, or where it makes environments."""
SYSTEM_ROOTS = tuple(
    Path("/opt", name)
    for name in ("conda", "miniconda3", "anaconda3", "miniforge3", "mambaforge")
)
CONDA_LIST = Path(".conda", "environments.txt")
MOST_LIST_BYTES = 2**20
OWN_SIGNS = ("pyvenv.cfg", "conda-meta")
"""Files that mark a folder as a virtual environment or a conda environment."""
PROJECT_SIGNS = (LOCK_FILE, "pyproject.toml")


class NotBuilt(FileNotFoundError):
    """There is no environment, but the node can build one from ``source``."""

    def __init__(self, why: str, source: Path) -> None:
        super().__init__(why)
        self.source = source


def program_folder(name: str) -> str:
    """Return the folder of an environment's programs; "" for "".

    Call it as the Job's user: perhaps no other user can see it.

    Raises:
        NotBuilt: the name is of a requirements file, or of a uv project without an
            environment.
        OSError: there is no such environment. The text says how to make it.
    """
    if not name:
        return ""
    if not name.startswith("/"):
        return str(_conda_environment(name) / "bin")
    folder = Path(name)
    _check_folder(folder)
    inner, project = folder / "bin", folder / ".venv" / "bin"
    if any((folder / sign).exists() for sign in OWN_SIGNS) and _is_folder(inner):
        return str(inner)
    if _is_folder(project):
        return str(project)
    if any((folder / sign).is_file() for sign in PROJECT_SIGNS):
        why = (
            f"the project {folder} has no environment yet. Make it on this node: "
            f"cd {folder} && uv sync"
        )
        if (folder / LOCK_FILE).is_file():
            raise NotBuilt(why, folder)
        raise FileNotFoundError(why)
    return str(inner if _is_folder(inner) else folder)


def _is_folder(path: Path) -> bool:
    """Return whether the user can see that a path is a folder."""
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except OSError:
        return False


def _check_folder(folder: Path) -> None:
    """Raise OSError with the reason if a path is no folder that the user can enter.

    Raises NotBuilt for a requirements file.
    """
    try:
        there = stat.S_ISDIR(folder.stat().st_mode)
        if there and not os.access(folder, os.X_OK):
            raise PermissionError
    except PermissionError:
        raise PermissionError(
            f"the environment folder {folder} cannot be entered: it or a folder above "
            "it is closed to your user"
        ) from None
    except OSError:
        raise FileNotFoundError(
            f"there is no environment folder {folder} on this node. Make it there: "
            f"python3 -m venv {folder}"
        ) from None
    if not there:
        why = (
            f"{folder} is a file: name the folder of the environment. For "
            "requirements: python3 -m venv FOLDER && FOLDER/bin/pip install -r "
            f"{folder}"
        )
        if folder.suffix in REQUIREMENTS and folder.is_file():
            raise NotBuilt(why, folder)
        raise NotADirectoryError(why)


def _conda_environment(name: str) -> Path:
    """Return the folder of a conda environment of the Job's user, or of the system.

    Raises:
        FileNotFoundError: none of this name.
    """
    home = home_folder()
    for folder in _conda_folders(name, home):
        if _is_folder(folder / "conda-meta"):
            return folder
    where = f"{home} and in /opt" if home else "/opt (your user has no home here)"
    raise FileNotFoundError(
        f"there is no conda environment {name} on this node: none is in {where}. "
        f"Make it there: conda create -n {name} python"
    )


def _conda_folders(name: str, home: Path | None) -> Iterator[Path]:
    roots = [*([home / root for root in CONDA_ROOTS] if home else []), *SYSTEM_ROOTS]
    if name == "base":
        yield from roots
    if home is not None:
        yield from _listed(home / CONDA_LIST, name)
    for root in roots:
        yield root / "envs" / name


def _listed(path: Path, name: str) -> Iterator[Path]:
    """Return the environments of a name in conda's own list of them."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            text = file.read(MOST_LIST_BYTES).decode(errors="replace")
    except OSError:
        return
    for line in text.splitlines():
        if line.startswith("/") and "\0" not in line and Path(line).name == name:
            yield Path(line)


def home_folder() -> Path | None:
    """Return the home of the user that runs this; None: the user has no account."""
    try:
        home = Path(pwd.getpwuid(os.geteuid()).pw_dir)
    except KeyError:
        return None
    return home if _is_folder(home) else None
