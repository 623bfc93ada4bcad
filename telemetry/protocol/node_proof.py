"""A node's proof of its key, for which the portal gives it a short token.

No Django here, because nodes write it.
"""

from __future__ import annotations

import base64
import binascii
from enum import StrEnum
from typing import Annotated

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from msgspec import Meta, Struct

from telemetry.protocol.codec import Line, Malformed, decode, encode

MOST_PROOF_BYTES = 4096
PROOF = "gpuportal-node-proof-v1"
"""First word of what a node signs, so that no other text of its key can be a proof."""

_Hash = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]


class ProofFault(StrEnum):
    """Why a proof is refused."""

    ENROLMENT = "enrolment"
    """It is of an earlier enrolment, or of another node."""
    OTHER_KEY = "other-key"
    """The enrolment is bound to the key of another machine."""
    BEHIND = "behind"
    """Another machine has renewed the token since."""


class NodeProof(Struct, frozen=True, kw_only=True):
    """A node's request for a short token."""

    node: Annotated[Line, Meta(max_length=63)]
    challenge: Annotated[Line, Meta(max_length=300)]
    """As the portal gave it."""
    public_key: Annotated[str, Meta(pattern=r"^[A-Za-z0-9+/]{43}=$")]
    """The machine's Ed25519 key (32 bytes, base64). It signs the proof."""
    enrolment: _Hash
    """SHA-256 of the enrolment token."""
    number: Annotated[int, Meta(ge=0, le=10**9)]
    """Of the last short token that the machine has; 0: none."""
    next_hash: _Hash
    """SHA-256 of the short token that it asks for."""
    boot_id: Annotated[Line, Meta(max_length=40)] = ""
    hostname: Annotated[Line, Meta(max_length=120)] = ""


class _SealedProof(Struct, frozen=True):
    text: Annotated[str, Meta(max_length=MOST_PROOF_BYTES)]
    signature: Annotated[str, Meta(max_length=100)]


def public_key_of(key: Ed25519PrivateKey) -> str:
    """Return a machine's public key as messages have it."""
    raw = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    return base64.b64encode(raw).decode()


def sealed_proof(proof: NodeProof, key: Ed25519PrivateKey) -> bytes:
    """Return a proof as it is sent."""
    text = encode(proof).decode()
    signature = base64.b64encode(key.sign(f"{PROOF}\n{text}".encode())).decode()
    return encode(_SealedProof(text, signature))


def read_proof(data: bytes) -> NodeProof:
    """Read a proof that its own key signed.

    Raises:
        Malformed: a field is invalid, or the key did not sign it.
    """
    sent = decode(_SealedProof, data, most_bytes=2 * MOST_PROOF_BYTES)
    proof = decode(NodeProof, sent.text, most_bytes=MOST_PROOF_BYTES)
    try:
        key = Ed25519PublicKey.from_public_bytes(base64.b64decode(proof.public_key))
        signature = base64.b64decode(sent.signature, validate=True)
        key.verify(signature, f"{PROOF}\n{sent.text}".encode())
    except (InvalidSignature, ValueError, binascii.Error) as error:
        raise Malformed("signature", "is not of this key") from error
    return proof
