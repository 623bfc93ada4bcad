"""The key that signs commands: Ed25519, made on first use, mode 600.

The web holds the private key. A node holds only the public one, so that a node that is
taken over cannot send commands to others. No Django here, because nodes verify.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from functools import lru_cache
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from placement.protocol.node_refusals import OrderRefused
from telemetry import paths

PRIVATE = "order_key"
PUBLIC = "order_key.pub"
SSH_AUTHORITY = "ssh_authority_key"
"""The secret with the key that signs ssh certificates."""


def private_key() -> Ed25519PrivateKey:
    """Return the site's signing key. Both files are made if they are missing."""
    text = paths.read_secret(PRIVATE)
    if not text:
        draft = Ed25519PrivateKey.generate().private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
        )
        text = paths.make_secret(PRIVATE, draft.decode())
    key = _loaded(text)
    # Each stream is signed, and to make a secret writes to the disk.
    if not paths.read_secret(PUBLIC):
        paths.make_secret(PUBLIC, _public_pem(key))
    return key


@lru_cache(maxsize=1)
def _loaded(text: str) -> Ed25519PrivateKey:
    key = load_pem_private_key(text.encode(), password=None)
    if not isinstance(key, Ed25519PrivateKey):
        raise TypeError(f"{paths.secret_file(PRIVATE)} holds no Ed25519 key")
    return key


def public_key_pem() -> str:
    """Return the public key for the nodes. Both files are made if they are missing."""
    return _public_pem(private_key())


def public_key_file() -> Path:
    """Return the file of the public key for the nodes. It is made if it is missing.

    Works before the first command, because a node is enrolled before its first job.
    """
    private_key()
    return paths.secret_file(PUBLIC)


def public_key_sha256(pem: str) -> str:
    """Return the SHA-256 of a public key in PEM, without blanks around it."""
    return hashlib.sha256(pem.strip().encode()).hexdigest()


def sign(payload: str) -> str:
    """Return the base64 signature of a command's payload."""
    return base64.b64encode(private_key().sign(payload.encode())).decode()


def verify(payload: str, signature: str, public_pem: str) -> None:
    """Refuse a payload that the site's key did not sign.

    Raises:
        OrderRefused: ``signature`` or ``no_key``.
    """
    try:
        key = load_pem_public_key(public_pem.encode())
    except ValueError as error:
        raise OrderRefused("no-key", "this node has no usable order key") from error
    if not isinstance(key, Ed25519PublicKey):
        raise OrderRefused("no-key", "this node's order key is of another kind")
    try:
        key.verify(base64.b64decode(signature, validate=True), payload.encode())
    except (InvalidSignature, binascii.Error, ValueError) as error:
        raise OrderRefused("signature", "the web did not sign this order") from error


def _public_pem(key: Ed25519PrivateKey) -> str:
    return (
        key.public_key()
        .public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        .decode()
    )
