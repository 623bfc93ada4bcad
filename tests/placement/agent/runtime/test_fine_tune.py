"""Recipe ``fine-tune``: models of real families, trained by every strategy it runs."""

import contextlib
import functools
import json
import math
import os
import signal
import subprocess
from pathlib import Path

import pytest

from placement.planner.launch.recipes import recipe_command
from placement.planner.memory.estimate import estimate
from placement.planner.model.adaptation import with_lora
from placement.planner.model.families.config_json import parse_config
from placement.planner.model.sharding import Sharding
from placement.planner.search.memory_savings import PlanLimits
from placement.planner.search.planner import plan as make_plans
from placement.planner.values.gpu_list import offers_from_list
from placement.planner.values.plan import Plan
from placement.planner.values.workload import Workload
from placement.rules.log_text import numbers_of
from tests.placement.agent.runtime.test_recipes import plan_for

CODE = Path(__file__).resolve().parents[4]
SEQ = 16
"""Tokens of a block. Here, because the models' module imports torch."""
ROUNDING = 2e-5
"""Losses are printed with six places. Two ranks add halves in another order."""


def settings_for(models, family, **changes):
    return {
        "model": str(models / family),
        "data": str(models / "data.txt"),
        "seq": SEQ,
        "batch": 4,
        "steps": 6,
        "learning_rate": 3e-3,
        "evaluation_pct": 10,
        "evaluation_steps": 3,
        **changes,
    }


def started(server, folder, settings, gpu_count, plan=None, recipe="fine-tune"):
    folder.mkdir(exist_ok=True)
    if plan is not None:
        (folder / "plan.json").write_text(json.dumps(plan))
    return subprocess.Popen(
        recipe_command(
            recipe,
            settings,
            gpu_count=gpu_count,
            python=str(server.python),
            plan=plan,
        ),
        cwd=folder,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "PYTHONPATH": str(CODE),
            "OMP_NUM_THREADS": "1",
            **server.environ,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def trained(server, folder, settings, gpu_count, **how):
    """Run to the end. Return the numbers of each line and the whole output."""
    process = started(server, folder, settings, gpu_count, **how)
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 0, text
    return [row for row in map(numbers_of, text.splitlines()) if row], text


FINE_TUNE_MODELS = "tests.placement.agent.runtime.fine_tune_models"


def run_models(server, *words, module=FINE_TUNE_MODELS):
    done = subprocess.run(
        [str(server.python), "-m", module, *map(str, words)],
        cwd=CODE,
        env={"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def loaded(server, folder):
    """Return what plain transformers says of the model that a run has written."""
    model, tokens = folder / "results" / "model", folder / "tokens.bin"
    said = run_models(server, "load", model, tokens, SEQ)
    return json.loads(said.splitlines()[-1])


loaded_once = functools.cache(loaded)
"""The same of a folder in which no run writes any more."""


def processes_in(folder):
    """Return the processes that have a working directory."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and (entry / "cwd").readlink() == folder:
                found.append(int(entry.name))
    return found


@pytest.fixture(scope="module")
def models(tmp_path_factory, fork_server):
    folder = tmp_path_factory.mktemp("models")
    run_models(fork_server, "make", folder)
    return folder


@pytest.fixture(scope="module")
def alone(models, fork_server):
    """One process for each family: its folder, numbers and output."""
    return {
        family: (
            folder := models / f"alone-{family}",
            *trained(
                fork_server, folder, settings_for(models, family, batch=8), gpu_count=1
            ),
        )
        for family in ("llama", "gpt2")
    }


def curves(rows):
    """Return (losses by step, losses of evaluations by step)."""
    return tuple(
        {row["step"]: row[name] for row in rows if name in row}
        for name in ("loss", "eval_loss")
    )


def check_same(rows, others):
    """Check that two runs print the same losses where both print one."""
    for curve, other in zip(curves(rows), curves(others), strict=True):
        # A busy machine prints fewer lines, but always the last step and evaluation.
        assert 5 in curve and 5 in other
        for step in curve.keys() & other.keys():
            assert curve[step] == pytest.approx(other[step], abs=ROUNDING)


PER_WEIGHT = 16
"""Bytes of a weight, its gradient and two moments."""
LORA = {"lora_rank": 4, "learning_rate": 3e-2, "warmup_pct": 50}


@pytest.fixture(scope="module")
def adapted(models, fork_server):
    """The same with LoRA on the usual layers of the family."""
    return {
        family: (
            folder := models / f"adapted-{family}",
            *trained(
                fork_server,
                folder,
                settings_for(models, family, batch=8, **LORA),
                gpu_count=1,
            ),
        )
        for family in ("llama", "gpt2")
    }


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_two_copies_learn_what_one_process_learns_and_transformers_loads_it(
    models, alone, fork_server, tmp_path, family
):
    folder, rows, text = alone[family]
    losses, evaluations = curves(rows)
    assert losses[5] < losses[0] and set(evaluations) == {2, 5}
    assert "1 process(es) on cpu" in text and "model saved to results/model/" in text
    both, text = trained(fork_server, tmp_path, settings_for(models, family), 2)
    assert "2 process(es) on cpu" in text
    check_same(both, rows)
    found, same = loaded(fork_server, tmp_path), loaded_once(fork_server, folder)
    assert found["loss"] == pytest.approx(evaluations[5], abs=ROUNDING)
    assert found["cat"] == "cat" and found["dtype"] == "torch.float32"
    for name, total in same["weights"].items():
        assert found["weights"][name] == pytest.approx(total, abs=1e-3), name


def kill_after_a_checkpoint(server, folder, settings, plan=None):
    """Start a run, and kill all its processes after the first step."""
    # Its second step is not reached.
    slow = settings | {"seconds_per_step": 60}
    ranks = 2 if plan is None else len(plan["shards"])
    process = started(server, folder, slow, gpu_count=ranks, plan=plan)
    assert process.stdout is not None
    seen = ""
    while "model saved to" not in seen:
        line = process.stdout.readline()
        assert line, seen
        seen += line
    while pids := processes_in(folder):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=300)


def test_a_killed_run_goes_on_with_the_same_losses(
    models, alone, fork_server, tmp_path
):
    settings = settings_for(models, "llama", checkpoint_seconds=0.001)
    kill_after_a_checkpoint(fork_server, tmp_path, settings)
    assert loaded(fork_server, tmp_path)["loss"] > 0
    rows, text = trained(fork_server, tmp_path, settings, 2)
    assert "resuming after step 0, saved by 2 process(es)" in text
    assert rows[0]["step"] == 1
    check_same(rows, alone["llama"][1])


@pytest.mark.parametrize(
    ("family", "strategy"), [("gpt2", "zero1"), ("llama", "zero2"), ("gpt2", "fsdp")]
)
def test_a_plan_shares_out_what_one_process_learns(
    models, alone, fork_server, tmp_path, family, strategy
):
    plan = plan_for(strategy, 2)
    plan["launch"] |= {"precision": "fp32", "checkpointing": "full"}
    rows, text = trained(
        fork_server, tmp_path, settings_for(models, family), 2, plan=plan
    )
    assert f"{strategy}, 2 process(es) on cpu" in text
    folder, others, _ = alone[family]
    check_same(rows, others)
    found, same = loaded(fork_server, tmp_path), loaded_once(fork_server, folder)
    assert found["loss"] == pytest.approx(same["loss"], abs=ROUNDING)
    whole = others[-2]["state_bytes_0"]
    parts = [rows[-2][f"state_bytes_{rank}"] for rank in (0, 1)]
    # Weights, gradients and two moments: ZeRO-1 shares the moments only.
    expected = {"zero1": 0.75, "zero2": 0.5, "fsdp": 0.5}[strategy]
    assert sum(parts) / 2 == pytest.approx(whole * expected, rel=0.05)


def test_lora_trains_what_was_planned_and_peft_loads_it(models, adapted, fork_server):
    names = {"llama": ("q_proj", "v_proj"), "gpt2": ("c_attn",)}
    for family, (folder, rows, text) in adapted.items():
        config = json.loads((models / family / "config.json").read_text())
        spec = with_lora(parse_config(config), rank=4, targets=names[family])
        assert rows[0]["trainable_parameters"] == spec.trainable_count
        assert rows[0]["parameters"] == spec.parameter_count
        assert f"({spec.trainable_count} of them trained)" in text
        losses, evaluations = curves(rows)
        assert losses[5] < losses[0]
        found = loaded_once(fork_server, folder)
        assert found["loss"] == pytest.approx(evaluations[5], abs=ROUNDING)
        assert found["cat"] == "cat"
        # Adapters and two moments of them in fp32, their gradients, and the weights.
        trained_bytes = 4 * 4 * spec.trainable_count
        frozen_bytes = 4 * (spec.parameter_count - spec.trainable_count)
        assert rows[-2]["state_bytes_0"] == pytest.approx(
            trained_bytes + frozen_bytes, rel=0.01
        )


@pytest.mark.parametrize(
    ("family", "strategy", "output"),
    [
        ("llama", "", "adapters"),
        ("gpt2", "zero1", "merged"),
        ("gpt2", "tensor", "merged"),
        ("llama", "zero2", "adapters"),
    ],
)
def test_two_ranks_train_the_adapters_that_one_process_trains(
    models, adapted, fork_server, tmp_path, family, strategy, output
):
    settings = settings_for(models, family, lora_output=output, **LORA)
    if strategy == "tensor":
        settings |= {"batch": 8}
    plan = plan_for(strategy, 2) if strategy else None
    if plan is not None:
        plan["launch"] |= {"precision": "fp32"}
    rows, _ = trained(fork_server, tmp_path, settings, 2, plan=plan)
    folder, others, _ = adapted[family]
    check_same(rows, others)
    found, same = loaded(fork_server, tmp_path), loaded_once(fork_server, folder)
    assert found["loss"] == pytest.approx(same["loss"], abs=ROUNDING)
    merged = not any("lora" in name for name in found["weights"])
    assert merged == (output == "merged")
    assert [one.name for one in (tmp_path / "results").iterdir()] == ["model"]


def test_killed_adapters_shared_out_by_fsdp_go_on_with_the_same_losses(
    models, adapted, fork_server, tmp_path
):
    settings = settings_for(models, "llama", checkpoint_seconds=0.001, **LORA)
    plan = plan_for("fsdp", 2)
    plan["launch"] |= {"precision": "fp32", "checkpointing": "full"}
    kill_after_a_checkpoint(fork_server, tmp_path, settings, plan)
    kept = (tmp_path / "checkpoint" / ".metadata").read_bytes()
    assert b"lora_A" in kept and b"embed_tokens" not in kept
    rows, text = trained(fork_server, tmp_path, settings, 2, plan=plan)
    assert "resuming after step 0, saved by 2 process(es)" in text
    folder, others, _ = adapted["llama"]
    check_same(rows, others)
    assert loaded(fork_server, tmp_path)["loss"] == pytest.approx(
        loaded_once(fork_server, folder)["loss"], abs=ROUNDING
    )


def test_layers_that_the_model_lacks_are_named_by_their_setting(
    models, fork_server, tmp_path
):
    settings = settings_for(models, "gpt2", lora_rank=4, lora_targets="q_proj")
    process = started(fork_server, tmp_path, settings, gpu_count=1)
    text, _ = process.communicate(timeout=300)
    assert process.returncode != 0
    assert "lora_targets" in text and "q_proj" in text and "Traceback" not in text


def test_a_config_is_pre_trained_alone_and_shared_out_and_transformers_loads_it(
    models, fork_server, tmp_path
):
    one, two = tmp_path / "one", tmp_path / "two"
    config = json.loads((models / "qwen" / "config.json").read_text())
    assert not list((models / "qwen").glob("*.safetensors"))
    rows, _ = trained(
        fork_server, one, settings_for(models, "qwen", batch=8), 1, recipe="pre-train"
    )
    assert rows[0]["parameters"] == parse_config(config).parameter_count
    losses, evaluations = curves(rows)
    # Random weights know nothing of the 12 words.
    assert losses[0] == pytest.approx(math.log(12), abs=0.2) and losses[5] < losses[0]
    plan = plan_for("fsdp", 2)
    plan["launch"] |= {"precision": "fp32"}
    others, _ = trained(
        fork_server,
        two,
        settings_for(models, "qwen"),
        2,
        plan=plan,
        recipe="pre-train",
    )
    check_same(others, rows)
    found = loaded(fork_server, two)
    assert found["loss"] == pytest.approx(evaluations[5], abs=ROUNDING)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_layers_cut_over_two_ranks_learn_what_one_process_learns(
    models, alone, fork_server, tmp_path, family
):
    settings = settings_for(models, family, batch=8, checkpoint_seconds=0.001)
    plan = plan_for("tensor", 2)
    plan["launch"] |= {"precision": "fp32", "checkpointing": "full"}
    kill_after_a_checkpoint(fork_server, tmp_path, settings, plan)
    rows, text = trained(fork_server, tmp_path, settings, 2, plan=plan)
    assert "tensor, 2 process(es) on cpu" in text
    assert "resuming after step 0, saved by 2 process(es), tensor" in text
    folder, others, _ = alone[family]
    check_same(rows, others)
    found, same = loaded(fork_server, tmp_path), loaded_once(fork_server, folder)
    assert found["loss"] == pytest.approx(same["loss"], abs=ROUNDING)
    for name, total in same["weights"].items():
        assert found["weights"][name] == pytest.approx(total, abs=1e-3), name
    assert rows[0]["parameters"] == others[0]["parameters"]
    planned = planned_state(
        models, Sharding(strategy="tensor", tensor_degree=2), family
    )
    assert planned == pytest.approx(others[-2]["state_bytes_0"] / 2, rel=0.02)
    if family == "gpt2":
        # The biases of attention, and of the second layer of its MLPs, are whole.
        planned += PER_WEIGHT * 2 * (3 * 32 + 32 + 32) / 2
    for rank in (0, 1):
        assert rows[-2][f"state_bytes_{rank}"] == pytest.approx(planned, rel=0.001)


def planned_state(models, sharding, family="llama"):
    """Return the planned bytes of weights, gradients and moments of one rank."""
    config = json.loads((models / family / "config.json").read_text())
    found = estimate(parse_config(config), Workload(sequence_length=SEQ), sharding)
    # All gradients have the size of the weights. At the peak only some are there.
    return 2 * found.components["parameters"] + found.components["optimizer"]


def test_four_ranks_cut_layers_and_sequences_and_share_the_moments_of_copies(
    models, alone, fork_server, tmp_path
):
    plan = plan_for("hybrid", 4)
    assert plan["launch"]["sequence_parallel"] and plan["launch"]["zero_stage"] == 1
    assert (plan["launch"]["tensor_degree"], plan["launch"]["data_degree"]) == (2, 2)
    plan["launch"] |= {"precision": "fp32", "checkpointing": "full"}
    rows, text = trained(
        fork_server, tmp_path, settings_for(models, "llama"), 4, plan=plan
    )
    assert "hybrid, 4 process(es) on cpu" in text
    folder, others, _ = alone["llama"]
    check_same(rows, others)
    found, same = loaded(fork_server, tmp_path), loaded_once(fork_server, folder)
    assert found["loss"] == pytest.approx(same["loss"], abs=ROUNDING)
    sharding = Sharding(
        strategy="hybrid",
        tensor_degree=2,
        data_degree=2,
        zero_stage=1,
        sequence_parallel=True,
    )
    parts = [rows[-2][f"state_bytes_{rank}"] for rank in range(4)]
    # Each copy owns whole tensors, so its moments are not exactly a half.
    planned = planned_state(models, sharding)
    assert sum(parts) / 4 == pytest.approx(planned, rel=0.005)


def plan_of(models, family, strategy, nodes=1):
    """Return the planner's own Plan for a tiny model on nodes of two GPUs, as JSON."""
    config = json.loads((models / family / "config.json").read_text())
    # To start kernels takes most of so small a model's step. Two stages are better than
    # two copies only if the network is slow.
    network = 2e4 if strategy == "hybrid" else 2e9
    rows = [
        {
            "name": "NVIDIA A100 80GB",
            "free_bytes": 80 * 10**9,
            "link_group": f"link-{number}",
            "node": f"lab-{number}",
            "network_bytes_per_second": network,
        }
        for number in range(nodes)
    ]
    found = make_plans(
        parse_config(config),
        Workload(batch=8, sequence_length=SEQ),
        offers_from_list([row for row in rows for _ in range(2)]),
        limits=PlanLimits(strategies=(strategy,)),
    )
    plan = json.loads(json.dumps(found.plans[0].to_json()))
    plan["launch"] |= {"precision": "fp32"}
    return plan


def check_same_model(server, folder, same_folder):
    """Check that two runs have written the same model. Return what is said of one."""
    found, same = loaded(server, folder), loaded_once(server, same_folder)
    assert found["loss"] == pytest.approx(same["loss"], abs=ROUNDING)
    assert found["weights"].keys() == same["weights"].keys()
    for name, total in same["weights"].items():
        assert found["weights"][name] == pytest.approx(total, abs=1e-3), name
    return found


def test_killed_stages_with_a_tied_table_go_on_and_learn_what_one_process_learns(
    models, alone, fork_server, tmp_path
):
    plan = plan_of(models, "gpt2", "pipeline")
    plan["launch"] |= {"checkpointing": "full", "microbatches": 2}
    assert plan["launch"]["bounds"] == [0, 2, 4]
    settings = settings_for(models, "gpt2", checkpoint_seconds=0.001)
    kill_after_a_checkpoint(fork_server, tmp_path, settings, plan)
    rows, text = trained(fork_server, tmp_path, settings, 2, plan=plan)
    assert "pipeline, 2 process(es) on cpu" in text
    assert "resuming after step 0, saved by 2 process(es), pipeline" in text
    folder, others, _ = alone["gpt2"]
    check_same(rows, others)
    check_same_model(fork_server, tmp_path, folder)
    assert rows[0]["parameters"] == others[0]["parameters"]
    for rank, first, end in ((0, 0, 2), (1, 2, 4)):
        sharding = Sharding(
            strategy="pipeline", pipeline_degree=2, first_layer=first, last_layer=end
        )
        planned = planned_state(models, sharding, "gpt2")
        assert rows[-2][f"state_bytes_{rank}"] == pytest.approx(planned, rel=0.001)


def test_experts_cut_in_stages_with_a_tied_table_go_on_whole_and_are_loaded(
    models, fork_server, tmp_path
):
    one, two = tmp_path / "one", tmp_path / "two"
    settings = settings_for(
        models, "mixtral", batch=8, learning_rate_schedule="constant", warmup_pct=0
    )
    rows, _ = trained(fork_server, one, settings, 1, recipe="pre-train")
    plan = plan_of(models, "mixtral", "hybrid", nodes=2)
    launch = plan["launch"]
    assert (launch["tensor_degree"], launch["pipeline_degree"]) == (2, 2)
    assert launch["microbatches"] == 8
    begun, _ = trained(
        fork_server,
        two,
        settings | {"steps": 4, "batch": 1},
        4,
        plan=plan,
        recipe="pre-train",
    )
    found = loaded(fork_server, two)
    assert found["loss"] == pytest.approx(curves(begun)[1][3], abs=ROUNDING)
    rest, text = trained(fork_server, two, settings, 1, recipe="pre-train")
    assert "resuming after step 3, saved by 4 process(es), hybrid" in text
    check_same(rest, rows)
    check_same_model(fork_server, two, one)


def test_two_pieces_on_each_rank_with_a_tied_table_learn_what_one_process_learns(
    models, alone, fork_server, tmp_path
):
    # With 1F1B this model has no bubble to fill, so no search chooses the schedule.
    plan = plan_of(models, "gpt2", "pipeline")
    plan["strategy"] = "interleaved"
    plan["launch"] |= {"schedule": "interleaved", "virtual_stages": 2}
    plan["launch"] |= {"bounds": [0, 1, 2, 3, 4], "microbatches": 2}
    settings = settings_for(models, "gpt2")
    rows, text = trained(fork_server, tmp_path, settings, 2, plan=plan)
    assert "interleaved, 2 process(es) on cpu" in text
    folder, others, _ = alone["gpt2"]
    check_same(rows, others)
    check_same_model(fork_server, tmp_path, folder)
    for rank, chunks in ((0, ((0, 1), (2, 3))), (1, ((1, 2), (3, 4)))):
        sharding = interleaved(chunks)
        planned = planned_state(models, sharding, "gpt2")
        assert rows[-2][f"state_bytes_{rank}"] == pytest.approx(planned, rel=0.001)


def interleaved(chunks, **others):
    """Return the Sharding of a rank with two pieces in a pipeline of two stages."""
    return Sharding(
        strategy="hybrid" if others else "pipeline",
        pipeline_degree=2,
        pipeline_schedule="interleaved",
        virtual_stages=2,
        microbatches=8,
        first_layer=chunks[0][0],
        last_layer=chunks[-1][1],
        chunks=chunks,
        **others,
    )


def test_killed_pieces_with_cut_layers_and_sequences_go_on_with_the_same_losses(
    models, alone, fork_server, tmp_path
):
    """Each layer is cut over two ranks of a stage, and each stage has two pieces."""
    plan = plan_of(models, "llama", "hybrid", nodes=2)
    launch = plan["launch"]
    assert (launch["tensor_degree"], launch["pipeline_degree"]) == (2, 2)
    assert launch["sequence_parallel"] and launch["microbatches"] == 8
    launch |= {"schedule": "interleaved", "virtual_stages": 2, "checkpointing": "full"}
    launch["bounds"] = [0, 1, 2, 4, 5]
    settings = settings_for(models, "llama", batch=1, checkpoint_seconds=0.001)
    kill_after_a_checkpoint(fork_server, tmp_path, settings, plan)
    rows, text = trained(fork_server, tmp_path, settings, 4, plan=plan)
    assert "hybrid, 4 process(es) on cpu" in text
    assert "resuming after step 0, saved by 4 process(es), hybrid" in text
    folder, others, _ = alone["llama"]
    check_same(rows, others)
    check_same_model(fork_server, tmp_path, folder)
    assert rows[0]["parameters"] == others[0]["parameters"]
    for rank, place in enumerate(Plan.from_json(plan).by_process):
        chunks = (((0, 1), (2, 4)), ((1, 2), (4, 5)))[place.stage]
        sharding = interleaved(chunks, tensor_degree=2, sequence_parallel=True)
        planned = planned_state(models, sharding)
        assert rows[-2][f"state_bytes_{rank}"] == pytest.approx(planned, rel=0.001)


def test_killed_adapters_in_stages_with_cut_layers_go_on_with_the_same_losses(
    models, adapted, fork_server, tmp_path
):
    plan = plan_of(models, "llama", "hybrid", nodes=2)
    assert plan["launch"]["schedule"] == "1f1b"
    settings = settings_for(
        models, "llama", batch=1, checkpoint_seconds=0.001, lora_output="merged", **LORA
    )
    kill_after_a_checkpoint(fork_server, tmp_path, settings, plan)
    rows, text = trained(fork_server, tmp_path, settings, 4, plan=plan)
    assert "resuming after step 0, saved by 4 process(es), hybrid" in text
    folder, others, _ = adapted["llama"]
    check_same(rows, others)
    assert rows[0]["trainable_parameters"] == others[0]["trainable_parameters"]
    found, same = loaded(fork_server, tmp_path), loaded_once(fork_server, folder)
    assert found["loss"] == pytest.approx(same["loss"], abs=ROUNDING)
    assert not any("lora" in name for name in found["weights"])


def test_shards_inside_a_node_and_copies_across_learn_what_one_process_learns(
    models, alone, fork_server, tmp_path
):
    plan = plan_of(models, "llama", "hsdp", nodes=2)
    assert (plan["launch"]["data_degree"], plan["launch"]["shard_degree"]) == (4, 2)
    rows, text = trained(
        fork_server, tmp_path, settings_for(models, "llama", batch=2), 4, plan=plan
    )
    assert "hsdp, 4 process(es) on cpu" in text
    folder, others, _ = alone["llama"]
    check_same(rows, others)
    found, same = loaded(fork_server, tmp_path), loaded_once(fork_server, folder)
    assert found["loss"] == pytest.approx(same["loss"], abs=ROUNDING)
    for name, total in same["weights"].items():
        assert found["weights"][name] == pytest.approx(total, abs=1e-3), name
    # Two ranks of a node share one copy. FSDP of four ranks would leave a quarter.
    sharding = Sharding(strategy="hsdp", data_degree=4, replicate_degree=2)
    planned = planned_state(models, sharding)
    assert planned == pytest.approx(others[-2]["state_bytes_0"] / 2, rel=0.02)
    for rank in range(4):
        assert rows[-2][f"state_bytes_{rank}"] == pytest.approx(planned, rel=0.02)
