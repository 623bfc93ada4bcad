"""Certificates of the portal at a real sshd, with what an attacker tries."""

import json
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_public_identity
from django.core.management import call_command
from django.utils import timezone

from gpuportal.pages import client_files
from placement.access import ssh_authority
from placement.access.frame_lists import NODE
from placement.access.ssh_certificates import access_of, issue_certificate
from placement.agent.access import ssh_principals
from placement.protocol import signing
from placement.protocol.ssh_access import parse_ssh_access
from placement.protocol.stream_refusal import StreamRefused
from reservations.accounts.api_tokens import create_token
from reservations.accounts.ssh_keys.service import add_key, remove_key
from reservations.models import Allocation, AuditEntry, CoUser, SshKey, User
from reservations.rules.errors import NotFound, TooFast
from reservations.rules.lifecycle import State
from telemetry import paths
from telemetry.protocol.request_refusal import RequestRefused
from tests.factories import make_gpus, make_node, make_reservation
from tests.placement.access.ssh_servers import ssh_server
from tests.placement.access.stream_nodes import streams_of
from tests.placement.nodes import PATIENCE_SECONDS, make_settings, until
from tests.placement.serving.kitchen import token_of

pytestmark = pytest.mark.django_db(transaction=True)
CLIENT = client_files.folder() / client_files.ONE_FILE


def new_key(folder, name):
    made = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name)
    subprocess.run(made, check=True)
    return (folder / f"{name}.pub").read_text()


@pytest.fixture
def own_secrets(tmp_path, monkeypatch):
    """Give the test a separate authority."""
    monkeypatch.setenv("GPUPORTAL_VAR", str(tmp_path / "var"))


@pytest.fixture
def row(db):
    return make_node("node1")


@pytest.fixture
def made(row, alice):
    return make_reservation(alice, make_gpus(1, row), state=State.ACTIVE)


def test_a_certificate_names_user_reservation_and_key(
    own_secrets, alice, bob, made, tmp_path
):
    now = timezone.now()
    text = new_key(tmp_path, "a")
    key = add_key(user=alice, text=text, name="laptop", now=now)
    User.objects.filter(pk__in=(alice.pk, bob.pk)).update(unix_user="al")
    alice.refresh_from_db()
    bob.refresh_from_db()

    def issue(user=alice, number=made.pk, line=text, at=now):
        return issue_certificate(user, number, line, node_name="", now=at)

    found = issue()
    certificate = load_ssh_public_identity(found.line.encode())
    assert certificate.valid_principals == [
        f"r{made.pk}-u{alice.pk}-k{key.pk}".encode()
    ]
    assert certificate.key_id == f"alice r{made.pk} k{key.pk}".encode()
    end = Allocation.objects.get(reservation=made).end
    last = min(end, now + timedelta(hours=24))
    assert certificate.valid_before == int(last.timestamp())
    certificate.verify_cert_signature()
    key.refresh_from_db()
    assert key.last_used_at == now
    entry = AuditEntry.objects.get(verb="ssh-certificate.issued")
    assert entry.subject == f"reservation:{made.pk}"
    assert f"serial {certificate.serial}" in entry.reason
    with pytest.raises(RequestRefused, match="is not among your ssh keys"):
        issue(line=new_key(tmp_path, "b"))
    with pytest.raises(NotFound):
        issue(user=bob)
    with pytest.raises(StreamRefused, match="is over"):
        issue(at=end + timedelta(seconds=1))
    with pytest.raises(TooFast):
        for _ in range(61):
            issue()


@pytest.mark.once
def test_a_node_is_sent_the_principals_of_this_moment(
    own_secrets, alice, bob, row, made, tmp_path
):
    now = timezone.now()
    text = new_key(tmp_path, "a")
    key = add_key(user=alice, text=text, name="", now=now)
    theirs = add_key(user=bob, text=text, name="", now=now)
    alice.unix_user, bob.unix_user = "al", "bo"
    alice.save()
    bob.save()

    def accounts(at=None):
        access = access_of(row, at or timezone.now())
        assert parse_ssh_access(access.payload()) == access
        return {one.name: one.principals for one in access.accounts}

    mine = f"r{made.pk}-u{alice.pk}-k{key.pk}"
    assert accounts() == {"al": (mine,)}
    second = make_reservation(alice, make_gpus(1, row), state=State.ACTIVE)
    assert accounts() == {"al": (mine, mine.replace(f"r{made.pk}", f"r{second.pk}"))}
    shared = CoUser.objects.create(reservation=second, user=bob, added_by=alice)
    assert accounts()["bo"] == (f"r{second.pk}-u{bob.pk}-k{theirs.pk}",)
    CoUser.objects.filter(pk=shared.pk).update(removed_at=now)
    assert "bo" not in accounts()
    Allocation.objects.filter(reservation=second).update(live=False)
    assert accounts() == {"al": (mine,)}
    assert accounts(at=made.end) == {}
    remove_key(key_id=key.pk, user=alice, now=now)
    assert accounts() == {}
    add_key(user=alice, text=text, name="", now=now)
    assert list(accounts()) == ["al"]
    alice.unix_user = "../root"
    alice.save()
    assert accounts() == {}, "what is no file's name opens nothing"


@pytest.mark.once
def test_a_login_opens_no_account_of_the_same_name(
    own_secrets, alice, row, made, tmp_path
):
    """Heads choose the logins of those that they invite. Operators set accounts."""
    now = timezone.now()
    text = new_key(tmp_path, "a")
    add_key(user=alice, text=text, name="", now=now)
    alice.username = "admin-of-the-node"
    alice.save()
    assert access_of(row, timezone.now()).accounts == ()
    with pytest.raises(RequestRefused, match="does not know your Unix account") as info:
        issue_certificate(alice, made.pk, text, node_name="", now=now)
    assert info.value.code == "ssh-no-account"
    assert not AuditEntry.objects.filter(verb="ssh-certificate.issued").exists()


def test_the_authority_is_a_secret_and_can_be_replaced(own_secrets, capsys):
    first = ssh_authority.authority_line()
    path = paths.secret_file(signing.SSH_AUTHORITY)
    assert path.stat().st_mode & 0o777 == 0o600
    assert ssh_authority.authority_line() == first
    call_command("ssh_authority", "--node-dir", "/srv/node")
    shown = capsys.readouterr().out
    assert first in shown and "TrustedUserCAKeys /srv/node/ssh/ca.pub" in shown
    call_command("ssh_authority", "--rotate")
    assert first not in capsys.readouterr().out
    assert ssh_authority.authority_line() != first
    assert AuditEntry.objects.get().verb == "ssh-authority.rotated"


def test_accounts_of_the_system_are_never_opened():
    assert not ssh_principals.is_ordinary("root")
    assert not ssh_principals.is_ordinary("nobody")
    assert not ssh_principals.is_ordinary("daemon")
    assert not ssh_principals.is_ordinary("nobody-has-this-name")


@pytest.fixture
def lab(
    own_secrets,
    tmp_path,
    live_asgi,
    redis_client,
    valkey_url,
    alice,
    row,
    made,
    monkeypatch,
):
    """Return a node with a real sshd that trusts the portal's authority."""
    node = make_settings(tmp_path, redis_url=valkey_url, web_url=live_asgi)
    token_of(row, node)
    folder = node.node_dir / "ssh"
    lines = (
        f"TrustedUserCAKeys {folder}/ca.pub\n"
        f"AuthorizedPrincipalsFile {folder}/principals/%u\n"
        f"HostCertificate {folder}/host-cert.pub\n"
    )

    class Lab:
        url = live_asgi
        settings = node
        principals = folder / "principals"

        def __init__(self, server):
            self.server = server

        def until_connected(self):
            until(lambda: redis_client.exists(NODE + "node1"), what="the node")

        def ssh(self, *words, key, certificates):
            """Sign in directly, as if the node's port were open. Return the status."""
            options = {
                "IdentityFile": key,
                "IdentitiesOnly": "yes",
                "UserKnownHostsFile": self.server.folder / "known_hosts",
                "HostKeyAlias": "node1",
                "BatchMode": "yes",
                "LogLevel": "ERROR",
            }
            command = ["ssh", "-F", "/dev/null", "-p", str(self.server.port)]
            for name, value in options.items():
                command += ["-o", f"{name}={value}"]
            for path in certificates:
                command += ["-o", f"CertificateFile={path}"]
            command += ["-l", self.server.user, "127.0.0.1", *words]
            return run(command)

    @contextmanager
    def started():
        with ssh_server(tmp_path / "sshd", more=lines) as server:
            # The test's user is root or a user of the system in some places.
            monkeypatch.setattr(
                ssh_principals, "is_ordinary", lambda name: name == server.user
            )
            monkeypatch.setattr(ssh_principals, "HOST_KEY", server.folder / "host.pub")
            alice.unix_user = server.user
            alice.save()
            object.__setattr__(node, "sshd_port", server.port)
            yield Lab(server)

    with started() as lab:
        yield lab


def run(words, **env):
    return subprocess.run(
        [str(word) for word in words],
        env=os.environ | env,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )


@pytest.mark.once
def test_only_a_current_certificate_of_the_holder_opens_the_account(
    lab, alice, bob, row, made, tmp_path
):
    now = timezone.now()
    text = new_key(tmp_path, "a")
    key = add_key(user=alice, text=text, name="", now=now)
    number = 0

    def signs_in(*lines):
        """Try the certificates one after the other, over one connection."""
        nonlocal number
        paths = []
        for line in lines:
            number += 1
            paths.append(tmp_path / f"{number}-cert.pub")
            paths[-1].write_text(line + "\n")
        answer = lab.ssh("true", key=tmp_path / "a", certificates=paths)
        return answer.returncode == 0

    def forged(**changes):
        given = {
            "principals": [ssh_authority.principal(made.pk, alice.pk, key.pk)],
            "key_id": "x",
            "serial": 1,
            "now": now,
            "until": now + timedelta(hours=1),
        }
        return ssh_authority.user_certificate(text, **{**given, **changes})

    mine = issue_certificate(alice, made.pk, text, node_name="", now=now).line
    assert not signs_in(mine), "the node has no list yet"
    assert ssh_principals.refresh(lab.settings)
    gone = now - timedelta(seconds=1)
    assert not signs_in(forged(until=gone)), "after the reservation"
    wrong = [
        forged(principals=[name])
        for name in (
            lab.server.user,
            "root",
            f"r{made.pk}",
            ssh_authority.principal(made.pk, bob.pk, key.pk),
            ssh_authority.principal(made.pk + 1, alice.pk, key.pk),
        )
    ]
    assert not signs_in(*wrong)
    assert signs_in(*wrong, mine), "ssh tried all of them, within sshd's MaxAuthTries"
    second = make_reservation(alice, make_gpus(1, row), state=State.ACTIVE)
    now = timezone.now()
    other = issue_certificate(alice, second.pk, text, node_name="", now=now).line
    assert ssh_principals.refresh(lab.settings)
    assert signs_in(mine) and signs_in(other)
    # Bob shares the reservation, and has another account.
    CoUser.objects.create(reservation=second, user=bob, added_by=alice)
    bob.unix_user = "bo"
    bob.save()
    add_key(user=bob, text=text, name="", now=now)
    theirs = issue_certificate(bob, second.pk, text, node_name="", now=now).line
    assert ssh_principals.refresh(lab.settings)
    assert not signs_in(theirs), "a co-user's certificate for the owner's account"
    Allocation.objects.filter(reservation=second).update(live=False)
    assert ssh_principals.refresh(lab.settings)
    assert signs_in(mine)
    assert not signs_in(other), "a released reservation"
    remove_key(key_id=key.pk, user=alice, now=now)
    assert ssh_principals.refresh(lab.settings)
    assert not signs_in(mine), "a removed key"
    assert list(lab.principals.iterdir()) == []
    key = add_key(user=alice, text=text, name="", now=now)
    assert ssh_principals.refresh(lab.settings)
    assert not signs_in(mine), "the key was removed, and added again"
    previous = forged()
    assert signs_in(previous)
    ssh_authority.rotate()
    assert not signs_in(forged()), "an authority that the node does not know"
    assert ssh_principals.refresh(lab.settings)
    assert signs_in(forged()) and not signs_in(previous)


def test_a_list_that_the_portal_did_not_sign_for_now_changes_nothing(
    lab, alice, made, row, tmp_path, monkeypatch
):
    now = timezone.now()
    add_key(user=alice, text=new_key(tmp_path, "a"), name="", now=now)
    assert ssh_principals.refresh(lab.settings)
    kept = {path.name: path.read_text() for path in lab.principals.iterdir()}
    assert list(kept) == [lab.server.user]
    early = access_of(row, now - timedelta(seconds=30)).payload()
    late = access_of(row, now - timedelta(hours=1)).payload()
    other = access_of(make_node("node2"), now).payload()
    unsigned = access_of(row, now).payload()
    SshKey.objects.all().delete()

    def says(payload, signature):
        body = json.dumps({"payload": payload, "signature": signature}).encode()
        monkeypatch.setattr(ssh_principals, "request", lambda *_a, **_b: (200, body))
        return ssh_principals.refresh(lab.settings)

    for payload in (early, late, other):
        assert not says(payload, signing.sign(payload))
    assert not says(unsigned, signing.sign(early))
    assert not says("{}", signing.sign("{}"))
    monkeypatch.setattr(ssh_principals, "request", lambda *_a, **_b: (200, b"x"))
    assert not ssh_principals.refresh(lab.settings)
    found = {path.name: path.read_text() for path in lab.principals.iterdir()}
    assert found == kept


@pytest.mark.once
def test_gp_ssh_asks_neither_for_a_password_nor_for_a_fingerprint(
    lab, alice, made, tmp_path
):
    shown = create_token(
        user=alice, label="t", scopes=["job"], days=1, now=timezone.now()
    )[1]
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True, mode=0o700)
    env = {
        "GPUPORTAL_URL": lab.url,
        "GPUPORTAL_TOKEN": shown,
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "SSH_ASKPASS_REQUIRE": "never",
        # The package, and not the one file, which is compiled each time it starts.
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": str(tmp_path / "compiled"),
    }
    gp = [sys.executable, "-S", client_files.PACKAGE]
    assert ssh_principals.refresh(lab.settings), "the host key gets its certificate"
    with streams_of(lab.settings):
        lab.until_connected()
        there = run([*gp, "ssh", made.pk, "--", "echo", "here"], **env)
        assert (there.returncode, there.stdout) == (0, "here\n"), there.stderr
        key = SshKey.objects.get()
        assert key.name.startswith("gp on ") and key.user == alice
        assert not (home / ".ssh" / "known_hosts").exists()
        # The settings for ssh, scp and VS Code. ssh takes "~" from the account, so
        # the file is named.
        assert run([*gp, "config-ssh"], **env).returncode == 0
        config = home / ".ssh" / "gpuportal.config"
        host = f"r{made.pk}.node1.gpuportal"
        plain = ["ssh", "-F", config, "-o", "BatchMode=yes", host, "echo", "there"]
        there = run(plain, **env)
        assert (there.returncode, there.stdout) == (0, "there\n"), there.stderr
        assert SshKey.objects.count() == 1
        issued = AuditEntry.objects.filter(verb="ssh-certificate.issued")
        assert issued.count() == 2, "one for each name of the host"
        # The user removes the key of this machine.
        remove_key(key_id=key.pk, user=alice, now=timezone.now())
        assert run(plain, **env).returncode == 255
        made_again = run([*gp, "ssh", made.pk, "--node", "node1"], **env)
        assert made_again.returncode in (1, 255)
        for path in (home / ".config" / "gpuportal" / "ssh").glob("*.json"):
            path.unlink()
        refused = run([*gp, "ssh", made.pk, "--", "true"], **env)
        assert refused.returncode == 1
        assert "is not among your ssh keys" in refused.stderr
        file = home / ".config" / "gpuportal" / "ssh" / "id_ed25519.pub"
        read = env | {"GPUPORTAL_TOKEN": shown}
        assert run([*gp, "keys", "add", file], **read).returncode == 0
        assert run([*gp, "ssh", made.pk, "--", "true"], **env).returncode == 0
        # Without an account in the portal, a key of the node's own still opens it.
        User.objects.filter(pk=alice.pk).update(unix_user="")
        for path in (home / ".config" / "gpuportal" / "ssh").glob("*.json"):
            path.unlink()
        refused = run([*gp, "ssh", made.pk, "--", "true"], **env)
        assert refused.returncode == 1
        assert "does not know your Unix account on node1" in refused.stderr
        own = run([*gp, "ssh", made.pk, "--user", lab.server.user, "--", "true"], **env)
        assert own.returncode == 255, "ssh was tried, and the key is not accepted"


def test_an_answer_that_would_add_settings_of_ssh_is_refused(tmp_path):
    """A portal could otherwise run commands on the machine of a user."""
    command = "f" * 8

    class Portal(BaseHTTPRequestHandler):
        def do_GET(self):
            row = {"id": 17, "mine": True, "state": "active"}
            self.answer(200, {"reservations": [row]})

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            facts = {
                "certificate": "ssh-ed25519-cert-v01@openssh.com AAAA",
                "user": f"al\n    ProxyCommand {command}",
                "hosts": "*.gpuportal",
                "authority": "ssh-ed25519 AAAA",
                "host_key_alias": "node1.gpuportal",
            }
            self.answer(201, facts)

        def answer(self, status, content):
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_words):
            pass

    with HTTPServer(("127.0.0.1", 0), Portal) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        env = {
            "GPUPORTAL_URL": f"http://127.0.0.1:{server.server_port}",
            "GPUPORTAL_TOKEN": "gp_x",
            "HOME": str(tmp_path),
            "XDG_CONFIG_HOME": str(tmp_path / ".config"),
        }
        host = "r17.gpuportal"
        try:
            made = run([sys.executable, "-S", CLIENT, "certificate", host], **env)
        finally:
            server.shutdown()
            thread.join()
    assert made.returncode == 3
    assert "invalid user" in made.stderr
    assert not list((tmp_path / ".config" / "gpuportal" / "ssh").glob("*.conf"))
