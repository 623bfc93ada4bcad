"""A portal in the foreground ends with the shell that it was started from."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
WATCH = """
import time
from gpuportal.supervisor.starter import Starter
starter = Starter()
print("before", starter.gone(), flush=True)
end = time.monotonic() + 10
while not starter.gone() and time.monotonic() < end:
    time.sleep(0.05)
print("after", starter.gone(), flush=True)
"""


def watch(shell: str) -> list[str]:
    """Run the watcher under a shell that ends while it watches."""
    done = subprocess.run(
        ["sh", "-c", shell, "sh", sys.executable, WATCH],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=30,
        check=False,
        # As a terminal's shell begins, also where the suite runs under nohup.
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )
    return done.stdout.splitlines()


def test_the_end_of_the_shell_is_noticed() -> None:
    assert watch('"$1" -c "$2" & sleep 1') == ["before False", "after True"]


@pytest.mark.timeout(40)
def test_under_nohup_the_shell_may_go() -> None:
    said = watch('trap "" HUP; "$1" -c "$2" & sleep 1')
    assert said == ["before False", "after False"]
