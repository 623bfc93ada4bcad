"""The ssh public keys of a user: on the page, in the API and in the shell."""

import io
import os
import subprocess
import sys
from functools import cache

import pytest
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from django.db import transaction
from django.utils import timezone

from gpuportal.pages import client_files
from reservations.accounts import erasure
from reservations.accounts.api_tokens import create_token
from reservations.accounts.ssh_keys.public_key import SshKeyRefused, parse_public_key
from reservations.accounts.ssh_keys.service import MOST_KEYS, add_key, remove_key
from reservations.models import AuditEntry, SshKey

pytestmark = pytest.mark.django_db(transaction=True)
CLIENT = client_files.folder() / client_files.ONE_FILE
MAKERS = {
    "ed25519": ed25519.Ed25519PrivateKey.generate,
    "ecdsa": lambda: ec.generate_private_key(ec.SECP256R1()),
    "rsa": lambda: rsa.generate_private_key(65537, 2048),
    "short": lambda: rsa.generate_private_key(65537, 1024),
    "dsa": lambda: dsa.generate_private_key(1024),
}


@cache
def private_of(kind, number=0):
    return MAKERS[kind]()


def public(kind="ed25519", comment="me@laptop", number=0):
    if kind == "dsa":
        return "ssh-dss AAAAB3NzaC1kc3MAAACB me"
    key = private_of(kind, number).public_key()
    text = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    return f"{text} {comment}".rstrip()


def secret():
    return (
        private_of("ed25519")
        .private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        .decode()
    )


@pytest.mark.once
@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_a_key_has_the_fingerprint_of_ssh_keygen(kind, tmp_path):
    (tmp_path / "key.pub").write_text(public(kind) + "\n")
    words = ["ssh-keygen", "-l", "-f", str(tmp_path / "key.pub")]
    shown = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    parsed = parse_public_key(f"  {public(kind)}\r\n\n")
    assert parsed.fingerprint == shown.split()[1]
    assert parsed.comment == "me@laptop"
    assert parsed.line == public(kind, comment="")


REFUSED = {
    "private": (secret, "This is a private key."),
    "dsa": (lambda: public("dsa"), "DSA keys are too weak"),
    "short": (lambda: public("short"), "This RSA key has 1024 bits."),
    "options": (lambda: 'command="ls" ' + public(), "Remove the options"),
    "restrict": (lambda: "restrict," + public(), "not an ssh public key"),
    "several": (lambda: public() + "\n" + public("ecdsa"), "several lines"),
    "long": (lambda: public() + " " * 9000, "too long"),
    "empty": (lambda: " \n ", "Paste a public key."),
    "nonsense": (lambda: "hello world", "not an ssh public key"),
    "cut": (lambda: public(comment="")[:-9], "The key is incomplete."),
    "cut early": (lambda: "ssh-ed25519 AAAA", "The key is incomplete."),
    "type only": (lambda: "ssh-ed25519", "The key is incomplete."),
    "no base64": (lambda: "ssh-ed25519 my key", "not an ssh public key"),
    "wrong type": (lambda: public().replace("ssh-ed25519", "ssh-rsa"), "not an ssh"),
    "certificate": (lambda: "ssh-ed25519-cert-v01@openssh.com AAAA", "a certificate"),
    "hardware": (lambda: "sk-ssh-ed25519@openssh.com AAAA", "security key"),
    "unicode": (lambda: "ssh-ed25519 ÄÖÜ\x00", "not an ssh public key"),
}


@pytest.mark.once
@pytest.mark.parametrize("name", REFUSED)
def test_another_text_is_refused_by_its_field(name):
    make, words = REFUSED[name]
    with pytest.raises(SshKeyRefused) as refused:
        parse_public_key(make())
    assert words in refused.value.fields["public_key"]


def test_a_student_pastes_removes_and_uploads_a_key(client, alice, bob):
    client.force_login(alice)
    assert "No key yet" in client.get("/me/").content.decode()
    made = client.post("/me/ssh-keys/", {"public_key": public(), "name": ""})
    assert made.url == "/me/#ssh-keys"
    key = SshKey.objects.get()
    page = client.get("/me/").content.decode()
    assert (key.name, key.user) == ("me@laptop", alice)
    assert key.fingerprint in page and "me@laptop" in page
    again = client.post("/me/ssh-keys/", {"public_key": public(), "name": "n"})
    assert again.status_code == 422
    assert "You have this key already: “me@laptop”." in again.content.decode()
    answer = client.post("/me/ssh-keys/", {"public_key": secret()})
    assert answer.status_code == 422 and "private key" in answer.content.decode()
    client.force_login(bob)
    assert client.post(f"/me/ssh-keys/{key.pk}/remove/").status_code == 404
    client.force_login(alice)
    assert client.post(f"/me/ssh-keys/{key.pk}/remove/").status_code == 302
    assert not SshKey.objects.exists()
    file = io.BytesIO(public("ecdsa").encode())
    file.name = "id.pub"
    client.post("/me/ssh-keys/", {"key_file": file, "name": "desk"})
    later = SshKey.objects.get()
    assert later.name == "desk"
    assert later.pk > key.pk, "a number is never given twice"
    verbs = AuditEntry.objects.order_by("pk").values_list("verb", "reason")
    assert list(verbs) == [
        ("ssh-key.added", key.fingerprint),
        ("ssh-key.removed", key.fingerprint),
        ("ssh-key.added", later.fingerprint),
    ]


def test_a_user_has_a_bounded_number_of_keys_and_erasure_deletes_them(alice, bob, omar):
    now = timezone.now()
    for number in range(MOST_KEYS):
        text = public(number=number)
        add_key(user=alice, text=text, name=str(number), now=now)
    with pytest.raises(SshKeyRefused, match="You have 20 keys already"):
        add_key(user=alice, text=public("ecdsa"), name="", now=now)
    theirs = add_key(user=bob, text=public(), name="", now=now)
    assert not remove_key(key_id=theirs.pk, user=alice, now=now)
    with transaction.atomic():
        erasure.erase(user_id=alice.pk, typed="alice", actor=omar, now=now)
    assert list(SshKey.objects.all()) == [theirs]


@pytest.mark.once
def test_keys_in_the_shell(live_server, alice, tmp_path):
    shown = create_token(
        user=alice, label="t", scopes=["read", "job"], days=1, now=timezone.now()
    )[1]
    less = create_token(
        user=alice, label="t", scopes=["read", "book"], days=1, now=timezone.now()
    )[1]

    def gp(*words, token=shown):
        env = {"GPUPORTAL_URL": live_server.url, "GPUPORTAL_TOKEN": token}
        made = subprocess.run(
            [sys.executable, "-S", CLIENT, "keys", *words],
            env=os.environ | env,
            capture_output=True,
            text=True,
        )
        return made.returncode, made.stdout + made.stderr

    (tmp_path / "id.pub").write_text(public())
    (tmp_path / "id").write_text(secret())
    file = str(tmp_path / "id.pub")
    status, words = gp("add", file, token=less)
    assert status == 1 and "lacks the scope “job”" in words
    status, words = gp("add", str(tmp_path / "id"))
    assert status == 2 and "This is a private key." in words
    status, words = gp("add", file, "--name", "desk")
    key = SshKey.objects.get()
    assert (status, words) == (0, f"key {key.pk}: {key.fingerprint}  desk\n")
    assert gp()[1].split() == [str(key.pk), key.fingerprint, "desk"]
    assert gp("remove", "x")[0] == gp("add")[0] == 2
    assert gp("remove", str(key.pk)) == (0, f"removed key {key.pk}\n")
    assert gp("remove", str(key.pk))[0] == 1
