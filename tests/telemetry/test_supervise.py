"""The supervisor with children of several characters, all of them real."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from telemetry.owners import read_stat
from telemetry.supervise import (
    ChildState,
    SamplerStatus,
    SamplerSupervisor,
    child_command,
    isolation_of,
)
from tests.telemetry.test_simulated import write

pytestmark = pytest.mark.pure


@dataclass(frozen=True)
class Facts:
    """A node's settings, as far as the sampler goes."""

    node_dir: Path
    name: str = "node-a"
    redis_url: str = "unix:///nowhere?db=0"
    backend: str = "simulated"
    sim_dir: Path | None = None
    supervisor_pid: int | None = 1
    allow_scripts: bool = False


class Watched:
    """A supervisor and everything it said."""

    def __init__(self, facts: Facts, **options: Any) -> None:
        self.said: list[SamplerStatus] = []
        options = {"silence_seconds": 4.0, "back_off_seconds": (0.1,)} | options
        self.supervisor = SamplerSupervisor(
            facts, on_status=self.said.append, **options
        )
        self.thread = self.supervisor.start()

    def wait_for(
        self, good: Callable[[SamplerStatus], bool], seconds: float = 15
    ) -> SamplerStatus:
        deadline = time.monotonic() + seconds
        while not (found := [x for x in list(self.said) if good(x)]):
            assert time.monotonic() < deadline, self.said[-3:]
            time.sleep(0.02)
        return found[0]

    def pids(self) -> list[int]:
        """Children in the order they were started."""
        return list(dict.fromkeys(x.pid for x in list(self.said) if x.pid))


@pytest.fixture
def watch(tmp_path) -> Iterator[Callable[..., Watched]]:
    """Start supervisors; their children end with the test."""
    made: list[Watched] = []

    def make(code: str = "", *, facts: Facts | None = None, **options: Any) -> Watched:
        if code:
            options["command"] = [sys.executable, "-u", "-c", code]
        made.append(Watched(facts or Facts(tmp_path), **options))
        return made[-1]

    yield make
    for watched in made:
        watched.supervisor.stop()
        assert not watched.thread.is_alive()


BEATS = 'import time\nwhile True: print(\'{"state":"ok","seq":1}\'); time.sleep(0.2)'
FALLS_SILENT = 'import time\nprint(\'{"state":"ok"}\')\ntime.sleep(60)'
DEAF = (
    "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "while True: print('{}'); time.sleep(0.2)"
)


def test_a_real_child_is_kept_sampling(
    watch, tmp_path, valkey_url, redis_client
) -> None:
    write(tmp_path)
    facts = Facts(tmp_path, redis_url=valkey_url, sim_dir=tmp_path)
    watched = watch(facts=facts, silence_seconds=8.0)
    status = watched.wait_for(lambda x: x.heartbeat.get("seq", 0) >= 2)
    assert (status.state, status.heartbeat["state"]) == (ChildState.RUNNING, "ok")
    assert redis_client.xlen("raw.node-a") >= 2
    watched.supervisor.stop()
    assert read_stat(status.pid) is None
    assert watched.said[-1].state is ChildState.STOPPED


def test_a_child_that_dies_is_replaced(watch) -> None:
    watched = watch("import sys; print('{}'); sys.exit(75)")
    watched.wait_for(lambda x: x.state is ChildState.WAITING and x.restarts >= 2)
    assert len(watched.pids()) >= 2
    waiting = next(x for x in watched.said if x.state is ChildState.WAITING)
    assert waiting.why == "exit code 75"


def test_a_child_that_falls_silent_is_killed_and_replaced(watch) -> None:
    watched = watch(FALLS_SILENT, silence_seconds=1.0)
    status = watched.wait_for(lambda x: x.state is ChildState.WAITING)
    assert status.why == "killed: silent for 1 s"
    first = watched.pids()[0]
    assert read_stat(first) is None
    watched.wait_for(lambda x: x.pid not in (None, first))


def test_a_child_that_beats_is_left_alone(watch) -> None:
    watched = watch(BEATS)
    watched.wait_for(lambda x: x.state is ChildState.RUNNING)
    time.sleep(2.0)
    assert len(watched.pids()) == 1


def test_deaths_in_a_row_wait_longer_and_longer(watch) -> None:
    watched = watch("pass", back_off_seconds=(0.1, 0.6, 5.0))
    started = time.monotonic()
    watched.wait_for(lambda x: x.state is ChildState.WAITING and x.restarts == 2)
    assert time.monotonic() - started > 0.7
    time.sleep(1.0)
    assert len(watched.pids()) == 3


def test_a_child_that_ignores_sigterm_is_killed_at_the_stop(watch) -> None:
    watched = watch(DEAF)
    status = watched.wait_for(lambda x: x.state is ChildState.RUNNING)
    watched.supervisor.stop()
    assert read_stat(status.pid) is None


class Unkillable(subprocess.Popen):
    """A real child whose SIGKILL has no effect, like one in state D."""

    def kill(self) -> None:
        """Do nothing."""


def test_a_child_that_survives_sigkill_is_wedged_and_gets_no_company(watch) -> None:
    children: list[subprocess.Popen] = []

    def popen(*arguments: Any, **options: Any) -> subprocess.Popen:
        make = subprocess.Popen if children else Unkillable
        children.append(make(*arguments, **options))
        return children[-1]

    watched = watch(FALLS_SILENT, popen=popen, kill_seconds=0.3, silence_seconds=1.0)
    try:
        status = watched.wait_for(lambda x: x.state is ChildState.WEDGED)
        assert status.pid == children[0].pid
        assert "survives SIGKILL" in status.why
        time.sleep(1.5)
        assert len(children) == 1, "no replacements in a loop"
        assert watched.supervisor.status.state is ChildState.WEDGED
    finally:
        # The driver lets go: the node recovers by itself.
        os.kill(children[0].pid, signal.SIGKILL)
    watched.wait_for(lambda x: x.pid not in (None, children[0].pid))


def test_a_machine_that_cannot_start_a_child_is_tried_again(watch) -> None:
    def popen(*_: Any, **__: Any) -> subprocess.Popen:
        raise OSError(11, "Resource temporarily unavailable")

    watched = watch(BEATS, popen=popen)
    status = watched.wait_for(lambda x: x.restarts >= 2)
    assert "Resource temporarily unavailable" in status.why


def test_noise_on_stdout_is_not_taken_for_facts(watch) -> None:
    watched = watch(
        "import sys, time\nprint('x' * 200000); print('[1]'); print('nonsense')\n"
        'time.sleep(0.3)\nprint(\'{"state":"ok","seq":9}\'); time.sleep(60)',
        silence_seconds=5.0,
    )
    status = watched.wait_for(lambda x: x.state is ChildState.RUNNING)
    assert status.heartbeat == {"state": "ok", "seq": 9}


def test_the_brokers_password_is_not_in_the_process_list(tmp_path) -> None:
    facts = Facts(tmp_path, redis_url="redis://node:secret@broker/0", sim_dir=tmp_path)
    command = child_command(facts)
    assert not any("secret" in word for word in command)
    assert command[command.index("--state-dir") + 1] == str(tmp_path)
    assert command[command.index("--node-dir") + 1] == str(tmp_path)


@pytest.mark.parametrize(
    ("euid", "supervisor_pid", "allow_scripts", "level"),
    [
        (0, None, False, "watched"),
        (0, None, True, "none"),
        (0, 77, False, "none"),
        (1000, None, False, "none"),
    ],
)
def test_jobs_are_apart_only_where_each_has_a_user_of_its_own(
    tmp_path, monkeypatch, euid, supervisor_pid, allow_scripts, level
) -> None:
    monkeypatch.setattr("telemetry.supervise.os.geteuid", lambda: euid)
    facts = Facts(tmp_path, supervisor_pid=supervisor_pid, allow_scripts=allow_scripts)
    assert isolation_of(facts) == level
