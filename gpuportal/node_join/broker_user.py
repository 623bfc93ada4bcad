"""Ask for a node's broker user. The portal's processes may not make one themselves.

Only `deploy/broker-user` knows the password of the broker's admin. systemd starts it
for each connection to a Unix socket that the portal's user alone can open. It gets a
node's name and the SHA-256 of a password, and it makes exactly the user of
`deploy/acl.sh node`. A compromised portal gains nothing by it: the portal's own
broker user may read and write all those keys.
"""

import socket

from django.conf import settings

SECONDS = 20.0
MOST_BYTES = 1000


def user_command(name: str, password_hash: str) -> str:
    """Return the command that an operator runs where the portal may not."""
    return f"sudo sh /opt/gpuportal/deploy/broker-user {name} {password_hash}"


def make_user(name: str, password_hash: str) -> str:
    """Let the broker accept a node. Return why it does not; "" if it does.

    Cost: one process on this machine, some tenths of a second.
    """
    try:
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(SECONDS)
            link.connect(settings.BROKER_USER_SOCKET)
            link.sendall(f"{name} {password_hash}\n".encode())
            link.shutdown(socket.SHUT_WR)
            said = b""
            while len(said) < MOST_BYTES and (piece := link.recv(MOST_BYTES)):
                said += piece
    except OSError as error:
        return f"{settings.BROKER_USER_SOCKET}: {error.strerror or error}"
    text = said.decode(errors="replace").strip()
    return "" if text == "ok" else text.removeprefix("no: ")[:200] or "no answer"
