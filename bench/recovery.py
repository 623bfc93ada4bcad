"""Kill -9 each process of a live portal in turn, and measure the recovery of pages.

    python bench/recovery.py [--pages 20]

A separate portal with the demo lab, pages that hold a websocket open and fetch the
board, and a running job. For every process: the seconds until the supervisor has
replaced it, and the seconds until a page gets a frame again in which every Gpu that
answered before is at most two seconds old (0: no page noticed).
"""

import argparse
import http.cookiejar
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import websockets.exceptions
from websockets.sync.client import connect

from telemetry.protocol.frame import decode
from tests.gpuportal.running import Portal

VICTIMS = {
    "web": "gpuportal.asgi:application",
    "control worker": "celeryd: control@",
    "beat": "[celery beat]",
    "ingest": "manage.py ingest",
    "broker": "valkey-server",
    "node worker": "-Q node.",
    "sampling child": "telemetry.agent.sampler",
}
FRESH_SECONDS = 2.0
PATIENCE_SECONDS = 60.0
CALM_SECONDS = 6.0
"""Pause between two deaths: five quick ones in a row would end the portal, by
design.
"""


class Page(threading.Thread):
    """One open board. It reconnects like the site's own script."""

    def __init__(self, base: str, cookie: str) -> None:
        super().__init__(daemon=True)
        self.base, self.cookie = base, cookie
        self.answering: set[int] = set()
        self.bad_at = 0.0
        """The last time without a frame, or with an old row in it."""
        self.good_at = 0.0
        """The time after that at which all was right again."""

    def run(self) -> None:
        """Read frames without end."""
        address = self.base.replace("http", "ws", 1) + "/ws/board/"
        while True:
            try:
                with connect(
                    address,
                    origin=self.base,
                    additional_headers={"Cookie": self.cookie},
                    max_size=None,
                ) as link:
                    while True:
                        self._see(link.recv(timeout=2.5))
            except (OSError, TimeoutError, websockets.exceptions.WebSocketException):
                self.bad_at = time.monotonic()
                time.sleep(0.2)

    def _see(self, message: str | bytes) -> None:
        if isinstance(message, str):
            return
        rows = decode(message).rows
        fresh = {
            number
            for number, row in enumerate(rows)
            if row.age_seconds is not None and row.age_seconds <= FRESH_SECONDS
        }
        self.answering = self.answering or fresh
        if not fresh >= self.answering:
            self.bad_at = time.monotonic()
        elif self.good_at <= self.bad_at:
            self.good_at = time.monotonic()


def sign_in(base: str, var: Path) -> str:
    """Sign in as a person of the demo lab. Return the session's cookie."""
    text = (var / "secret" / "logins.txt").read_text()
    found = re.search(r"^\s*(alice|carol|bob)\s+(\S.*)$", text, re.MULTILINE)
    if found is None:
        raise SystemExit("no login in logins.txt")
    return log_in(base, found[1], found[2].split()[0])


def log_in(base: str, name: str, password: str) -> str:
    """Sign a user in. Return the session's cookie."""
    jar = http.cookiejar.CookieJar()
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
    opener.open(f"{base}/login/", timeout=10).read()
    cookies = {cookie.name: cookie.value for cookie in jar}
    form = {
        "username": name,
        "password": password,
        "csrfmiddlewaretoken": cookies["csrftoken"],
    }
    asked = urllib.request.Request(
        f"{base}/login/",
        urllib.parse.urlencode(form).encode(),
        {"Referer": f"{base}/login/"},
    )
    opener.open(asked, timeout=10).read()
    sessions = [cookie for cookie in jar if cookie.name == "sessionid"]
    if not sessions:
        raise SystemExit("signing in failed")
    return f"sessionid={sessions[0].value}"


def kill(portal: Portal, pages: list[Page], part: str) -> tuple[float, float]:
    """Return (seconds until the process is replaced, seconds until all pages are
    right).
    """
    before = set(portal.left())
    victim = min(pid for pid, words in portal.left().items() if part in words)
    killed = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    replaced = 0.0
    while time.monotonic() - killed < PATIENCE_SECONDS:
        now = {pid for pid, words in portal.left().items() if part in words}
        if not replaced and now - before:
            replaced = time.monotonic() - killed
        calm = all(page.good_at > page.bad_at for page in pages)
        if replaced and calm and time.monotonic() - killed > CALM_SECONDS:
            hit = [page.good_at - killed for page in pages if page.bad_at > killed]
            return replaced, max(hit, default=0.0)
        time.sleep(0.05)
    raise SystemExit(f"{part} did not come back:\n" + "\n".join(portal.lines[-20:]))


def main() -> None:
    """Kill one process after another and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pages", type=int, default=20)
    options = parser.parse_args()
    var = Path(tempfile.mkdtemp(prefix="recovery-"))
    try:
        with Portal(var) as portal:
            base = portal.ready()
            cookie = sign_in(base, var)
            pages = [Page(base, cookie) for _ in range(options.pages)]
            for page in pages:
                page.start()
            time.sleep(15)
            load = os.getloadavg()[0]
            print(f"{options.pages} pages, {os.cpu_count()} cores, load {load:.1f}")
            print(f"{'killed':<16}{'replaced':>10}{'pages right':>13}")
            for name, part in VICTIMS.items():
                replaced, right = kill(portal, pages, part)
                print(f"{name:<16}{replaced:>8.1f} s{right:>11.1f} s", flush=True)
                time.sleep(CALM_SECONDS)
    finally:
        shutil.rmtree(var, ignore_errors=True)


if __name__ == "__main__":
    main()
