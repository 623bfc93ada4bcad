"""One node's streams and calls in a separate process, as in its worker.

    python -m bench.rig.tunnel_node VAR WEB_URL TOKEN SSHD_PORT

It is for `bench/access.py` and `bench/tunnel/streams_and_calls.py`. It runs until
SIGTERM.
"""

import sys
import threading
from pathlib import Path

from bench.rig.cluster import setup


def main(var: str, web_url: str, token: str, port: str) -> None:
    """Carry streams and answer calls until the process is ended."""
    setup(var)
    from placement.agent.access.node_streams import NodeStreams
    from placement.agent.serving.tunnel import ServeTunnels
    from tests.placement.nodes import make_settings

    folder = Path(var) / "node"
    folder.mkdir(exist_ok=True)
    node = make_settings(folder, web_url=web_url, sshd_port=int(port))
    node.token_file.write_text(token)
    never = threading.Event()
    calls = threading.Thread(target=ServeTunnels(node).run, args=(never,), daemon=True)
    calls.start()
    NodeStreams(node).run(never)


if __name__ == "__main__":
    main(*sys.argv[1:])
