"""``transformers serve`` on a Unix socket: ``transformers_server.py SOCKET WORD...``.

The Python of an environment on the node runs this file, with whatever version of
transformers it has, so it imports only that environment's packages. The command has no
option for a Unix socket, but the server that it starts has one: ``uds`` of
``uvicorn.Config``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

CANNOT_START = 126


def main(socket_path: str, *words: str) -> int:
    """Run the command until a signal ends it. Return the exit status."""
    try:
        import uvicorn
        from transformers.cli.transformers import main as run
        from transformers.utils.import_utils import is_serve_available
    except ImportError as problem:
        return _missing(f"it cannot import {problem.name or problem}")
    if not is_serve_available():
        return _missing("fastapi, uvicorn, pydantic or openai is not there")

    class UnixConfig(uvicorn.Config):
        """A server's settings, with the Unix socket instead of address and port."""

        def __init__(self, *given: Any, **options: Any) -> None:
            super().__init__(*given, **(options | {"uds": socket_path}))

    uvicorn.Config = UnixConfig  # type: ignore[misc]
    sys.argv = ["transformers", *words]
    run()
    return 0


def _missing(why: str) -> int:
    sys.stderr.write(
        f"gpuportal: {sys.executable} cannot serve language models: {why}. Install it "
        f"on this node: {sys.executable} -m pip install 'transformers[serving]'\n"
    )
    return CANNOT_START


if __name__ == "__main__":
    # The folder of this file has modules of the portal.
    sys.path[:] = [path for path in sys.path if path != str(Path(__file__).parent)]
    sys.exit(main(*sys.argv[1:]))
