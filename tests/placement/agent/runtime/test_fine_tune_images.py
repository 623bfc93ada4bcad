"""Recipe ``fine-tune-images``: a ViT on folders of images, alone and shared out."""

import json

import pytest

from placement.planner.memory.estimate import estimate
from placement.planner.model.families.config_json import parse_config
from placement.planner.values.workload import Workload
from tests.placement.agent.runtime.image_models import CLASSES
from tests.placement.agent.runtime.test_fine_tune import (
    ROUNDING,
    check_same,
    curves,
    run_models,
    started,
    trained,
)
from tests.placement.agent.runtime.test_recipes import plan_for

RECIPE = {"recipe": "fine-tune-images"}
IMAGE_MODELS = "tests.placement.agent.runtime.image_models"


@pytest.fixture(scope="module")
def models(tmp_path_factory, fork_server):
    folder = tmp_path_factory.mktemp("images")
    run_models(fork_server, "make", folder, module=IMAGE_MODELS)
    return folder


def settings_for(models, **changes):
    return {
        "model": str(models / "vit"),
        "data": str(models / "images"),
        "batch": 8,
        "steps": 6,
        "learning_rate": 1e-2,
        "learning_rate_schedule": "constant",
        "warmup_pct": 0,
        "evaluation_steps": 3,
        "readers": 0,
        **changes,
    }


def test_copies_shards_and_cut_layers_learn_what_one_process_learns(
    models, fork_server, tmp_path
):
    one, two = tmp_path / "one", tmp_path / "two"
    rows, text = trained(fork_server, one, settings_for(models, readers=1), 1, **RECIPE)
    losses, evaluations = curves(rows)
    assert losses[5] < losses[0] and set(evaluations) == {2, 5}
    assert rows[-2]["items_per_s"] > 0
    spec = parse_config(json.loads((models / "vit" / "config.json").read_text()))
    # The third class has one more row of 32 weights and a bias in the last layer.
    assert rows[0]["parameters"] == spec.parameter_count + 33
    found = estimate(spec, Workload(batch=8)).components
    planned = 2 * found["parameters"] + found["optimizer"]
    whole = rows[-2]["state_bytes_0"]
    assert whole == pytest.approx(planned, rel=0.02)
    # Two copies take two steps, and others go on from their checkpoint.
    for strategy, steps in (("ddp", 2), ("fsdp", 4), ("tensor", 6)):
        plan = plan_for(strategy, 2)
        plan["launch"] |= {"precision": "fp32", "checkpointing": "full"}
        batch = 8 if strategy == "tensor" else 4
        settings = settings_for(models, batch=batch, steps=steps)
        others, text = trained(fork_server, two, settings, 2, plan=plan, **RECIPE)
    assert "resuming after step 3, saved by 2 process(es), fsdp" in text
    check_same(others, rows)
    assert others[-1]["eval_accuracy"] == rows[-1]["eval_accuracy"]
    # The patches, norms and the last layer are whole on both ranks.
    for rank in (0, 1):
        assert 0.5 < others[-2][f"state_bytes_{rank}"] / whole < 0.7
    for folder in (one, two):
        plain = plainly_loaded(models, fork_server, folder)
        assert plain["loss"] == pytest.approx(evaluations[5], abs=ROUNDING)
        assert plain["accuracy"] == pytest.approx(rows[-1]["eval_accuracy"], abs=1e-6)
        assert plain["classes"] == list(CLASSES)


def plainly_loaded(models, server, folder):
    """Return what plain transformers says of the model that a run has written."""
    said = run_models(
        server,
        *("load", folder / "results" / "model", models / "images"),
        module=IMAGE_MODELS,
    )
    return json.loads(said.splitlines()[-1])


def test_a_spoiled_image_ends_the_job_with_its_name(models, fork_server, tmp_path):
    spoiled = tmp_path / "images"
    for name in ("a", "b"):
        (spoiled / name).mkdir(parents=True)
        good = (models / "images" / "train" / "red" / "0.png").read_bytes()
        (spoiled / name / "0.png").write_bytes(good)
        (spoiled / name / "1.png").write_bytes(good[:60])
    settings = settings_for(
        models, data=str(spoiled), batch=4, readers=1, evaluation_pct=0
    )
    process = started(fork_server, tmp_path / "run", settings, 1, **RECIPE)
    text, _ = process.communicate(timeout=300)
    assert process.returncode != 0
    assert "1.png is no image that can be read" in text and "Traceback" not in text
