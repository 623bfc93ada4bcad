"""What of a command line others may read."""

import pytest

from telemetry.rules.command_line import short_command

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("command", "short"),
    [
        ("", ""),
        ("   ", ""),
        ("train --token s3cr3t", "train"),
        ("/opt/x/train", "train"),
        ("python train.py --lr 1", "python train.py"),
        ("/venv/bin/python3.11 -u -O /home/alice/train.py", "python3.11 train.py"),
        ("python -c 'import os; key=1'", "python"),
        ("python -m jupyter lab --token x", "python -m jupyter"),
        ("python -m", "python"),
        ("python", "python"),
        ("bash -lc 'curl -H secret'", "bash"),
        ("bash -lc secret.sh", "bash"),
        ("node --token abc server.js", "node"),
        ("python -W ignore train.py", "python"),
        ("x" * 500, "x" * 40),
    ],
)
def test_only_program_and_script_are_left(command, short):
    assert short_command(command) == short
