"""A parser's process: no network, no files, no processes, bounded memory and time."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.pure

ROOT = Path(__file__).resolve().parents[4]
HEAD = "from placement.planner.sandbox import jail; import os, socket, sys\n"
CLOSED = "apart = jail.limit(address_bytes=2**27, cpu_seconds=2, files=0)\n"
OPEN = "apart = jail.limit(address_bytes=2**27, cpu_seconds=2, files=None)\n"


def run(code, *, module=None, arguments=(), path=None):
    command = ["-c", HEAD + code] if module is None else ["-m", module, *arguments]
    return subprocess.run(
        [sys.executable, *command],
        cwd=path or ROOT,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_nothing_can_be_opened_after_the_limits():
    code = """
for act in (lambda: open("/etc/passwd"), lambda: socket.socket(), lambda: os.pipe()):
    try:
        act()
    except OSError as error:
        print(error.errno)
"""
    assert run(CLOSED + code).stdout.split() == ["24", "24", "24"]


def test_memory_and_processor_time_end():
    done = run(
        CLOSED + "try:\n    b'x' * 2**28\nexcept MemoryError:\n    print('full')"
    )
    assert done.stdout == "full\n"
    assert run(CLOSED + "while True: pass").returncode < 0


def test_output_to_a_file_ends(tmp_path):
    path = tmp_path / "out"
    code = "sys.stdout.write('x' * 10**6)\n"
    with path.open("wb") as file:
        done = subprocess.run(
            [sys.executable, "-c", HEAD + CLOSED + f"for _ in range(99):\n    {code}"],
            cwd=ROOT,
            stdout=file,
            stderr=subprocess.DEVNULL,
            timeout=60,
            check=False,
        )
    assert done.returncode != 0
    assert path.stat().st_size <= 48 * 2**20


def test_a_namespace_without_network_has_no_way_out():
    code = """
if not apart:
    print("ENETUNREACH")
else:
    try:
        socket.create_connection(("127.0.0.1", 9), timeout=1)
    except OSError as error:
        import errno
        print(errno.errorcode[error.errno])
"""
    assert run(OPEN + code).stdout == "ENETUNREACH\n"


@pytest.mark.parametrize(
    "act",
    [
        "socket.socket()",
        "socket.getaddrinfo('localhost', 80)",
        "os.system('true')",
        "__import__('subprocess').run(['true'])",
    ],
)
def test_the_hook_ends_the_process_at_sockets_and_programs(act):
    done = run(f"jail.end_at_sockets()\ntry:\n    {act}\nexcept BaseException: pass")

    assert done.returncode == 97


ENTRY = """
import torch

def make():
    print("noise on standard output")
    assert torch.empty(1).device.type == "meta"
    tied = torch.nn.Linear(4, 100, bias=False)
    table = torch.nn.Embedding(100, 4)
    tied.weight = table.weight
    frozen = torch.nn.Linear(4, 4)
    frozen.requires_grad_(False)
    return torch.nn.Sequential(table, frozen, tied)

def broken(): raise RuntimeError("no data here")
"""


def test_an_entry_point_is_called_on_meta_and_told_exactly(tmp_path):
    (tmp_path / "nets.py").write_text(ENTRY)

    def ask(*arguments):
        module = "placement.planner.sandbox.entry_build"
        done = run("", module=module, arguments=arguments, path=tmp_path)
        assert done.stdout.count("\n") == 1, done.stderr
        return done.returncode, json.loads(done.stdout)

    code, answer = ask("nets:make", "tied")
    assert (code, answer["parameter_count"], answer["name"]) == (0, 420, "tied")
    assert answer["tied_groups"] == [["0.weight", "2.weight"]]
    assert answer["layers"][-1]["tied_parameters"] == 400
    frozen = [p for la in answer["layers"] for p in la["parts"] if p.get("frozen")]
    assert sum(part["parameters"] for part in frozen) == 20
    assert "no data here" in ask("nets:broken")[1]["detail"]


@pytest.mark.parametrize("text", ["nets", "nets:", ":make", "a b:c", "a:b:c", "../x:y"])
def test_a_wrong_address_is_refused_before_anything_is_imported(text):
    done = run("", module="placement.planner.sandbox.entry_build", arguments=[text])

    assert (done.returncode, json.loads(done.stdout)["field"]) == (2, "entry")


def test_the_web_process_never_calls_an_entry_point():
    from placement.planner.sandbox.entry_build import built
    from placement.planner.values.entry_point import EntryPoint
    from placement.planner.values.errors import FileRefused

    assert "django" in sys.modules
    with pytest.raises(FileRefused, match="as the admin"):
        built(EntryPoint.read("nets:make"))
