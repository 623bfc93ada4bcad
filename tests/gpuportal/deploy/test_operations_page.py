"""The commands of docs/operations.md are right. deploy/rehearse runs them."""

import re
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader

import pytest
from django.core.management import get_commands

from tests.house.walk import ROOT, imports

pytestmark = pytest.mark.pure


def load_rehearsal():
    loader = SourceFileLoader("rehearse", str(ROOT / "deploy" / "rehearse"))
    spec = spec_from_loader("rehearse", loader)
    assert spec is not None
    module = sys.modules["rehearse"] = module_from_spec(spec)
    loader.exec_module(module)
    return module


rehearse = load_rehearsal()
PAGE = (ROOT / "docs" / "operations.md").read_text()
BLOCKS = rehearse.blocks(PAGE)


@pytest.mark.parametrize("name", BLOCKS)
def test_every_block_is_plain_shell(name):
    subprocess.run(["sh", "-n"], input=BLOCKS[name], text=True, check=True)


def test_the_rehearsal_runs_every_block_or_says_why_not():
    script = (ROOT / "deploy" / "rehearse").read_text()
    for name in BLOCKS:
        assert script.count(f'"{name}"'), name


def test_every_file_and_command_that_the_page_names_is_there():
    for path in re.findall(r"(?:/opt/gpuportal/|\b)(deploy/[\w./-]*\w)", PAGE):
        assert (ROOT / path).exists(), path
    commands = get_commands()
    for name in re.findall(r"(?:gpuportal-manage|manage\.py) (\w+)", PAGE):
        assert name in commands, name


def test_a_rehearsal_counts_what_a_person_pastes():
    script = "# words\na \\\n  b\npsql <<END\nSELECT 1;\nEND\n\nc\n"
    assert rehearse.count_commands(script) == 3
    with pytest.raises(rehearse.Failed, match="same name: x"):
        rehearse.blocks("```sh x\n```\n```sh x\n```\n")


def test_a_machine_that_cannot_rehearse_says_so_and_goes_on(tmp_path):
    done = subprocess.run(
        [sys.executable, str(ROOT / "deploy" / "rehearse"), "--folder", str(tmp_path)],
        env={"PATH": f"{tmp_path}", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "skipped: the walk through the page, because " in done.stdout


def test_the_rehearsed_node_gets_every_package_that_its_races_import():
    needed = set().union(
        *(
            imports(ROOT / path)
            for path in (
                *("tests/early.py", "tests/conftest.py", "tests/placement/conftest.py"),
                "tests/placement/nodes.py",
                "tests/placement/agent/storage/test_folder_tree.py",
            )
        )
    )
    ours = {"tests", "gpuportal", "placement", "reservations", "telemetry"}
    brought = (ROOT / "requirements-web.txt").read_text().lower()
    for name in needed - ours - sys.stdlib_module_names:
        package = name.replace("_", "-")
        known = re.search(rf"^{package}==", brought, re.MULTILINE)
        assert known or package in rehearse.TEST_PACKAGES.split(), package
