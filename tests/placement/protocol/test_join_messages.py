"""Join tokens, and signed texts that only the pinned key can make."""

import base64
import re
import subprocess

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from placement.protocol import join_messages
from placement.protocol.join_messages import JoinRequest, JoinUntrusted, TokenParts
from telemetry.protocol.codec import Malformed

pytestmark = pytest.mark.pure
KEY, OTHER = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
NONCE = "ab" * 16
TOKEN = TokenParts("0" * 16, "s-_" + "A" * 29, "f" * 40)


def pem(key: Ed25519PrivateKey) -> str:
    form = (Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return key.public_key().public_bytes(*form).decode()


PIN = join_messages.pin_of(pem(KEY))


def signed(*lines: str, kind: str = "answer", key: Ed25519PrivateKey = KEY) -> str:
    return join_messages.sign_lines(kind, [f"nonce {NONCE}", *lines], key)


def opened(text: str, **other: str) -> dict[str, str]:
    return join_messages.opened(
        text, **{"kind": "answer", "pin": PIN, "nonce": NONCE, **other}
    )


def test_a_token_is_read_as_it_was_written():
    assert join_messages.read_token(f" {TOKEN.text()}\n") == TOKEN
    assert join_messages.read_credential(TOKEN.credential()) == TOKEN[:2]


@pytest.mark.parametrize(
    "text",
    [
        "",
        TOKEN.text()[:-1],
        TOKEN.text() + "0",
        TOKEN.text().upper(),
        TOKEN.text().replace("gpj1", "gpj2"),
        TOKEN.text().replace(".", " ", 1),
        TOKEN.text().replace("A", "é", 1),
        TOKEN.text() + "\n" + TOKEN.text(),
    ],
)
def test_what_is_no_token_is_none(text):
    assert join_messages.read_token(text) is None


@pytest.mark.parametrize("header", ["", "Join", "Node atlas:x", "Join a.b", "Join é.é"])
def test_what_is_no_credential_is_none(header):
    assert join_messages.read_credential(header) is None


def test_a_signed_text_opens_with_its_pin_only():
    text = signed("answer {}")
    assert opened(text)["answer"] == "{}"
    for wrong, said in (
        (signed("answer {}", key=OTHER), "not the one of the token"),
        (text.replace("answer {}", "answer []"), "did not sign"),
        (signed("answer {}", kind="greeting"), "another kind"),
        (text.replace(NONCE, "cd" * 16), "did not sign"),
        (text.rpartition("signature")[0], "not from this portal"),
        (text + "node evil\n", "not from this portal"),
        ("<html>a page of a proxy</html>", "not from this portal"),
        ("", "not from this portal"),
    ):
        with pytest.raises(JoinUntrusted, match=said):
            opened(wrong)
    with pytest.raises(JoinUntrusted, match="older"):
        opened(text, nonce="cd" * 16)


def test_another_key_with_the_signature_of_the_right_one_is_refused():
    """The key that is pinned is the key that verifies, not another line."""
    text = signed("answer {}")
    lines = signed("answer {}", key=OTHER).splitlines()
    key_line = next(line for line in lines if line.startswith("key "))
    forged = re.sub(r"^key .*$", key_line, text, flags=re.MULTILINE)
    with pytest.raises(JoinUntrusted, match="not the one of the token"):
        opened(forged)
    two = text.replace("\nkey ", f"\n{key_line}\nkey ")
    with pytest.raises(JoinUntrusted, match="did not sign"):
        opened(two)


def test_a_signed_text_is_no_command_and_a_command_is_no_signed_text():
    assert not signed("answer {}").startswith("{")
    with pytest.raises(JoinUntrusted):
        opened('{"kind": "start"}\nsignature AAAA\n')


def test_openssl_checks_the_same_signature(tmp_path):
    """As deploy/join.sh does, before Python's packages are there."""
    body, _, signature = signed("answer {}").rpartition("signature ")
    key = re.search(r"^key (.*)$", body, re.MULTILINE)
    assert key
    (tmp_path / "key").write_bytes(base64.b64decode(key[1]))
    (tmp_path / "signature").write_bytes(base64.b64decode(signature))
    command = "openssl pkeyutl -verify -pubin -keyform DER -inkey key -rawin -in body"
    for text, status in ((body, 0), (body + "x", 1)):
        (tmp_path / "body").write_text(text)
        done = subprocess.run(
            [*command.split(), "-sigfile", "signature"],
            cwd=tmp_path,
            capture_output=True,
            check=False,
        )
        assert done.returncode == status


# --- requests ---------------------------------------------------------------------


def request_of(key: Ed25519PrivateKey = KEY, **other: object) -> JoinRequest:
    raw = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    values = {
        "nonce": NONCE,
        "public_key": base64.b64encode(raw).decode(),
        "machine_hash": "0" * 64,
    }
    return JoinRequest(**(values | other))  # type: ignore[arg-type]


def test_a_request_is_read_if_its_own_key_signed_it():
    wanted = request_of(hostname="atlas")
    assert (
        join_messages.read_request(join_messages.signed_request(wanted, KEY)) == wanted
    )
    with pytest.raises(JoinUntrusted):
        join_messages.read_request(join_messages.signed_request(wanted, OTHER))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"text": "{}", "signature": ""}',
        b"{" * 100_000,
        b'"' + b"a" * 200_000 + b'"',
        join_messages.signed_request(request_of(nonce="x"), KEY),
        join_messages.signed_request(request_of(machine_hash="G" * 64), KEY),
        join_messages.signed_request(request_of(hostname="a\x1b[2J"), KEY),
        join_messages.signed_request(request_of(public_key="AAAA"), KEY),
    ],
    ids=range(9),
)
def test_an_invalid_request_is_malformed(data):
    with pytest.raises(Malformed):
        join_messages.read_request(data)
