"""A driver made of text, and processes that look at it."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from telemetry.protocol.hardware import NodeInfo
from telemetry.protocol.sample import NodeSample
from tests.nvml_sim.nvmlsim import SETTLE_SECONDS, Sim
from tests.telemetry.agent.children import BASE_DIR, Child


class ProbeProcess:
    """The real probe over the real pynvml, in a process of its own."""

    def __init__(self, sim: Sim, **env: str) -> None:
        self.sim = sim
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.telemetry.agent.probe_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=sim.env(**env),
            cwd=BASE_DIR,
        )

    def ask(self, what: str) -> Any:
        """One command; the answer, or the error's name and text."""
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the probe's process died"
        return json.loads(line)

    def open(self) -> NodeInfo:
        """Open the probe; its roster."""
        return NodeInfo.from_message(json.dumps(self.ask("open")), node="n1")

    def read(self) -> NodeSample:
        """One Sample, read the way the portal reads it."""
        return NodeSample.from_message(json.dumps(self.ask("read")), node="n1")

    def change(self, section: str = "", /, **values: str) -> None:
        """Change the driver and wait until it has noticed."""
        self.sim.set(section, **values)
        time.sleep(SETTLE_SECONDS)

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def make_probe(make_sim: Callable[..., Sim]) -> Iterator[Callable[..., ProbeProcess]]:
    """Start processes that look at a simulated driver through the real probe."""
    made: list[ProbeProcess] = []

    def make(
        gpus: int = 2,
        *,
        sim: Sim | None = None,
        env: dict[str, str] | None = None,
        **first: Any,
    ) -> ProbeProcess:
        probe = ProbeProcess(sim or make_sim(gpus, **first), **(env or {}))
        made.append(probe)
        return probe

    yield make
    for probe in made:
        probe.close()


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
