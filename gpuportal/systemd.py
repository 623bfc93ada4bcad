"""Notify systemd of this process's state (``Type=notify`` in ``deploy/systemd``)."""

import logging
import os
import socket

logger = logging.getLogger(__name__)


def ready() -> None:
    """Send READY=1 if systemd waits for it. Otherwise do nothing."""
    _notify(b"READY=1")


def stopping() -> None:
    """Send STOPPING=1 if systemd waits for it. Otherwise do nothing."""
    _notify(b"STOPPING=1")


def _notify(state: bytes) -> None:
    """Send one state.

    The protocol is that of sd_notify(3): one datagram to the socket that
    ``NOTIFY_SOCKET`` names. An ``@`` in it means the zero byte of an abstract address.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notices:
            notices.connect(address)
            notices.sendall(state)
    except OSError as error:
        # The unit then fails by its time limit, and this line explains why.
        word = state.decode()
        logger.warning("systemd does not hear %s of this process: %s", word, error)
