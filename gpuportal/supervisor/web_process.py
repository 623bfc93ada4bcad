"""One web process: uvicorn on a port that is open already.

    python -m gpuportal.supervisor.web_process --fd 3

It ends without refusing a request. uvicorn closes a connection on which no request has
arrived yet, also if the request is on its way. So this one stops to accept first, and
closes connections a moment later.
"""

import argparse
import asyncio
import os
import socket

import uvicorn

from gpuportal import systemd
from gpuportal.supervisor.bounded_websocket import BoundedWebsocket
from gpuportal.supervisor.tcp_options import set_tcp_options

ACCEPTED_SECONDS = 0.5
"""How long a connection that was just accepted may take to send its request."""
DRAIN_SECONDS = 60
"""How long requests that were begun may take, such as an upload. Websockets close at
once, with code 1012."""


class PatientServer(uvicorn.Server):
    """A server that answers every connection that it has accepted."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, wait for requests on their way, then end as usual."""
        for server in self.servers:
            server.close()
        systemd.stopping()
        await asyncio.sleep(ACCEPTED_SECONDS)
        await super().shutdown(sockets)


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fd", type=int, required=True, help="the open port")
    parser.add_argument("--app", default="gpuportal.asgi:application")
    options = parser.parse_args()
    with socket.socket(fileno=os.dup(options.fd)) as listener:
        set_tcp_options(listener)
    PatientServer(
        uvicorn.Config(
            options.app,
            fd=options.fd,
            log_level="warning",
            lifespan="off",
            access_log=False,
            server_header=False,
            proxy_headers=True,
            # The proxy's. "*" where nobody else reaches the socket.
            forwarded_allow_ips=os.environ.get("FORWARDED_ALLOW_IPS", "127.0.0.1"),
            ws=BoundedWebsocket,
            ws_max_size=2**20,
            ws_per_message_deflate=False,
            timeout_graceful_shutdown=DRAIN_SECONDS,
        )
    ).run()


if __name__ == "__main__":
    main()
