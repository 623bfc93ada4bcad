"""The first process of a workspace's job, and the service that reaches it."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from placement.agent.access import container_command, program_host, workspace_host
from placement.agent.access.program_host import ProgramHost, with_token
from placement.agent.access.workspace_host import (
    FolderMissing,
    ProgramMissing,
    app_command,
    shown_folder,
)
from placement.agent.access.workspace_service import connect_workspace
from placement.agent.process import program_lookup
from placement.agent.process.job_process import CODE_DIR
from placement.agent.process.unix_user import identity_of
from placement.planner.launch.recipes import WORKSPACE
from placement.planner.launch.workspace_apps import CODE_SERVER, JUPYTER_LAB, AppPlace
from placement.protocol.node_refusals import OrderRefused
from placement.protocol.stream_frames import StreamOrder
from placement.protocol.stream_refusal import StreamRefused
from tests.placement.nodes import PATIENCE_SECONDS, make_order, make_settings


def run_host(folder, path, settings='{"app": "jupyter-lab"}', image="", system=""):
    """Run it as the shim does, with a listening socket as descriptor 3.

    `image` is its environment, and `system` the PATH on which engines are looked for.
    """
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "s"))
    listener.listen()
    begin = f"import os, sys; os.dup2({listener.fileno()}, 3); "
    code = begin + (
        "os.execv(sys.executable, [sys.executable, '-m', "
        f"{workspace_host.__name__!r}, {settings!r}])"
    )
    if system:
        code = begin + (
            f"import {container_command.__name__} as c; c.SYSTEM_PATH = {system!r}; "
            f"from {workspace_host.__name__} import main; "
            f"sys.exit(main(['', {settings!r}]))"
        )
    env = {"PATH": path, "HOME": str(folder), "PYTHONPATH": str(CODE_DIR)}
    env |= {"GPUPORTAL_IMAGE": image} if image else {}
    words = [sys.executable, "-c", code]
    with listener:
        return subprocess.run(
            words,
            env=env,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            pass_fds=(listener.fileno(), 3) if listener.fileno() != 3 else (3,),
            check=False,
        )


def test_without_vs_code_the_command_that_installs_it_is_named(tmp_path):
    settings = '{"app": "code-server"}'
    curl = (
        "curl -fsSL https://code-server.dev/install.sh | sh -s -- --method=standalone"
    )
    done = run_host(tmp_path, "/usr/local/bin:/usr/bin:/bin", settings)
    assert done.returncode == 126
    assert done.stderr == (
        "gpuportal: code-server is not installed in the system's PATH. Install it on "
        f"this node: {curl} --prefix={tmp_path}/.local, and name this folder as "
        "environment\n"
    )
    (tmp_path / "s").unlink()
    inner = tmp_path / "venv" / "bin"
    inner.mkdir(parents=True)
    done = run_host(tmp_path, f"{inner}:/usr/local/bin:/usr/bin:/bin", settings)
    assert f"in {tmp_path}/venv or the system's PATH. " in done.stderr
    assert done.stderr.endswith(f"{curl} --prefix={tmp_path}/venv\n")


def test_vs_code_of_the_node_serves_an_environment_that_has_none(tmp_path, monkeypatch):
    node, venv = tmp_path / "node", tmp_path / "venv" / "bin"
    for folder in (node, venv):
        folder.mkdir(parents=True)
    for module in (workspace_host, program_lookup):
        monkeypatch.setattr(module, "SYSTEM_PATH", str(node))
    place = AppPlace(socket="/s", token_file="/t", folder="/f")
    environ = {"PATH": f"{venv}:{node}", "HOME": str(tmp_path)}
    for name in ("openvscode-server", "code-server"):
        (node / name).touch(0o755)
        assert app_command(CODE_SERVER, place, environ)[0] == str(node / name)
    (node / "jupyter-lab").touch(0o755)
    with pytest.raises(ProgramMissing):
        app_command(JUPYTER_LAB, place, environ)
    (venv / "code-server").touch(0o755)
    assert app_command(CODE_SERVER, place, environ)[0] == str(venv / "code-server")


def test_an_environment_without_jupyter_names_the_command_that_installs_it(tmp_path):
    inner = tmp_path / "venv" / "bin"
    inner.mkdir(parents=True)
    path = f"{inner}:/usr/local/bin:/usr/bin:/bin"
    done = run_host(tmp_path, path)
    assert done.returncode == 126
    assert done.stderr == (
        f"gpuportal: jupyter-lab is not installed in {tmp_path}/venv. Install it on "
        f"this node: {inner}/python -m pip install jupyterlab\n"
    )
    assert run_host_again(tmp_path, path).returncode == 2


def run_host_again(folder, path):
    (folder / "s").unlink()
    return run_host(folder, path, '{"app": "emacs"}')


def test_the_program_gets_its_token_and_nothing_of_the_portal(tmp_path):
    inner = tmp_path / "venv" / "bin"
    inner.mkdir(parents=True)
    program = inner / "jupyter-lab"
    program.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        "print(json.dumps([sys.argv[1:], dict(os.environ)]))\nsys.exit(7)\n"
    )
    program.chmod(0o755)
    done = run_host(tmp_path, f"{inner}:/usr/local/bin:/usr/bin:/bin")
    assert done.returncode == 7, done.stderr
    words, environ = json.loads(done.stdout)
    sock = next(w.partition("=")[2] for w in words if w.startswith("--ServerApp.sock="))
    assert not Path(sock).parent.exists(), "its folder is removed"
    assert len(environ["JUPYTER_TOKEN"]) == 43
    assert environ["JUPYTER_TOKEN"] not in " ".join(words)
    assert "PYTHONPATH" not in environ
    assert ("--allow-root" in words) == (os.geteuid() == 0)
    program.chmod(0o757)
    (tmp_path / "s").unlink()
    refused = run_host(tmp_path, f"{inner}:/usr/local/bin:/usr/bin:/bin")
    assert refused.returncode == 126 and "everybody may write" in refused.stderr


def test_a_request_gets_the_token_and_loses_every_other(tmp_path):
    head = b"GET / HTTP/1.1\r\nAuthorization : x\r\nAUTHORIZATION: y\r\nA: b"
    assert with_token(head, "token t") == (
        b"GET / HTTP/1.1\r\nA: b\r\nAuthorization: token t"
    )

    async def exchange():
        heard = []

        async def program(reader, writer):
            heard.append(await reader.readuntil(b"\r\n\r\n"))
            heard.append(await reader.readexactly(4))
            writer.write(b"answer")
            writer.close()

        inner, outer = str(tmp_path / "app.sock"), str(tmp_path / "outer.sock")
        host = ProgramHost(inner, authorization="token t")
        async with await asyncio.start_unix_server(host.pass_on, outer):
            reader, writer = await asyncio.open_unix_connection(outer)
            # The program begins to listen later.
            writer.write(b"POST / HTTP/1.1\r\nA: b\r\n\r\nbody")
            await asyncio.sleep(0)
            async with await asyncio.start_unix_server(program, inner):
                answer = await reader.read()
            writer.close()
        return heard, answer

    heard, answer = asyncio.run(asyncio.wait_for(exchange(), PATIENCE_SECONDS))
    assert heard[0] == b"POST / HTTP/1.1\r\nA: b\r\nAuthorization: token t\r\n\r\n"
    assert (heard[1], answer) == (b"body", b"answer")


def test_few_connections_wait_for_a_program_and_none_whose_peer_has_gone(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(program_host, "MOST_WAITING", 2)
    outer = str(tmp_path / "outer.sock")
    host = ProgramHost(str(tmp_path / "app.sock"), ready_seconds=PATIENCE_SECONDS)

    async def ask():
        reader, writer = await asyncio.open_unix_connection(outer)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        return reader, writer

    async def until_waiting(count):
        while host._waiting != count:
            await asyncio.sleep(0.01)

    async def exchange():
        async with await asyncio.start_unix_server(host.pass_on, outer):
            waiting = [await ask(), await ask()]
            await until_waiting(2)
            reader, writer = await ask()
            assert await reader.read() == b"", "the third is closed at once"
            writer.close()
            assert host._waiting == 2
            for _, writer in waiting:
                writer.close()
            await until_waiting(0)

    asyncio.run(asyncio.wait_for(exchange(), PATIENCE_SECONDS))


def test_a_workspace_never_runs_without_isolation(monkeypatch):
    order = make_order(recipe=WORKSPACE.name, settings={"app": "jupyter-lab"}, user="x")
    monkeypatch.delenv("GPUPORTAL_OWN_IDS", raising=False)
    with pytest.raises(OrderRefused) as refused:
        identity_of(order, allow_scripts=False)
    assert refused.value.code == "isolation"


@pytest.mark.parametrize("folder", ("../../etc", "7-1-ab", "7-1", "", "7-1/../8-1"))
def test_only_a_running_workspace_can_be_reached(tmp_path, folder):
    node = make_settings(tmp_path)
    (node.node_dir / "jobs" / "7-1-ab").mkdir(parents=True)
    order = StreamOrder(
        kind="stream",
        node="node1",
        stream="0" * 32,
        service="workspace",
        reservation=1,
        user="alice",
        unix_user="",
        issued_at=0.0,
        expires_at=1.0,
        options={"folder": folder} if folder else {},
    )
    with pytest.raises(StreamRefused) as refused:
        asyncio.run(connect_workspace(node, order, None))
    assert refused.value.code in ("no-service", "bad-request")


@pytest.mark.pure
def test_a_home_that_is_not_mounted_is_named_and_another_folder_works(
    tmp_path, monkeypatch
):
    account = SimpleNamespace(pw_dir=str(tmp_path / "ada"))
    monkeypatch.setattr(workspace_host.pwd, "getpwuid", lambda uid: account)
    (tmp_path / "runs").mkdir()
    for entered in ("", "~", "runs", "~/runs"):
        with pytest.raises(FolderMissing, match=r"/ada is not on this node.*absolute"):
            shown_folder(entered, str(tmp_path))
    runs = str(tmp_path / "runs")
    assert shown_folder(runs, str(tmp_path)) == runs
    # It is mounted now.
    (tmp_path / "ada").mkdir()
    assert shown_folder("~/runs", str(tmp_path)) == runs
    with pytest.raises(FolderMissing, match=r"no folder .*/lost on this node"):
        shown_folder("lost", str(tmp_path))
