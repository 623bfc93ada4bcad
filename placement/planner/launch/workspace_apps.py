"""The programs of workspaces: interactive servers such as Jupyter.

Each is started from the student's own environment, and code-server also from the node's
own installation. It listens on a Unix socket in a folder that only the student can
enter. Jupyter and marimo also ask for a random token, which the job's first process
adds to each request (see ``placement/agent/access/workspace_host.py``), so no address
holds it. TensorBoard and code-server have no token. The folder protects them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from telemetry.protocol.sentences import sentence


@dataclass(frozen=True, slots=True)
class AppPlace:
    """The paths that a program is started with."""

    socket: str
    """Where it is to listen."""
    token_file: str
    """A file with its token."""
    folder: str
    """What it shows."""


@dataclass(frozen=True, slots=True)
class WorkspaceApp:
    """One program that a workspace can run."""

    name: str
    title: str
    program: str
    """Its name on the PATH of the environment."""
    install: str
    """The command that installs it, with ``{python}`` and ``{folder}`` of the
    environment.
    """
    arguments: Callable[[AppPlace], tuple[str, ...]]
    start_path: str
    """The path that the browser opens first."""
    root_arguments: tuple[str, ...] = ()
    """More arguments where it runs as root. It does so only where the operator lets
    scripts run without isolation.
    """
    authorization: str = ""
    """The value of the header Authorization, with ``{token}``; "": it has no token."""
    token_variable: str = ""
    """The variable of its environment with its token; "": it reads the file."""
    server: str = ""
    """A file beside the job's first process that the Python of the environment runs
    instead of the program; "": the program itself can listen on a Unix socket.
    """
    needs_folder: bool = False
    """Whether its owner must enter a folder. Else the home is shown."""
    uses_gpus: bool = True
    """False: it runs beside the jobs that have the reservation's GPUs."""
    of_node: bool = False
    """Whether the node's own installation is used where the environment has none."""
    instead: WorkspaceApp | None = None
    """The program that is started where this one is not installed."""


def _jupyter_arguments(place: AppPlace) -> tuple[str, ...]:
    return (
        "--no-browser",
        f"--ServerApp.sock={place.socket}",
        "--ServerApp.sock_mode=0600",
        f"--ServerApp.root_dir={place.folder}",
        # The portal has checked the host and the origin of each request.
        "--ServerApp.allow_remote_access=True",
        # It ends with its job, and not from a menu.
        "--ServerApp.quit_button=False",
    )


def _code_server_arguments(place: AppPlace) -> tuple[str, ...]:
    # https://coder.com/docs/code-server, "code-server --help" of 4.100.
    return (
        f"--socket={place.socket}",
        "--socket-mode=600",
        # The folder protects it, and the portal has checked each request.
        "--auth=none",
        # Otherwise its owner's settings could move it, or give it a certificate.
        "--config=/dev/null",
        # One that runs in another reservation must not open the folder instead.
        f"--session-socket={place.socket}.session",
        # Pages of other users' programs on the node would be of this origin.
        "--disable-proxy",
        "--disable-telemetry",
        "--disable-update-check",
        place.folder,
    )


def _openvscode_arguments(place: AppPlace) -> tuple[str, ...]:
    # https://github.com/gitpod-io/openvscode-server, "openvscode-server --help".
    return (
        f"--socket-path={place.socket}",
        "--without-connection-token",
        "--telemetry-level=off",
        f"--default-folder={place.folder}",
    )


def _marimo_arguments(place: AppPlace) -> tuple[str, ...]:
    return (place.socket, place.folder, place.token_file)


def _tensorboard_arguments(place: AppPlace) -> tuple[str, ...]:
    return (place.socket, place.folder)


JUPYTER_LAB = WorkspaceApp(
    name="jupyter-lab",
    title=sentence("JupyterLab"),
    program="jupyter-lab",
    install="{python} -m pip install jupyterlab",
    arguments=_jupyter_arguments,
    start_path="/lab",
    root_arguments=("--allow-root",),
    authorization="token {token}",
    token_variable="JUPYTER_TOKEN",
)
MARIMO = WorkspaceApp(
    name="marimo",
    title="marimo",
    program="marimo",
    install="{python} -m pip install marimo",
    arguments=_marimo_arguments,
    start_path="/",
    authorization="Bearer {token}",
    server="marimo_server.py",
)
TENSORBOARD = WorkspaceApp(
    name="tensorboard",
    title="TensorBoard",
    program="tensorboard",
    install="{python} -m pip install tensorboard",
    arguments=_tensorboard_arguments,
    start_path="/",
    server="tensorboard_server.py",
    needs_folder=True,
    uses_gpus=False,
)
OPENVSCODE_SERVER = WorkspaceApp(
    name="openvscode-server",
    title=sentence("VS Code"),
    program="openvscode-server",
    install="",
    arguments=_openvscode_arguments,
    start_path="/",
    of_node=True,
)
CODE_SERVER = WorkspaceApp(
    name="code-server",
    title=sentence("VS Code"),
    program="code-server",
    install="curl -fsSL https://code-server.dev/install.sh | "
    "sh -s -- --method=standalone --prefix={folder}",
    arguments=_code_server_arguments,
    start_path="/",
    of_node=True,
    instead=OPENVSCODE_SERVER,
)
WORKSPACE_APPS = {
    app.name: app for app in (JUPYTER_LAB, CODE_SERVER, MARIMO, TENSORBOARD)
}
"""The programs by their names. The operator chooses among them (WORKSPACE_APPS)."""
TERMINAL: Final = "terminal"
"""The name of the terminal in the page. It needs no program and no separate origin."""
