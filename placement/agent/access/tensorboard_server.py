"""TensorBoard on a Unix socket: ``python tensorboard_server.py SOCKET FOLDER``.

The Python of the student's environment runs this file, with whatever version it has, so
it imports only that environment's packages. TensorBoard has no login and listens on TCP
only, where every user of the node could read the logs. Its interface for programs
accepts a different server. Its fast data server would listen on TCP too and stays off.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

CANNOT_START = 126


def main(socket_path: str, folder: str) -> int:
    """Serve the logs in a folder until a signal ends it. Return the exit status."""
    try:
        from tensorboard import default, program
        from werkzeug.serving import make_server
    except ImportError as problem:
        sys.stderr.write(
            f"gpuportal: {sys.executable} cannot import TensorBoard ({problem}). "
            f"Install it on this node: {sys.executable} -m pip install tensorboard\n"
        )
        return CANNOT_START

    over = threading.Event()

    class UnixServer(program.TensorBoardServer):  # type: ignore[misc]
        """TensorBoard's pages on the Unix socket."""

        def __init__(self, wsgi_app: Any, flags: Any) -> None:
            self.server = make_server(
                f"unix://{socket_path}", 0, wsgi_app, threaded=True
            )

        def serve_forever(self) -> None:
            """Answer requests until the process ends."""
            try:
                self.server.serve_forever()
            finally:
                over.set()

        def get_url(self) -> str:
            """Return where it listens. No address in a browser leads to it."""
            return f"unix://{socket_path}"

    board = program.TensorBoard(plugins=default.get_plugins(), server_class=UnixServer)
    board.configure(["tensorboard", f"--logdir={folder}", "--load_fast=false"])
    # Its command would list the server in a folder of /tmp that all users share.
    board.launch()
    sys.stderr.write(f"TensorBoard shows the logs in {folder}\n")
    over.wait()
    return 1


if __name__ == "__main__":
    # The folder of this file has modules of the portal.
    sys.path[:] = [path for path in sys.path if path != str(Path(__file__).parent)]
    sys.exit(main(*sys.argv[1:]))
