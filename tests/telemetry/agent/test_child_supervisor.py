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

from telemetry.agent import isolation as levels
from telemetry.agent.child_supervisor import (
    ChildState,
    SamplerStatus,
    SamplerSupervisor,
    child_command,
)
from telemetry.agent.isolation import isolation_of
from telemetry.agent.sampler import PULSE_SILENCE_SECONDS
from telemetry.proc_stat import read_stat
from tests.telemetry.agent.children import (
    BASE_DIR,
    PATIENCE_SECONDS,
    samples,
    troubles,
    wait_for,
)
from tests.telemetry.agent.test_simulated_probe import write

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
    own_ids: bool = False
    isolation: str = "watched"


class Watched:
    """A supervisor and everything it said."""

    def __init__(self, facts: Facts, **options: Any) -> None:
        self.said: list[SamplerStatus] = []
        usual = {"silence_seconds": PATIENCE_SECONDS, "back_off_seconds": (0.1,)}
        options = usual | options
        self.supervisor = SamplerSupervisor(
            facts, on_status=self.said.append, **options
        )
        self.thread = self.supervisor.start()

    def wait_for(self, good: Callable[[SamplerStatus], bool]) -> SamplerStatus:
        deadline = time.monotonic() + PATIENCE_SECONDS
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
        watched.supervisor.stop(within_seconds=PATIENCE_SECONDS)
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
    watched = watch(facts=facts)
    status = watched.wait_for(lambda x: x.heartbeat.get("seq", 0) >= 2)
    assert (status.state, status.heartbeat["state"]) == (ChildState.RUNNING, "ok")
    assert redis_client.xlen("raw.node-a") >= 2
    watched.supervisor.stop(within_seconds=PATIENCE_SECONDS)
    assert read_stat(status.pid) is None
    assert watched.said[-1].state is ChildState.STOPPED


NODE_MAIN = """
import sys, threading
from pathlib import Path
from tests.telemetry.agent.test_child_supervisor import Facts
from telemetry.agent.child_supervisor import SamplerSupervisor
folder, url = sys.argv[1:]
facts = Facts(Path(folder), redis_url=url, sim_dir=Path(folder))
SamplerSupervisor(facts).start()
threading.Event().wait()
"""


def test_a_node_whose_main_process_is_stopped_goes_silent_and_comes_back(
    tmp_path, valkey_url, redis_client
) -> None:
    """The child lives on, and must not make Gpus look alive that take no orders."""
    write(tmp_path)
    main = subprocess.Popen(
        [sys.executable, "-c", NODE_MAIN, str(tmp_path), valkey_url], cwd=BASE_DIR
    )
    try:
        wait_for(lambda: len(samples(redis_client)) >= 2)
        main.send_signal(signal.SIGSTOP)
        stopped_at = time.time()
        sent = -1
        while (now := len(samples(redis_client))) != sent:
            sent = now
            time.sleep(2.5)
        silent_seconds = samples(redis_client)[-1].at - stopped_at
        assert silent_seconds < PULSE_SILENCE_SECONDS + 2
        main.send_signal(signal.SIGCONT)
        wait_for(lambda: len(samples(redis_client)) >= sent + 2)
        seqs = [sample.seq for sample in samples(redis_client)]
        assert seqs == sorted(set(seqs)), "the same child all the time"
    finally:
        main.kill()
        main.wait()


def test_a_child_that_dies_is_replaced(watch) -> None:
    watched = watch("import sys; print('{}'); sys.exit(75)")
    watched.wait_for(lambda x: x.state is ChildState.WAITING and x.restarts >= 2)
    assert len(watched.pids()) >= 2
    waiting = next(x for x in watched.said if x.state is ChildState.WAITING)
    assert waiting.why == "exit code 75"


def test_a_child_that_falls_silent_is_killed_and_replaced(
    watch, tmp_path, valkey_url, redis_client
) -> None:
    facts = Facts(tmp_path, redis_url=valkey_url)
    watched = watch(FALLS_SILENT, facts=facts, silence_seconds=1.0)
    status = watched.wait_for(lambda x: x.state is ChildState.WAITING)
    assert status.why == "killed: silent for 1 s"
    first = watched.pids()[0]
    assert read_stat(first) is None
    watched.wait_for(lambda x: x.pid not in (None, first))
    told = wait_for(lambda: troubles(redis_client))
    assert told[0] == ("hung", "the sampling child was silent for 1 s")


def test_a_child_that_beats_is_left_alone(watch) -> None:
    watched = watch(BEATS)
    watched.wait_for(lambda x: x.state is ChildState.RUNNING)
    time.sleep(2.0)
    assert len(watched.pids()) == 1


HEARS = (
    "import sys, time\nheard = 0\n"
    "while True:\n heard += len(sys.stdin.read(1))\n"
    " print('{\"heard\":%d}' % heard)\n"
)


def test_a_child_hears_each_second_that_somebody_is_there(watch) -> None:
    watched = watch(HEARS)
    started = time.monotonic()
    watched.wait_for(lambda x: x.heartbeat.get("heard", 0) >= 3)
    assert time.monotonic() - started > 1.5


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
    watched.supervisor.stop(within_seconds=PATIENCE_SECONDS)
    assert read_stat(status.pid) is None


class Unkillable(subprocess.Popen):
    """A real child whose SIGKILL has no effect, like one in state D."""

    def kill(self) -> None:
        """Do nothing."""


def test_a_child_that_survives_sigkill_is_wedged_and_gets_no_company(
    watch, tmp_path, valkey_url, redis_client
) -> None:
    children: list[subprocess.Popen] = []

    def popen(*arguments: Any, **options: Any) -> subprocess.Popen:
        make = subprocess.Popen if children else Unkillable
        children.append(make(*arguments, **options))
        return children[-1]

    facts = Facts(tmp_path, redis_url=valkey_url)
    quick = {"kill_seconds": 0.3, "silence_seconds": 1.0}
    watched = watch(FALLS_SILENT, facts=facts, popen=popen, **quick)
    try:
        status = watched.wait_for(lambda x: x.state is ChildState.WEDGED)
        assert status.pid == children[0].pid
        assert "survives SIGKILL" in status.why
        wait_for(lambda: len(troubles(redis_client)) == 2)
        time.sleep(1.5)
        assert len(children) == 1, "no replacements in a loop"
        assert watched.supervisor.status.state is ChildState.WEDGED
        states = [state for state, _ in troubles(redis_client)]
        assert states == ["hung", "wedged"]
        assert "survives SIGKILL" in troubles(redis_client)[-1][1]
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
    ("euid", "supervisor_pid", "allow_scripts", "level", "why"),
    [
        (0, None, False, "watched", ""),
        (0, None, True, "none", "scripts"),
        (0, 77, False, "none", "portal"),
        (1000, 77, False, "none", "portal"),
        (1000, None, False, "none", "not-root"),
    ],
)
def test_jobs_are_apart_only_where_each_has_a_user_of_its_own(
    tmp_path, monkeypatch, euid, supervisor_pid, allow_scripts, level, why
) -> None:
    monkeypatch.setattr(levels.os, "geteuid", lambda: euid)
    facts = Facts(tmp_path, supervisor_pid=supervisor_pid, allow_scripts=allow_scripts)
    assert isolation_of(facts) == level
    assert levels.not_isolated_of(facts) == why
    command = child_command(facts)
    assert command[command.index("--not-isolated") + 1] == why
    assert bool(levels.why_not(facts)) == (level == "none")


@pytest.mark.parametrize(("euid", "level"), [(0, "watched"), (1000, "none")])
def test_a_portal_of_root_keeps_jobs_apart_by_ids_that_it_gives(
    tmp_path, monkeypatch, euid, level
) -> None:
    monkeypatch.setattr(levels.os, "geteuid", lambda: euid)
    facts = Facts(tmp_path, supervisor_pid=77, own_ids=True)
    assert isolation_of(facts) == level


def test_units_are_used_where_systemd_runs_a_machine_of_cgroup_v2(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(levels.os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    systemd, controllers = tmp_path / "system", tmp_path / "controllers"
    monkeypatch.setattr(levels, "SYSTEMD", systemd)
    monkeypatch.setattr(levels, "CONTROLLERS", controllers)
    wanted = Facts(tmp_path, supervisor_pid=None, isolation="enforced")
    best = Facts(tmp_path, supervisor_pid=None, isolation="auto")

    def make_programs() -> None:
        for name in ("systemd-run", "systemctl"):
            (tmp_path / name).write_text("#!/bin/sh\n")
            (tmp_path / name).chmod(0o755)

    steps = (
        ("systemd does not run", systemd.mkdir),
        ("not version 2", controllers.touch),
        ("systemd-run and systemctl is not installed", make_programs),
    )
    for why, mend in steps:
        assert why in levels.why_not(wanted)
        assert (isolation_of(wanted), isolation_of(best)) == ("none", "watched")
        assert levels.not_isolated_of(wanted) == "units"
        assert levels.not_isolated_of(best) == ""
        assert not levels.why_not(best)
        mend()
    assert isolation_of(wanted) == isolation_of(best) == "enforced"
    assert not levels.why_not(wanted)
    assert isolation_of(Facts(tmp_path, supervisor_pid=None)) == "watched"
