"""Every family that the recipes cut has the gradients of one process.

Its layers are cut over ranks, or it is cut into stages.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

from placement.planner.launch.pipeline_families import PIPELINE_FAMILIES
from placement.planner.launch.tensor_families import (
    IMAGE_FAMILIES,
    TENSOR_FAMILIES,
    why_not_tensor,
)

CODE = Path(__file__).resolve().parents[4]
ROUNDING = 5e-6
"""fp32 sums in another order, beside the loss or the largest gradient."""


@pytest.fixture(scope="module")
def paths(tmp_path_factory, fork_server):
    folder = tmp_path_factory.mktemp("families")
    path, stages = folder / "seen.json", folder / "stages.json"
    done = subprocess.run(
        [
            *(str(fork_server.python), "-m"),
            "tests.placement.agent.runtime.tensor_families_child",
            *(str(path), str(stages)),
        ],
        cwd=CODE,
        env={"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=360,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return path, stages


@pytest.fixture(scope="module")
def seen(paths):
    return json.loads(paths[0].read_text())


@pytest.mark.timeout(400)
def test_gradients_of_two_stages_of_every_family_are_those_of_the_model(paths):
    """Recomputed, with tied and untied heads, cut before and behind every layer."""
    stages = json.loads(paths[1].read_text())
    assert set(stages["cut"]) == PIPELINE_FAMILIES
    for family, run in stages["cut"].items():
        assert run == {"loss": 0, "gradient": 0}, family
    assert "family gpt_oss into stages; choose a plan of: One GPU" in stages["refused"]


@pytest.mark.timeout(400)
def test_gradients_of_every_family_are_those_of_one_process(seen):
    assert set(seen["cut"]) >= TENSOR_FAMILIES | IMAGE_FAMILIES
    for family, run in seen["cut"].items():
        assert run["loss"] < ROUNDING and run["gradient"] < 1e-4, (family, run)
        # Norms and routers are whole on each rank, and so is the table of GPT-NeoX.
        assert 0.5 <= run["part"] < 0.6, (family, run)


@pytest.mark.timeout(400)
def test_gradients_of_two_stages_with_cut_layers_are_those_of_the_model(seen):
    """Layers and sequences of every family, with tied and untied heads."""
    assert set(seen["stages"]) == TENSOR_FAMILIES & PIPELINE_FAMILIES
    for family, run in seen["stages"].items():
        assert run["loss"] < ROUNDING and run["gradient"] < 1e-4, (family, run)


def test_models_that_cannot_be_cut_are_refused_with_the_reason(seen):
    refused = seen["refused"]
    assert "no tensor-parallel plan of family gpt_bigcode" in refused["gpt_bigcode"]
    assert "2 must divide the 3 heads" in refused["gpt2"]
    assert "no tensor-parallel plan of family gpt_oss" in refused["gpt_oss"]
    assert "2 must divide the 3 heads" in refused["llama"]
    assert "inner width 33" in refused["mixtral"]
    for family in ("bloom", "opt"):
        words = f"the sequences of models of the family {family}"
        assert words in refused[family]
    for words in refused.values():
        assert "choose a plan of: One GPU, " in words


def test_the_portal_knows_without_the_model_what_can_be_cut():
    assert why_not_tensor("qwen3", 32, 8, 8) == ""
    assert why_not_tensor("gpt2", 12, 12, 2) == ""
    assert "the 25 heads" in why_not_tensor("gpt2", 25, 25, 2)
    assert why_not_tensor("opt", 12, 12, 2) == ""
    assert "the sequences" in why_not_tensor("opt", 12, 12, 2, along=True)
    assert "2 must divide" not in why_not_tensor("falcon", 12, 12, 2)
    assert "the family falcon" in why_not_tensor("falcon", 12, 12, 2)
    assert "the 8 key/value heads" in why_not_tensor("qwen3", 32, 8, 16)
