"""The broker's password is sent to the broker and to no impostor."""

import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
import redis
from celery import Celery
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from django.core.management import call_command

from gpuportal.broker import BrokerUrlInvalid, is_unencrypted, verified_url
from gpuportal.node_settings import NodeSettings, NodeSettingsError
from placement.protocol import signing
from tests import brokers
from tests.brokers import Broker
from tests.house.walk import ROOT


def certificate(folder: Path) -> tuple[Path, Path]:
    """Make a self-signed certificate for 127.0.0.1. Return (certificate, key)."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "broker")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    crt, pem = folder / "broker.crt", folder / "broker.key"
    crt.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    pem.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return crt, pem


class Impostor:
    """A TLS server that is not the broker. It records what it was sent."""

    def __init__(self, crt: Path, key: Path) -> None:
        self.heard = b""
        self.connections = 0
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(crt, key)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                raw, _address = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            raw.settimeout(60)
            try:
                with self._context.wrap_socket(raw, server_side=True) as channel:
                    while data := channel.recv(4096):
                        self.heard += data
                        channel.sendall(b"+OK\r\n")
            except OSError:
                continue

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def impostor(tmp_path: Path) -> Iterator[Impostor]:
    server = Impostor(*certificate(tmp_path))
    yield server
    server.close()


def node_environ(url: str, folder: Path, **more: str) -> dict[str, str]:
    (folder / "token").write_text("token")
    (folder / "order_key.pub").write_text(signing.public_key_pem())
    return {
        "PATH": os.environ["PATH"],
        "GPUPORTAL_NODE": "atlas",
        "GPUPORTAL_NODE_REDIS_URL": url,
        "GPUPORTAL_WEB_URL": "http://127.0.0.1:1",
        "GPUPORTAL_NODE_TOKEN_FILE": str(folder / "token"),
        "GPUPORTAL_ORDER_KEY_FILE": str(folder / "order_key.pub"),
        "GPUPORTAL_NODE_DIR": str(folder / "node"),
        "GPUPORTAL_BACKEND": "simulated",
        "GPUPORTAL_SIM_DIR": str(folder / "sim"),
        "GPUPORTAL_SUPERVISOR_PID": str(os.getpid()),
        **more,
    }


@contextmanager
def node_worker(environ: dict[str, str], log: Path) -> Iterator[subprocess.Popen]:
    """Run the worker of the node atlas."""
    with log.open("w") as out:
        worker = subprocess.Popen(
            [
                *(sys.executable, "-m", "celery", "-A", "gpuportal.node", "worker"),
                *("-Q", "node.atlas", "--pool", "prefork", "-c", "1", "-l", "WARNING"),
            ],
            cwd=ROOT,
            env=environ,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield worker
    finally:
        worker.terminate()
        try:
            worker.wait(60)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait(10)


def until(condition, log: Path, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)


def test_a_node_does_not_tell_its_password_to_an_impostor(impostor, tmp_path):
    url = f"rediss://node-atlas:secret-of-atlas@127.0.0.1:{impostor.port}/0"
    log = tmp_path / "log"
    with node_worker(node_environ(url, tmp_path), log):
        # It tries, is refused by its own check, and tries again.
        until(lambda: impostor.connections >= 2, log)
        until(lambda: "certificate verify failed" in log.read_text(), log)
    assert impostor.heard == b""
    assert "insecure SSL" not in log.read_text()


def test_the_web_does_not_tell_its_password_to_an_impostor(impostor, tmp_path):
    """The settings of the web from the environment, in both clients."""
    script = (
        "from django.conf import settings\n"
        "from celery import Celery\n"
        "from redis import Redis\n"
        "for connect in (\n"
        "    lambda: Celery(broker=settings.CELERY_BROKER_URL).connection()"
        ".ensure_connection(max_retries=1, timeout=30),\n"
        "    lambda: Redis.from_url(settings.REDIS_URL, socket_timeout=30).ping(),\n"
        "):\n"
        "    try:\n"
        "        connect()\n"
        "    except Exception as error:\n"
        "        assert 'certificate verify failed' in str(error), repr(error)\n"
        "    else:\n"
        "        raise SystemExit('it connected')\n"
    )
    environ = {
        **os.environ,
        "REDIS_URL": f"rediss://portal:secret@127.0.0.1:{impostor.port}/0",
        "DJANGO_SETTINGS_MODULE": "gpuportal.settings",
    }
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert impostor.connections >= 2
    assert impostor.heard == b""


@pytest.fixture
def tls_broker(tmp_path: Path) -> Iterator[tuple[Broker, str]]:
    """A real Redis whose nodes come by TLS; (it, a node's address)."""
    crt, key = certificate(tmp_path)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = [
        *("--tls-port", str(port), "--tls-cert-file", str(crt)),
        *("--tls-key-file", str(key), "--tls-ca-cert-file", str(crt)),
        *("--tls-auth-clients", "no"),
    ]
    with brokers.running("redis", tmp_path, nodes=["atlas"], options=options) as made:
        yield made, f"rediss://node-atlas:{brokers.NODE_PASSWORD}@127.0.0.1:{port}/0"


def test_a_node_takes_orders_over_tls(tls_broker, tmp_path):
    broker, url = tls_broker
    log = tmp_path / "log"
    environ = node_environ(
        url, tmp_path, GPUPORTAL_BROKER_CA_FILE=str(tmp_path / "broker.crt")
    )
    with (
        node_worker(environ, log),
        Celery(broker=broker.portal_url, set_as_current=False) as sender,
    ):
        sender.send_task(
            "node.order",
            args=["[]", "no signature"],
            queue="node.atlas",
            ignore_result=True,
        )
        until(lambda: b"refused" in everything(broker.portal, "facts.atlas"), log)
        until(lambda: everything(broker.portal, "raw.atlas"), log)
    assert "NOPERM" not in log.read_text()


def everything(client: redis.Redis, stream: str) -> bytes:
    return b"".join(fields[b"m"] for _, fields in client.xrange(stream))


# --- addresses -----------------------------------------------------------------------


def test_an_address_keeps_its_parts_and_asks_for_checks(tmp_path):
    file = tmp_path / "ca.pem"
    file.write_text("x")
    url = verified_url("rediss://node-a:p%40ss@h:6379/0?health=1", ca_file=str(file))
    assert url.startswith("rediss://node-a:p%40ss@h:6379/0?health=1&")
    pool = redis.ConnectionPool.from_url(verified_url("rediss://h", ca_file=str(file)))
    assert pool.connection_kwargs["ssl_cert_reqs"] == "required"
    assert pool.connection_kwargs["ssl_check_hostname"] is True
    assert pool.connection_kwargs["ssl_ca_certs"] == str(file)
    assert verified_url("redis://h/0") == "redis://h/0"
    assert verified_url(url) == url


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("rediss://h/0?ssl_cert_reqs=none", "ssl_cert_reqs=none"),
        ("rediss://h/0?ssl_cert_reqs=optional", "ssl_cert_reqs=optional"),
        ("rediss://h/0?ssl_check_hostname=false", "ssl_check_hostname"),
        ("rediss://h/0?ssl_ca_certs=/no/such/file", "/no/such/file"),
    ],
)
def test_an_address_that_turns_a_check_off_is_refused(url, why, tmp_path):
    with pytest.raises(BrokerUrlInvalid, match=why):
        verified_url(url)
    with pytest.raises(NodeSettingsError, match=f"GPUPORTAL_NODE_REDIS_URL .*{why}"):
        NodeSettings.from_env(node_environ(url, tmp_path))


def test_a_node_does_not_go_to_another_machine_in_the_open(tmp_path):
    environ = node_environ("redis://node-atlas:x@gpu.example.org/0", tmp_path)
    with pytest.raises(NodeSettingsError, match="rediss://"):
        NodeSettings.from_env(environ)
    allowed = NodeSettings.from_env(environ | {"GPUPORTAL_BROKER_PLAIN": "1"})
    assert allowed.redis_url == environ["GPUPORTAL_NODE_REDIS_URL"]


@pytest.mark.parametrize(
    ("url", "open_to_all"),
    [
        ("redis://:x@gpu.example.org:6379/0", True),
        ("redis://10.0.0.5/0", True),
        ("redis://localhost/0", False),
        ("redis://127.0.0.2/0", False),
        ("redis://[::1]:6379/0", False),
        ("rediss://gpu.example.org/0", False),
        ("unix:///run/x.sock?db=0", False),
    ],
)
def test_what_goes_over_the_network_in_the_open_is_known(url, open_to_all):
    assert is_unencrypted(url) is open_to_all


def test_the_web_is_warned_of_a_broker_in_the_open(settings, capsys):
    settings.PRODUCTION = True
    settings.REDIS_URL = "redis://portal:x@gpu.example.org:6379/0"
    call_command("check", "--tag", "security")
    said = json.dumps(capsys.readouterr())
    assert "gpuportal.W003" in said
    settings.REDIS_URL = "rediss://portal:x@gpu.example.org:6379/0"
    call_command("check", "--tag", "security")
    assert "gpuportal.W003" not in json.dumps(capsys.readouterr())
