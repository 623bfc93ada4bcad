"""Options of TCP for the port of the site.

uvicorn gets the port as a descriptor and opens it as a Unix socket, so the event loop
does not see that connections are TCP, and does not set TCP_NODELAY. Accepted
connections inherit options from the port.
"""

import socket

from placement.protocol.node_http import UNSENT_BYTES


def set_tcp_options(listener: socket.socket) -> None:
    """Set the options for all connections of a port. A Unix socket has none."""
    if listener.family == socket.AF_UNIX:
        return
    # The head and the body of an answer are two writes. Without this option the body
    # waits until the client acknowledges the head, which Linux delays by 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
