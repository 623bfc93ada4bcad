"""A user's own module and data set, trained without a change to either."""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from placement.agent.process import unix_user
from placement.planner.launch.execution import NotRunnable, execution_of_own
from placement.planner.launch.recipes import checked_settings, recipe_command
from placement.planner.values.errors import LaunchInvalid
from placement.planner.values.plan import Plan
from placement.protocol.node_refusals import OrderRefused
from placement.rules.log_text import numbers_of
from tests.placement import nodes
from tests.placement.agent.runtime.test_recipes import plan_for

CODE = Path(__file__).resolve().parents[4]
OWN_CODE = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))
        self.out = torch.nn.Linear(8, 3)

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return self.out(x)

def data():
    draw = torch.Generator().manual_seed(5)
    inputs = torch.randn(64, 8, generator=draw)
    return torch.utils.data.TensorDataset(inputs, inputs[:, :3].argmax(1))
"""


def trained(server, folder, plan, gpu_count, batch, **changes):
    """Run the recipe. Return (exit status, output)."""
    (folder / "mine.py").write_text(OWN_CODE)
    (folder / "plan.json").write_text(json.dumps(plan))
    settings = {
        "model": "mine:Net",
        "data": "mine:data",
        "folder": str(folder),
        "batch": batch,
        "steps": 6,
        "learning_rate": 0.01,
        "seconds_per_step": 0.6,
        **changes,
    }
    argv = recipe_command(
        "own-model",
        settings,
        gpu_count=gpu_count,
        python=str(server.python),
        plan=plan,
    )
    done = subprocess.run(
        argv,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(CODE),
            "OMP_NUM_THREADS": "1",
            **server.environ,
        },
    )
    return done.returncode, done.stdout + done.stderr


def rows_of(text):
    return [row for row in map(numbers_of, text.splitlines()) if row]


def test_it_is_shared_out_by_a_plan_and_learns_what_one_process_learns(
    tmp_path, fork_server
):
    plan = plan_for("fsdp", 2)
    plan["launch"]["precision"] = "fp32"
    status, text = trained(fork_server, tmp_path, plan, 2, 8)
    assert status == 0, text
    shared = rows_of(text)
    apart = tmp_path / "apart"
    apart.mkdir()
    status, text = trained(fork_server, apart, None, 1, 16)
    assert status == 0, text
    alone = rows_of(text)
    both = [{row["step"]: row["loss"] for row in rows} for rows in (shared, alone)]
    common = sorted(both[0].keys() & both[1].keys())
    # A busy machine prints less often, but always the first and the last step.
    assert {0, 5} <= set(common)
    # Rounded to 6 places when printed; sums of halves in another order.
    for step in common:
        assert both[0][step] == pytest.approx(both[1][step], abs=5e-6)
    assert alone[-1]["loss"] < alone[0]["loss"]
    half, whole = shared[-1]["state_bytes_0"], alone[-1]["state_bytes_0"]
    assert half == pytest.approx(whole / 2, rel=0.1)
    # One process continues from the state that two shared, with the next items of the
    # data.
    status, text = trained(fork_server, tmp_path, None, 1, 16, steps=8)
    assert status == 0 and "resuming after step 5, saved by 2 process(es)" in text, text
    more = rows_of(text)
    assert more[0]["step"] == 6
    assert more[0]["loss"] < alone[0]["loss"]


def test_what_is_not_there_is_named(tmp_path, fork_server):
    status, text = trained(fork_server, tmp_path, None, 1, 8, model="mine:Nothing")
    assert status != 0
    assert "this cannot be run" in text and "mine:Nothing" in text


def test_stages_and_checkpointing_of_unknown_code_are_refused_in_words():
    with pytest.raises(NotRunnable, match="cannot cut your own model"):
        execution_of_own(Plan.from_json(plan_for("pipeline", 2)))
    plan = Plan.from_json(plan_for("zero1", 2))
    assert execution_of_own(plan).zero_stage == 1
    with pytest.raises(NotRunnable, match="checkpointing"):
        execution_of_own(replace(plan, launch=plan.launch | {"checkpointing": "full"}))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"model": "no colon"}, "module:callable"),
        ({"data": 5}, "printable"),
        ({"folder": "relative"}, "absolute path"),
        ({"model": "a:b\n"}, "printable"),
        ({"loss": ""}, "module:callable"),
        ({"folder": "/x" * 200}, "300"),
    ],
)
def test_texts_that_cannot_be_are_refused_by_field(given, words):
    with pytest.raises(LaunchInvalid) as refused:
        checked_settings("own-model", given)
    (name,) = given
    assert words in refused.value.fields[f"recipe_settings.{name}"]


def test_own_code_is_refused_where_scripts_are():
    order = nodes.make_order(recipe="own-model", settings={})
    with pytest.raises(OrderRefused, match="not isolated"):
        unix_user.identity_of(order, allow_scripts=False)
    assert unix_user.identity_of(order, allow_scripts=True) is None
