"""Recipe ``fine-tune`` with frozen weights in 4 or 8 bits below adapters."""

import json

import pytest

from placement.planner.memory.estimate import estimate
from placement.planner.model.adaptation import adapted
from placement.planner.model.families.config_json import parse_config
from placement.planner.values.workload import Workload
from tests.placement.agent.runtime.test_fine_tune import (
    LORA,
    ROUNDING,
    SEQ,
    check_same,
    curves,
    kill_after_a_checkpoint,
    loaded,
    run_models,
    settings_for,
    trained,
)
from tests.placement.agent.runtime.test_recipes import plan_for

TARGETS = ["q_proj", "v_proj"]


@pytest.fixture(scope="module")
def models(tmp_path_factory, fork_server):
    folder = tmp_path_factory.mktemp("models")
    run_models(fork_server, "make", folder)
    return folder


def nf4_plan(strategy, gpus):
    plan = plan_for(strategy, gpus)
    plan["launch"] |= {"precision": "fp32", "weights": "nf4"}
    return plan


@pytest.fixture(scope="module")
def alone(models, fork_server):
    """One process with nf4: its folder, numbers and output."""
    folder = models / "alone"
    settings = settings_for(models, "llama", batch=8, weights="nf4", **LORA)
    plan = nf4_plan("single", 1)
    return folder, *trained(fork_server, folder, settings, 1, plan=plan)


def check_numbers(models, rows, form, precision="fp32"):
    """Check parameters, loss and memory against the planned model."""
    config = json.loads((models / "llama" / "config.json").read_text())
    spec = adapted(parse_config(config), weights=form, lora_rank=4)
    assert rows[0]["parameters"] == spec.parameter_count
    assert rows[0]["trainable_parameters"] == spec.trainable_count
    losses, _ = curves(rows)
    assert losses[5] < losses[0]
    workload = Workload(sequence_length=SEQ, precision=precision)
    found = estimate(spec, workload).components
    # The gradients of the adapters are beside them at the end of a step.
    planned = found["parameters"] + found["optimizer"] + 4 * spec.trainable_count
    assert rows[-2]["state_bytes_0"] == pytest.approx(planned, rel=0.01)
    return spec


def test_adapters_on_nf4_train_what_was_planned_and_peft_loads_them(
    models, alone, fork_server
):
    folder, rows, text = alone
    spec = check_numbers(models, rows, "nf4")
    assert f"({spec.trainable_count} of them trained)" in text
    found = loaded(fork_server, folder)
    assert found["loss"] == pytest.approx(curves(rows)[1][5], abs=ROUNDING)
    # The same adapters on weights in full are another model.
    mark = folder / "results" / "model" / "fine_tune.json"
    mark.write_text(mark.read_text().replace("nf4", "full"))
    assert abs(loaded(fork_server, folder)["loss"] - found["loss"]) > ROUNDING


def test_killed_copies_on_nf4_go_on_and_are_merged_into_weights_in_full(
    models, alone, fork_server, tmp_path
):
    settings = settings_for(
        models,
        "llama",
        checkpoint_seconds=0.001,
        lora_output="merged",
        weights="nf4",
        **LORA,
    )
    plan = nf4_plan("ddp", 2)
    plan["launch"] |= {"checkpointing": "full"}
    kill_after_a_checkpoint(fork_server, tmp_path, settings, plan)
    kept = (tmp_path / "checkpoint" / ".metadata").read_bytes()
    assert b"lora_A" in kept and b"absmax" not in kept
    rows, text = trained(fork_server, tmp_path, settings, 2, plan=plan)
    assert "resuming after step 0, saved by 2 process(es), ddp" in text
    check_same(rows, alone[1])
    found = loaded(fork_server, tmp_path)
    assert found["dtype"] == "torch.float32"
    assert not any("lora" in name or "quant" in name for name in found["weights"])
    # The weights in full differ from the quantized ones by a few per cent.
    assert found["loss"] == pytest.approx(curves(rows)[1][5], rel=0.05)


def test_adapters_on_int8_need_no_plan(models, fork_server, tmp_path):
    settings = settings_for(models, "llama", batch=8, weights="int8", **LORA)
    rows, _ = trained(fork_server, tmp_path, settings, 1)
    check_numbers(models, rows, "int8", "bf16")
    assert loaded(fork_server, tmp_path)["loss"] == pytest.approx(
        curves(rows)[1][5], abs=0.02
    )


@pytest.mark.pure
@pytest.mark.parametrize(
    ("device", "bf16", "given", "precision"),
    [
        ("cpu", True, {"lora_rank": 8}, "fp32"),
        ("cpu", True, {"lora_rank": 8, "weights": "nf4"}, "bf16"),
        ("cuda", True, {}, "autocast_bf16"),
        ("cuda", True, {"lora_rank": 8}, "bf16"),
        ("cuda", True, {"lora_rank": 8, "weights": "nf4"}, "bf16"),
        ("cuda", False, {"lora_rank": 8, "weights": "int8"}, "autocast_fp16"),
    ],
)
def test_a_card_multiplies_in_16_bits_where_no_plan_decides(
    device, bf16, given, precision, monkeypatch
):
    import torch

    from placement.agent.runtime.fine_tune_worker import without_plan
    from placement.planner.launch.execution import execution_without_plan

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: bf16)
    how = without_plan(execution_without_plan(1), torch.device(device), given)
    assert how.precision == precision
    assert how.weights == given.get("weights", "full")
