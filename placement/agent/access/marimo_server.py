"""marimo on a Unix socket: ``python marimo_server.py SOCKET FOLDER TOKEN_FILE``.

The Python of the student's environment runs this file, with whatever version it has, so
it imports only that environment's packages. marimo's command has no option for a Unix
socket, but the server that it starts has one: ``uds`` of ``uvicorn.Config``. marimo
also asks for the token, so a version that starts another server is still closed to
others.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

CANNOT_START = 126


def main(socket_path: str, folder: str, token_file: str) -> int:
    """Serve the notebooks in a folder until a signal ends it."""
    try:
        import marimo  # noqa: F401
        import uvicorn
    except ImportError as problem:
        sys.stderr.write(
            f"gpuportal: {sys.executable} cannot import marimo ({problem}). Install it "
            f"on this node: {sys.executable} -m pip install marimo\n"
        )
        return CANNOT_START

    class UnixConfig(uvicorn.Config):
        """A server's settings, with the Unix socket instead of address and port."""

        def __init__(self, *words: Any, **options: Any) -> None:
            super().__init__(*words, **options, uds=socket_path)

    uvicorn.Config = UnixConfig  # type: ignore[misc]
    sys.argv = [
        *("marimo", "--quiet", "edit", folder, "--headless", "--skip-update-check"),
        *("--token", f"--token-password-file={token_file}"),
    ]
    runpy.run_module("marimo", run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    # The folder of this file has modules of the portal.
    sys.path[:] = [path for path in sys.path if path != str(Path(__file__).parent)]
    sys.exit(main(*sys.argv[1:]))
