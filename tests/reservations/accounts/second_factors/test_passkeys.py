"""Passkeys by an authenticator made of cryptography: what is refused, and why.

A browser with its own authenticator is in ``tests/gpuportal/browser/test_passkey.py``.
"""

import hashlib
import json
import struct

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from django.test import RequestFactory
from fido2.cose import ES256
from fido2.utils import websafe_encode
from fido2.webauthn import AttestedCredentialData

from reservations.accounts.second_factors import passkeys
from reservations.models import SecondFactor

HERE = passkeys.Origin("https://gpu.example.org")
PRESENT, WITH_CREDENTIAL = 0x01, 0x40


class Authenticator:
    """Signs like a security key, also what it should not."""

    def __init__(self, name: bytes = b"key-1") -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        public = ES256.from_cryptography_key(self.key.public_key())
        self.credential = AttestedCredentialData.create(b"\0" * 16, name, public)
        self.counter = 1

    def factor(self, counter: int = 0) -> SecondFactor:
        secret = passkeys.stored_form(self.credential)
        return SecondFactor(kind="passkey", secret=secret, counter=counter)

    def sign(self, options: str, **said: object) -> str:
        facts = {
            "origin": HERE.text,
            "rp_id": HERE.rp_id,
            "type": "webauthn.get",
            "challenge": json.loads(options)["challenge"],
            "flags": PRESENT,
        } | said
        client = json.dumps(
            {name: facts[name] for name in ("type", "challenge", "origin")}
        ).encode()
        data = hashlib.sha256(str(facts["rp_id"]).encode()).digest()
        data += struct.pack(">BI", facts["flags"], self.counter)
        signature = self.key.sign(
            data + hashlib.sha256(client).digest(), ec.ECDSA(SHA256())
        )
        name = websafe_encode(self.credential.credential_id)
        return json.dumps(
            {
                "id": name,
                "rawId": name,
                "type": "public-key",
                "clientExtensionResults": {},
                "response": {
                    "clientDataJSON": websafe_encode(client),
                    "authenticatorData": websafe_encode(data),
                    "signature": websafe_encode(signature),
                },
            }
        )


def test_a_signature_of_this_origin_and_challenge_is_accepted():
    device, other = Authenticator(), Authenticator(b"key-2")
    factors = [other.factor(), device.factor()]
    options, state = passkeys.begin_proof(factors, HERE)
    assert json.loads(options)["rpId"] == "gpu.example.org"
    found = passkeys.proved(state, factors, device.sign(options), HERE)
    assert found == (factors[1], 1)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        # A workspace below the portal's domain may ask for the portal's passkeys.
        ({"origin": "https://7.ws.gpu.example.org"}, "origin"),
        ({"origin": "https://gpu.example.org:8443"}, "origin"),
        ({"origin": "http://gpu.example.org"}, "origin"),
        ({"origin": "https://gpu.example.org.evil.net"}, "origin"),
        ({"rp_id": "example.org"}, "RP ID"),
        ({"challenge": websafe_encode(b"x" * 32)}, "challenge"),
        ({"type": "webauthn.create"}, "type"),
        ({"flags": 0}, "User Present"),
    ],
)
def test_a_signature_of_another_site_or_request_is_refused(said, why):
    device = Authenticator()
    factors = [device.factor()]
    options, state = passkeys.begin_proof(factors, HERE)
    with pytest.raises(passkeys.PasskeyRefused, match=why):
        passkeys.proved(state, factors, device.sign(options, **said), HERE)


def test_a_copied_or_unknown_passkey_is_refused():
    device = Authenticator()
    options, state = passkeys.begin_proof([device.factor()], HERE)
    answer = device.sign(options)
    with pytest.raises(passkeys.PasskeyRefused, match="copied"):
        passkeys.proved(state, [device.factor(counter=1)], answer, HERE)
    with pytest.raises(passkeys.PasskeyRefused, match="Unknown"):
        passkeys.proved(state, [Authenticator(b"key-2").factor()], answer, HERE)
    # The same name, and another key.
    with pytest.raises(passkeys.PasskeyRefused, match="signature"):
        passkeys.proved(state, [Authenticator().factor()], answer, HERE)
    # Passkeys that sync count nothing.
    device.counter = 0
    again = device.sign(options)
    assert passkeys.proved(state, [device.factor()], again, HERE)[1] == 0


@pytest.mark.parametrize(
    "answer",
    [
        *("", "x", "[]", "{}", "[" * 9000, '{"a":"' + "b" * 30_000 + '"}'),
        '{"id": 1, "rawId": "?", "response": 7}',
        '{"id": "A", "rawId": "A", "response": {}}',
    ],
)
def test_what_is_no_answer_is_refused(answer):
    factors = [Authenticator().factor()]
    _options, state = passkeys.begin_proof(factors, HERE)
    for check in (
        lambda: passkeys.proved(state, factors, answer, HERE),
        lambda: passkeys.registered(state, answer, HERE),
    ):
        with pytest.raises(passkeys.PasskeyRefused):
            check()


@pytest.mark.parametrize(
    ("headers", "origin", "possible"),
    [
        ({"HTTP_HOST": "localhost:8010"}, "http://localhost:8010", True),
        ({"HTTP_HOST": "127.0.0.1:8010"}, "http://127.0.0.1:8010", False),
        ({"HTTP_HOST": "[::1]:8010"}, "http://[::1]:8010", False),
        ({"HTTP_HOST": "gpu.lab"}, "http://gpu.lab", False),
        (
            {"HTTP_HOST": "GPU.lab", "HTTP_X_FORWARDED_PROTO": "https"},
            "https://gpu.lab",
            True,
        ),
    ],
)
def test_the_origin_is_the_one_that_the_browser_sees(
    headers, origin, possible, settings
):
    settings.ALLOWED_HOSTS = ["*"]
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    found = passkeys.origin_of(RequestFactory().get("/", **headers))
    assert (found.text, found.possible) == (origin, possible)
