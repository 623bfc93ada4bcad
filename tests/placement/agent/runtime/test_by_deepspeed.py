"""DeepSpeed as the recipes' backend, run for real over gloo if it is installed."""

import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec

import pytest

from placement.planner.launch.backends import NEEDS_PLAN, backend_problem
from placement.planner.launch.recipes import recipe_command
from placement.planner.values.errors import LaunchInvalid
from placement.rules.log_text import numbers_of
from tests.placement.agent.runtime.test_own_model import CODE, OWN_CODE
from tests.placement.agent.runtime.test_recipes import plan_for, until_a_step
from tests.placement.agent.runtime.test_strategies import (
    EXACT,
    MIXED,
    PARAMETER_BYTES,
    ROUNDING,
    check_losses,
    check_memory,
    launched,
)

pytestmark = [
    pytest.mark.pure,
    pytest.mark.deepspeed,
    # The ranks need both cores. With other tests they wait for them.
    pytest.mark.timeout(400),
    pytest.mark.skipif(
        find_spec("deepspeed") is None, reason="an optional extra; CI installs it"
    ),
]
TOLERANCES = {
    "1f1b": ROUNDING,
    "1f1b accumulated autocast bf16": MIXED,
    "zero2 autocast bf16": MIXED,
    "zero3 autocast bf16": MIXED,
}
LAST_PLACE = 5e-7
"""Default: ZeRO adds the same sums in the same order, but with other load a forward
pass may add its own in another order: the last place of a loss near 4 in float32.
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory, fork_server):
    folder = tmp_path_factory.mktemp("deepspeed")
    return launched(fork_server, folder, "deepspeed", 2, 360)


def test_losses_of_three_steps_equal_those_of_one_process(seen):
    runs = {name: run for name, run in seen.items() if "losses" in run}
    assert len(runs) == 11
    check_losses(runs, TOLERANCES, otherwise=LAST_PLACE)


def test_torch_goes_on_from_deepspeeds_checkpoint_and_deepspeed_from_torchs(seen):
    for name, (losses, alone) in seen["chains"].items():
        far = max(abs(one - two) for one, two in zip(losses, alone, strict=True))
        assert far <= (ROUNDING if name == "stages" else EXACT), (name, losses, alone)
        assert len(set(losses)) == len(losses), name


def test_each_rank_holds_what_zero_leaves_it(seen):
    def held(name):
        return [size / PARAMETER_BYTES for size in seen[name]["state_bytes"]]

    # Weights; of the fp32 copy that is stepped and of Adam's two moments a share.
    assert held("zero1") == pytest.approx([2.5, 2.5], rel=0.01)
    assert held("zero2") == pytest.approx([2.5, 2.5], rel=0.01)
    assert held("zero2 momentum") == pytest.approx([2, 2], rel=0.01)
    # Norms and biases stay whole on each.
    assert held("zero3") == pytest.approx([2, 2], rel=0.02)
    assert held("zero1 offloaded") == pytest.approx([1, 1], rel=0.01)
    assert held("zero3 offloaded") == [0, 0], "all of it is in the node's memory"
    first, second = held("1f1b")
    assert second > 2 * first


def test_the_peak_of_each_rank_is_within_the_stated_error_of_the_estimate(seen):
    assert len(seen["memory"]) == 4
    check_memory(seen["memory"], {}, otherwise=0.08)


def test_what_the_node_must_build_is_refused_in_words_where_it_cannot(seen):
    assert "ninja is not there" in seen["extras"]["no ninja"]


def started(server, folder, plan, **settings):
    (folder / "mine.py").write_text(OWN_CODE)
    (folder / "plan.json").write_text(json.dumps(plan))
    given = {
        "model": "mine:Net",
        "data": "mine:data",
        "folder": str(folder),
        "batch": 8,
        "learning_rate": 0.01,
        "backend": "deepspeed",
        **settings,
    }
    # No compiler, no ninja: nothing may have to be built.
    path = os.path.dirname(sys.executable)  # noqa: PTH120
    return subprocess.Popen(
        recipe_command(
            "own-model", given, gpu_count=2, python=str(server.python), plan=plan
        ),
        cwd=folder,
        env={
            "PATH": path,
            "PYTHONPATH": str(CODE),
            "OMP_NUM_THREADS": "1",
            **server.environ,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_somebodys_own_model_is_shared_out_and_saved_when_asked_to_stop(
    tmp_path, fork_server
):
    plan = plan_for("fsdp", 2)
    plan["launch"]["precision"] = "fp32"
    process = started(fork_server, tmp_path, plan, steps=100_000, seconds_per_step=0.05)
    seen = until_a_step(process)
    process.send_signal(signal.SIGTERM)
    rest, _ = process.communicate(timeout=300)
    assert process.returncode == 0, rest
    assert "mine:Net: 243 parameters, fsdp with deepspeed, 2 process(es)" in seen
    assert "stop requested" in rest and "saved to checkpoint/" in rest
    assert "Traceback" not in seen + rest
    row = numbers_of(seen.splitlines()[-1]) or {}
    assert row["items_per_s"] > 0 and row["step_seconds"] > 0
    config = json.loads((tmp_path / "ds_config.json").read_text())
    assert config["zero_optimization"]["stage"] == 3
    assert config["train_batch_size"] == 16


@pytest.mark.parametrize(
    ("plan", "extras", "words"),
    [
        (None, {"node-a": ["deepspeed"]}, NEEDS_PLAN),
        ("zero1", {"node-a": ["deepspeed"], "node-b": []}, "not installed on node-b:"),
        ("ddp", {"node-a": ["deepspeed"]}, "the strategy ddp needs torch"),
    ],
)
def test_a_backend_that_cannot_be_is_refused_in_words(plan, extras, words):
    asked = plan and {"strategy": plan, "launch": {}}
    assert words in backend_problem({"backend": "deepspeed"}, asked, extras)
    assert not backend_problem({"backend": "torch"}, asked, extras)


@pytest.mark.parametrize(
    ("plan", "words"), [(None, NEEDS_PLAN), ("ddp", "equal shares")]
)
def test_the_node_refuses_it_too(plan, words):
    made = plan and plan_for(plan, 2)
    with pytest.raises(LaunchInvalid) as refused:
        recipe_command(
            "tiny-transformer",
            {"backend": "deepspeed"},
            gpu_count=2,
            python="py",
            plan=made,
        )
    assert words in refused.value.fields["recipe_settings.backend"]
