"""The programs of workspaces: interactive servers such as Jupyter.

Each is started from the student's own environment. It listens on a Unix socket in a
folder that only the student can enter, and it gets a random token in its environment.
The job's first process adds the token to each request (see
``placement/agent/access/workspace_host.py``), so no address holds it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from telemetry.protocol.sentences import sentence


@dataclass(frozen=True, slots=True)
class WorkspaceApp:
    """One program that a workspace can run."""

    name: str
    title: str
    program: str
    """Its name on the PATH of the environment."""
    package: str
    """The package that ``pip install`` installs."""
    arguments: Callable[[str, str], tuple[str, ...]]
    """Its arguments, from the path of its socket and the folder that it shows."""
    root_arguments: tuple[str, ...]
    """More arguments where it runs as root. It does so only where the operator lets
    scripts run without isolation.
    """
    token_variable: str
    """The variable of its environment with its token."""
    authorization: str
    """The value of the header Authorization, with ``{token}``."""
    start_path: str
    """The path that the browser opens first."""


def _jupyter_arguments(socket: str, folder: str) -> tuple[str, ...]:
    return (
        "--no-browser",
        f"--ServerApp.sock={socket}",
        "--ServerApp.sock_mode=0600",
        f"--ServerApp.root_dir={folder}",
        # The portal has checked the host and the origin of each request.
        "--ServerApp.allow_remote_access=True",
        # It ends with its job, and not from a menu.
        "--ServerApp.quit_button=False",
    )


JUPYTER_LAB = WorkspaceApp(
    name="jupyter-lab",
    title=sentence("JupyterLab"),
    program="jupyter-lab",
    package="jupyterlab",
    arguments=_jupyter_arguments,
    root_arguments=("--allow-root",),
    token_variable="JUPYTER_TOKEN",
    authorization="token {token}",
    start_path="/lab",
)
WORKSPACE_APPS = {app.name: app for app in (JUPYTER_LAB,)}
"""The programs by their names. The operator chooses among them (WORKSPACE_APPS)."""
TERMINAL: Final = "terminal"
"""The name of the terminal in the page. It needs no program and no separate origin."""
