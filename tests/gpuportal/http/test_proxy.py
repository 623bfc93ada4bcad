"""nginx loads ``deploy/nginx.conf.example`` and behaves as it should."""

import http.client
import os
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import uvicorn
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gpuportal.http.bodies import FORM_BYTES
from placement.plans.model_registry import MOST_UPLOAD_BYTES
from tests.house.walk import ROOT

EXAMPLE = ROOT / "deploy" / "nginx.conf.example"
HOST = "gpu.example.org"
SINCE = {
    "add_header": (0, 3),
    "client_max_body_size": (0, 1),
    "error_page": (0, 1),
    "internal": (0, 1),
    "listen": (1, 9, 5),
    "location": (0, 1),
    "map": (0, 9),
    "proxy_http_version": (1, 1, 4),
    "proxy_pass": (0, 1),
    "proxy_read_timeout": (0, 1),
    "proxy_set_header": (0, 1),
    "return": (0, 8, 42),
    "root": (0, 1),
    "server": (0, 1),
    "server_name": (0, 1),
    "server_tokens": (0, 1),
    "ssl_certificate": (0, 1),
    "ssl_certificate_key": (0, 1),
    "ssl_protocols": (1, 13),
    "default": (0, 9),
    "''": (0, 9),
}
"""First version of nginx with each directive as it is written in the example, by the
documentation of nginx: `http2` of listen 1.9.5, TLSv1.3 1.13.0."""

pytestmark = pytest.mark.pure


def nginx() -> str:
    found = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if found is None:
        reason = "no nginx here: apt-get install nginx"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def make_certificate(folder: Path) -> None:
    """Make a certificate in certbot's place."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, HOST)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    (folder / "privkey.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    (folder / "fullchain.pem").write_bytes(pem)


@dataclass(frozen=True)
class Proxy:
    """Where nginx listens and where it looks for the portal."""

    configuration: Path
    plain: int
    tls: int
    portal: int

    def ask(self, method: str, path: str, **more) -> http.client.HTTPResponse:
        insecure = ssl.create_default_context()
        insecure.check_hostname, insecure.verify_mode = False, ssl.CERT_NONE
        client = http.client.HTTPSConnection(
            "127.0.0.1", self.tls, timeout=30, context=insecure
        )
        headers = {"Host": HOST, **more.pop("headers", {})}
        client.request(method, path, headers=headers, **more)
        return client.getresponse()


@pytest.fixture
def configured(tmp_path) -> Proxy:
    """The shipped file, with this machine's ports and folders."""
    tmp_path.chmod(0o755)
    make_certificate(tmp_path)
    proxy = Proxy(tmp_path / "nginx.conf", free_port(), free_port(), free_port())
    text = EXAMPLE.read_text()
    for shipped, here in (
        ("listen 80;", f"listen 127.0.0.1:{proxy.plain};"),
        ("listen 443 ", f"listen 127.0.0.1:{proxy.tls} "),
        ("    listen [::]:80;\n", ""),
        ("    listen [::]:443 ssl http2;\n", ""),
        ("127.0.0.1:8010", f"127.0.0.1:{proxy.portal}"),
        ("/etc/gpuportal/tls", str(tmp_path)),
        ("/opt/gpuportal", str(ROOT)),
    ):
        assert shipped in text, shipped
        text = text.replace(shipped, here)
    temporary = "".join(
        f"{kind}_temp_path {tmp_path}/{kind};\n"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    user = "user root;" if os.getuid() == 0 else ""
    proxy.configuration.write_text(
        f"{user} daemon off; pid {tmp_path}/pid; error_log {tmp_path}/error.log;\n"
        f"events {{}}\nhttp {{\naccess_log off;\n{temporary}\n"
        f"types {{ text/html html; }}\n{text}}}\n"
    )
    return proxy


@pytest.fixture
def proxy(configured) -> Iterator[Proxy]:
    server = subprocess.Popen([nginx(), "-c", str(configured.configuration)])
    deadline = time.monotonic() + 60
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", configured.tls), 1).close()
                break
            except OSError:
                assert server.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.02)
        yield configured
    finally:
        server.terminate()
        server.wait(60)


@pytest.fixture
def portal(proxy) -> Iterator[list[tuple[str, int]]]:
    """A server that accepts every body. It records (scheme, bytes)."""
    came: list[tuple[str, int]] = []

    class Taker(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            rest = length = int(self.headers["Content-Length"])
            while rest:
                rest -= len(self.rfile.read(min(rest, 2**20)))
            came.append((self.headers["X-Forwarded-Proto"], length))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", proxy.portal), Taker)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield came
    server.shutdown()
    thread.join(5)
    server.server_close()


def test_nginx_takes_the_shipped_file(configured):
    done = subprocess.run(
        [nginx(), "-t", "-c", str(configured.configuration)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "test is successful" in done.stderr


def test_the_oldest_nginx_that_the_docs_name_knows_every_directive():
    page = (ROOT / "docs" / "operations.md").read_text()
    (row,) = re.findall(r"^\| nginx \|(.*)\|$", page, re.MULTILINE)
    oldest = min(tuple(map(int, one.split("."))) for one in row.split("|"))
    lines = [line.split("#")[0].split() for line in EXAMPLE.read_text().splitlines()]
    used = {line[0].rstrip(";") for line in lines if line} - {"}"}
    assert used <= SINCE.keys(), "look up since when nginx has it"
    assert {name for name in used if SINCE[name] > oldest} == set()


def test_http_leads_to_https(proxy):
    client = http.client.HTTPConnection("127.0.0.1", proxy.plain, timeout=60)
    client.request("GET", "/calendar/?week=3", headers={"Host": HOST})
    answer = client.getresponse()
    assert answer.status == 301
    assert answer.headers["Location"] == f"https://{HOST}/calendar/?week=3"


def test_a_stopped_portal_is_a_page_that_tries_again(proxy):
    answer = proxy.ask("GET", "/calendar/")
    page = answer.read().decode()
    assert answer.status == 503
    assert answer.headers["Retry-After"] == "5"
    assert "GPU Portal will be back in a moment" in page
    assert 'http-equiv="refresh" content="5"' in page
    policy = answer.headers["Content-Security-Policy"].split("; ")
    assert {"default-src 'none'", "frame-ancestors 'none'"} <= set(policy)
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["X-Frame-Options"] == "DENY"
    # Its version number stays private.
    assert answer.headers["Server"] == "nginx"


def test_what_the_product_takes_passes_the_proxy(proxy, portal):
    body_bytes = 80 * 2**20
    answer = proxy.ask("POST", "/serve/new/", body=bytes(body_bytes))
    assert answer.status == 200
    assert portal == [("https", body_bytes)]


async def refuse(scope, receive, send) -> None:
    """Refuse a body without a look at it, as gpuportal/http/bodies.py does."""
    assert scope["type"] == "http"
    await send({"type": "http.response.start", "status": 413, "headers": []})
    await send({"type": "http.response.body", "body": b"Too large"})


def test_a_refusal_reaches_the_sender_of_a_large_body(proxy):
    """It is no page of a stopped portal, though nginx still sends the body."""
    server = uvicorn.Server(
        uvicorn.Config(refuse, port=proxy.portal, lifespan="off", log_level="error")
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        answer = proxy.ask("POST", "/plan/", body=bytes(60 * 2**20))
        assert (answer.status, answer.read()) == (413, b"Too large")
    finally:
        server.should_exit = True
        thread.join(10)


def test_the_proxy_lets_through_as_much_as_the_product_takes(proxy):
    most_bytes = MOST_UPLOAD_BYTES + FORM_BYTES
    assert f"client_max_body_size {most_bytes // 2**20}m;" in EXAMPLE.read_text()
    too_long = {"Content-Length": str(most_bytes + 1)}
    assert proxy.ask("POST", "/serve/new/", headers=too_long).status == 413
