"""The messages by which a machine becomes a node: token, greeting, request, answer.

A join token is ``gpj1_<id>.<secret>.<pin>``. The pin is the first 20 bytes of the
SHA-256 of the portal's command-signing key, so a machine needs no certificate to
recognise the portal's answers, and a renewed certificate changes nothing.

Each answer of the portal is a *signed text*: lines of text, the public key, and a
signature of all lines before it. A shell can check one with openssl. The first line
differs from every command to a node, so neither can be taken for the other.

No Django here, because machines read and write these messages too.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from typing import Annotated, NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_der_public_key,
    load_pem_public_key,
)
from msgspec import Meta, Struct

from telemetry.protocol.codec import Line, decode, encode

VERSION = "gpj1"
SEAL = "gpuportal-join-v1"
"""First word of every signed text and of every request."""
GREETING, ANSWER, REQUEST = "greeting", "answer", "request"
PIN_BYTES = 20
MOST_REQUEST_BYTES = 65_536
MOST_ANSWER_BYTES = 262_144
_TOKEN = re.compile(r"gpj1_([0-9a-f]{16})\.([A-Za-z0-9_-]{32})\.([0-9a-f]{40})")
_CREDENTIAL = re.compile(r"Join ([0-9a-f]{16})\.([A-Za-z0-9_-]{32})")

Nonce = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}$")]
Short = Annotated[Line, Meta(max_length=120)]
PUBLIC_KEY = r"^[A-Za-z0-9+/]{43}=$"


class TokenParts(NamedTuple):
    """The parts of a join token."""

    public_id: str
    secret: str
    pin: str

    def text(self) -> str:
        """Return the token as people copy it."""
        return f"{VERSION}_{self.public_id}.{self.secret}.{self.pin}"

    def credential(self) -> str:
        """Return the value of the Authorization header. The pin is not sent."""
        return f"Join {self.public_id}.{self.secret}"


class JoinUntrusted(Exception):
    """A text that the pinned key did not sign, or that is of another kind."""


class SeenGpu(Struct, frozen=True):
    """A GPU that a machine sees before it joins."""

    name: Short
    uuid: Annotated[Line, Meta(max_length=80)] = ""
    memory_bytes: Annotated[int, Meta(ge=0, le=2**50)] = 0


class JoinRequest(Struct, frozen=True, kw_only=True):
    """A machine's request to become a node."""

    nonce: Nonce
    """Random. The answer repeats it, so that an older answer is refused."""
    public_key: Annotated[str, Meta(pattern=PUBLIC_KEY)]
    """The machine's Ed25519 key (32 bytes, base64). It signs the request."""
    machine_hash: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
    """Of /etc/machine-id. Cloned disks have the same one."""
    boot_id: Annotated[Line, Meta(max_length=40)] = ""
    hostname: Short = ""
    gpus: Annotated[tuple[SeenGpu, ...], Meta(max_length=64)] = ()
    no_gpus: Annotated[Line, Meta(max_length=200)] = ""
    """Why no GPU could be read."""
    driver: Short = ""
    kernel: Short = ""
    python: Short = ""
    torch: Short = ""


class JoinAnswer(Struct, frozen=True, kw_only=True):
    """Everything that a node needs to start."""

    nonce: Nonce
    node: Short
    web_url: Annotated[Line, Meta(max_length=300)]
    token: Annotated[Line, Meta(min_length=20, max_length=100)]
    """For the HTTPS channel."""
    broker_url: Annotated[Line, Meta(max_length=500)]
    """With the node's own user and password."""
    broker_plain: bool = False
    """Whether the broker may be reached without TLS on another machine."""
    broker_ready: bool = False
    """Whether the broker already accepts the user. Otherwise an operator adds it."""
    ca_pem: Annotated[str, Meta(max_length=60_000)] = ""
    """Certificate authority of the portal's pages. Empty: a public one."""
    broker_ca_pem: Annotated[str, Meta(max_length=60_000)] = ""


class SealedRequest(Struct, frozen=True):
    """A request as it is sent: its text and the machine's signature of it."""

    text: Annotated[str, Meta(max_length=MOST_REQUEST_BYTES)]
    signature: Annotated[str, Meta(max_length=100)]


def read_token(text: str) -> TokenParts | None:
    """Return the parts of a token. None: the text is no token.

    >>> read_token("gpj1_x.y.z") is None
    True
    """
    found = _TOKEN.fullmatch(text.strip())
    return TokenParts(*found.groups()) if found else None


def read_credential(header: str) -> tuple[str, str] | None:
    """Return the id and the secret of an Authorization header. None: it has none."""
    found = _CREDENTIAL.fullmatch(header)
    return (found[1], found[2]) if found else None


def secret_sum(secret: str) -> str:
    """Return the stored form of a secret (random, so without a salt)."""
    return hashlib.sha256(secret.encode()).hexdigest()


def pin_of(public_pem: str) -> str:
    """Return the pin of a public key in PEM: 40 hexadecimal digits.

    Raises:
        ValueError: it is no public key.
    """
    return _pin(_der(load_pem_public_key(public_pem.encode())))


def machine_sum(machine_id: str) -> str:
    """Return what the portal learns of /etc/machine-id, which is confidential.

    As machine-id(5) asks, the id is hashed together with a word of this application.
    """
    return hashlib.sha256(f"{SEAL} {machine_id.strip()}".encode()).hexdigest()


def key_fingerprint(public_key: str) -> str:
    """Return a short form of a machine's key, for people.

    >>> key_fingerprint("AAAA")
    '709e-80c8-8487-a241'
    """
    found = hashlib.sha256(base64.b64decode(public_key)).hexdigest()
    return "-".join(found[at : at + 4] for at in range(0, 16, 4))


def sign_lines(kind: str, lines: list[str], key: Ed25519PrivateKey) -> str:
    """Return a signed text of these lines."""
    der = base64.b64encode(_der(key.public_key())).decode()
    text = "\n".join([f"{SEAL} {kind}", *lines, f"key {der}", ""])
    signature = base64.b64encode(key.sign(text.encode())).decode()
    return f"{text}signature {signature}\n"


def opened(text: str, *, kind: str, pin: str, nonce: str) -> dict[str, str]:
    """Return the values of a signed text by the first word of their line.

    The pin is compared before the signature, and both before anything is read.

    Raises:
        JoinUntrusted: another key, a wrong signature, another kind, or an old text.
    """
    head, found, last = text.rpartition("\nsignature ")
    body = f"{head}\n"
    try:
        der = base64.b64decode(body.rpartition("\nkey ")[2], validate=False)
        key = load_der_public_key(der)
        signature = base64.b64decode(last.strip(), validate=True)
    except (ValueError, binascii.Error) as error:
        raise JoinUntrusted("the answer is not from this portal") from error
    if not found or not isinstance(key, Ed25519PublicKey):
        raise JoinUntrusted("the answer is not from this portal")
    if _pin(_der(key)) != pin:
        raise JoinUntrusted("the portal's key is not the one of the token")
    try:
        key.verify(signature, body.encode())
    except InvalidSignature as error:
        raise JoinUntrusted("the portal's key did not sign the answer") from error
    first, *rest = body.splitlines()
    if first != f"{SEAL} {kind}":
        raise JoinUntrusted("the portal sent an answer of another kind")
    values = dict(line.split(" ", 1) for line in rest if " " in line)
    if values.get("nonce") != nonce:
        raise JoinUntrusted("the portal sent an older answer")
    return values


def signed_request(request: JoinRequest, key: Ed25519PrivateKey) -> bytes:
    """Return a request as it is sent."""
    text = encode(request).decode()
    signature = key.sign(f"{SEAL} {REQUEST}\n{text}".encode())
    return encode(SealedRequest(text, base64.b64encode(signature).decode()))


def read_request(data: bytes) -> JoinRequest:
    """Read a request that its own key signed.

    Raises:
        Malformed: a field is invalid.
        JoinUntrusted: the key in the request did not sign it.
    """
    sent = decode(SealedRequest, data, most_bytes=2 * MOST_REQUEST_BYTES)
    request = decode(JoinRequest, sent.text, most_bytes=MOST_REQUEST_BYTES)
    try:
        key = Ed25519PublicKey.from_public_bytes(base64.b64decode(request.public_key))
        signature = base64.b64decode(sent.signature, validate=True)
        key.verify(signature, f"{SEAL} {REQUEST}\n{sent.text}".encode())
    except (InvalidSignature, ValueError, binascii.Error) as error:
        raise JoinUntrusted("the machine's key did not sign the request") from error
    return request


def _der(key: object) -> bytes:
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError("not an Ed25519 key")
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _pin(der: bytes) -> str:
    return hashlib.sha256(der).digest()[:PIN_BYTES].hex()
