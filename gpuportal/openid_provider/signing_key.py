"""The key that signs ID tokens, and the public keys that services fetch.

The private key is a secret of the portal: a file of mode 600, which a backup encrypts.
It is RSA, because RS256 is the one algorithm that every service knows (OpenID Connect
Core 1.0, section 15.1).
"""

from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from joserfc.errors import JoseError
from joserfc.jwk import RSAKey

from reservations.models import AuditEntry
from reservations.store.audit_log import audit_act
from telemetry import paths

CURRENT, PREVIOUS = "openid_key", "openid_key_previous"
"""Names of the secrets. The previous key is public: it verifies what it signed."""
ALGORITHM = "RS256"
BITS = 3072
LEAST_BITS = 2048
REPLACED = "openid.key-replaced"
PAUSE = timedelta(hours=1)
"""Between two new keys. Services may need that long to fetch the last one."""


class SigningKeyInvalid(Exception):
    """The file of the key cannot be used. The text names it."""


class ReplacedLately(Exception):
    """A second new key within PAUSE. ID tokens of the key before would be refused."""


def signing_key() -> RSAKey:
    """Return the private key. It is made if it is missing.

    Raises:
        SigningKeyInvalid: another key is in its file.
    """
    text = paths.read_secret(CURRENT)
    if not text:
        text = paths.make_secret(CURRENT, _new_key())
    return _read(text, CURRENT)


def public_keys() -> list[dict[str, Any]]:
    """Return the keys that verify signatures, as a JWK set lists them (RFC 7517).

    Raises:
        SigningKeyInvalid: another key is in one of the files.
    """
    keys = [signing_key()]
    if previous := paths.read_secret(PREVIOUS):
        keys.append(_read(previous, PREVIOUS))
    return [
        {**key.as_dict(private=False), "kid": key_id(key), "use": "sig", "alg": "RS256"}
        for key in keys
    ]


def key_id(key: RSAKey) -> str:
    """Return the name of a key (RFC 7638)."""
    return key.thumbprint()


def replace(now: datetime, *, force: bool = False) -> str:
    """Replace the key, and return the name of the new one.

    ID tokens that the previous key signed stay valid. Those of the key before do not.
    The audit log has it first, so that no new key is unknown to it.

    Args:
        force: even if the key was replaced within PAUSE.

    Raises:
        SigningKeyInvalid: another key is in its file.
        ReplacedLately: the key was replaced within PAUSE.
    """
    public = signing_key().as_pem(private=False).decode()
    lately = AuditEntry.objects.filter(verb=REPLACED, at__gt=now - PAUSE)
    if not force and lately.exists():
        raise ReplacedLately(
            "the key was replaced within the last hour; a second new key lets services "
            "refuse what the first one replaced had signed (--force does it)"
        )
    audit_act(verb=REPLACED, subject="site", actor=None, now=now)
    paths.secret_file(PREVIOUS).unlink(missing_ok=True)
    paths.make_secret(PREVIOUS, public)
    paths.secret_file(CURRENT).unlink(missing_ok=True)
    return key_id(signing_key())


def _new_key() -> str:
    key = rsa.generate_private_key(65537, BITS)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


@lru_cache(maxsize=4)
def _read(text: str, name: str) -> RSAKey:
    try:
        found = RSAKey.import_key(text)
    except (JoseError, ValueError, TypeError) as error:
        raise SigningKeyInvalid(
            f"{paths.secret_file(name)} holds no RSA key"
        ) from error
    bits = found.public_key.key_size
    if bits < LEAST_BITS or (name == CURRENT and not found.is_private):
        raise SigningKeyInvalid(
            f"{paths.secret_file(name)} must hold a private RSA key of {LEAST_BITS} "
            "bits or more"
        )
    return found
