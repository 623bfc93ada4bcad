"""The key that signs commands."""

import stat

import pytest

from placement.protocol import signing
from placement.protocol.node_refusals import OrderRefused
from telemetry import paths


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUPORTAL_VAR", str(tmp_path))


def test_a_signed_order_is_accepted():
    signing.verify("the order", signing.sign("the order"), signing.public_key_pem())


def test_the_key_pair_is_made_once_and_kept_from_others():
    first = signing.public_key_pem()
    assert signing.public_key_pem() == first
    for name in (signing.PRIVATE, signing.PUBLIC):
        mode = stat.S_IMODE(paths.secret_file(name).stat().st_mode)
        assert mode == 0o600
    assert paths.read_secret(signing.PUBLIC) == first.strip()


def test_an_order_that_was_changed_is_refused():
    signature = signing.sign("job 7")
    with pytest.raises(OrderRefused) as refusal:
        signing.verify("job 8", signature, signing.public_key_pem())
    assert refusal.value.code == "signature"


def test_another_sites_signature_is_refused(tmp_path, monkeypatch):
    signature = signing.sign("job 7")
    monkeypatch.setenv("GPUPORTAL_VAR", str(tmp_path / "other"))
    with pytest.raises(OrderRefused):
        signing.verify("job 7", signature, signing.public_key_pem())


@pytest.mark.parametrize("signature", ["", "????", "aGVsbG8=", "ä"])
def test_garbage_is_no_signature(signature):
    with pytest.raises(OrderRefused) as refusal:
        signing.verify("job 7", signature, signing.public_key_pem())
    assert refusal.value.code == "signature"


@pytest.mark.parametrize("pem", ["", "-----BEGIN PUBLIC KEY-----\nx\n"])
def test_a_node_without_a_key_takes_nothing(pem):
    with pytest.raises(OrderRefused) as refusal:
        signing.verify("job 7", signing.sign("job 7"), pem)
    assert refusal.value.code == "no-key"
