"""A portal in the foreground ends with the shell that started it."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
WATCH = """
import sys, time
from pathlib import Path
from gpuportal.supervisor.starter import Starter
starter = Starter()
print("before", starter.gone(), flush=True)
Path(sys.argv[1]).touch()
end = time.monotonic() + 50
while not starter.gone() and time.monotonic() < end:
    time.sleep(0.05)
print("after", starter.gone(), flush=True)
"""


# The shell ends when the watcher has looked once, however long its start takes.
UNTIL_IT_WATCHES = '"$1" -c "$2" "$3" & while [ ! -e "$3" ]; do sleep 0.05; done'


def watch(watching: Path, before: str = "") -> list[str]:
    """Run the watcher under a shell that ends while it watches."""
    done = subprocess.run(
        [
            *("sh", "-c", before + UNTIL_IT_WATCHES),
            *("sh", sys.executable, WATCH, str(watching)),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
        # As a terminal's shell begins, also if the suite runs under nohup.
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )
    return done.stdout.splitlines()


def test_the_end_of_the_shell_is_noticed(tmp_path: Path) -> None:
    assert watch(tmp_path / "watching") == ["before False", "after True"]


@pytest.mark.timeout(90)
def test_under_nohup_the_shell_may_go(tmp_path: Path) -> None:
    said = watch(tmp_path / "watching", 'trap "" HUP; ')
    assert said == ["before False", "after False"]
