"""The commands of docs/slurm.md are right: files, programs, options and settings."""

import re
import shlex
import subprocess

import pytest
from django.core.management import get_commands, load_command_class

from placement.agent.slurm.job_script import submit_command
from placement.protocol.commands import SlurmPlace
from tests.gpuportal.deploy.test_operations_page import rehearse
from tests.house.walk import ROOT
from tests.placement.nodes import make_order

pytestmark = pytest.mark.pure

PAGE = (ROOT / "docs" / "slurm.md").read_text()
BLOCKS = rehearse.blocks(PAGE)
COMMANDS = re.findall(r"gpuportal-manage ([^`<\n]+)", PAGE)


@pytest.mark.parametrize("name", BLOCKS)
def test_every_block_is_plain_shell(name):
    subprocess.run(["sh", "-n"], input=BLOCKS[name], text=True, check=True)


@pytest.mark.parametrize("line", sorted(set(COMMANDS)))
def test_every_command_of_the_portal_takes_its_options(line):
    name, *options = shlex.split(line)
    app = get_commands()[name]
    parser = load_command_class(app, name).create_parser("gpuportal-manage", name)
    parser.parse_args(options)


def test_every_file_setting_and_unit_that_the_page_names_is_there():
    for path in re.findall(
        r"(?:/opt/gpuportal/|\b)((?:deploy|tests)/[\w./-]*\w)", PAGE
    ):
        assert (ROOT / path).exists(), path
    known = (ROOT / "gpuportal" / "settings.py").read_text()
    known += (ROOT / "deploy" / "node.env.example").read_text()
    known += (ROOT / "placement" / "agent" / "slurm" / "slurm_client.py").read_text()
    for name in set(re.findall(r"\b((?:SLURM|GPUPORTAL)_[A-Z_]*[A-Z])\b", PAGE)):
        slurms = name in ("SLURM_TIME_FORMAT", "SLURM_JOB_RESERVATION")
        assert slurms or f'"{name}"' in known or f"{name}=" in known, name
    for unit in set(re.findall(r"restart (gpuportal[\w.-]+)", PAGE)):
        file = unit if "." in unit else f"{unit}.service"
        assert (ROOT / "deploy" / "systemd" / file).exists(), unit


def test_every_test_of_a_failure_that_the_page_names_is_there():
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", PAGE)
    assert len(named) > 20
    for path, name in named:
        assert f"def {name}(" in (ROOT / path).read_text(), f"{path}::{name}"


def test_a_job_is_submitted_with_the_options_of_the_page():
    (shown,) = re.findall(r"^sbatch --reservation=gp_.*?(?=^```)", PAGE, re.M | re.S)
    place = SlurmPlace(reservation="gp_x_1", node="gp1", whole_node=True)
    sent = submit_command(make_order(slurm=place), "/f", "/w", 3600.0)
    names = {word.partition("=")[0] for word in sent}
    for word in shlex.split(shown.replace("\\\n", " ")):
        assert word.partition("=")[0] in names, word
