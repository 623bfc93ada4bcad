"""The files of recipe ``fine-tune-images`` are checked before torch starts."""

import importlib.util
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from placement.agent.runtime.images.image_folder import (
    check_image_inputs,
    opened_image,
    read_image_folder,
)
from placement.planner.launch.execution import NotRunnable, execution_of_images
from placement.planner.launch.recipes import checked_settings
from placement.planner.model.adaptation import with_lora
from placement.planner.model.well_known import well_known_spec
from placement.planner.values.errors import LaunchInvalid
from placement.planner.values.plan import Plan
from tests.placement.agent.runtime.test_recipes import plan_for

pytestmark = pytest.mark.pure


@pytest.fixture
def given(tmp_path, monkeypatch):
    """Settings whose files are all there."""
    monkeypatch.chdir(tmp_path)
    model = tmp_path / "vit"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"model_type": "vit"}))
    (model / "model.safetensors").write_bytes(b"")
    (model / "preprocessor_config.json").write_text("{}")
    for name in ("cat", "dog"):
        place = tmp_path / "data" / name
        place.mkdir(parents=True)
        Image.new("RGB", (4, 4)).save(place / "b.PNG", format="PNG")
        Image.new("L", (4, 4)).save(place / "a.jpg")
        (place / "notes.txt").write_text("no image")
    (tmp_path / "data" / ".hidden").mkdir()
    asked = {"model": str(model), "data": str(tmp_path / "data")}
    return checked_settings("fine-tune-images", asked)


def refused(settings):
    with pytest.raises(LaunchInvalid) as error:
        check_image_inputs(settings, {})
    return dict(error.value.fields)


def test_folders_are_classes_and_may_be_divided_already(given, tmp_path):
    check_image_inputs(given, {})
    data = tmp_path / "data"
    found = read_image_folder(data)
    assert found.classes == ("cat", "dog") and found.held_out == ()
    assert [(path.name, label) for path, label in found.train] == [
        *(("a.jpg", 0), ("b.PNG", 0)),
        *(("a.jpg", 1), ("b.PNG", 1)),
    ]
    assert opened_image(data / "cat" / "a.jpg").mode == "RGB"
    whole = tmp_path / "whole"
    shutil.copytree(data, whole / "train")
    shutil.copytree(data / "dog", whole / "val" / "dog")
    parts = read_image_folder(whole)
    assert parts.classes == ("cat", "dog") and len(parts.train) == 4
    assert [label for _, label in parts.held_out] == [1, 1]
    (whole / "val" / "bird").mkdir()
    with pytest.raises(LaunchInvalid) as error:
        read_image_folder(whole)
    assert "classes that train lacks: ['bird']" in error.value.fields["data"]


@pytest.mark.parametrize(
    ("spoiled", "field", "words"),
    [
        (lambda s, d: s.update(data="/nothing"), "data", "there is no /nothing"),
        (lambda s, d: shutil.rmtree(d / "cat"), "data", "2 to 100,000 classes"),
        (
            lambda s, d: [one.unlink() for one in (d / "cat").iterdir()],
            "data",
            "has no images (.jpg",
        ),
        (
            lambda s, d: (d / "dog" / "a.jpg").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0"),
            "data",
            "is no image that can be read",
        ),
        (
            lambda s, d: Path(s["model"], "preprocessor_config.json").unlink(),
            "model",
            "has no preprocessor_config.json",
        ),
        (
            lambda s, d: Path(s["model"], "config.json").write_text(
                '{"model_type": "vit", "num_channels": 1}'
            ),
            "model",
            "images with 1 channels",
        ),
        (
            lambda s, d: Path(s["model"], "model.safetensors").unlink(),
            "model",
            "has no .safetensors file",
        ),
        (lambda s, d: s.update(output="/proc/here"), "output", "cannot be made"),
    ],
)
def test_what_cannot_be_used_is_named_by_its_setting(given, spoiled, field, words):
    spoiled(given, Path(given["data"]))
    problems = refused(given)
    assert list(problems) == [field] and words in problems[field]


def test_pillow_is_named_where_it_is_missing(given, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "-m pip install pillow" in refused(given)["data"]


def test_settings_are_refused_by_the_field():
    with pytest.raises(LaunchInvalid) as error:
        checked_settings("fine-tune-images", {"data": "images", "seq": 8})
    found = error.value.fields
    assert set(found) == {f"recipe_settings.{n}" for n in ("data", "seq", "model")}
    assert "absolute path of a folder" in found["recipe_settings.data"]


def test_plans_that_cut_the_model_or_train_adapters_are_refused():
    for strategy, gpus in (("pipeline", 2), ("hybrid", 4)):
        plan = Plan.from_json(plan_for(strategy, gpus))
        with pytest.raises(NotRunnable, match="cannot cut an image classifier"):
            execution_of_images(plan)
    cut = Plan.from_json(plan_for("tensor", 2))
    vit = well_known_spec("vit-base").to_json()
    for spec in (None, vit):
        assert execution_of_images(cut, spec).tensor_degree == 2
    with pytest.raises(NotRunnable, match="plan of the family swin"):
        execution_of_images(cut, vit | {"family": "swin"})
    odd = vit | {"shape": vit["shape"] | {"heads": 3, "kv_heads": 3}}
    with pytest.raises(NotRunnable, match="2 must divide the 3 heads"):
        execution_of_images(cut, odd)
    shared = replace(cut, launch=cut.launch | {"zero_stage": 2})
    with pytest.raises(NotRunnable, match="also share out its gradients"):
        execution_of_images(shared, vit)
    copies = Plan.from_json(plan_for("ddp", 2))
    adapters = with_lora(well_known_spec("gpt2"), rank=2, targets=["c_attn"]).to_json()
    with pytest.raises(NotRunnable, match="trains all weights"):
        execution_of_images(copies, adapters)
    assert execution_of_images(copies, well_known_spec("gpt2").to_json()).replicas == 2
