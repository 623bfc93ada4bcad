"""The ready recipes, run for real: the loss falls."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from placement.planner.launch.recipes import (
    RECIPES,
    checked_settings,
    process_count,
    recipe_command,
)
from placement.planner.model.well_known import well_known_spec
from placement.planner.search.memory_savings import PlanLimits
from placement.planner.search.planner import plan as make_plans
from placement.planner.values.errors import LaunchInvalid
from placement.planner.values.gpu_list import offers_from_list
from placement.planner.values.workload import Workload
from placement.rules.log_text import numbers_of
from telemetry.proc_stat import process_table

CODE = Path(__file__).resolve().parents[4]


def start(folder, name, gpu_count=1, plan=None, server=None, **settings):
    """Start a recipe as a node does, or from the forks of a server if one is given."""
    if plan is not None:
        (folder / "plan.json").write_text(json.dumps(plan))
    return subprocess.Popen(
        recipe_command(
            name,
            settings,
            gpu_count=gpu_count,
            python=str(server.python) if server else sys.executable,
            plan=plan,
        ),
        cwd=folder,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(CODE),
            "OMP_NUM_THREADS": "1",
            **(server.environ if server else {}),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def plan_for(strategy, gpus):
    """Return the planner's own Plan for gpt2, as JSON. NVLink joins its GPUs."""
    row = {"name": "NVIDIA A100 80GB", "free_bytes": 80 * 10**9, "link_group": "a"}
    rows = [row] * gpus
    found = make_plans(
        well_known_spec("gpt2"),
        Workload(batch=16),
        offers_from_list(rows),
        limits=PlanLimits(strategies=(strategy,)),
    )
    return json.loads(json.dumps(found.plans[0].to_json()))


def losses(text):
    found = [numbers_of(line) for line in text.splitlines()]
    return [row["loss"] for row in found if row]


def until_a_step(process):
    """Wait for the first step. Return what was printed until then."""
    assert process.stdout is not None
    seen = ""
    while '"step": ' not in seen:
        line = process.stdout.readline()
        assert line, seen
        seen += line
    return seen


def test_two_processes_train_together_and_the_loss_falls(tmp_path, fork_server):
    process = start(
        tmp_path,
        "tiny-transformer",
        gpu_count=2,
        server=fork_server,
        steps=80,
        batch=8,
    )
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 0, text
    curve = losses(text)
    assert curve[0] > 3.9 and curve[-1] < 2.0, text
    assert "2 process(es) on cpu" in text
    last = [row for row in map(numbers_of, text.splitlines()) if row][-1]
    assert last["step"] == 79 and last["tokens_per_s"] > 0
    assert "checkpoint of step 79 saved" in text


def test_term_saves_a_checkpoint_that_another_number_of_processes_goes_on_from(
    tmp_path, fork_server
):
    small = {"server": fork_server, "hidden": 32, "seq": 16, "checkpoint_seconds": 0.5}
    process = start(
        tmp_path,
        "tiny-transformer",
        gpu_count=2,
        steps=100_000,
        seconds_per_step=0.05,
        **small,
    )
    assert process.stdout is not None
    seen = ""
    while "saved to checkpoint/" not in seen:
        line = process.stdout.readline()
        assert line, seen
        seen += line
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    rest, _ = process.communicate(timeout=300)
    assert process.returncode == 0, rest
    assert "stop requested" in rest and "checkpoint of step" in rest
    assert "Traceback" not in rest
    step = json.loads((tmp_path / "checkpoint" / "about.json").read_text())["step"]
    # One process, which has each layer's weights at hand only while it runs it.
    plan = plan_for("single", 1)
    plan["launch"] |= {
        "offload": "nvme",
        "offload_parameters": True,
        "precision": "fp32",
        "checkpointing": "full",
    }
    process = start(tmp_path, "tiny-transformer", plan=plan, steps=step + 30, **small)
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 0, text
    assert list((tmp_path / "offloaded" / "0").iterdir()), "the moments are files"
    assert f"resuming after step {step}, saved by 2 process(es), ddp" in text
    curve = losses(text)
    # Without the optimizer's state and the weights it would begin near ln 64 again.
    assert max(curve) < losses(seen + rest)[0], text
    process = start(tmp_path, "tiny-transformer", steps=5, layers=3, **small)
    text, _ = process.communicate(timeout=300)
    assert "cannot resume from checkpoint/: " in text and "blocks.2" in text, text


def started_alone(tmp_path, fork_server):
    """Start one rank, which needs no torchrun. Return its launcher once it trains."""
    process = start(
        tmp_path,
        "tiny-transformer",
        server=fork_server,
        steps=100_000,
        seconds_per_step=0.05,
        hidden=32,
        seq=16,
    )
    seen = until_a_step(process)
    assert "starting 1 process(es)" in seen and "1 process(es) on cpu" in seen
    return process


def rank_in(folder):
    """Return the number of the process that trains, as its program's command line
    shows it.
    """
    (found,) = (
        one.pid
        for one in process_table()
        if not one.dead
        and f"{folder}".encode() == cwd_of(one.pid)
        and b"plan_worker" in Path(f"/proc/{one.pid}/cmdline").read_bytes()
    )
    return found


def cwd_of(pid):
    try:
        return os.fsencode(Path(f"/proc/{pid}/cwd").readlink())
    except OSError:
        return b""


def test_a_rank_that_is_alone_saves_on_term(tmp_path, fork_server):
    process = started_alone(tmp_path, fork_server)
    process.send_signal(signal.SIGTERM)
    rest, _ = process.communicate(timeout=300)
    assert process.returncode == 0, rest
    assert "stop requested" in rest and "saved to checkpoint/" in rest
    assert rest.endswith("ended by signal 15\n") and "Traceback" not in rest


def test_a_rank_that_is_alone_and_killed_is_named(tmp_path, fork_server):
    process = started_alone(tmp_path, fork_server)
    os.kill(rank_in(tmp_path), signal.SIGKILL)
    rest, _ = process.communicate(timeout=300)
    assert process.returncode == 1
    assert rest.endswith("gpuportal: rank 0 ended by SIGKILL\n")


def test_term_saves_what_fsdp_shared_out_so_that_one_process_can_read_it(
    tmp_path, fork_server
):
    process = start(
        tmp_path,
        "tiny-transformer",
        gpu_count=2,
        plan=plan_for("fsdp", 2),
        server=fork_server,
        steps=100_000,
        seconds_per_step=0.05,
        hidden=32,
        seq=16,
    )
    until_a_step(process)
    process.send_signal(signal.SIGTERM)
    rest, _ = process.communicate(timeout=300)
    assert process.returncode == 0, rest
    assert "saved to checkpoint/" in rest and "Traceback" not in rest

    code = f"""
import torch
from torch.distributed import checkpoint
from placement.agent.runtime.tiny_transformer import TinyTransformer
model = TinyTransformer(layers=2, hidden=32, heads=4, seq=16)
first = {{name: value.clone() for name, value in model.state_dict().items()}}
state = {{"model": model.state_dict()}}
checkpoint.load(state, checkpoint_id={str(tmp_path / "checkpoint")!r})
print(len(first), sum(torch.equal(state["model"][n], first[n]) for n in first))
"""
    weights, untouched = map(int, fork_server.output(code).split())
    assert weights > 20 and untouched == 0


def test_a_plan_that_the_model_cannot_follow_ends_with_the_reason(
    tmp_path, fork_server
):
    plan = plan_for("pipeline", 2)
    plan["launch"]["bounds"] = [0, 2, 4, 6, 8, 14]
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    settings = checked_settings("tiny-transformer", {"layers": 1})
    # Every rank runs this. It is refused before it looks for the others.
    done = subprocess.run(
        [
            str(fork_server.python),
            "-m",
            "placement.agent.runtime.plan_worker",
            json.dumps(settings),
            str(tmp_path / "plan.json"),
        ],
        cwd=CODE,
        env={"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode != 0
    said = "the plan cannot be run: the plan cuts the model into 5 pieces"
    assert said in done.stdout, done.stdout + done.stderr


def test_a_plan_for_another_number_of_gpus_is_refused():
    plan = plan_for("fsdp", 2)
    with pytest.raises(LaunchInvalid) as refused:
        recipe_command("tiny-transformer", {}, gpu_count=3, python="py", plan=plan)
    assert refused.value.fields["plan"] == "is for 2 GPUs, not 3"


def test_burn_in_counts_and_ends_as_it_is_told(tmp_path):
    process = start(tmp_path, "burn-in", seconds=0.5, lines_per_second=100, exit_code=3)
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 3
    curve = losses(text)
    assert len(curve) > 5 and curve == sorted(curve, reverse=True)


def test_burn_in_needs_no_torch():
    code = (
        "import sys; import placement.agent.runtime.burn_in; "
        "assert not {'torch', 'django'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=CODE, check=True)


def test_every_recipes_defaults_are_valid():
    files = {"model": "/srv/model", "data": "/srv/data.txt"}
    for name, recipe in RECIPES.items():
        required = [one.name for one in recipe.settings if one.is_required]
        settings = checked_settings(name, {field: files[field] for field in required})
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
    [
        {"steps": 0},
        {"steps": 1.5},
        {"steps": "many"},
        {"steps": True},
        {"layers": 10**9},
        {"learning_rate": float("inf")},
        {"strategy": "fsdp"},
        {"strategy": "nosuch"},
        {"extra": 1},
    ],
)
def test_settings_that_cannot_be_are_refused(given):
    with pytest.raises(LaunchInvalid):
        recipe_command("tiny-transformer", given, gpu_count=1, python="python")
