"""A workspace works while its job's processes compute, and not while a page is open."""

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from placement.agent.access import program_work
from placement.agent.access.kernel_activity import KernelActivity
from placement.agent.access.program_work import ProgramWork
from placement.agent.job_folder import JobFolder
from placement.agent.process.process_tree import start_ticks
from telemetry.proc_stat import cpu_seconds
from tests.placement.nodes import make_order, until

pytestmark = pytest.mark.pure
CHILD = """
print(1, flush=True)
input()
while True: pass
"""


def workspace(tmp_path, app, shim=None):
    """Return the folder of a job with a process that stands for its shim."""
    path = tmp_path / "1-1-a"
    path.mkdir()
    folder = JobFolder.at(path)
    order = make_order(recipe="workspace", settings={"app": app})
    folder.write("order", {"payload": order.payload()})
    if shim is not None:
        folder.write("shim", {"pid": shim, "start_ticks": start_ticks(shim)})
    return folder


@pytest.mark.parametrize("app", ["code-server", "marimo"])
def test_an_editor_works_while_a_program_in_it_computes(tmp_path, monkeypatch, app):
    monkeypatch.setattr(program_work, "WORKING_SHARE", 0.0005)
    words, known = ["sh", "-c", f"{sys.executable} -c '{CHILD}'; :"], KernelActivity()
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as shim:
        try:
            folder = workspace(tmp_path, app, shim.pid)
            shim.stdout.readline()
            known.ask([folder])
            assert known.worked_at(folder) is None, "the first look compares nothing"
            shim.stdin.write(b"\n")
            shim.stdin.flush()
            until(lambda: known.ask([folder]) or known.worked_at(folder))
            assert 0 <= time.time() - known.worked_at(folder) < 60
        finally:
            os.killpg(shim.pid, signal.SIGKILL)
    known.ask([])
    assert known.worked_at(folder) is None, "the job has ended"


def test_tensorboard_and_terminals_are_not_looked_at(tmp_path, monkeypatch):
    monkeypatch.setattr(ProgramWork, "works", lambda self, folder: 1 / 0)
    folder = workspace(tmp_path, "tensorboard")
    KernelActivity().ask([folder])
    order = make_order(recipe="workspace", settings={"app": "terminal"})
    folder.write("order", {"payload": order.payload()})
    KernelActivity().ask([folder])


@pytest.mark.parametrize(
    ("spent", "works"), [(0.0, False), (14.9, False), (15.1, True), (-9.0, False)]
)
def test_work_is_more_than_half_a_core(tmp_path, monkeypatch, spent, works):
    folder, seen = JobFolder(tmp_path, 1, 1, "a"), iter((100.0, 100.0 + spent))
    times = iter((1000.0, 1030.0))
    monkeypatch.setattr(program_work, "_spent_seconds", lambda _: next(seen))
    clock = SimpleNamespace(monotonic=lambda: next(times))
    monkeypatch.setattr(program_work, "time", clock)
    known = ProgramWork()
    assert not known.works(folder)
    assert known.works(folder) is works


def test_a_job_whose_shim_is_gone_has_spent_nothing(tmp_path):
    folder = workspace(tmp_path, "marimo")
    folder.write("shim", {"pid": os.getpid(), "start_ticks": 1})
    assert program_work._spent_seconds(folder) == 0.0
    assert cpu_seconds(2**22 + 1) == 0.0
