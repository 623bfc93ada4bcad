"""The site's ssh certificate authority: its key, and the certificates that it signs.

The private key is a secret of the portal, like the key that signs orders: a file of
mode 600, which a backup encrypts. Nodes and clients get the public key only.
"""

import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    SSHCertificateBuilder,
    SSHCertificateType,
    load_ssh_private_key,
    load_ssh_public_key,
)

from placement.protocol.signing import SSH_AUTHORITY
from telemetry import paths

DOMAIN = "gpuportal"
HOSTS = f"*.{DOMAIN}"
"""The names of nodes in ssh."""
SKEW = timedelta(minutes=5)
"""How far a node's clock may be behind."""
HOST_VALID = timedelta(days=730)
EXTENSIONS = (
    b"permit-X11-forwarding",
    b"permit-agent-forwarding",
    b"permit-port-forwarding",
    b"permit-pty",
    b"permit-user-rc",
)
"""Those that ssh-keygen gives. The node's sshd_config may allow less."""


def principal(reservation_pk: int, user_pk: int, key_pk: int) -> str:
    """Return the principal of one key of one user in one reservation.

    It names the user, because co-users share a reservation and not their accounts. It
    names the key, so that a removed key can be refused.
    """
    return f"{principal_start(reservation_pk, user_pk)}k{key_pk}"


def principal_start(reservation_pk: int, user_pk: int) -> str:
    """Return the beginning of the principals of a user in one reservation."""
    return f"r{reservation_pk}-u{user_pk}-"


def host_name(node: str) -> str:
    """Return the name under which ssh knows a node's host key.

    A reservation's host, such as ``r17.gpuportal``, is an alias of it.
    """
    return f"{node.lower()}.{DOMAIN}"


def reservation_host(reservation_pk: int, node: str) -> str:
    """Return the host that ``gp.py`` and editors use for a reservation's node."""
    return f"r{reservation_pk}.{node}.{DOMAIN}"


def authority_line() -> str:
    """Return the public key, type and base64. The key is made if it is missing."""
    key = _private_key().public_key()
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def rotate() -> str:
    """Replace the key, and return the new public key.

    Certificates of the previous key open nothing as soon as nodes have fetched the new
    one.
    """
    paths.secret_file(SSH_AUTHORITY).unlink(missing_ok=True)
    return authority_line()


def user_certificate(
    public_key: str,
    *,
    principals: Sequence[str],
    key_id: str,
    serial: int,
    now: datetime,
    until: datetime,
) -> str:
    """Return a user's certificate as a line of a ``-cert.pub`` file."""
    builder = _builder(public_key, principals, key_id, serial, now, until)
    for name in EXTENSIONS:
        builder = builder.add_extension(name, b"")
    return _signed(builder.type(SSHCertificateType.USER))


def host_certificate(public_key: str, *, node: str, now: datetime) -> str:
    """Return the certificate of a node's host key.

    Raises:
        ValueError: it is no public key.
    """
    builder = _builder(
        public_key, [host_name(node)], node, new_serial(), now, now + HOST_VALID
    )
    return _signed(builder.type(SSHCertificateType.HOST))


def new_serial() -> int:
    """Return a random serial number of a certificate."""
    return secrets.randbits(63)


def _builder(
    public_key: str,
    principals: Sequence[str],
    key_id: str,
    serial: int,
    now: datetime,
    until: datetime,
) -> SSHCertificateBuilder:
    return (
        SSHCertificateBuilder()
        .public_key(load_ssh_public_key(public_key.encode()))  # type: ignore[arg-type]
        .serial(serial)
        .key_id(key_id.encode())
        .valid_principals([name.encode() for name in principals])
        .valid_after(int((now - SKEW).timestamp()))
        .valid_before(int(until.timestamp()))
    )


def _signed(builder: SSHCertificateBuilder) -> str:
    return builder.sign(_private_key()).public_bytes().decode()


def _private_key() -> Ed25519PrivateKey:
    text = paths.read_secret(SSH_AUTHORITY)
    if not text:
        draft = Ed25519PrivateKey.generate().private_bytes(
            Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()
        )
        text = paths.make_secret(SSH_AUTHORITY, draft.decode())
    # The file was stripped. OpenSSH's format ends with a line break.
    key = load_ssh_private_key(f"{text}\n".encode(), password=None)
    if not isinstance(key, Ed25519PrivateKey):
        raise TypeError(f"{paths.secret_file(SSH_AUTHORITY)} holds no Ed25519 key")
    return key
