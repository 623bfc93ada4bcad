"""A repeated call: the end of the process waits for one that has begun."""

import subprocess
import sys

import pytest

from tests.gpuportal.running import ROOT

pytestmark = pytest.mark.pure
CHILD = """
import threading, time
from gpuportal.logs.repeated_call import repeat
begun = threading.Event()
def call():
    begun.set()
    time.sleep(0.2)
    print("ended")
repeat(call, 60, "call")
begun.wait()
print("exits", flush=True)
"""


def test_the_exit_waits_for_a_call_and_not_for_the_next():
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout.split()) == (0, ["exits", "ended"]), done
