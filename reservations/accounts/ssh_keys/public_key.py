"""Read an ssh public key that a user pastes.

The library ``cryptography`` reads the key. The checks before it only find the usual
mistakes, so that the user learns what is wrong.
"""

import base64
import re
from dataclasses import dataclass

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_public_key,
    ssh_key_fingerprint,
)

from telemetry.protocol.coded_error import FieldsRefused
from telemetry.protocol.sentences import sentence

FIELD = "public_key"
MOST_CHARACTERS = 8192
"""The longest RSA key that OpenSSH reads has 16,384 bits, about 2,800 characters."""
LEAST_RSA_BITS = 2048
MOST_RSA_BITS = 16_384
KINDS = (
    "ssh-ed25519",
    "ssh-rsa",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
)
SECURITY_KEYS = ("sk-ssh-ed25519@openssh.com", "sk-ecdsa-sha2-nistp256@openssh.com")


class SshKeyRefused(FieldsRefused):
    """A public key that cannot be stored, by field."""

    code = "ssh-key-refused"
    title = sentence("This key cannot be added")


@dataclass(frozen=True, slots=True)
class SshPublicKey:
    """A public key."""

    line: str
    """Type and base64."""
    fingerprint: str
    """``SHA256:`` and base64 without padding, as ssh-keygen shows it."""
    comment: str


def parse_public_key(text: str) -> SshPublicKey:
    """Return the key of one line of a ``.pub`` file.

    Raises:
        SshKeyRefused: the text is not exactly one public key of an accepted type.
    """
    if len(text) > MOST_CHARACTERS:
        raise _refused(
            sentence(
                "This is too long for a public key: more than {most} characters.",
                most=MOST_CHARACTERS,
            )
        )
    if "PRIVATE KEY" in text:
        raise _refused(
            sentence(
                "This is a private key. Keep it to yourself. Paste the file that ends "
                "in .pub."
            )
        )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        raise _refused(sentence("Paste a public key."))
    if len(lines) > 1:
        raise _refused(sentence("Add one key at a time. These are several lines."))
    kind, _, rest = lines[0].partition(" ")
    blob, _, comment = rest.strip().partition(" ")
    _check_kind(kind, lines[0])
    try:
        key = load_ssh_public_key(f"{kind} {blob}".encode())
        size_bits = key.key_size if isinstance(key, RSAPublicKey) else None
        line = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
        digest = ssh_key_fingerprint(key, SHA256())
    except (ValueError, TypeError, UnsupportedAlgorithm):
        if _is_cut(kind, blob):
            raise _refused(
                sentence("The key is incomplete. Paste the whole line.")
            ) from None
        raise _unreadable() from None
    if size_bits is not None and not LEAST_RSA_BITS <= size_bits <= MOST_RSA_BITS:
        raise _refused(
            sentence(
                "This RSA key has {bits} bits. Use one with {least} to {most} bits, or "
                "an ed25519 key.",
                bits=size_bits,
                least=LEAST_RSA_BITS,
                most=MOST_RSA_BITS,
            )
        )
    return SshPublicKey(
        line=line,
        fingerprint="SHA256:" + base64.b64encode(digest).decode().rstrip("="),
        comment="".join(c for c in comment.strip() if c.isprintable()),
    )


def _check_kind(kind: str, line: str) -> None:
    if kind in KINDS:
        return
    if kind == "ssh-dss":
        raise _refused(
            sentence("DSA keys are too weak. Make a key with: ssh-keygen -t ed25519")
        )
    if "-cert-v01@" in kind:
        raise _refused(
            sentence("This is a certificate. Paste the public key that it is for.")
        )
    if kind in SECURITY_KEYS:
        raise _refused(
            sentence("Keys on a security key (sk-…) cannot be used here yet.")
        )
    if any(word in KINDS for word in line.split()):
        raise _refused(
            sentence(
                "Remove the options before the key. Begin with “ssh-…” or “ecdsa-…”."
            )
        )
    raise _unreadable()


def _is_cut(kind: str, blob: str) -> bool:
    """Return whether a text begins as the key of its type, and ends too early.

    The bytes begin with the length of the type's name and the name (RFC 4253, section
    6.6).
    """
    if not re.fullmatch(r"[A-Za-z0-9+/]*=*", blob):
        return False
    begin = len(kind).to_bytes(4) + kind.encode()
    # The characters that these bytes alone determine: 6 bits each.
    fixed = base64.b64encode(begin).decode()[: len(begin) * 8 // 6]
    return fixed.startswith(blob[: len(fixed)])


def _unreadable() -> SshKeyRefused:
    return _refused(
        sentence(
            "This is not an ssh public key. It begins with ssh-ed25519, ssh-rsa or "
            "ecdsa-sha2-…"
        )
    )


def _refused(words: str) -> SshKeyRefused:
    return SshKeyRefused({FIELD: words})
