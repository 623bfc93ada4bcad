"""Web processes of small releases, under ``web_generations``, and requests to them."""

import http.client
import os
import socket
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

from tests.house.walk import ROOT
from tests.placement.nodes import until

WEB = """
import asyncio, os, sys
from pathlib import Path
from gpuportal import systemd
from gpuportal.supervisor import web_process

RELEASE = Path("RELEASE").read_text()

async def application(scope, receive, send):
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "text": RELEASE})
        await receive()
        return
    while (await receive()).get("more_body"):
        pass
    if scope["path"] == "/slow":
        Path("slow").touch()
        while not Path("finish").exists():
            await asyncio.sleep(0.02)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": RELEASE.encode()})

if __name__ == "__main__":
    if RELEASE == "broken":
        sys.exit(3)
    sys.modules["web"] = sys.modules["__main__"]
    sys.argv += ["--app", "web:application"]
    systemd.ready()
    web_process.main()
"""


def write_web(folder: Path, name: str) -> None:
    """Make the web of a release. The one of the name "broken" does not start."""
    folder.mkdir(exist_ok=True)
    (folder / "web.py").write_text(WEB)
    (folder / "RELEASE").write_text(name)


class Web:
    """The process under test, on an open port."""

    def __init__(self, root: Path, state: Path) -> None:
        """Start it.

        Args:
            root: a release, or a link to one.
            state: file that it writes.
        """
        self.root, self.state = root, state
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
        self.port = self.listener.getsockname()[1]
        fd = self.listener.fileno()
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "gpuportal.supervisor.web_generations"),
                *("--root", str(self.root), "--state", str(self.state)),
                *("--fd", str(fd), "--workers", "1", "--module", "web"),
            ],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            pass_fds=(fd,),
            stderr=subprocess.PIPE,
            text=True,
        )
        until(lambda: state.exists() or self.process.poll() is not None)

    def point(self, release: str) -> None:
        """Let the root lead to a release beside it."""
        draft = self.root.with_suffix(".new")
        draft.symlink_to(self.root.parent / release)
        draft.replace(self.root)

    def close(self) -> None:
        """End it and its processes."""
        self.process.terminate()
        self.process.communicate(timeout=90)
        self.listener.close()

    def ask(self, path: str = "/") -> str:
        """Send a form on a new connection, as a proxy does."""
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=90)
        try:
            client.request("POST", path, b"x" * 1000, {"Connection": "close"})
            answer = client.getresponse()
            assert answer.status == 200
            return answer.read().decode()
        finally:
            client.close()


class Load:
    """50 requests a second until the block ends, each in a separate thread."""

    def __init__(self, web: Web) -> None:
        self.web, self.answers = web, Counter()
        self.failed: list[Exception] = []
        self.over = threading.Event()
        self.pacer = threading.Thread(target=self._pace)

    def __enter__(self) -> "Load":
        self.pacer.start()
        return self

    def __exit__(self, *_why: object) -> None:
        self.over.set()
        self.pacer.join()

    def _pace(self) -> None:
        asked = []
        while not self.over.wait(0.02):
            asked.append(threading.Thread(target=self._ask))
            asked[-1].start()
        for one in asked:
            one.join()

    def _ask(self) -> None:
        try:
            self.answers[self.web.ask()] += 1
        except Exception as error:
            self.failed.append(error)
