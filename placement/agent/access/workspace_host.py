"""The first process of a workspace's job: it runs the program and passes connections.

It runs as the student. ``program_host.py`` says how connections reach the program.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from placement.agent.access.container_command import (
    NO_PROGRAM,
    ContainerRefused,
    container_command,
    container_host,
)
from placement.agent.access.program_host import ProgramHost, run_program
from placement.agent.process.program_lookup import SYSTEM_PATH, checked_argv
from placement.planner.launch.workspace_apps import (
    WORKSPACE_APPS,
    AppPlace,
    WorkspaceApp,
)
from placement.protocol.container_images import (
    IMAGE_VARIABLE,
    ContainerImage,
    image_of,
)
from placement.protocol.job_lifecycle import CANNOT_START
from telemetry.protocol.codec import Malformed, decode

SOCKET_NAME = "app.sock"
TOKEN_NAME = "token"
SERVERS = Path(__file__).parent
"""The folder of the servers that an environment's Python runs."""


class ProgramMissing(Exception):
    """The environment has no such program. The text says how to install it."""


class FolderMissing(Exception):
    """The folder that the program is to show is not on this node."""


def shown_folder(entered: str, home: str) -> str:
    """Return the path of the folder that a program is to show.

    Args:
        entered: by its owner. "": the home.
        home: the job's HOME. Where the home is not mounted, it is the job's folder.

    Raises:
        FolderMissing: it is not a folder on this node.
    """
    if not entered.startswith("/") and (missing := _missing_home()):
        raise FolderMissing(
            f"Your home {missing} is not on this node. Ask the lab admin to mount it, "
            "or enter the absolute path of another folder."
        )
    path = Path(home, entered.removeprefix("~/") if entered != "~" else "")
    if not path.is_dir():
        raise FolderMissing(f"There is no folder {path} on this node.")
    return str(path)


def _missing_home() -> str:
    """Return the account's home if it is not on this node, else ""."""
    try:
        home = pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return ""  # an account of the portal, whose home is the job's folder
    return "" if Path(home).is_dir() else home


def app_command(
    app: WorkspaceApp, place: AppPlace, environ: Mapping[str, str]
) -> list[str]:
    """Return the argv of a program.

    Args:
        app: the program.
        place: its paths.
        environ: with the job's PATH.

    Raises:
        ProgramMissing: the environment does not have it.
        OSError: the environment's folder is not trusted.
    """
    folder = environ["PATH"].removesuffix(SYSTEM_PATH).rstrip(":")
    more = app.root_arguments if os.geteuid() == 0 else ()
    words = [app.program]
    if app.server:
        words = ["python", str(SERVERS / app.server)]
    words += [*app.arguments(place), *more]
    needed = () if app.of_node else (app.program,)
    try:
        return checked_argv(words, needed, folder)
    except FileNotFoundError:
        if app.instead is not None:
            with contextlib.suppress(ProgramMissing):
                return app_command(app.instead, place, environ)
        raise _missing(app, folder, environ) from None


def image_command(
    image: ContainerImage,
    app: WorkspaceApp,
    place: AppPlace,
    environ: Mapping[str, str],
) -> list[str]:
    """Return the argv of a program that runs in a container.

    Raises:
        ContainerRefused: this node cannot run the image.
    """
    words = [app.program]
    folders = [str(Path(place.socket).parent), environ["HOME"], place.folder]
    if app.server:
        words = ["python3", str(SERVERS / app.server)]
        folders.append(words[1])
    more = app.root_arguments if os.geteuid() == 0 else ()
    return container_command(
        image,
        [*words, *app.arguments(place), *more],
        folders=list(dict.fromkeys(folders)),
        workdir=place.folder,
        environ=environ,
        host=container_host(),
    )


def _missing(
    app: WorkspaceApp, folder: str, environ: Mapping[str, str]
) -> ProgramMissing:
    """Return what says that a program is missing, and how to install it."""
    place = folder.removesuffix("/bin")
    where = place or "the system's PATH"
    if app.of_node and place:
        where = f"{place} or the system's PATH"
    how = app.install.format(
        python=f"{folder}/python" if folder else "python3",
        folder=place or f"{environ['HOME']}/.local",
    )
    name = "" if place or not app.of_node else ", and name this folder as environment"
    return ProgramMissing(
        f"{app.program} is not installed in {where}. Install it on this node: "
        f"{how}{name}"
    )


def main(argv: Sequence[str]) -> int:
    """Run a workspace: ``workspace_host SETTINGS`` with the recipe's settings."""
    try:
        given = decode(dict[str, Any], argv[1])
        app = WORKSPACE_APPS[str(given["app"])]
    except (IndexError, KeyError, Malformed):
        sys.stderr.write("usage: workspace_host SETTINGS\n")
        return 2
    image = image_of(os.environ.get(IMAGE_VARIABLE, ""))
    token = secrets.token_urlsafe(32)
    with tempfile.TemporaryDirectory(prefix="ws-") as folder:
        try:
            place = AppPlace(
                socket=str(Path(folder, SOCKET_NAME)),
                token_file=str(Path(folder, TOKEN_NAME)),
                folder=shown_folder(str(given.get("folder", "")), os.environ["HOME"]),
            )
            given_token = {app.token_variable: token} if app.token_variable else {}
            environ = {**os.environ, **given_token}
            if image is None:
                words = app_command(app, place, environ)
            else:
                words = image_command(image, app, place, environ)
        except (ProgramMissing, FolderMissing, ContainerRefused, OSError) as problem:
            sys.stderr.write(f"gpuportal: {problem}\n")
            return CANNOT_START
        Path(place.token_file).write_text(token)  # its folder is closed to others
        host = ProgramHost(
            place.socket, authorization=app.authorization.format(token=token)
        )
        status = run_program(words, environ, host)
    if image is not None and status in NO_PROGRAM[image.engine]:
        how = app.install.format(python="python3", folder="/usr/local")
        sys.stderr.write(
            f"gpuportal: if {app.program} is missing in the image {image.reference}, "
            f"install it when you build the image: {how}\n"
        )
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv))
