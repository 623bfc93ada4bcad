"""Sampling children as processes, and what they leave in the stream."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis

from telemetry.protocol.hardware import NodeInfo
from telemetry.protocol.sample import NodeSample, NodeTrouble, read_message
from tests.telemetry.agent.test_simulated_probe import write

BASE_DIR = Path(__file__).resolve().parents[3]
NODE = "node-a"
PATIENCE_SECONDS = 90.0
"""What a busy machine may take for anything. Only a test that fails waits so long."""


class Child:
    """A running sampling child."""

    def __init__(
        self,
        *arguments: str,
        env: dict[str, str] | None = None,
        stdin: int | None = None,
    ) -> None:
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "telemetry.agent.sampler",
                "--node",
                NODE,
                *arguments,
            ],
            stdin=stdin,
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

    def beat_until(self, good: Callable[[dict], bool]) -> dict:
        """Heartbeats until one is as wanted."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not good(beat := self.beat()):
            assert time.monotonic() < deadline, beat
        return beat

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.stdout.close()
        self.process.stderr.close()


def simulated(folder: Path) -> list[str]:
    write(folder)
    return ["--backend", "simulated", "--state-dir", str(folder)]


def stream(client: redis.Redis) -> list[NodeInfo | NodeSample | NodeTrouble]:
    """Everything in the node's raw stream, read the way the portal reads it."""
    entries = client.xrange(f"raw.{NODE}")
    return [read_message(fields[b"m"], node=NODE) for _, fields in entries]


def samples(client: redis.Redis) -> list[NodeSample]:
    """The Samples in the node's raw stream."""
    return [x for x in stream(client) if isinstance(x, NodeSample)]


def troubles(client: redis.Redis) -> list[tuple[str, str]]:
    """Return the node's reports of its driver: state and reason."""
    told = [x for x in stream(client) if isinstance(x, NodeTrouble)]
    return [(x.state.value, x.reason) for x in told]


def wait_for(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (value := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return value
