"""Real TensorBoard and marimo, and a program that stands for code-server, behind the
first process of a workspace's job.
"""

import http.client
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from websockets.sync.client import unix_connect

from placement.agent.access import workspace_host
from placement.agent.process.job_process import CODE_DIR
from placement.agent.process.program_lookup import SYSTEM_PATH
from tests.placement.nodes import PATIENCE_SECONDS, until

ENVIRONMENT = f"{sys.prefix}/bin:{SYSTEM_PATH}"


class Running:
    """A workspace's first process, and the socket by which the node reaches it."""

    def __init__(self, process, socket_path, tmp):
        self.process, self.socket_path, self.tmp = process, socket_path, tmp

    @property
    def inner(self):
        """The program's own socket, once it listens."""
        found = list(self.tmp.glob("ws-*/app.sock"))
        assert self.process.poll() is None, "it ended"
        return found[0] if found else None

    def ask(self, path, socket_path=None, **headers):
        """Send one request over a Unix socket. Return (status, body)."""
        line = socket.socket(socket.AF_UNIX)
        line.settimeout(PATIENCE_SECONDS)
        line.connect(str(socket_path or self.socket_path))
        asked = http.client.HTTPConnection("w-a.localhost")
        asked.sock = line
        asked.request("GET", path, headers={"Connection": "close"} | headers)
        answer = asked.getresponse()
        return answer.status, answer.read()

    def listens_on_tcp(self):
        """Return the TCP ports on which a process of the workspace listens."""
        sockets = set()
        for fd in Path("/proc").glob("[0-9]*/fd/*"):
            try:
                if os.getsid(int(fd.parts[2])) == self.process.pid:
                    sockets.add(str(fd.readlink()))
            except OSError:
                continue
        rows = [
            line.split()
            for name in ("tcp", "tcp6")
            for line in Path("/proc/net", name).read_text().splitlines()[1:]
        ]
        assert sockets, "its descriptors can be read"
        return [
            row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets
        ]


@contextmanager
def running(tmp_path, app, folder, path_of_programs=ENVIRONMENT):
    """Run a workspace as the shim does, with the listening socket as descriptor 3."""
    path, tmp = tmp_path / "s", tmp_path / "t"
    tmp.mkdir()
    with socket.socket(socket.AF_UNIX) as listener, (tmp_path / "log").open("w") as log:
        listener.bind(str(path))
        listener.listen()
        code = (
            f"import os, sys; os.dup2({listener.fileno()}, 3); "
            "os.execv(sys.executable, [sys.executable, '-m', "
            f"{workspace_host.__name__!r}, sys.argv[1]])"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", code, json.dumps({"app": app, "folder": folder})],
            env={
                "PATH": path_of_programs,
                "HOME": str(tmp_path),
                "TMPDIR": str(tmp),
                "PYTHONPATH": str(CODE_DIR),
            },
            cwd=tmp_path,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=sorted({listener.fileno(), 3}) if listener.fileno() != 3 else (3,),
        )
    made = Running(process, path, tmp)
    try:
        yield made
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(PATIENCE_SECONDS)
    assert not list(tmp.glob("ws-*")), "its folder is removed"


def check_private(made):
    """Only the student reaches the program, and only through the folder."""
    until(lambda: made.inner, what="the program")
    folder = made.inner.parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert made.listens_on_tcp() == []


def test_tensorboard_shows_runs_and_listens_on_nothing_but_its_socket(tmp_path):
    writer = EventFileWriter(str(tmp_path / "runs" / "first"))
    value = Summary.Value(tag="loss", simple_value=0.5)
    writer.add_event(Event(step=1, summary=Summary(value=[value])))
    writer.close()
    with running(tmp_path, "tensorboard", "runs") as made:
        status, page = made.ask("/")
        assert status == 200 and b"TensorBoard" in page
        until(
            lambda: json.loads(made.ask("/data/runs")[1]) == ["first"],
            what="the run to be read",
        )
        _, scalars = made.ask("/data/plugin/scalars/tags")
        assert "loss" in json.loads(scalars)["first"]
        check_private(made)
    assert f"shows the logs in {tmp_path}/runs" in (tmp_path / "log").read_text()
    listed = Path("/tmp/.tensorboard-info", f"pid-{made.process.pid}.info")
    assert not listed.exists(), "no list that all users share names it"


def test_marimo_asks_for_a_token_that_no_log_holds(tmp_path):
    (tmp_path / "notes").mkdir()
    with running(tmp_path, "marimo", "~/notes") as made:
        status, page = made.ask("/", Authorization="Bearer wrong")
        assert status == 200 and b"marimo" in page
        check_private(made)
        token = (made.inner.parent / "token").read_text()
        assert re.fullmatch(r"[\w-]{43}", token)
        status, _ = made.ask("/api/status", made.inner)
        assert status in (303, 401, 403)
        words = Path(f"/proc/{made.process.pid}/task").parent / "cmdline"
        assert token.encode() not in words.read_bytes()
    assert token not in (tmp_path / "log").read_text()


STAND_IN = """#!{python}
# Listens like code-server, and keeps how it was called.
import json, sys
sys.path.insert(0, {root!r})
import uvicorn
from tests.placement.workspace.programs import program
options = dict(word.lstrip("-").partition("=")[::2] for word in sys.argv[1:])
with open({seen!r}, "w") as file:
    json.dump([sys.argv[0].rpartition("/")[2], *sys.argv[1:]], file)
uvicorn.run(program, uds=options[{option!r}], log_level="error", lifespan="off")
"""


@pytest.mark.parametrize("name", ("code-server", "openvscode-server"))
def test_vs_code_listens_on_nothing_but_its_socket(tmp_path, name):
    """It is called with exact words, and long messages pass."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / name
    program.write_text(
        STAND_IN.format(
            python=sys.executable,
            root=str(CODE_DIR),
            seen=str(tmp_path / "seen"),
            option="socket" if name == "code-server" else "socket-path",
        )
    )
    program.chmod(0o755)
    (tmp_path / "code").mkdir()
    with running(tmp_path, "code-server", "code", f"{folder}:{SYSTEM_PATH}") as made:
        status, page = made.ask("/")
        told = {key: value for key, value in json.loads(page)["headers"]}
        assert status == 200 and "authorization" not in told
        check_private(made)
        inner, shown = made.inner, tmp_path / "code"
        with unix_connect(str(made.socket_path), "ws://w-a.localhost/") as line:
            line.send("x" * 500_000)
            assert line.recv() == "x" * 500_000
    words = {
        "code-server": [
            *(f"--socket={inner}", "--socket-mode=600", "--auth=none"),
            *("--config=/dev/null", f"--session-socket={inner}.session"),
            *("--disable-proxy", "--disable-telemetry", "--disable-update-check"),
            str(shown),
        ],
        "openvscode-server": [
            *(f"--socket-path={inner}", "--without-connection-token"),
            *("--telemetry-level=off", f"--default-folder={shown}"),
        ],
    }
    assert json.loads((tmp_path / "seen").read_text()) == [name, *words[name]]


@pytest.mark.parametrize(
    ("app", "entered", "told"),
    (
        ("tensorboard", "none", "There is no folder {home}/none on this node."),
        ("marimo", "/nowhere", "There is no folder /nowhere on this node."),
        ("jupyter-lab", "file", "There is no folder {home}/file on this node."),
    ),
)
def test_a_folder_that_is_not_there_is_named(tmp_path, app, entered, told):
    (tmp_path / "file").touch()
    with running(tmp_path, app, entered) as made:
        assert made.process.wait(PATIENCE_SECONDS) == 126
    text = (tmp_path / "log").read_text()
    assert text == f"gpuportal: {told.format(home=tmp_path)}\n"
