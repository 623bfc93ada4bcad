"""A token that ends while a transfer runs: it waits, and uses the next token."""

import hashlib
import json
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from placement.agent import portal_channel
from placement.agent.job_folder import JobFolder
from placement.agent.portal_channel import ChannelDown, TokenRefused
from placement.agent.storage import checkpoint_transfer
from placement.agent.storage.checkpoint_transfer import CheckpointTransfer
from placement.protocol.node_http import FILE_PIECE_BYTES
from telemetry.protocol.node_token import start_of
from telemetry.token_files import TokenFiles
from tests.placement import nodes

BODY = b"x" * FILE_PIECE_BYTES + b"the end"
SUM = hashlib.sha256(BODY).hexdigest()


class Web:
    """A web that knows one token, and the node that renews it."""

    def __init__(self, folder):
        self.renew_after, self.answers, self.number = 10**9, 0, 0
        self.shown = []
        self.node = nodes.make_settings(folder)
        self.node.token_file.write_text("enrolment")
        self.known = ""
        self.renew()

    def renew(self):
        """The portal knows another token from now on, and the node shows it."""
        self.turn()
        files = TokenFiles(self.node.token_file)
        files.short.write_text(self.known)

    def turn(self):
        """Only the portal knows another token."""
        self.number += 1
        self.known = f"gpn1.{start_of('enrolment')}.{self.number}.{self.number:043}"

    def answer(self, handler):
        """Answer one request."""
        body = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        token = handler.headers["Authorization"].partition(":")[2]
        self.shown.append(token)
        self.answers += 1
        if token != self.known:
            return 401, b'{"detail": "no such node, or not its token"}'
        if self.answers >= self.renew_after:
            self.renew_after = 10**9
            self.renew()
        url = urlsplit(handler.path)
        query = {name: int(value[0]) for name, value in parse_qs(url.query).items()}
        if handler.command == "PUT":
            about = url.path.endswith("about")
            size = 0 if about else query["offset"] + len(body)
            return 200, json.dumps({"size": size}).encode()
        start = query.get("offset", 0)
        return 200, BODY[start : start + FILE_PIECE_BYTES]


@pytest.fixture
def web(tmp_path):
    made = Web(tmp_path)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            status, body = made.answer(self)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_PUT = do_GET

        def log_message(self, *_args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.01}
    )
    thread.start()
    made.url = f"http://127.0.0.1:{server.server_port}"
    made.node = replace(made.node, web_url=made.url)
    yield made
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_ended_token_is_no_refusal_of_a_job(web):
    web.turn()
    with pytest.raises(TokenRefused, match="401") as found:
        portal_channel.request("GET", web.url, node="red", token="old")
    assert isinstance(found.value, ChannelDown)


def test_a_checkpoint_is_kept_until_the_next_token(web, tmp_path):
    folder = JobFolder.of(tmp_path / "jobs", 1, 1, "")
    folder.path.mkdir(parents=True)
    packed = folder.path / "carry.tar"
    packed.write_bytes(b"weights")
    asked = {"most_bytes": 100}
    folder.write("carry", asked)
    transfer = CheckpointTransfer(web.node)
    web.turn()
    with pytest.raises(ChannelDown):
        transfer.bring(folder, asked, threading.Event())
    assert packed.read_bytes() == b"weights" and folder.read("carry") == asked
    web.renew()
    transfer.bring(folder, asked, threading.Event())
    assert folder.read("carry")["done"] is True and not packed.exists()


def test_a_download_uses_the_token_of_the_moment(web, tmp_path):
    web.renew_after = 1  # after the first piece
    order = nodes.make_order(deadline_at=time.time() + 600)
    path = tmp_path / "checkpoint.tar"
    checkpoint_transfer._download(
        order,
        f"{web.url}/checkpoint/1",
        path,
        len(BODY),
        SUM,
        web.node.token_file,
        lambda: False,
    )
    assert path.read_bytes() == BODY
    assert len(set(web.shown)) == len(web.shown) == 2


def test_a_script_waits_for_the_next_token(web):
    web.turn()
    looks = []

    def given_up():
        looks.append(web.renew())
        return False

    found = portal_channel.download_part(
        "script",
        web_url=web.url,
        node="red",
        token_file=web.node.token_file,
        job=1,
        sha256=hashlib.sha256(BODY[:FILE_PIECE_BYTES]).hexdigest(),
        until=time.time() + 600,
        given_up=given_up,
    )
    assert len(found) == FILE_PIECE_BYTES and len(looks) == 1
