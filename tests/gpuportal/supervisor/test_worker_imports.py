"""The imports of a worker at its start. The portal has five such processes."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpuportal.running import ROOT, environ_for

STARTED = """
import atexit, gc, sys
# The first to be registered is the last to be called.
atexit.register(lambda: print("quick" if gc.get_freeze_count() > 10_000 else "slow"))
from gpuportal.celery import app
app.loader.import_default_modules()
assert "placement.tasks" in sys.modules
print(*sorted({"gpuportal.urls", "gpuportal.api", "ninja"} & set(sys.modules)))
"""

COLLECTS = "import gc; print(gc.isenabled(), gc.get_freeze_count() > 50_000)"
WORKER = """
from gpuportal.celery import app
app.loader.import_default_modules()
"""
STARTS = {
    "manage.py": ("manage.py", "shell", "--no-imports", "-c", COLLECTS),
    "worker": ("-c", WORKER + COLLECTS),
    "web": ("-c", f"import gpuportal.asgi\n{COLLECTS}"),
}


def test_a_worker_loads_neither_pages_nor_api_and_ends_without_a_last_collection(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STARTED],
        cwd=ROOT,
        env=environ_for(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.split()) == (0, ["quick"]), done.stderr


@pytest.mark.parametrize("start", STARTS)
def test_garbage_is_looked_for_after_the_start_and_not_in_what_is_imported(
    tmp_path: Path, start: str
) -> None:
    done = subprocess.run(
        [sys.executable, *STARTS[start]],
        cwd=ROOT,
        env=environ_for(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "True True"), done.stderr
