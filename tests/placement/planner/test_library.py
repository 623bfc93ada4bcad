"""The planner is a library: it works alone, and its README is correct."""

import doctest
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import placement.planner

pytestmark = pytest.mark.pure

ROOT = Path(__file__).parents[3]
README = ROOT / "placement" / "planner" / "README.md"
ALLOWED = ("telemetry", "telemetry.protocol")
PURE = (
    *("telemetry.protocol.codec", "telemetry.protocol.coded_error"),
    "telemetry.protocol.gpu_cards",
    "telemetry.protocol.sentences",
    "telemetry.protocol.units",
)
FORBIDDEN = (
    *("django", "celery", "kombu", "redis", "valkey", "channels", "channels_redis"),
    *("ninja", "pydantic", "gpuportal", "reservations", "telemetry"),
)
IMPORT_ALL = f"""
import pkgutil, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name in {ALLOWED + PURE!r}:
            return None
        if name.split(".")[0] in {FORBIDDEN!r}:
            raise ImportError("the planner imports " + name)
        parts = name.split(".")
        if parts[0] == "placement" and len(parts) > 1 and parts[1] != "planner":
            raise ImportError("the planner imports " + name)

sys.meta_path.insert(0, Refuse())
import placement.planner
count = 0
for found in pkgutil.walk_packages(placement.planner.__path__, "placement.planner."):
    __import__(found.name)
    count += 1
print(count)
"""
BLOCK = re.compile(r"^```(\w+) ?(\S*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def with_msgspec(folder):
    """Put msgspec, the one package that the planner needs, into a folder."""
    (folder / "msgspec").symlink_to(Path(msgspec.__file__).parent)


def alone(folder):
    """Copy the planner, the three modules that it imports and msgspec; return it."""
    with_msgspec(folder)
    for name in (
        "placement/__init__.py",
        "telemetry/__init__.py",
        "telemetry/protocol/__init__.py",
        "telemetry/protocol/codec.py",
        "telemetry/protocol/coded_error.py",
        "telemetry/protocol/gpu_cards.py",
        "telemetry/protocol/sentences.py",
        "telemetry/protocol/units.py",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(
        ROOT / "placement/planner", folder / "placement/planner", ignore=ignored
    )
    return folder


def blocks(kind):
    """Return (name, text) of the README's blocks of one kind."""
    found = BLOCK.findall(README.read_text())
    return [(name, text) for language, name, text in found if language == kind]


def test_no_module_imports_a_framework_or_the_portal():
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL],
        cwd=ROOT,
        env={"PATH": os.defpath, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    modules = [p for p in (ROOT / "placement/planner").rglob("*.py")]
    assert int(done.stdout) == len(modules) - 1


@pytest.mark.parametrize("module", PURE)
def test_what_the_planner_imports_of_the_portal_needs_only_msgspec(module, tmp_path):
    with_msgspec(tmp_path)
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import {module}"],
        cwd=ROOT,
        env={"PATH": os.defpath, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_one_module_does_not_load_the_others():
    code = (
        "import sys, placement.planner.values.errors\n"
        "print([n for n in sys.modules if n.startswith('placement.planner.search')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"


def test_every_public_name_is_there_with_a_docstring():
    for name in placement.planner.__all__:
        assert getattr(placement.planner, name).__doc__
        assert name in placement.planner.__doc__
        assert name in dir(placement.planner)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = placement.planner.no_such_name


def test_the_commands_of_the_readme_answer_what_it_says(tmp_path):
    """They run without site-packages, in a folder with the planner and msgspec."""
    folder = alone(tmp_path)
    for name, text in blocks("json"):
        (folder / name).write_text(text)
    shown = [text for _, text in blocks("console")]
    ran = 0
    for text in shown:
        for step in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            command, wanted = step.split("\n", 1)
            program, *words = shlex.split(command)
            assert program == "python"
            done = subprocess.run(
                [sys.executable, "-S", *words],
                cwd=folder,
                env={"PATH": os.defpath},
                capture_output=True,
                text=True,
                check=False,
            )
            assert (done.returncode, done.stderr) == (0, "")
            same = doctest.OutputChecker().check_output(
                wanted, done.stdout, doctest.ELLIPSIS
            )
            assert same, f"$ {command}\n{done.stdout}"
            ran += 1
    assert ran == 6


def test_the_python_of_the_readme_is_true():
    parser = doctest.DocTestParser()
    text = "\n".join(block for _, block in blocks("python"))
    test = parser.get_doctest(text, {}, "README.md", str(README), 0)
    assert len(test.examples) >= 10
    told = []
    doctest.DocTestRunner().run(test, out=told.append)
    assert "".join(told) == ""
