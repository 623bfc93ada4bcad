"""Texts that the database holds encrypted with the site's SECRET_KEY.

A copy of the database alone opens none of them.
"""

import base64
from itertools import chain

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings

PURPOSE = b"gpuportal second factor"


def seal(secret: bytes) -> str:
    """Return the stored form of a secret."""
    return _fernet().encrypt(secret).decode()


def unseal(sealed: str) -> bytes | None:
    """Return a secret; None: it was sealed with another SECRET_KEY."""
    try:
        return _fernet().decrypt(sealed.encode())
    except InvalidToken:
        return None


def _fernet() -> MultiFernet:
    keys = chain([settings.SECRET_KEY], settings.SECRET_KEY_FALLBACKS)
    return MultiFernet([Fernet(_derived(key)) for key in keys])


def _derived(key: str) -> bytes:
    derivation = HKDF(algorithm=SHA256(), length=32, salt=None, info=PURPOSE)
    return base64.urlsafe_b64encode(derivation.derive(key.encode()))
