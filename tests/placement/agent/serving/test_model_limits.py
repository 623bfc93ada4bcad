"""Models that never end or use all memory: they fail, and the others are still
served.
"""

import asyncio
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from placement.agent.serving import executor, model_limits
from placement.agent.serving.batch import HostedModel
from placement.agent.serving.model_limits import RunNote, TimeLimits
from placement.agent.serving.server_guard import MOST_QUICK, Guard
from placement.protocol.call_refusal import CallRefused
from tests.placement.agent.serving.test_executor import MIB, ask, station, take
from tests.placement.serving.hostile import greedy_bytes, loop_bytes
from tests.placement.serving.networks import mlp_bytes

HASTY = TimeLimits(try_run=0.5, run=0.5, tries=2.0)
ENDLESS = 2**60


async def good(made, tmp_path):
    """A model that answers."""
    kept = await take(made, tmp_path, "good", mlp_bytes(), mib=10)
    assert kept.ready
    return kept


async def answers(made, kept):
    found = await made.infer(kept, ask([[1, 2, 3, 4]]), way_ms=0.0)
    return found.results["y"].shape == (1, 3)


async def test_a_loop_without_end_is_refused_when_it_is_tried(tmp_path):
    async with station() as made:
        made.engine.limits = HASTY
        kept = await good(made, tmp_path)
        data = loop_bytes(rounds=ENDLESS)
        bad = await take(made, tmp_path, "bad", data, mib=10, most_batch=1)
        assert bad.state == "failed"
        assert bad.note == "one run took longer than 0.5 s"
        assert await answers(made, kept)


async def test_a_loop_without_end_in_one_request_fails_the_model_alone(tmp_path):
    async with station() as made:
        made.engine.limits = HASTY
        kept = await good(made, tmp_path)
        bad = await take(made, tmp_path, "bad", loop_bytes(), mib=10, most_batch=1)
        assert bad.ready
        asked = ask([1.0])
        asked.inputs["n"] = np.asarray(ENDLESS, np.int64)
        with pytest.raises(Exception, match="took longer than"):
            await made.infer(bad, asked, way_ms=0.0)
        assert (bad.state, "longer" in bad.note) == ("failed", True)
        assert await answers(made, kept)


async def test_a_model_that_wants_forty_gigabytes_is_refused(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_DATA)
    async with station() as made:
        kept = await good(made, tmp_path)
        data = greedy_bytes(10**10)
        bad = await take(made, tmp_path, "bad", data, mib=10, most_batch=1)
        assert bad.state == "failed"
        assert "more memory than it may take" in bad.note
        assert await answers(made, kept)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


async def test_who_waits_while_a_model_is_tried_hears_of_it_in_time(
    tmp_path, monkeypatch
):
    # How long a load is expected to take, and what a request needs at least.
    monkeypatch.setattr(executor, "FIRST_LOAD_SECONDS", 1.0)
    async with station() as made:
        made.engine.limits = TimeLimits(try_run=90.0, run=0.5, tries=90.0)
        kept = await good(made, tmp_path)
        (tmp_path / "bad").write_bytes(loop_bytes(rounds=ENDLESS))
        bad = HostedModel("bad", tmp_path / "bad", 10 * MIB, 1, deadline_ms=20_000)
        made.take(bad)
        while not made.engine._running:
            await asyncio.sleep(0.01)
        begun = time.monotonic()
        with pytest.raises(CallRefused) as away:
            await made.infer(kept, ask([[1.0] * 4], deadline_ms=2500), way_ms=0.0)
        assert away.value.code == "late"
        assert time.monotonic() - begun > 2.3
        assert bad.state == "loading", "long before it is known to be bad"
        # Its end is unknown. A request with a short deadline is not kept.
        with pytest.raises(CallRefused) as away:
            await made.infer(kept, ask([[1.0] * 4], deadline_ms=300), way_ms=0.0)
        assert away.value.code == "deadline"
        made.engine._running[1].terminate = True


async def test_a_file_that_a_server_died_of_is_not_loaded_again(tmp_path):
    async with station() as made:
        made.failed[str(tmp_path / "bad")] = "the server died of it: SIGABRT"
        bad = await take(made, tmp_path, "bad", mlp_bytes(), mib=10)
        assert (bad.state, bad.note) == ("failed", "the server died of it: SIGABRT")
        assert made.let_go("bad")
        assert await answers(made, await good(made, tmp_path))


def test_the_server_may_take_the_room_of_its_models_and_no_more():
    code = (
        "from placement.agent.serving import model_limits as limits\n"
        "most = limits.bound_process(2**28, cuda=False)\n"
        "assert most - limits.data_bytes() <= 2**28 + limits.SLACK_BYTES\n"
        "try:\n"
        "    bytes(2**31)\n"
        "except MemoryError:\n"
        "    print('refused')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout == "refused\n"


def test_the_note_says_what_runs_and_until_when():
    note = RunNote()
    assert note.read() == ("", 0.0)
    with note.during("/models/ä.onnx", 5.0) as until:
        assert RunNote(os.dup(note.handle)).read() == ("/models/ä.onnx", until)
    assert note.read() == ("", 0.0)


SERVER = """
import json, os, signal, sys, time
from placement.agent.serving.model_limits import RunNote
note = RunNote(int(os.environ["GPUPORTAL_RUN_NOTE"]))
failed = json.loads(sys.argv[2])
print("failed", json.dumps(failed), flush=True)
if len(failed) == 0:
    note.begin("/models/hangs.onnx", time.monotonic() + 0.1)
    time.sleep(60)
elif len(failed) == 1:
    note.begin("/models/dies.onnx", time.monotonic() + 60)
    os.abort()
"""


@pytest.fixture
def quick(monkeypatch):
    """A guard waits a short time for a run that was requested to end."""
    monkeypatch.setattr("placement.agent.serving.server_guard.OBEY_SECONDS", 0.2)
    monkeypatch.setattr("placement.agent.serving.server_guard.LISTENER", 0)


def test_a_server_that_hangs_or_dies_starts_again_without_that_model(quick, capfd):
    guard = Guard("{}", command=[sys.executable, "-c", SERVER])
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert guard.run() == 0
    finally:
        signal.signal(signal.SIGTERM, before)
    assert guard.failed == {
        "/models/hangs.onnx": "it ran on when it was asked to end",
        "/models/dies.onnx": "the server died of it: SIGABRT",
    }
    told = [line for line in capfd.readouterr().out.splitlines() if "failed" in line]
    assert [len(json.loads(line.partition(" ")[2])) for line in told] == [0, 1, 2]


def test_a_server_that_cannot_live_ends_the_job(quick, capfd):
    guard = Guard("{}", command=[sys.executable, "-c", "raise SystemExit(3)"])
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert guard.run() == 1
    finally:
        signal.signal(signal.SIGTERM, before)
    assert f"died {MOST_QUICK} times in a row" in capfd.readouterr().out


def test_the_guard_serves_and_ends_with_its_server(tmp_path):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s"))
    listener.listen(8)
    guard = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "placement.agent.serving.server_guard",
            json.dumps({"room_bytes": 2**28, "threads": 1}),
        ],
        preexec_fn=lambda: os.dup2(listener.fileno(), 3),
        pass_fds=(3,),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert guard.stdout.readline() == "serving on cpu\n"
        asking = socket.socket(socket.AF_UNIX)
        asking.connect(str(tmp_path / "s"))
        asking.sendall(b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b"200 OK" in asking.recv(4096)
        asking.close()
        guard.send_signal(signal.SIGTERM)
        assert guard.wait(60) == 0
    finally:
        guard.kill()
        guard.wait()


def test_limits_are_read_as_the_kernel_counts():
    assert 2**20 < model_limits.data_bytes() < model_limits.available_bytes() * 100
