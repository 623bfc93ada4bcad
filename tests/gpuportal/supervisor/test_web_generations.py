"""Web processes are replaced under load, and no request is refused."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from gpuportal.supervisor.web_generations import read_state, reload_web
from tests.house.walk import ROOT
from tests.placement.nodes import until

pytestmark = pytest.mark.pure
WEB = """
import asyncio, os, sys
from pathlib import Path
from gpuportal import systemd
from gpuportal.supervisor import web_process

RELEASE = Path.cwd().name

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


class Web:
    """The process under test, on an open port, with the releases a, b and broken."""

    def __init__(self, folder: Path) -> None:
        self.root, self.state = folder / "current", folder / "state.json"
        for name in ("a", "b", "broken"):
            (folder / name).mkdir()
            (folder / name / "web.py").write_text(WEB)
        self.point("a")
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

    def point(self, release: str) -> None:
        """Let the root lead to a release."""
        draft = self.root.with_suffix(".new")
        draft.symlink_to(self.root.parent / release)
        draft.replace(self.root)

    def ask(self, path: str = "/") -> str:
        """Send a form on a connection of its own, as a proxy does."""
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=90)
        try:
            client.request("POST", path, b"x" * 1000, {"Connection": "close"})
            answer = client.getresponse()
            assert answer.status == 200
            return answer.read().decode()
        finally:
            client.close()


@pytest.fixture
def web(tmp_path):
    made = Web(tmp_path)
    yield made
    made.process.terminate()
    made.process.communicate(timeout=90)
    made.listener.close()


class Load:
    """Requests, 50 a second, until it is left; each in a thread of its own."""

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


def test_no_request_is_refused_while_the_release_changes(web, tmp_path):
    assert web.ask() == "a"
    slow: list[str] = []
    upload = threading.Thread(target=lambda: slow.append(web.ask("/slow")))
    upload.start()
    until((tmp_path / "a" / "slow").exists)

    with connect(f"ws://127.0.0.1:{web.port}/") as page:
        assert page.recv(60) == "a"
        with Load(web) as load:
            until(lambda: load.answers["a"] > 5)
            web.point("b")
            assert reload_web(web.state) == ""
            assert read_state(web.state)["release"] == str(tmp_path / "b")
            until(lambda: load.answers["b"] > 5)
        assert load.failed == []
        # Pages connect again soon on this code (static/js/live.js).
        with pytest.raises(ConnectionClosed) as closed:
            page.recv(60)
        assert closed.value.rcvd.code == 1012
    with connect(f"ws://127.0.0.1:{web.port}/") as again:
        assert again.recv(60) == "b"
    # A request that takes long is answered by the release that began it.
    (tmp_path / "a" / "finish").touch()
    upload.join(60)
    assert slow == ["a"]


def test_a_release_that_does_not_start_leaves_the_old_one_serving(web):
    with Load(web) as load:
        until(lambda: load.answers["a"] > 2)
        web.point("broken")
        assert reload_web(web.state) == "a web process ended with status 3"
        assert web.ask() == "a"
    assert load.failed == []
    assert set(load.answers) == {"a"}


def test_a_process_that_dies_comes_back_from_the_release_that_serves(web):
    assert web.ask() == "a"
    web.point("broken")
    children = Path(f"/proc/{web.process.pid}/task/{web.process.pid}/children")
    (child,) = children.read_text().split()
    os.kill(int(child), signal.SIGKILL)
    # What arrives meanwhile waits at the port.
    assert web.ask() == "a"
    (again,) = children.read_text().split()
    assert again != child
    web.process.terminate()
    assert web.process.wait(60) == 0
    with pytest.raises(ProcessLookupError):
        os.kill(int(again), 0)


def test_a_reload_without_a_web_says_so(tmp_path):
    state = tmp_path / "state.json"
    assert reload_web(state) == "the web does not run"
    state.write_text(json.dumps({"pid": 2**22, "reloads": 0}))
    assert reload_web(state) == "the web does not run"
    state.write_text("{")
    began = time.monotonic()
    assert reload_web(state) == "the web does not run"
    assert time.monotonic() - began < 60
