"""The checks of an ID token (OpenID Connect Core 1.0, section 3.1.3.7)."""

from collections.abc import Mapping
from typing import Any

from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import ECKey, KeySet, OKPKey, RSAKey

ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA", "Ed25519"),
)
"""Signatures with a public key. The client's secret is not enough to make one."""
LEEWAY_SECONDS = 60
"""Greatest difference between the clocks of provider and portal."""
MOST_KEYS = 100
KEY_TYPES: dict[object, Any] = {"RSA": RSAKey, "EC": ECKey, "OKP": OKPKey}


class IdTokenInvalid(Exception):
    """The token is not from the provider, not for the portal, or too old."""


class SigningKeyUnknown(IdTokenInvalid):
    """The token names a key that is not among the provider's."""


def read_keys(raw: object) -> KeySet:
    """Return the signing keys of a JWK set. Keys that cannot be read are left out.

    Raises:
        IdTokenInvalid: no key can be read.
    """
    rows = raw.get("keys") if isinstance(raw, Mapping) else None
    keys = []
    for row in rows[:MOST_KEYS] if isinstance(rows, list) else ():
        if not isinstance(row, dict) or row.get("use", "sig") != "sig":
            continue
        kind = KEY_TYPES.get(row.get("kty"))
        if kind is None:
            # Symmetric keys too: a public one proves nothing.
            continue
        try:
            keys.append(kind.import_key(row))
        except (JoseError, ValueError, TypeError, KeyError, AttributeError):
            continue
    if not keys:
        raise IdTokenInvalid("the provider publishes no key for signatures")
    return KeySet(keys)


def verified_claims(
    token: str, keys: KeySet, *, issuer: str, client_id: str, nonce: str, now: int
) -> dict[str, Any]:
    """Return the claims of a token after all checks.

    Args:
        issuer: as the provider's configuration writes it.
        now: seconds since 1970.

    Raises:
        SigningKeyUnknown: the provider may have new keys.
        IdTokenInvalid: any other check failed.
    """
    required: dict[str, Any] = {
        "iss": {"essential": True, "value": issuer},
        "sub": {"essential": True},
        "aud": {"essential": True, "value": client_id},
        "exp": {"essential": True},
        "iat": {"essential": True},
        "nonce": {"essential": True, "value": nonce},
    }
    try:
        claims = jwt.decode(token, keys, algorithms=ALGORITHMS).claims
        registry = jwt.JWTClaimsRegistry(now=now, leeway=LEEWAY_SECONDS, **required)
        registry.validate(claims)
    except InvalidKeyIdError as error:
        raise SigningKeyUnknown(_text(error)) from error
    except (JoseError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise IdTokenInvalid(_text(error)) from error
    if not isinstance(claims["nonce"], str):
        raise IdTokenInvalid("invalid_claim: nonce")
    audience = claims["aud"]
    several = isinstance(audience, list) and len(audience) > 1
    party = claims.get("azp", None if several else client_id)
    if party != client_id:
        raise IdTokenInvalid("invalid_claim: azp")
    return claims


def _text(error: Exception) -> str:
    return (str(error) or type(error).__name__)[:120]
