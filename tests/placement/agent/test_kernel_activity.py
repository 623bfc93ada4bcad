"""What a notebook's kernels did, from an answer of Jupyter's API or of a liar."""

import asyncio
import contextlib
import json
import socket
import threading

import pytest

from placement.agent.access import kernel_activity
from placement.agent.access.kernel_activity import KernelActivity, worked_at
from placement.agent.job_folder import JobFolder
from placement.agent.process import serving_socket
from tests.placement.nodes import make_order, until

pytestmark = pytest.mark.pure
NOW = 1_800_000_000.0


def answer(body, status="200 OK"):
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def kernel(state, at="2027-01-15T07:59:00.000000Z", **more):
    return {"id": "a", "execution_state": state, "last_activity": at, **more}


@pytest.mark.parametrize(
    ("kernels", "at"),
    [
        ([], None),
        ([kernel("idle")], NOW - 60),
        ([kernel("idle"), kernel("busy")], NOW),
        ([kernel("idle", "2027-01-15T07:00:00Z"), kernel("starting")], NOW - 60),
        ([kernel("idle", connections=3)], NOW - 60),
    ],
)
def test_a_busy_kernel_works_now_and_an_idle_one_since_its_last_activity(kernels, at):
    assert worked_at(answer(kernels), NOW) == at


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"SSH-2.0-x\r\n",
        answer([], "403 Forbidden"),
        answer(b"<html>"),
        answer({"message": "no"}),
        answer([kernel("idle", "yesterday")]),
        answer([kernel("idle"), kernel("idle", "2099-01-01T00:00:00Z")]),
        answer([kernel("idle"), kernel("idle", "1969-12-31T23:59:59Z")]),
        answer([kernel("idle", "0001-01-01T00:00:00+23:59")]),
        answer([kernel(7)]),
        answer([kernel("idle")] * 1001),
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 200 + b"\r\n[]",
        answer([])[:-1],
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 40 + b"\r\n\r\n[]",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        + b"f" * 40
        + b"\r\n[]",
    ],
)
def test_an_answer_that_cannot_be_read_says_nothing(data):
    with pytest.raises(ValueError, match=r".*"):
        worked_at(data, NOW)


def test_only_notebooks_are_asked_and_one_that_never_answers_is_left(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(kernel_activity, "ANSWER_SECONDS", 0.2)
    folders = []
    for number, app in enumerate(("jupyter-lab", "jupyter-lab", "code-server"), 1):
        path = tmp_path / f"{number}-1-{number:x}"
        path.mkdir()
        folders.append(JobFolder.at(path))
        order = make_order(recipe="workspace", settings={"app": app})
        folders[-1].write("order", {"payload": order.payload()})
    listeners = [
        serving_socket.listen(one, serving_socket.WORKSPACE) for one in folders
    ]

    asked = []

    def serve():
        with contextlib.suppress(OSError):
            while True:
                line, _ = listeners[0].accept()
                with line, contextlib.suppress(OSError):
                    asked.append(line.recv(4096))
                    line.sendall(answer([kernel("idle", "2026-01-15T08:00:00Z")]))
                    line.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    known = KernelActivity()
    until(lambda: known.ask(folders) or known.worked_at(folders[0]))
    assert asked[0].startswith(b"GET /api/kernels HTTP/1.1\r\n")
    assert known.worked_at(folders[1]) is None, "it took the request and said nothing"
    listeners[2].settimeout(0)
    with pytest.raises(BlockingIOError):
        listeners[2].accept()
    listeners[0].shutdown(socket.SHUT_RDWR)
    thread.join(60)
    listeners[0].close()
    known.ask(folders[:1])
    assert known.worked_at(folders[0]) is not None, "what is known stays"
    known.ask([])
    assert known.worked_at(folders[0]) is None, "the job has ended"
    for one in listeners[1:]:
        one.close()


def test_notebooks_that_fail_or_are_slow_do_not_delay_the_others(tmp_path, monkeypatch):
    folders = [JobFolder(tmp_path / f"{i}-1-a", i, 1, "a") for i in range(8)]
    asked = []

    async def told(folder):
        asked.append(folder.job)
        if folder.job == 0:
            raise RuntimeError("no bug of one notebook stops the round")
        if folder.job < 5:
            await asyncio.Event().wait()
        return answer([kernel("busy")])

    monkeypatch.setattr(kernel_activity, "_is_notebook", lambda _: True)
    monkeypatch.setattr(kernel_activity, "_answer", told)
    monkeypatch.setattr(kernel_activity, "MOST_ASKED", 5)
    monkeypatch.setattr(kernel_activity, "ROUND_SECONDS", 0.2)
    known = KernelActivity()
    known.ask(folders)
    assert sorted(asked) == list(range(8))
    assert [known.worked_at(one) is None for one in folders] == [True] * 5 + [False] * 3
    known._silent = {folder.name for folder in folders[:5]}
    asked.clear()
    known.ask(folders)
    assert sorted(asked[:3]) == [5, 6, 7], "those that answered are asked first"


async def test_an_endless_answer_is_cut_off(tmp_path, monkeypatch):
    monkeypatch.setattr(kernel_activity, "MOST_ANSWER_BYTES", 1024)
    path = tmp_path / "1-1-a"
    path.mkdir()
    folder = JobFolder.at(path)

    async def pour(_reader, writer):
        writer.write(bytes(100_000))
        await writer.drain()
        writer.close()

    listener = serving_socket.listen(folder, serving_socket.WORKSPACE)
    server = await asyncio.start_unix_server(pour, sock=listener)
    async with server:
        with pytest.raises(ValueError, match="more than"):
            await kernel_activity._answer(folder)
