"""Launch files: complete, consistent, and read by their libraries."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from placement.planner.launch.files import launch_files
from placement.planner.launch.files.deepspeed_memory import HELD_AS, deepspeed_needs
from placement.planner.launch.files.torchrun import arguments
from placement.planner.launch.files.trainer_arguments import trainer_arguments
from placement.planner.model.adaptation import adapted
from placement.planner.model.families.config_json import parse_config
from placement.planner.model.spec import ModelSpec
from placement.planner.model.well_known import well_known_spec
from placement.planner.search.memory_savings import PlanLimits
from placement.planner.search.planner import plan
from placement.planner.values.plan import Plan
from placement.planner.values.strategies import TITLES
from placement.planner.values.workload import Workload
from tests.placement.planner.made import make_offer, make_offers, tiny

ROOT = Path(__file__).resolve().parents[5]
TINY_LLAMA = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
}
TINY_MIXTRAL = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "vocab_size": 1024,
}
TINY_GPT2 = {"n_embd": 64, "n_layer": 6, "n_head": 4, "vocab_size": 256}


def plan_of(spec: ModelSpec, strategy: str, *free_gib: float, **fields: object) -> Plan:
    """Return the first Plan of a strategy."""
    offers = make_offers(*free_gib, total_gib=max(24, *free_gib))
    limits = PlanLimits(beaten_too=True)
    found = plan(spec, Workload(**fields), offers, limits=limits)
    for one in found.plans:
        if one.strategy == strategy:
            return one
    raise AssertionError([p.strategy for p in found.plans])


def texts(made: Plan, spec: ModelSpec) -> dict[str, str]:
    return {file.name: file.text for file in launch_files(made, spec).files}


def ask(*questions: tuple[str, ...]) -> list[dict]:
    """Let the libraries read. One process handles all requests."""
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


@pytest.fixture(scope="module")
def plans(gpt2_large) -> dict[str, tuple[Plan, ModelSpec]]:
    """A Plan of each strategy that a launcher's file exists for, and of offload."""
    half = {"batch": 8, "sequence_length": 256}
    away = {"batch": 4, "sequence_length": 128, "offload": "cpu"}
    large = {
        "zero1": plan_of(gpt2_large, "zero1", 18, 18, **half),
        "zero2": plan_of(gpt2_large, "zero2", 16, 16, **half),
        "fsdp": plan_of(gpt2_large, "fsdp", 12, 12, batch=4, sequence_length=128),
        "pipeline": plan_of(gpt2_large, "pipeline", 9, 9, batch=4, sequence_length=256),
        "offload": plan_of(gpt2_large, "single", 10, **away),
        "streamed": plan_of(gpt2_large, "single", 10, **away, offload_parameters=True),
        "fsdp_offload": plan_of(gpt2_large, "fsdp", 12, 12, **away),
    }
    small = {
        "single": plan_of(tiny(), "single", 23, batch=8),
        "ddp": plan_of(tiny(), "ddp", 23, 23, batch=8, accumulation=2),
    }
    return {name: (made, gpt2_large) for name, made in large.items()} | {
        name: (made, tiny()) for name, made in small.items()
    }


@pytest.fixture(scope="module")
def made_files(plans) -> dict[str, dict[str, str]]:
    return {name: texts(*one) for name, one in plans.items()}


@pytest.fixture(scope="module")
def lora_plans() -> dict[str, tuple[Plan, ModelSpec]]:
    """Plans of Llama-3-8B with adapters, whose weights are or are not quantized."""
    llama = well_known_spec("llama-3-8b")
    question = {"batch": 16, "sequence_length": 512, "precision": "bf16"}
    nf4 = adapted(llama, weights="nf4", lora_rank=8)
    int8 = adapted(llama, weights="int8", lora_rank=8)
    lora = adapted(llama, lora_rank=4, lora_targets=["all-linear"])
    full = question | {"checkpointing": "full"}
    return {
        "qlora": (plan_of(nf4, "single", 23, **full), nf4),
        "qlora_fsdp": (plan_of(nf4, "fsdp", 7, 7, **question), nf4),
        "int8": (plan_of(int8, "single", 23, **question), int8),
        "lora_fsdp": (plan_of(lora, "fsdp", 15, 15, **full), lora),
    }


@pytest.fixture(scope="module")
def other_plans(gpt2_large) -> dict[str, tuple[Plan, ModelSpec]]:
    """A Plan of each strategy that `plans` lacks."""
    wide = {"link_group": "nv", "network_bytes_per_second": 200e9}
    two_nodes = [
        make_offer(number, node=node, **wide | {"link_group": node})
        for node in ("lab-a", "lab-b")
        for number in range(4)
    ]
    llama = well_known_spec("llama-3.2-1b")
    mixture = parse_config({"model_type": "mixtral", **TINY_MIXTRAL})
    one_node = {
        "zero1_uneven": (gpt2_large, make_offers(20, 12)),
        "gpipe": (gpt2_large, make_offers(9, 9)),
        "interleaved": (gpt2_large, make_offers(9, 9)),
        "tensor": (gpt2_large, make_offers(12, 12, **wide)),
        "hybrid": (llama, make_offers(12, 12, 12, 12, **wide)),
        "hsdp": (llama, two_nodes),
        "context_parallel": (llama, two_nodes),
        "expert_parallel": (mixture, two_nodes),
    }
    made = {}
    for strategy, (spec, offers) in one_node.items():
        asked = Workload(batch=8, sequence_length=256)
        if strategy == "context_parallel":
            asked = Workload(batch=1, sequence_length=32768, precision="bf16")
        limits = PlanLimits(strategies=(strategy,), beaten_too=True)
        found = plan(spec, asked, offers, limits=limits)
        assert found.plans, (strategy, found.refusals)
        made[strategy] = (found.plans[0], spec)
    return made


TRAINED = ("ddp", "zero2", "fsdp", "offload", "streamed")
"""Files with which a Trainer takes a step. The others differ from these in numbers."""


@pytest.fixture(scope="module")
def answers(plans, made_files, lora_plans, other_plans) -> dict[tuple[str, str], dict]:
    """Return each library's result, by its name and that of the Plan."""
    questions: dict[tuple[str, str], tuple] = {}
    for name, files in made_files.items():
        degree = plans[name][0].launch["data_degree"]
        questions["deepspeed", name] = (json.loads(files["ds_config.json"]), degree)
        questions["torchrun", name] = (arguments(plans[name][0]),)
        if "accelerate.json" in files:
            questions["accelerate", name] = (json.loads(files["accelerate.json"]),)
    for name, (made, spec) in other_plans.items():
        questions["torchrun", name] = (arguments(made),)
        if "ds_config.json" in (files := texts(made, spec)):
            degree = made.launch["data_degree"]
            questions["deepspeed", name] = (json.loads(files["ds_config.json"]), degree)
    # The check works: for three GPUs the same file does not add up.
    questions["deepspeed", "wrong"] = (
        json.loads(made_files["ddp"]["ds_config.json"]),
        3,
    )
    for kind, fields in (("Llama", TINY_LLAMA), ("GPT2", TINY_GPT2)):
        spec = parse_config({"model_type": kind.lower(), **fields})
        made = texts(plan_of(spec, "single", 23), spec)["device_map.json"]
        model = "GPT2LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM"
        told = {"config": f"{kind}Config", "model": model, "values": fields}
        questions["device_map", kind] = (json.loads(made), told)
    for name, one in lora_plans.items():
        files = texts(*one)
        config = files.get("quantization_config.json", "null")
        said = json.loads(files["adapter_config.json"])
        questions["adapters", name] = (said, json.loads(config))
        questions["arguments", name] = (trainer_arguments(*one),)
    for name in TRAINED:
        values = json.loads(made_files[name]["deepspeed.json"])
        questions["trainer", name] = (values, {"bf16": name != "ddp"})
    found = ask(*((check, *told) for (check, _), told in questions.items()))
    return dict(zip(questions, found, strict=True))


def test_deepspeed_reads_its_file_of_each_strategy(answers, plans, other_plans):
    read = {name: one for (check, name), one in answers.items() if check == "deepspeed"}
    assert "AssertionError" in read.pop("wrong")["error"]
    assert {name: one["stage"] for name, one in read.items()} == {
        **{"single": 0, "ddp": 0, "pipeline": 0, "zero1": 1, "zero2": 2, "fsdp": 3},
        **{"offload": 2, "streamed": 3, "fsdp_offload": 3, "gpipe": 0},
    }
    for name, one in read.items():
        made, spec = (plans | other_plans)[name]
        assert one["train_batch_size"] == made.launch["batch"]
        layer = max(layer.parameters for layer in spec.layers)
        assert one["stage"] == 0 or one["bucket"] <= layer
        assert one["offload"] == (made.launch["offload"] == "cpu")


def test_accelerate_and_torchrun_start_as_many_ranks_as_each_plan_has(answers, plans):
    types = {}
    for name, (made, _) in plans.items():
        count = len(made.shards)
        assert answers["torchrun", name] == {
            "nnodes": "1",
            "nproc": str(count),
            "rank": 0,
        }
        if one := answers.get(("accelerate", name)):
            assert one["processes"] == count
            types[name] = one["type"].removeprefix("DistributedType.")
    assert types == {
        "single": "NO",
        "ddp": "MULTI_GPU",
        "fsdp": "FSDP",
        # Copies and FSDP offload with DeepSpeed if FSDP cannot do it as planned.
        **dict.fromkeys(("zero1", "zero2", "offload", "streamed"), "DEEPSPEED"),
        "fsdp_offload": "DEEPSPEED",
    }
    fsdp = answers["accelerate", "fsdp"]
    assert (fsdp["use_fsdp"], fsdp["fsdp_version"]) == (True, 2)


def test_torchrun_and_the_portal_read_the_files_of_the_other_strategies(
    answers, plans, other_plans
):
    known = {made.strategy for made, _ in (plans | other_plans).values()}
    assert known == set(TITLES)
    for name, (made, spec) in other_plans.items():
        read = answers["torchrun", name]
        assert read["nnodes"] == str(len(made.nodes))
        assert int(read["nproc"]) * len(made.nodes) == len(made.shards)
        files = launch_files(made, spec)
        names = {file.name for file in files.files}
        told = {file.name: file.text for file in files.files}
        assert Plan.from_json(json.loads(told["plan.json"])) == made
        # No other launcher runs them, and each reason is a sentence.
        lacking = {"accelerate.json", "deepspeed.json", "ds_config.json", "sft.yaml"}
        assert lacking - names <= files.left_out.keys()
        assert all(why.endswith(".") for why in files.left_out.values())
        shell = subprocess.run(
            ["sh", "-n"], input=told["launch.sh"], text=True, capture_output=True
        )
        assert shell.returncode == 0, shell.stderr


def test_transformers_takes_the_device_maps(answers):
    for kind in ("Llama", "GPT2"):
        assert "modules" in answers["device_map", kind], answers["device_map", kind]


@pytest.mark.parametrize("name", TRAINED)
def test_a_trainer_script_runs_with_the_file_and_its_own_arguments(
    answers, plans, name
):
    launch = plans[name][0].launch
    stage = {"ddp": 0, "zero2": 2, "fsdp": 3, "offload": 2, "streamed": 3}
    said = answers["trainer", name]
    assert said == {
        "type": "DeepSpeedEngine",
        "loss": said.get("loss"),
        # These are those of TrainingArguments, regardless of the Plan.
        "micro": 2,
        "accumulation": 2,
        "clipping": 1.0,
        "bf16": name != "ddp",
        "stage": stage[name],
        "offload": launch["offload"] == "cpu",
        "offload_param": bool(launch["offload_parameters"]),
    }
    assert 3.5 < said["loss"] < 5  # ln 64: it begins as a guess among 64 tokens


def test_peft_and_bitsandbytes_make_the_model_that_was_planned(answers):
    """A weight of 64 x 64: 4 bits, 8 bits or 16 bits each."""
    read = {
        name: {key: one[key] for key in ("rank", "base", "base_bytes")}
        for (check, name), one in answers.items()
        if check == "adapters"
    }
    assert read == {
        "qlora": {"rank": 8, "base": "Params4bit", "base_bytes": 2048},
        "qlora_fsdp": {"rank": 8, "base": "Params4bit", "base_bytes": 2048},
        "int8": {"rank": 8, "base": "Int8Params", "base_bytes": 4096},
        "lora_fsdp": {"rank": 4, "base": "Parameter", "base_bytes": 8192},
    }
    for name in ("qlora", "qlora_fsdp", "int8"):
        assert answers["adapters", name]["learned"] == ["q_proj", "v_proj"]
    assert len(answers["adapters", "lora_fsdp"]["learned"]) == 7


def test_fsdp_flattens_weights_of_one_type_so_4_bits_lie_in_the_others(lora_plans):
    storage = {
        name: json.loads(texts(*lora_plans[name])["quantization_config.json"]).get(
            "bnb_4bit_quant_storage"
        )
        for name in ("qlora", "qlora_fsdp")
    }
    assert storage == {"qlora": None, "qlora_fsdp": "bfloat16"}


def test_the_trainer_takes_the_arguments_of_a_plan(answers, lora_plans):
    for name, (made, _) in lora_plans.items():
        read = answers["arguments", name]
        launch = made.launch
        assert int(read["per_device_train_batch_size"]) == launch["microbatch"]
        assert int(read["gradient_accumulation_steps"]) == launch["accumulation"]
    # accelerate.json sets it for FSDP, and the Trainer refuses it a second time.
    assert answers["arguments", "qlora"]["gradient_checkpointing"] == "True"
    assert answers["arguments", "lora_fsdp"]["gradient_checkpointing"] == "False"


def test_trl_is_told_all_of_a_plan_and_the_readme_has_three_lines(lora_plans):
    made, spec = lora_plans["qlora"]
    files = texts(made, spec)
    lines = files["sft.yaml"].splitlines()
    told = {key: json.loads(value) for key, value in (x.split(": ") for x in lines[1:])}
    assert told["load_in_4bit"] and told["use_bnb_nested_quant"]
    assert (told["bnb_4bit_quant_type"], told["dtype"]) == ("nf4", "bfloat16")
    assert (told["use_peft"], told["lora_r"]) == (True, 8)
    assert told["lora_target_modules"] == ["q_proj", "v_proj"]
    assert told["gradient_checkpointing"] and told["max_length"] == 512
    first, load, start = files["README.md"].splitlines()
    assert "llama-3-8b on lab-a:0" in first and "of 23.0 GiB" in first
    assert "quantization_config" in load and "LoraConfig" in load
    assert "--gradient_checkpointing" in start and "trl sft --config sft.yaml" in start
    yaml = texts(*lora_plans["lora_fsdp"])
    fsdp = json.loads(yaml["accelerate.json"])["fsdp_config"]
    assert fsdp["fsdp_activation_checkpointing"]
    assert "gradient_checkpointing: false" in yaml["sft.yaml"]


def test_files_for_adapters_are_not_offered_where_they_would_lie(lora_plans):
    made, spec = lora_plans["int8"]
    shared = replace(made, launch=made.launch | {"zero_stage": 3})
    left_out = launch_files(shared, spec).left_out
    for name in ("quantization_config.json", "accelerate.json", "sft.yaml"):
        assert "8 bits cannot be shared out" in left_out[name]
    plain = launch_files(plan_of(tiny(), "single", 23), tiny())
    names = {file.name for file in plain.files} | plain.left_out.keys()
    assert not {"adapter_config.json", "quantization_config.json"} & names
    assert plain.files[0].name == "README.md"
    llama = well_known_spec("llama-3-8b")
    asked = {"task": "infer", "precision": "bf16", "batch": 1, "offload": "cpu"}
    away = plan_of(llama, "single", 10, **asked, offload_parameters=True)
    made_files = launch_files(away, llama)
    assert "cpu_offload(model)" in made_files.left_out["device_map.json"]
    assert "cpu_offload(model)" in made_files.files[0].text


class TestDeepSpeed:
    def test_the_batch_is_gpus_times_micro_times_accumulation(self):
        made = plan_of(tiny(), "ddp", 23, 23, 23, batch=10, accumulation=2)
        values = json.loads(texts(made, tiny())["ds_config.json"])
        count = made.launch["data_degree"]
        assert values["train_batch_size"] == (
            count
            * values["train_micro_batch_size_per_gpu"]
            * values["gradient_accumulation_steps"]
        )

    def test_a_batch_of_ten_stays_ten_on_three_gpus(self):
        made = plan_of(tiny(), "ddp", 23, 23, 23, batch=10)
        values = json.loads(texts(made, tiny())["ds_config.json"])
        notes = launch_files(made, tiny()).notes
        assert values["train_batch_size"] == 10
        assert not any("instead of 10" in note for note in notes)

    def test_an_optimizer_it_does_not_have_is_yours(self):
        made = plan_of(tiny(), "single", 23, optimizer="adafactor")
        found = launch_files(made, tiny())
        values = json.loads(texts(made, tiny())["ds_config.json"])
        assert "optimizer" not in values
        assert any("your own adafactor" in note for note in found.notes)

    def test_what_it_cannot_run_has_no_file_and_says_why(self, gpt2_large):
        limits = PlanLimits(strategies=("tensor", "zero1_uneven"))
        offers = make_offers(23, 23, link_group="nv")
        found = plan(gpt2_large, Workload(batch=4), offers, limits=limits)
        tensor = [p for p in found.plans if p.strategy in ("tensor", "zero1_uneven")]
        inference = plan_of(tiny(), "single", 23, task="infer")
        files = launch_files(inference, tiny())
        assert "not for inference" in files.left_out["deepspeed.json"]
        for made in tensor:
            left_out = launch_files(made, gpt2_large).left_out
            assert {"deepspeed.json", "ds_config.json"} <= left_out.keys()

    def test_every_number_that_the_trainer_sets_is_auto(self, plans, made_files):
        for name, (made, _) in plans.items():
            if made.strategy == "pipeline":
                why = launch_files(made, plans[name][1]).left_out["deepspeed.json"]
                assert "do not run DeepSpeed's pipeline" in why
                continue
            values = json.loads(made_files[name]["deepspeed.json"])
            auto = {key for key, value in values.items() if value == "auto"}
            assert auto == {
                "train_batch_size",
                "train_micro_batch_size_per_gpu",
                "gradient_accumulation_steps",
                "gradient_clipping",
            }
            assert {values[key]["enabled"] for key in ("bf16", "fp16")} == {"auto"}
            assert not {"optimizer", "scheduler", "torch_autocast"} & values.keys()

    def test_weights_in_bf16_are_offered_only_where_their_fp32_copies_fit(self):
        llama = well_known_spec("llama-3-8b")
        question = {"batch": 4, "sequence_length": 512, "precision": "bf16"}
        made = plan_of(llama, "single", 79, **question)
        assert made.shards[0].likely_bytes < 79 * 2**30
        left_out = launch_files(made, llama).left_out
        for name in ("deepspeed.json", "ds_config.json"):
            assert "fp32 copies of the weights" in left_out[name]
            assert "lab-a:0, which has 79.0 GiB free" in left_out[name]
        assert "accelerate.json" not in left_out
        zero1 = plan_of(llama, "zero1", 79, 79, 79, 79, **question)
        # accelerate has nothing but DeepSpeed for ZeRO-1.
        left_out = launch_files(zero1, llama).left_out
        assert left_out["accelerate.json"] == left_out["deepspeed.json"]

    def test_it_holds_8_bytes_a_parameter_more_than_torch_of_weights_in_bf16(
        self, gpt2_large
    ):
        fields = {"batch": 2, "sequence_length": 64, "precision": "bf16"}
        made = plan_of(gpt2_large, "fsdp", 12, 12, **fields)
        section = {"stage": 3, "reduce_bucket_size": 1}
        (need, _) = deepspeed_needs(made, gpt2_large, section, HELD_AS)
        share = gpt2_large.parameter_count / 2
        # It keeps the gradients between steps, and a step copies them to fp32.
        more = need.low_bytes - made.shards[0].low_bytes
        assert 8 * share <= more <= 14.5 * share
        made_files = launch_files(made, gpt2_large)
        assert "deepspeed.json" in {file.name for file in made_files.files}
        notes = [one for one in made_files.notes if one.startswith("With deepspeed")]
        assert "lab-a:0 needs" in notes[0] and "fp32 moments" in notes[0]

    def test_a_pipeline_that_offloads_has_no_file_that_forgets_it(self, gpt2_large):
        made = plan_of(gpt2_large, "pipeline", 9, 9, batch=4, sequence_length=256)
        away = replace(made, launch=made.launch | {"offload": "cpu"})
        why = launch_files(away, gpt2_large).left_out["ds_config.json"]
        assert "cannot offload in a pipeline" in why


class TestDeviceMap:
    def test_stages_follow_the_bounds(self, gpt2_large):
        made = plan_of(gpt2_large, "pipeline", 9, 9, batch=4, sequence_length=256)
        values = json.loads(texts(made, gpt2_large)["device_map.json"])
        assert values["transformer.wte"] == 0
        assert values["lm_head"] == 1
        first, second = (s.first_layer for s in made.shards)
        assert (first, values[f"transformer.h.{second - 1}"]) == (0, 1)
        assert values[f"transformer.h.{second - 2}"] == 0


class TestHostileValues:
    """A stored Plan is JSON. Its texts may be any, and none is ever a command."""

    EVIL = "a'b\"c}; touch PWN; $(touch PWN)`touch PWN`\n#\u2028touch: PWN\r\x1b[2J"

    def test_no_text_of_a_plan_becomes_a_command_or_a_line(
        self, tmp_path, plans, other_plans, lora_plans
    ):
        inference = plan_of(tiny(), "single", 23, task="infer")
        every = plans | other_plans | lora_plans | {"infer": (inference, tiny())}
        fake = "#!/bin/sh\nexit 0\n"
        for name in ("torchrun", "vllm", "python", "nvidia-smi"):
            (tmp_path / name).write_text(fake)
            (tmp_path / name).chmod(0o755)
        scripts, seen = [], set()
        for name, (made, spec) in every.items():
            shards = tuple(
                replace(
                    shard,
                    gpu_uuid=f"GPU-{self.EVIL}{shard.rank}" if odd else self.EVIL,
                    gpu_label=f"{self.EVIL}:{self.EVIL}",
                    node=self.EVIL + shard.node,
                )
                for odd, shard in enumerate(made.shards)
            )
            evil = replace(made, title=self.EVIL, model=self.EVIL, shards=shards)
            for file in launch_files(evil, spec).files:
                seen.add(file.name)
                if file.name.endswith(".json"):
                    json.loads(file.text)
                    continue
                if not file.name.endswith(".sh"):
                    assert not any(x in file.text for x in "\r\x1b\u2028"), file.name
                if file.name.endswith(".yaml"):
                    values = yaml.safe_load(file.text)
                    assert "touch" not in values and "max_length" in values
                if file.name.endswith(".sh"):
                    path = tmp_path / f"{name}-{file.name}"
                    path.write_text(file.text)
                    scripts.append(path.name)
        assert seen >= {"launch.sh", "vllm.sh", "sglang.sh", "sft.yaml", "README.md"}
        loop = (
            'for one in "$@"; do sh -n "$one" || echo bad $one; '
            "NODE_RANK=0 sh \"$one\" 'a; touch PWN' >&2 || :; done"
        )
        done = subprocess.run(
            ["sh", "-c", loop, "sh", *scripts],
            cwd=tmp_path,
            env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert not done.stdout
        assert not list(tmp_path.glob("PWN*"))


class TestTorchrun:
    def test_one_node_stands_alone_and_shows_only_the_plans_gpus(self):
        made = plan_of(tiny(), "ddp", 23, 23)
        text = texts(made, tiny())["launch.sh"]
        assert "--standalone --nnodes=1 --nproc-per-node=2" in text
        assert "GPU-lab-a-0,GPU-lab-a-1" in text

    def test_gpus_without_a_uuid_of_cuda_are_shown_by_their_index(self):
        uuids = ("MIG-1", "lab-a:3")
        offers = [make_offer(n + 2, uuid=uuid) for n, uuid in enumerate(uuids)]
        found = plan(
            tiny(), Workload(batch=2), offers, limits=PlanLimits(strategies=("ddp",))
        )
        text = texts(found.plans[0], tiny())["launch.sh"]
        assert "CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=MIG-1,3\n" in text

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
