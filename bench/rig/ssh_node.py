"""One node's streams in a separate process, for `bench/access.py`.

    python -m bench.rig.ssh_node VAR WEB_URL TOKEN SSHD_PORT

It runs until SIGTERM.
"""

import sys
import threading
from pathlib import Path

from bench.rig.cluster import setup


def main(var: str, web_url: str, token: str, port: str) -> None:
    """Carry streams until the process is ended."""
    setup(var)
    from placement.agent.access.node_streams import NodeStreams
    from tests.placement.nodes import make_settings

    folder = Path(var) / "node"
    folder.mkdir()
    node = make_settings(folder, web_url=web_url, sshd_port=int(port))
    node.token_file.write_text(token)
    NodeStreams(node).run(threading.Event())


if __name__ == "__main__":
    main(*sys.argv[1:])
