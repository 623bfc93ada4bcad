"""deploy/join.sh against a real portal and a real broker, in a scratch folder."""

import contextlib
import os
import pty
import shutil
import signal
import socket
import socketserver
import ssl
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID
from django.utils import timezone

from gpuportal.node_join import service
from placement.protocol import signing
from placement.protocol.join_messages import TokenParts
from telemetry.models import Node, NodeJoin
from telemetry.web import bounded_call
from tests import brokers
from tests.factories import make_user
from tests.house.walk import ROOT

WAIT_SECONDS = 120.0


class Site:
    """A portal whose broker other machines could reach, and a machine's folders."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder
        self.operator = make_user("olga", is_superuser=True)

    def token(self, name: str = "atlas", *, again: bool = False) -> TokenParts:
        """Make a token."""
        now = timezone.now()
        made = service.make_token(name=name, again=again, actor=self.operator, now=now)
        return made[1]

    def script(
        self, *arguments: str, path: str = "", **more: str
    ) -> subprocess.CompletedProcess[str]:
        """Fetch join.sh and run it without a terminal, as a program does."""
        line = f'curl -fsS {self.url}/join.sh | sh -s -- "$@"'
        return subprocess.run(
            ["sh", "-c", line, "join", *arguments],
            cwd=self.folder,
            env={"PATH": path + os.environ["PATH"], "HOME": str(self.folder)} | more,
            start_new_session=True,
            capture_output=True,
            text=True,
            check=False,
        )

    def token_file(self, text: str, mode: int = 0o600) -> str:
        """Write a token to a file of its own. Return its path."""
        handle, path = tempfile.mkstemp(dir=self.folder, text=True)
        os.write(handle, f"{text}\n".encode())
        os.fchmod(handle, mode)
        os.close(handle)
        return path

    def options(self, *more: str) -> list[str]:
        """Return options for scratch folders and the packages of these tests."""
        at = self.folder
        return [
            *("--no-driver", "--venv", sys.prefix),
            *("--folder", f"{at}/opt", "--settings", f"{at}/etc"),
            *more,
        ]


@pytest.fixture
def site(live_asgi, settings, tmp_path):
    settings.PORTAL_URL = live_asgi
    settings.REDIS_URL = "redis://portal:x@0.0.0.0:1/0"
    return Site(live_asgi, tmp_path)


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    """Return the only line that a refusal prints."""
    assert done.returncode == 2, done.stdout + done.stderr
    (line,) = done.stderr.strip().splitlines()[-1:]
    assert line.startswith("join: ")
    return line


@pytest.mark.once
def test_a_machine_that_cannot_join_is_told_why_and_is_left_as_it_was(site):
    token = site.token()
    given = ["--token-file", site.token_file(token.text())]

    def other(text: str, mode: int = 0o600) -> list[str]:
        return ["--token-file", site.token_file(text, mode)]

    wrong_pin = token._replace(pin="0" * 40).text()
    wrong_secret = token._replace(secret="x" * 32).text()
    # A clock that is an hour slow, for this script only.
    programs = site.folder / "programs"
    programs.mkdir()
    date = programs / "date"
    date.write_text(
        f'#!/bin/sh\n[ "$*" = +%s ] || exec {shutil.which("date")} "$@"\n'
        f"echo $(($({shutil.which('date')} +%s) - 3600))\n"
    )
    date.chmod(0o755)
    (site.folder / "ca").write_text("no certificate")
    (site.folder / "taken").mkdir()
    for arguments, path, said in (
        ([], "", "there is no terminal"),
        (site.options(token.text()), "", "the token is no argument, because"),
        (["--token-file", "nowhere"], "", "cannot read nowhere"),
        (other(token.text(), 0o640), "", "(mode 640). Make another token"),
        (other(""), "", "no join token"),
        (other("gpj1_x"), "", "no join token"),
        (["--frobnicate"], "", "unknown option: --frobnicate"),
        ([*given, "--ca"], "", "--ca needs a value"),
        (site.options(*given, "--ca", "ca"), "", "ca is no certificate"),
        (
            site.options(*given, "--folder", str(site.folder / "taken")),
            "",
            "has something else",
        ),
        (site.options(*other(wrong_pin)), "", "not the one of the token. Nothing was"),
        (site.options(*other(wrong_secret)), "", "does not know this token"),
        (site.options(*given), f"{programs}:", "the clock is wrong: here it is"),
    ):
        line = one_line(site.script(*arguments, path=path))
        assert said in line, (arguments, line)
    # Both times, an hour apart.
    assert line.count(" UTC") == 2
    shown = site.script(*site.options(*given, "--print"))
    assert shown.returncode == 0, shown.stderr
    assert "would" in shown.stdout
    assert str(site.folder / "opt") in shown.stdout
    assert not (site.folder / "opt").exists()
    assert not (site.folder / "etc").exists()
    assert not Node.objects.exists()
    row = NodeJoin.objects.get()
    assert (row.used_at, row.public_key) == (None, "")


def make_authority(folder: Path) -> None:
    """Make an authority of a site (ca.pem), and a certificate that it signed."""
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    names = [
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
        for text in ("Authority of the lab", "localhost")
    ]
    now = datetime.now(UTC)
    own = x509.SubjectAlternativeName([x509.DNSName("localhost")])
    for number, (file, more) in enumerate(
        (("ca.pem", x509.BasicConstraints(ca=True, path_length=0)), ("own.pem", own))
    ):
        certificate = (
            x509.CertificateBuilder()
            .subject_name(names[number])
            .issuer_name(names[0])
            .public_key(keys[number].public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(more, critical=number == 0)
            .sign(keys[0], hashes.SHA256())
        )
        (folder / file).write_bytes(certificate.public_bytes(Encoding.PEM))
    private = keys[1].private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "own.key").write_bytes(private)


@contextlib.contextmanager
def tls_front(folder: Path, portal: str) -> Iterator[str]:
    """Answer for a portal with the certificate of a site's own authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "own.pem", folder / "own.key")
    there = urlsplit(portal)

    class Front(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            """Pass one request on, and its answer back."""
            with contextlib.suppress(OSError):
                link = context.wrap_socket(self.request, server_side=True)
                asked = b""
                while b"\r\n\r\n" not in asked:
                    asked += link.recv(2**16)
                lines = asked.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
                address = (there.hostname, there.port)
                with socket.create_connection(address) as behind:
                    behind.sendall(lines)
                    while part := behind.recv(2**16):
                        link.sendall(part)
                link.unwrap()

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = allow_reuse_address = True

    with Server(("127.0.0.1", 0), Front) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.02])
        thread.start()
        try:
            yield f"https://localhost:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.once
def test_a_portal_with_the_certificate_of_the_sites_own_authority(
    site, settings, tmp_path, monkeypatch
):
    make_authority(tmp_path)
    ca = str(tmp_path / "ca.pem")
    with tls_front(tmp_path, site.url) as url:
        settings.PORTAL_URL = url
        given = ["--token-file", site.token_file(site.token().text())]
        options = site.options(*given, "--print")
        line = one_line(site.script(*options))
        assert "is not trusted here. If your site has its own authority" in line
        assert "--ca FILE" in line
        shown = site.script(*options, "--ca", ca)
        assert shown.returncode == 0, shown.stderr
        assert f"{url} answers, its key is the pinned one" in shown.stdout
        # The portal itself calls an identity provider of such a site.
        there = urlsplit(url)
        endpoint = bounded_call.HostPort(True, "localhost", there.port or 0)

        def call() -> int:
            connection = bounded_call.PinnedConnection(
                endpoint, ["127.0.0.1"], seconds=30
            )
            status, _body = bounded_call.call(
                connection, "GET", "/healthz", headers={}, seconds=30, most_bytes=2**16
            )
            return status

        with pytest.raises(ssl.SSLCertVerificationError):
            call()
        monkeypatch.setenv("SSL_CERT_FILE", ca)
        assert call() in (200, 503)


def test_the_code_of_a_package_is_not_replaced(site):
    top = site.folder / "opt"
    (top / "deploy").mkdir(parents=True)
    (top / "deploy" / "gpuportal-node").touch()
    (top / ".package").write_text("0.1.0\n")
    options = site.options("--print", "--token-file")
    given = [*options, site.token_file(site.token().text())]
    assert "is not configured: dpkg --configure" in one_line(site.script(*given))
    (top / ".venv").symlink_to(sys.prefix)
    shown = site.script(*given)
    assert shown.returncode == 0, shown.stderr
    assert "use the code of the package gpuportal-node 0.1.0" in shown.stdout
    assert "download" not in shown.stdout
    etc = site.folder / "etc"
    etc.mkdir()
    (etc / "node.token").touch()
    (etc / "node.env").touch()
    (etc / "order_key.pub").write_text(signing.public_key_pem())
    refused = one_line(site.script(*site.options("--update")))
    assert "that of the package gpuportal-node 0.1.0: install a newer" in refused


def typed(site: Site, text: str) -> tuple[int, str]:
    """Type a text at the question of join.sh. Return its status, and what was shown."""
    line = f'curl -fsS {site.url}/join.sh | sh -s -- "$@"'
    child, terminal = pty.fork()
    if child == 0:
        # What runs in the background may have begun with Ctrl-C ignored.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        words = ["join", *site.options("--print")]
        os.execvp("sh", ["sh", "-c", line, *words])
    shown = b""
    while not shown.endswith(b"(it is not shown): "):
        shown += os.read(terminal, 1000)
    assert not termios.tcgetattr(terminal)[3] & termios.ECHO
    os.write(terminal, text.encode())
    # Linux ends the reading with an error when the last process closes the terminal.
    with contextlib.suppress(OSError):
        while piece := os.read(terminal, 1000):
            shown += piece
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert termios.tcgetattr(terminal)[3] & termios.ECHO
    os.close(terminal)
    return status, shown.decode()


@pytest.mark.once
def test_the_script_asks_for_the_token_and_the_terminal_does_not_show_it(site):
    token = site.token()
    status, shown = typed(site, f"{token.text()}\n")
    assert status == 0, shown
    assert "Without --print this would" in shown
    assert token.secret not in shown
    # Interrupted: the terminal shows again what is typed.
    status, _ = typed(site, "\x03")
    assert status


def serve_broker_users(path: Path, stop: threading.Event, environ: dict[str, str]):
    """Run deploy/broker-user for each connection, as its systemd socket does."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        server.settimeout(0.1)
        while not stop.is_set():
            try:
                link, _ = server.accept()
            except TimeoutError:
                continue
            with link:
                link.setblocking(True)
                subprocess.run(
                    ["sh", str(ROOT / "deploy" / "broker-user")],
                    stdin=link,
                    stdout=link,
                    env=environ,
                    check=False,
                )


def until(found, process: subprocess.Popen[bytes], log: Path):
    """Wait for a result that is not empty."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not (value := found()):
        said = log.read_text()
        assert process.poll() is None, said
        assert time.monotonic() < deadline, said
        time.sleep(0.1)
    return value


@pytest.mark.once
def test_one_line_makes_a_machine_a_node_that_works(site, settings, tmp_path):
    stop = threading.Event()
    with brokers.running("redis", tmp_path, nodes=[]) as broker:
        # Any name of this machine that is spelt differently.
        place = f"0.0.0.0:{broker.port}/0"
        settings.REDIS_URL = f"redis://portal:{brokers.PORTAL_PASSWORD}@{place}"
        settings.BROKER_USER_SOCKET = str(tmp_path / "user.sock")
        (tmp_path / "broker-admin").write_text(brokers.ADMIN_PASSWORD)
        environ = {
            "PATH": os.environ["PATH"],
            "REDIS_URL": settings.REDIS_URL,
            "CREDENTIALS_DIRECTORY": str(tmp_path),
        }
        helper = threading.Thread(
            target=serve_broker_users,
            args=(tmp_path / "user.sock", stop, environ),
        )
        helper.start()
        try:
            _join_and_work(site, broker, tmp_path)
        finally:
            stop.set()
            helper.join(60)


def _join_and_work(site: Site, broker: brokers.Broker, tmp_path: Path) -> None:
    token = site.token()
    options = site.options("--token-file", site.token_file(token.text()))
    # Paths as a person types them.
    make_authority(tmp_path)
    options += ["--folder", "opt", "--settings", "etc", "--ca", "ca.pem"]
    done = site.script(*options)
    assert done.returncode == 0, done.stderr
    assert "works with this machine's key only" in done.stdout
    assert "atlas has joined" in done.stdout
    # The broker keeps the user over a restart.
    assert "user node-atlas on" in broker.users_file.read_text()
    row = NodeJoin.objects.get()
    assert row.broker_set, row.broker_problem
    assert row.public_key == row.request["public_key"] != ""
    assert row.facts["channel"] == row.facts["broker"] == ""
    for name in ("node.env", "node.token", "node_key"):
        assert (tmp_path / "etc" / name).stat().st_mode & 0o077 == 0

    lines = (tmp_path / "etc" / "node.env").read_text().splitlines()
    given = dict(line.split("=", 1) for line in lines if line[:1].isupper())
    node = redis.Redis.from_url(given["GPUPORTAL_NODE_REDIS_URL"])
    with pytest.raises(redis.exceptions.NoPermissionError):
        node.xadd("raw.borg", {"m": "{}"})
    log = tmp_path / "worker.log"
    with log.open("wb") as out:
        worker = subprocess.Popen(
            [
                *(".venv/bin/python", "-m", "celery", "-A", "gpuportal.node"),
                *("worker", "-Q", "node.atlas", "--pool", "solo", "-l", "WARNING"),
            ],
            cwd=tmp_path / "opt",
            env={
                "PATH": os.environ["PATH"],
                "C_FORCE_ROOT": "1",
                **given,
                "GPUPORTAL_NODE_DIR": str(tmp_path / "work"),
            },
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        facts = until(lambda: broker.portal.xrange("facts.atlas"), worker, log)
        until(lambda: Node.objects.get().channel_at, worker, log)
        assert facts
    finally:
        worker.terminate()
        worker.wait(60)

    # A second use of the same line changes nothing.
    before = (tmp_path / "etc" / "node.token").read_text()
    assert "used already" in one_line(site.script(*options))
    assert (tmp_path / "etc" / "node.token").read_text() == before
    _update(site, tmp_path)


def _update(site: Site, tmp_path: Path) -> None:
    """Newer code without a token: modules and units of the old one are gone."""
    opt = tmp_path / "opt"
    (opt / "LICENSE").write_text("old")
    (opt / "gpuportal" / "removed.py").write_text("")
    (opt / "dropped").mkdir()
    with (opt / ".parts").open("a") as parts:
        parts.write("dropped\n")
    (opt / "notes.txt").write_text("of an operator")
    packages = (opt / ".venv").readlink()
    units, programs = tmp_path / "units", tmp_path / "fake"
    units.mkdir()
    unit = units / "gpuportal-node.service"
    unit.write_text("old")
    programs.mkdir()
    systemctl = programs / "systemctl"
    systemctl.write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/systemctl.log\n')
    systemctl.chmod(0o755)
    for asked in (
        ["daemon-reload", "restart gpuportal-node"],
        ["restart gpuportal-node"],
    ):
        done = site.script(
            *site.options("--update"),
            path=f"{programs}:",
            GPUPORTAL_UNIT_DIR=str(units),
        )
        assert done.returncode == 0, done.stderr
        log = tmp_path / "systemctl.log"
        assert log.read_text().splitlines() == asked
        log.unlink()
    assert f"ExecStart={opt}/.venv/bin/python" in unit.read_text()
    assert (opt / "LICENSE").read_text() != "old"
    assert (opt / ".venv").readlink() == packages
    names = {path.name for path in opt.iterdir()}
    assert "notes.txt" in names
    assert not names & {"dropped", ".old", ".new"}
    assert not (opt / "gpuportal" / "removed.py").exists()
    # Packages that cannot be installed: the code is the one of before.
    (opt / "LICENSE").write_text("kept")
    (opt / ".venv").unlink()
    failing = programs / "ln"
    failing.write_text("#!/bin/sh\nexit 1\n")
    failing.chmod(0o755)
    done = site.script(*site.options("--update"), path=f"{programs}:")
    assert "could not be installed" in one_line(done)
    assert (opt / "LICENSE").read_text() == "kept"
