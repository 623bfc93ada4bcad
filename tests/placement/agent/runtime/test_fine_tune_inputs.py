"""The files of recipe ``fine-tune`` are checked by the field, before torch starts."""

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from placement.agent.local_runner import SHIM_VARIABLES
from placement.agent.process.job_process import SITE_CACHE, environment
from placement.agent.runtime.fine_tune_inputs import (
    check_inputs,
    model_folder,
    texts_of,
)
from placement.planner.launch.execution import (
    NotRunnable,
    execution_of_pretrained,
    execution_on_node,
)
from placement.planner.launch.recipes import checked_settings, with_planned_sizes
from placement.planner.model.well_known import well_known_spec
from placement.planner.values.errors import LaunchInvalid, PlanInvalid
from placement.planner.values.plan import Plan
from tests.placement import nodes
from tests.placement.agent.runtime.test_recipes import plan_for

pytestmark = pytest.mark.pure
CODE = Path(__file__).resolve().parents[4]


@pytest.fixture
def given(tmp_path, monkeypatch):
    """Settings whose files are all there."""
    monkeypatch.chdir(tmp_path)
    model = tmp_path / "llama"
    model.mkdir()
    config = {"model_type": "llama", "max_position_embeddings": 64}
    (model / "config.json").write_text(json.dumps(config))
    (model / "model.safetensors").write_bytes(b"")
    (model / "tokenizer.json").write_text("{}")
    data = tmp_path / "rows.jsonl"
    data.write_text('{"text": "one"}\n\n{"text": "two"}\n')
    return checked_settings(
        "fine-tune", {"model": str(model), "data": str(data), "seq": 32}
    )


def refused(settings, environ=None):
    with pytest.raises(LaunchInvalid) as error:
        check_inputs(settings, environ or {})
    return dict(error.value.fields)


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({}, "model", "absolute path"),
        ({"model": "../secret"}, "model", "absolute path"),
        ({"model": "a/b/c"}, "model", "absolute path"),
        ({"model": "/m", "data": "rows.txt"}, "data", "absolute path"),
        ({"model": "/m", "data": "/rows.pkl"}, "data", ".jsonl, .parquet"),
        ({"data": "/a.txt", "model": "/m", "column": " "}, "column", "name the column"),
        ({"data": "/a.txt", "model": "/m", "seq": 4}, "seq", "8 to 4,194,304"),
        ({"data": "/a.txt", "model": "/m", "learning_rate": 0}, "learning_rate", "1"),
        ({"data": "/a.txt", "model": "/m", "epochs": 0}, "epochs", "0.001"),
        ({"data": "/a.txt", "model": "/m", "steps": 1.5}, "steps", "whole number"),
        ({"data": "/a.txt", "model": "/m", "output": "here"}, "output", "absolute"),
    ],
)
def test_the_portal_refuses_settings_by_the_field(changes, field, words):
    with pytest.raises(LaunchInvalid) as error:
        checked_settings("fine-tune", changes)
    assert words in error.value.fields[f"recipe_settings.{field}"]


def test_good_files_are_accepted_and_the_cache_of_user_or_site_has_names(
    given, tmp_path
):
    check_inputs(given, {})
    assert (tmp_path / "results").is_dir()
    site, own = tmp_path / "site", tmp_path / "home" / ".cache" / "huggingface"
    environ = {"HOME": str(tmp_path / "home"), "GPUPORTAL_HF_HOME": str(site)}
    for cache, commit in ((site, "a" * 40), (own, "b" * 40)):
        place = cache / "hub" / "models--org--tiny"
        (place / "refs").mkdir(parents=True)
        (place / "refs" / "main").write_text(commit)
        found = model_folder("org/tiny", environ)
        assert found == place / "snapshots" / commit
    (place / "refs" / "main").write_text("../../../../etc")
    assert model_folder("org/tiny", environ).is_relative_to(site)
    why = refused(given | {"model": "org/other"}, environ)["model"]
    assert "hf download org/other" in why and str(site) in why


def test_a_job_gets_the_cache_of_the_site(monkeypatch):
    order = nodes.make_order(recipe="fine-tune", settings={})
    facts = {"work": Path("/job"), "identity": None}
    monkeypatch.delenv(SITE_CACHE, raising=False)
    assert SITE_CACHE not in environment(order, **facts)
    monkeypatch.setenv(SITE_CACHE, "/srv/huggingface")
    assert environment(order, **facts)[SITE_CACHE] == "/srv/huggingface"
    assert SITE_CACHE in SHIM_VARIABLES


@pytest.mark.parametrize(
    ("spoiled", "field", "words"),
    [
        (lambda s, m: (m / "config.json").unlink(), "model", "has no config.json"),
        (lambda s, m: (m / "config.json").write_text("{"), "model", "is no JSON"),
        (lambda s, m: (m / "config.json").write_text("[]"), "model", "no model_type"),
        (
            lambda s, m: (m / "model.safetensors").rename(m / "pytorch_model.bin"),
            "model",
            "has no .safetensors file",
        ),
        (lambda s, m: (m / "tokenizer.json").unlink(), "model", "no tokenizer.json"),
        (lambda s, m: s.update(seq=65), "seq", "at most 64 tokens"),
        (lambda s, m: s.update(model="/nothing"), "model", "there is no /nothing"),
        (lambda s, m: s.update(data="/none.txt"), "data", "there is no /none.txt"),
        (lambda s, m: s.update(column="words"), "column", "Its columns: text"),
        (
            lambda s, m: Path(s["data"]).write_text('{"text": 5}\n'),
            "data",
            "text in line 1 of",
        ),
        (lambda s, m: Path(s["data"]).write_text("{\n"), "data", "line 1 of"),
        (lambda s, m: Path(s["data"]).write_text("[]\n"), "data", "is no object"),
        (lambda s, m: Path(s["data"]).write_text(""), "data", "has no text"),
        (lambda s, m: Path(s["data"]).write_bytes(b"\xff\xfe"), "data", "UTF-8"),
        (lambda s, m: s.update(output="/proc/here"), "output", "cannot be made"),
        (
            lambda s, m: (m.parent / "results" / "model").mkdir(parents=True),
            "output",
            "did not write it",
        ),
    ],
)
def test_what_cannot_be_used_is_named_by_its_setting(given, spoiled, field, words):
    spoiled(given, Path(given["model"]))
    problems = refused(given)
    assert list(problems) == [field] and words in problems[field]


def test_a_closed_folder_is_named_as_closed_to_the_user(given):
    if os.geteuid() == 0:
        # As a student: root reads everything.
        code = (
            "import json, os, sys; "
            "from placement.agent.runtime.fine_tune_inputs import check_inputs; "
            "os.setresuid(12345, 12345, 12345); "
            "check_inputs(json.loads(sys.argv[1]), {})"
        )
        folder = Path(given["model"])
        folder.chmod(0o700)
        done = subprocess.run(
            [sys.executable, "-c", code, json.dumps(given)],
            cwd=CODE,
            capture_output=True,
            text=True,
        )
        assert f"{folder} is closed to your Unix user" in done.stderr
    else:
        Path(given["model"]).chmod(0)
        assert "closed to your Unix user" in refused(given)["model"]


def test_parquet_rows_are_read_and_its_package_is_named(given, tmp_path, monkeypatch):
    path = tmp_path / "rows.parquet"
    parquet.write_table(pyarrow.table({"text": ["a", "b"], "n": [1, 2]}), path)
    assert list(texts_of(path, "text")) == ["a", "b"]
    asked = given | {"data": str(path)}
    check_inputs(asked, {})
    assert "Its columns: n, text" in refused(asked | {"column": "x"})["column"]
    assert "n in row 1 of" in refused(asked | {"column": "n"})["data"]
    path.write_text("no parquet")
    assert "is no parquet file" in refused(asked)["data"]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "-m pip install pyarrow" in refused(asked)["data"]


def test_the_job_ends_with_the_fields_before_torch_is_imported(given, tmp_path):
    settings = json.dumps(given | {"model": "/nothing", "column": "words"})
    words = ["placement.agent.runtime.recipe_launch", "fine-tune", "1", settings]
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", *words],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(CODE)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "fine-tune cannot start: model: there is no /nothing" in done.stdout
    assert "fine-tune cannot start: column: line 1 of" in done.stdout
    assert "torch" not in done.stderr


def test_a_plan_that_the_model_cannot_follow_is_refused_with_those_that_it_can():
    long = {"seq": 512}
    turns = Plan.from_json(plan_for("interleaved", 2))
    assert len(execution_of_pretrained(turns, long).pieces_of(0)) > 1
    shared = replace(turns, launch=turns.launch | {"zero_stage": 2})
    with pytest.raises(NotRunnable, match=r"its gradients$"):
        execution_of_pretrained(shared, long)
    with pytest.raises(NotRunnable, match=r"gradients; choose a plan of: .*FSDP"):
        execution_on_node(shared, long)
    plan = Plan.from_json(plan_for("fsdp", 2))
    assert execution_of_pretrained(plan, long).zero_stage == 3
    cut = Plan.from_json(plan_for("tensor", 2))
    # Without its description the node looks at the model itself.
    assert execution_of_pretrained(cut, long).tensor_degree == 2
    spec = well_known_spec("llama-3.1-8b").to_json()
    assert execution_of_pretrained(cut, long, spec).tensor_degree == 2
    gpt2 = well_known_spec("gpt2").to_json()
    assert execution_of_pretrained(cut, long, gpt2).tensor_degree == 2
    with pytest.raises(NotRunnable, match="the family falcon that"):
        execution_of_pretrained(cut, long, gpt2 | {"family": "falcon"})
    spec["shape"]["kv_heads"] = 3
    with pytest.raises(NotRunnable, match="2 must divide the 32 heads and the 3 key"):
        execution_of_pretrained(cut, long, spec)
    along = Plan.from_json(plan_for("hybrid", 4))
    assert execution_of_pretrained(along, long).sequence_parallel
    with pytest.raises(NotRunnable, match="2 must divide the 511 tokens"):
        execution_of_pretrained(along, {"seq": 511})
    shared = replace(cut, launch=cut.launch | {"zero_stage": 2})
    with pytest.raises(NotRunnable, match="also share out its gradients"):
        execution_of_pretrained(shared, long)


def test_stages_of_a_model_are_run_unless_a_part_of_the_plan_prevents_it():
    long = {"seq": 512}
    staged = Plan.from_json(plan_for("pipeline", 2))
    spec = well_known_spec("gpt2").to_json()
    made = execution_of_pretrained(staged, long, spec)
    assert made.bounds == tuple(staged.launch["bounds"]) and made.stages == 2
    assert made.bounds[-1] == 14 and made.scaled_from is None
    assert execution_on_node(staged, long).bounds == made.bounds
    with pytest.raises(NotRunnable, match="of the family bloom into stages"):
        execution_of_pretrained(staged, long, spec | {"family": "bloom"})
    for changes, words in (
        ({"tensor_degree": 5}, "5 must divide the 12 heads"),
        ({"zero_stage": 3}, "also share out its gradients"),
        ({"schedule": "zigzag"}, "not zigzag"),
    ):
        changed = replace(staged, launch=staged.launch | changes)
        with pytest.raises(NotRunnable, match=words):
            execution_of_pretrained(changed, long, spec)
    both = replace(staged, launch=staged.launch | {"tensor_degree": 2})
    llama = spec | {"family": "llama"}
    with pytest.raises(PlanInvalid, match="2 ranks do not fill 2 stages x 1 copies x"):
        execution_of_pretrained(both, long, llama)
    llama["shape"] = spec["shape"] | {"kv_heads": 3}
    with pytest.raises(NotRunnable, match="2 must divide the 12 heads and the 3 key"):
        execution_of_pretrained(both, long, llama)
    ends = replace(staged, launch=staged.launch | {"bounds": [0, 13, 14]})
    assert execution_of_pretrained(ends, long, spec).bounds == (0, 13, 14)
    with pytest.raises(NotRunnable, match="piece 2 of the model has no block"):
        execution_of_pretrained(ends, long | {"lora_rank": 4}, spec)


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"lora_targets": "q_proj; rm"}, "lora_targets", "must name linear layers"),
        ({"lora_rank": -1}, "lora_rank", "must be 0 to 16,384"),
        ({"lora_dropout": 1}, "lora_dropout", "must be 0 to 0.9"),
        ({"lora_output": "both"}, "lora_output", "adapters, merged"),
        ({"learning_rate_schedule": "step"}, "learning_rate_schedule", "cosine"),
        ({"warmup_pct": 101}, "warmup_pct", "must be 0 to 100"),
    ],
)
def test_settings_of_adapters_and_schedules_are_refused_by_the_field(
    given, changes, field, words
):
    with pytest.raises(LaunchInvalid) as error:
        checked_settings("fine-tune", given | changes)
    assert words in error.value.fields[f"recipe_settings.{field}"]


@pytest.mark.parametrize(
    ("sizes", "sent", "fields"),
    [
        ((200_000, 2048), {}, {}),
        ((4, 1), {}, {"plan": "has 4 as seq, and the recipe takes 8 to 4,194,304"}),
        ((4, 1), {"seq": 16}, {}),
        ((4, 1), {"seq": 5}, {"recipe_settings.seq": "must be 8 to 4,194,304"}),
        (
            (4, 1),
            {"epochs": 0},
            {
                "recipe_settings.epochs": "must be 0.001 to 1,000",
                "plan": "has 4 as seq, and the recipe takes 8 to 4,194,304",
            },
        ),
    ],
)
def test_a_size_of_the_plan_beyond_a_limit_is_named_as_the_plans(sizes, sent, fields):
    plan = {
        "workload": {"sequence_length": sizes[0]},
        "launch": {"microbatch": sizes[1]},
    }
    files = {"model": "/m", "data": "/a.txt"}
    problems = {}
    try:
        found = with_planned_sizes("fine-tune", plan, files | sent)
        assert (found["seq"], found["batch"]) == (sent.get("seq", sizes[0]), sizes[1])
    except LaunchInvalid as error:
        problems = error.fields
    assert problems == fields


def test_a_pre_training_reads_no_weights_and_has_no_adapters(given):
    (Path(given["model"]) / "model.safetensors").unlink()
    assert "has no .safetensors file" in refused(given)["model"]
    files = {name: given[name] for name in ("model", "data", "seq")}
    check_inputs(checked_settings("pre-train", files), {}, reads_weights=False)
    with pytest.raises(LaunchInvalid) as error:
        checked_settings("pre-train", files | {"lora_rank": 8})
    assert list(error.value.fields) == ["recipe_settings.lora_rank"]


PACKAGES = Path(__file__).parents[4] / "docs" / "operations.md"


@pytest.mark.parametrize(
    ("package", "field"), [("peft", "lora_rank"), ("bitsandbytes", "weights")]
)
def test_adapters_and_4_bits_need_a_package_on_the_node(
    given, monkeypatch, package, field
):
    chosen = {"lora_rank": 8, "lora_targets": "q_proj,v_proj", "weights": "nf4"}
    asked = checked_settings("fine-tune", given | chosen)
    assert asked["lora_targets"] == "q_proj v_proj"
    check_inputs(asked, {})
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: None if name == package else found(name),
    )
    wanted = refused(asked)[field].rpartition(" -m ")[2]
    assert wanted.startswith(f"pip install {package}==")
    assert f"{wanted}`" in PACKAGES.read_text()
    check_inputs(asked | {"lora_rank": 0, "weights": "full"}, {})
