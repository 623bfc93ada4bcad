"""Launch files: complete, consistent, and read by the libraries they are for."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from placement.planner.launch.files import launch_files
from placement.planner.launch.files.torchrun import arguments
from placement.planner.model.families.config_json import parse_config
from placement.planner.model.spec import ModelSpec
from placement.planner.model.well_known import well_known_spec
from placement.planner.search.planner import plan
from placement.planner.values.plan import Plan
from placement.planner.values.workload import Workload
from tests.placement.planner.made import make_offers, tiny

ROOT = Path(__file__).resolve().parents[5]
TINY_LLAMA = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
}
TINY_GPT2 = {"n_embd": 64, "n_layer": 6, "n_head": 4, "vocab_size": 256}


def plan_of(spec: ModelSpec, strategy: str, *free_gib: float, **fields: object) -> Plan:
    """The first Plan of a strategy."""
    found = plan(spec, Workload(**fields), make_offers(*free_gib))
    for one in found.plans:
        if one.strategy == strategy:
            return one
    raise AssertionError([p.strategy for p in found.plans])


def texts(made: Plan, spec: ModelSpec) -> dict[str, str]:
    return {file.name: file.text for file in launch_files(made, spec).files}


def ask(*questions: tuple[str, ...]) -> list[dict]:
    """Let the libraries read; one process for all questions."""
    told = [{"check": check, "with": list(values)} for check, *values in questions]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.placement.planner.launch.files.launch_file_check",
        ],
        input=json.dumps(told),
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        timeout=120,
    )
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def gpt2_large() -> ModelSpec:
    return well_known_spec("gpt2-large")


def test_the_libraries_read_what_they_are_given(gpt2_large):
    ddp = plan_of(tiny(), "ddp", 23, 23, batch=8, accumulation=2)
    zero2 = plan_of(gpt2_large, "zero2", 16, 16, batch=8, sequence_length=256)
    fsdp = plan_of(gpt2_large, "fsdp", 12, 12, batch=4, sequence_length=128)
    llama = parse_config({"model_type": "llama", **TINY_LLAMA})
    gpt2 = parse_config({"model_type": "gpt2", **TINY_GPT2})
    maps = [
        texts(plan_of(s, "single", 23), s)["device_map.json"] for s in (llama, gpt2)
    ]
    of = [texts(ddp, tiny()), texts(zero2, gpt2_large), texts(fsdp, gpt2_large)]
    answers = ask(
        ("deepspeed", json.loads(of[0]["deepspeed.json"]), 2),
        ("deepspeed", json.loads(of[1]["deepspeed.json"]), 2),
        ("deepspeed", json.loads(of[2]["deepspeed.json"]), 2),
        ("deepspeed", json.loads(of[0]["deepspeed.json"]), 3),
        ("accelerate", json.loads(of[0]["accelerate.json"])),
        ("accelerate", json.loads(of[1]["accelerate.json"])),
        ("accelerate", json.loads(of[2]["accelerate.json"])),
        ("torchrun", arguments(ddp)),
        (
            "device_map",
            json.loads(maps[0]),
            {
                "config": "LlamaConfig",
                "model": "LlamaForCausalLM",
                "values": TINY_LLAMA,
            },
        ),
        (
            "device_map",
            json.loads(maps[1]),
            {"config": "GPT2Config", "model": "GPT2LMHeadModel", "values": TINY_GPT2},
        ),
    )
    assert [a["stage"] for a in answers[:3]] == [0, 2, 3]
    assert [a["train_batch_size"] for a in answers[:3]] == [8, 8, 4]
    layer = max(layer.parameters for layer in gpt2_large.layers)
    assert answers[1]["bucket"] <= layer
    # The check is a real one: for three Gpus the same file does not add up.
    assert "AssertionError" in answers[3]["error"]
    assert (answers[4]["type"], answers[4]["processes"]) == (
        "DistributedType.MULTI_GPU",
        2,
    )
    assert answers[5]["use_deepspeed"]
    assert (answers[6]["use_fsdp"], answers[6]["fsdp_version"]) == (True, 2)
    assert answers[7] == {"nnodes": "1", "nproc": "2", "rank": 0}
    assert all("modules" in answer for answer in answers[8:]), answers[8:]


class TestDeepSpeed:
    def test_the_batch_is_gpus_times_micro_times_accumulation(self):
        made = plan_of(tiny(), "ddp", 23, 23, 23, batch=10, accumulation=2)
        values = json.loads(texts(made, tiny())["deepspeed.json"])
        count = made.launch["data_degree"]
        assert values["train_batch_size"] == (
            count
            * values["train_micro_batch_size_per_gpu"]
            * values["gradient_accumulation_steps"]
        )

    def test_a_batch_that_cannot_be_equal_is_told(self):
        made = plan_of(tiny(), "ddp", 23, 23, 23, batch=10)
        notes = launch_files(made, tiny()).notes
        if len(made.shards) == 3:
            assert any("the batch is 12 instead of 10" in note for note in notes)

    def test_an_optimizer_it_does_not_have_is_yours(self):
        made = plan_of(tiny(), "single", 23, optimizer="adafactor")
        found = launch_files(made, tiny())
        values = json.loads(texts(made, tiny())["deepspeed.json"])
        assert "optimizer" not in values
        assert any("your own adafactor" in note for note in found.notes)

    def test_what_it_cannot_run_has_no_file_and_says_why(self, gpt2_large):
        found = plan(gpt2_large, Workload(batch=4), make_offers(23, 23))
        tensor = [p for p in found.plans if p.strategy in ("tensor", "zero1_uneven")]
        inference = plan_of(tiny(), "single", 23, task="infer")
        files = launch_files(inference, tiny())
        assert "not for inference" in files.left_out["deepspeed.json"]
        for made in tensor:
            assert "deepspeed.json" in launch_files(made, gpt2_large).left_out


class TestDeviceMap:
    def test_stages_follow_the_bounds(self, gpt2_large):
        made = plan_of(gpt2_large, "pipeline", 9, 9, batch=4, sequence_length=256)
        values = json.loads(texts(made, gpt2_large)["device_map.json"])
        assert values["transformer.wte"] == 0
        assert values["lm_head"] == 1
        first, second = (s.first_layer for s in made.shards)
        assert (first, values[f"transformer.h.{second - 1}"]) == (0, 1)
        assert values[f"transformer.h.{second - 2}"] == 0


class TestTorchrun:
    def test_one_node_stands_alone_and_shows_only_the_plans_gpus(self):
        made = plan_of(tiny(), "ddp", 23, 23)
        text = texts(made, tiny())["launch.sh"]
        assert "--standalone --nnodes=1 --nproc-per-node=2" in text
        assert "GPU-lab-a-0,GPU-lab-a-1" in text

    def test_the_script_starts_torchrun_with_what_it_is_given(self, tmp_path):
        made = plan_of(tiny(), "ddp", 23, 23)
        (tmp_path / "launch.sh").write_text(texts(made, tiny())["launch.sh"])
        fake = tmp_path / "torchrun"
        fake.write_text('#!/bin/sh\necho "$CUDA_VISIBLE_DEVICES" "$@"\n')
        fake.chmod(0o755)
        done = subprocess.run(
            ["sh", "launch.sh", "my train.py", "--lr", "0.1"],
            cwd=tmp_path,
            env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.split(" ", 1)[0] == "GPU-lab-a-0,GPU-lab-a-1"
        assert done.stdout.endswith("my train.py --lr 0.1\n")
