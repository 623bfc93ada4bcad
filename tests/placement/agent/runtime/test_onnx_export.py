"""Recipe ``export-onnx``: what torch computes, onnxruntime computes from one file."""

import importlib.util
import json
import os
import subprocess
from pathlib import Path

import numpy
import onnxruntime
import pytest

from placement.agent.runtime.onnx_export import check_packages, head_class
from placement.planner.launch.recipes import checked_settings, recipe_command
from placement.planner.values.errors import LaunchInvalid
from tests.placement.agent.runtime.test_fine_tune import run_models

CODE = Path(__file__).resolve().parents[4]
IMAGE_MODELS = "tests.placement.agent.runtime.image_models"
NETS = """
import torch
class Sum(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)
    def forward(self, left, right):
        return self.layer(left + right)
def pair():
    return Sum(), (torch.rand(2, 3), torch.rand(2, 3))
def alone():
    return Sum()
class Branch(torch.nn.Module):
    def forward(self, x):
        return x if float(x.sum()) > 0 else -x
def branch():
    return Branch(), (torch.rand(2, 3),)
"""


def exported(server, place, **settings):
    """Run the recipe. Return its exit status and its output."""
    place.mkdir(exist_ok=True)
    words = recipe_command(
        "export-onnx", settings, gpu_count=1, python=str(server.python)
    )
    done = subprocess.run(
        words,
        cwd=place,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(place),
            "PYTHONPATH": str(CODE),
            "GPUPORTAL_JOB": "17",
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.returncode, done.stdout


def test_modules_and_folders_become_files_that_onnxruntime_runs(fork_server, tmp_path):
    (tmp_path / "nets.py").write_text(NETS)
    run = tmp_path / "run"
    code = {"folder": str(tmp_path)}
    status, text = exported(fork_server, run, model="nets:pair", **code)
    assert status == 0 and "gp files 17 model.onnx --get" in text, text
    session = onnxruntime.InferenceSession(run / "results" / "model.onnx")
    rows = numpy.ones((5, 3), dtype="float32")
    (found,) = session.run(None, {"input_0": rows, "input_1": rows})
    assert found.shape == (5, 2)
    for name, words in (
        ("nets:none", "nets:none is not there"),
        ("nets:alone", "must return (module, (tensor, ...))"),
        ("nets:branch", "torch cannot export it"),
    ):
        status, text = exported(fork_server, run, model=name, **code)
        assert status == 2 and words in text and "Traceback" not in text
    run_models(fork_server, "make", tmp_path, module=IMAGE_MODELS)
    status, text = exported(fork_server, run, model=str(tmp_path / "vit"))
    assert status == 0 and "input pixel_values" in text, text
    session = onnxruntime.InferenceSession(run / "results" / "model.onnx")
    images = numpy.zeros((3, 3, 16, 16), dtype="float32")
    (logits,) = session.run(["logits"], {"pixel_values": images})
    assert logits.shape == (3, 2)


def test_settings_packages_and_heads_are_refused_with_the_reason(monkeypatch):
    for model in ("", "../x", "nets:", "nets:a b"):
        with pytest.raises(LaunchInvalid) as error:
            checked_settings("export-onnx", {"model": model})
        assert list(error.value.fields) == ["recipe_settings.model"]
    assert checked_settings("export-onnx", {"model": "org/tiny"})["model"] == "org/tiny"
    assert head_class(json.loads('{"architectures": ["GPT2LMHeadModel"]}'))
    for config in ({}, {"architectures": ["T5Model"]}, {"architectures": 3}):
        with pytest.raises(LaunchInvalid, match="module:callable instead"):
            head_class(config)
    check_packages()
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "onnxscript" else 1
    )
    with pytest.raises(LaunchInvalid, match="-m pip install onnxscript"):
        check_packages()
