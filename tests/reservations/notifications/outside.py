"""Real servers outside the portal, on loopback: for mail and for webhooks."""

import socket
import threading
from contextlib import contextmanager
from email import message_from_bytes
from email.policy import default
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from aiosmtpd.controller import Controller


class Postman:
    """Accepts mails, or first gives the answers of ``answers``."""

    def __init__(self) -> None:
        self.mails: list[tuple[list[str], Any]] = []
        self.answers: list[str] = []

    async def handle_DATA(self, server, session, envelope):
        if self.answers:
            return self.answers.pop(0)
        mail = message_from_bytes(envelope.content, policy=default)
        self.mails.append((envelope.rcpt_tos, mail))
        return "250 taken"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def smtp(settings):
    """Run an SMTP server and point the site at it."""
    postman = Postman()
    server = Controller(
        postman, hostname="127.0.0.1", port=free_port(), ready_timeout=60
    )
    server.start()
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", server.port
    settings.MAIL_CONFIGURED = True
    settings.PORTAL_URL = "https://gpu.example.org"
    settings.DEFAULT_FROM_EMAIL = "GPU Portal <portal@example.org>"
    try:
        yield postman
    finally:
        server.stop()


class Receiver(ThreadingHTTPServer):
    """``heard`` has the received requests; ``answers`` the statuses that it gives
    first.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Hook)
        self.heard: list[tuple[str, dict[str, str], bytes]] = []
        self.answers: list[int] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}/hook?x=1"


class Hook(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.heard.append((self.path, dict(self.headers), body))
        status = self.server.answers.pop(0) if self.server.answers else 204
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "/elsewhere")
        self.end_headers()

    def log_message(self, *args):
        """Print nothing."""


@contextmanager
def receiver():
    """Run an HTTP server that a webhook can call."""
    server = Receiver()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
