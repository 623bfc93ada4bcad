"""The ready recipes, really run: the loss really falls."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from placement.domain.errors import LaunchInvalid
from placement.domain.logtext import numbers_of
from placement.domain.recipes import (
    RECIPES,
    checked_settings,
    process_count,
    recipe_command,
)

CODE = Path(__file__).resolve().parents[2]


def start(folder, name, gpu_count=1, **settings):
    return subprocess.Popen(
        recipe_command(name, settings, gpu_count=gpu_count, python=sys.executable),
        cwd=folder,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(CODE),
            "OMP_NUM_THREADS": "1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def losses(text):
    found = [numbers_of(line) for line in text.splitlines()]
    return [row["loss"] for row in found if row]


def test_two_processes_train_together_and_the_loss_falls(tmp_path):
    process = start(tmp_path, "tiny-transformer", gpu_count=2, steps=80, batch=8)
    text, _ = process.communicate(timeout=180)
    assert process.returncode == 0, text
    curve = losses(text)
    assert curve[0] > 3.9 and curve[-1] < 2.0, text
    assert "2 process(es) on cpu" in text
    last = numbers_of([line for line in text.splitlines() if "loss=" in line][-1])
    assert last["step"] == 79 and last["tokens_per_s"] > 0

    import torch

    kept = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert kept["step"] == 79 and "token.weight" in kept["model"]


def test_term_saves_a_checkpoint_and_ends_cleanly(tmp_path):
    process = start(
        tmp_path, "tiny-transformer", gpu_count=2, steps=100_000, seconds_per_step=0.05
    )
    assert process.stdout is not None
    seen = ""
    while "step=" not in seen:
        line = process.stdout.readline()
        assert line, seen
        seen += line
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == 0, rest
    assert "asked to stop" in rest and "checkpoint of step" in rest
    assert "Traceback" not in rest
    assert (tmp_path / "checkpoint.pt").is_file()


def test_burn_in_counts_and_ends_as_it_is_told(tmp_path):
    process = start(tmp_path, "burn-in", seconds=0.5, lines_per_second=20, exit_code=3)
    text, _ = process.communicate(timeout=30)
    assert process.returncode == 3
    curve = losses(text)
    assert len(curve) > 5 and curve == sorted(curve, reverse=True)


def test_burn_in_needs_no_torch():
    code = (
        "import sys; import placement.runtime.burn_in; "
        "assert not {'torch', 'django'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=CODE, check=True)


def test_every_recipes_defaults_are_valid():
    for name in RECIPES:
        settings = checked_settings(name, {})
        assert checked_settings(name, settings) == settings
        assert json.loads(json.dumps(settings)) == settings


@pytest.mark.parametrize(
    ("strategy", "gpus", "processes"),
    [("auto", 1, 1), ("auto", 4, 4), ("ddp", 2, 2), ("single", 4, 1), ("auto", 0, 1)],
)
def test_one_process_per_gpu_or_one(strategy, gpus, processes):
    assert process_count({"strategy": strategy}, gpu_count=gpus) == processes


@pytest.mark.parametrize(
    "given",
    [{"steps": 0}, {"steps": 1.5}, {"steps": "many"}, {"steps": True},
     {"layers": 10**9},
     {"learning_rate": float("inf")}, {"strategy": "fsdp"}, {"extra": 1}],
)  # fmt: skip
def test_settings_that_cannot_be_are_refused(given):
    with pytest.raises(LaunchInvalid):
        recipe_command("tiny-transformer", given, gpu_count=1, python="python")
