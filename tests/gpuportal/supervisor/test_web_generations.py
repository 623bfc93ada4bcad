"""Web processes are replaced under load, and no request is refused."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from gpuportal.supervisor.web_generations import read_state, reload_web
from tests.gpuportal.upgrade.web_releases import Load, Web, write_web
from tests.placement.nodes import until

pytestmark = pytest.mark.pure


@pytest.fixture
def web(tmp_path):
    for name in ("a", "b", "broken"):
        write_web(tmp_path / name, name)
    (tmp_path / "current").symlink_to(tmp_path / "a")
    made = Web(tmp_path / "current", tmp_path / "state.json")
    yield made
    made.close()


def test_no_request_is_refused_while_the_release_changes(web, tmp_path):
    assert web.ask() == "a"
    # No other user of the machine can say that a process is ready.
    assert [oct(path.stat().st_mode) for path in tmp_path.glob("ready-*")] == [
        "0o140600"
    ]
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


def test_a_release_that_does_not_start_leaves_the_old_one_serving(web, tmp_path):
    with Load(web) as load:
        until(lambda: load.answers["a"] > 2)
        web.point("broken")
        assert reload_web(web.state) == "a web process ended with status 3"
        assert web.ask() == "a"
        # It has a Python that cannot be executed.
        python = tmp_path / "broken" / ".venv" / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.touch()
        why = reload_web(web.state)
        assert why.startswith("a web process cannot be started: [Errno 13]")
        assert web.ask() == "a"
        # Neither does a state that cannot be written end it.
        python.unlink()
        web.state.with_suffix(".draft").mkdir()
        web.point("b")
        web.process.send_signal(signal.SIGHUP)
        until(lambda: load.answers["b"] > 0)
    assert load.failed == []
    assert set(load.answers) == {"a", "b"}


def test_a_process_that_dies_comes_back_from_the_release_that_serves(web, tmp_path):
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
    assert [*tmp_path.glob("ready-*")] == []
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
