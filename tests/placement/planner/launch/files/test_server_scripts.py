"""Scripts for vLLM and SGLang, and TRL's settings: each option is one of the tool's.

The tools are not installed with the tests: vLLM and SGLang need CUDA. Their options,
and those of TRL, are recorded from their source in tests/data/launch.
"""

import json
import os
import shlex
import subprocess
from dataclasses import fields, replace
from itertools import zip_longest
from pathlib import Path

import pytest

from placement.planner.launch.files import launch_files
from placement.planner.launch.files.trainer_arguments import OPTIMIZERS
from placement.planner.model.adaptation import adapted
from placement.planner.model.spec import ModelSpec
from placement.planner.model.well_known import well_known_spec
from placement.planner.search.memory_savings import PlanLimits
from placement.planner.search.planner import plan
from placement.planner.values.plan import Plan
from placement.planner.values.workload import CHOICES, Workload
from tests.placement.planner.made import make_offers

pytestmark = pytest.mark.pure
DATA = Path(__file__).resolve().parents[4] / "data" / "launch" / "server_options.json"
OPTIONS = {
    name: set(one["options"]) for name, one in json.loads(DATA.read_text()).items()
}
SERVERS = {"vllm.sh": "vllm", "sglang.sh": "sglang"}


def planned(
    strategy: str, *free_gib: float, model: str = "llama-3-8b", **asked
) -> Plan:
    """Return the first Plan of a strategy for inference."""
    question = {"task": "infer", "precision": "bf16", "batch": 8, **asked}
    limits = PlanLimits(strategies=(strategy,), offload=bool(asked.get("offload")))
    offers = make_offers(*free_gib, total_gib=max(24, *free_gib), link_group="nv")
    found = plan(well_known_spec(model), Workload(**question), offers, limits=limits)
    assert found.plans, found.refusals
    return found.plans[0]


def scripts(made: Plan, spec: ModelSpec | None = None) -> dict[str, str]:
    spec = spec or well_known_spec("llama-3-8b")
    files = {file.name: file.text for file in launch_files(made, spec).files}
    return {name: text for name, text in files.items() if name in SERVERS}


def words(text: str) -> list[str]:
    """Return the words of the command that a script becomes."""
    return shlex.split(text.splitlines()[-1])[1:]


def options(text: str) -> dict[str, str]:
    named = [word for word in words(text) if word.startswith("--")]
    return dict(one.partition("=")[::2] for one in named)


@pytest.mark.parametrize(
    ("strategy", "free", "degrees"),
    [
        ("single", (23,), (1, 1, 1)),
        ("ddp", (23, 23), (1, 1, 2)),
        ("tensor", (12, 12), (2, 1, 1)),
        ("pipeline", (12, 12), (1, 2, 1)),
        ("hybrid", (8, 8, 8, 8), (2, 2, 1)),
    ],
)
def test_each_option_is_one_of_the_server(strategy, free, degrees):
    made = planned(strategy, *free, sequence_length=1024)
    found = scripts(made)

    assert found.keys() == SERVERS.keys()
    for name, text in found.items():
        assert options(text).keys() <= OPTIONS[SERVERS[name]], name
        assert ",".join(made.gpu_uuids) in text
    vllm, sglang = options(found["vllm.sh"]), options(found["sglang.sh"])
    names = ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size")
    assert tuple(int(vllm[f"--{name}"]) for name in names) == degrees
    assert tuple(int(sglang[f"--{x}-size"]) for x in ("tp", "pp", "dp")) == degrees
    assert vllm["--max-model-len"] == sglang["--context-length"] == "1024"
    assert vllm["--max-num-seqs"] == str(8 // degrees[2])
    assert vllm["--dtype"] == sglang["--dtype"] == "bfloat16"


def refusals(made: Plan, spec: ModelSpec | None = None) -> dict[str, str]:
    """Return why there is no script, for each server that has none."""
    left_out = launch_files(made, spec or well_known_spec("llama-3-8b")).left_out
    return {name: left_out[name] for name in SERVERS if name in left_out}


def with_shards(made: Plan, *changes: dict) -> Plan:
    """Return a Plan with changes of its first Shards."""
    pairs = zip_longest(made.shards, changes, fillvalue={})
    return replace(made, shards=tuple(replace(one, **new) for one, new in pairs))


def test_a_server_takes_no_more_than_is_free():
    found = scripts(planned("single", 20, batch=1))
    assert options(found["vllm.sh"])["--gpu-memory-utilization"] == "0.83"
    # SGLang's part is one of the 20 GiB that are free, not of all 24.
    assert options(found["sglang.sh"])["--mem-fraction-static"] == "0.9"


def test_sglang_leaves_room_for_temporary_buffers():
    made = planned("single", 20, batch=1)
    sizes = {"parameters": 10, "kv_cache": 2, "transients": 4, "context": 0}
    sizes = {name: gib * 2**30 for name, gib in sizes.items()}
    made = with_shards(made, {"components": sizes, "low_bytes": 16 * 2**30})
    assert options(scripts(made)["sglang.sh"])["--mem-fraction-static"] == "0.8"
    tight = with_shards(made, {"free_bytes": 15 * 2**30})
    assert (
        "That is 10.9 GiB, and this plan needs 12.0 GiB" in refusals(tight)["sglang.sh"]
    )


def test_one_part_of_every_gpu_must_do_for_each():
    made = planned("pipeline", 22, 5, batch=1)
    for why in refusals(made).values():
        assert "on every GPU" in why or "of every GPU's memory" in why
    assert refusals(made).keys() == SERVERS.keys()
    # On GPUs of two sizes vLLM's part of each is what the plan needs there.
    small = {"total_bytes": 6 * 2**30}
    assert "vllm.sh" not in refusals(with_shards(made, {}, small))
    cut = with_shards(planned("tensor", 20, 20), {}, {"free_bytes": 17 * 2**30})
    assert "about as much free memory" in refusals(cut)["sglang.sh"]


@pytest.mark.parametrize(
    ("card", "refused"),
    [
        ("Tesla P100-PCIE-16GB", {"vllm.sh", "sglang.sh"}),
        ("Tesla V100-SXM2-16GB", {"sglang.sh"}),
        ("Tesla T4", set()),
        ("AMD Instinct MI250X", set()),
        ("no such card", set()),
    ],
)
def test_a_card_that_is_too_old_for_a_server_has_no_script(card, refused):
    found = refusals(with_shards(planned("single", 23), {"gpu_name": card}))
    assert found.keys() == refused
    assert all("compute capability" in why for why in found.values())


def test_a_length_beyond_the_models_positions_is_refused():
    made = planned("single", 23, batch=1)
    long = replace(made, launch=made.launch | {"sequence_length": 8193})
    for why in refusals(long).values():
        assert "8193 tokens" in why and "has 8192 positions" in why
    assert refusals(long).keys() == SERVERS.keys() and not refusals(made)


def test_adapters_are_served_as_planned():
    spec = adapted(well_known_spec("llama-3-8b"), lora_rank=10)
    made = planned("single", 23)
    assert "merge" in refusals(made, spec)["sglang.sh"]
    files = {file.name: file for file in launch_files(made, spec).files}
    assert files["vllm.sh"].command == "ADAPTER=ADAPTER_FOLDER sh vllm.sh MODEL_FOLDER"
    told = options(files["vllm.sh"].text)
    assert told.keys() <= OPTIONS["vllm"]
    assert (told["--enable-lora"], told["--max-lora-rank"]) == ("", "16")
    assert told["--lora-modules"] == "adapter=$adapter"
    assert json.loads(files["adapter_config.json"].text)["inference_mode"] is True
    assert "PeftModel.from_pretrained(model, ADAPTER)" in files["README.md"].text
    high = adapted(well_known_spec("llama-3-8b"), lora_rank=600)
    assert "rank 512 at most, not 600" in refusals(made, high)["vllm.sh"]


def test_every_file_of_an_inference_plan_names_the_same_script():
    made = launch_files(planned("single", 23), well_known_spec("llama-3-8b"))
    told = [file.command for file in made.files] + [file.text for file in made.files]
    assert not any("train.py" in one for one in told)
    assert "sh launch.sh infer.py" in told


def test_stages_of_a_plan_are_those_of_the_servers():
    made = planned("pipeline", 12, 12, 12, batch=1)
    blocks = []
    for text in scripts(made).values():
        (line,) = [x for x in text.splitlines() if "PP_LAYER_PARTITION" in x]
        blocks.append([int(n) for n in line.partition("=")[2].split(",")])
    assert blocks[0] == blocks[1]
    assert sum(blocks[0]) == 32 and blocks[0][0] != blocks[0][1]


def test_long_prompts_4_bits_and_weights_in_the_host_are_carried_over():
    chunked = planned("single", 23, batch=4, sequence_length=8192, prefill_tokens=2048)
    for text, name in zip(
        scripts(chunked).values(),
        ("--max-num-batched-tokens", "--chunked-prefill-size"),
        strict=True,
    ):
        assert options(text)[name] == "2048"
    packed = planned("single", 11, batch=1)
    assert packed.launch["weights"] in ("int8", "nf4")
    four = replace(packed, launch=packed.launch | {"weights": "nf4"})
    for text in scripts(four).values():
        assert options(text)["--quantization"] == "bitsandbytes"
    eight = replace(packed, launch=packed.launch | {"weights": "int8"})
    left_out = launch_files(eight, well_known_spec("llama-3-8b")).left_out
    assert "not to 8: plan with nf4" in left_out["vllm.sh"]
    away = planned("single", 10, batch=1, offload="cpu", offload_parameters=True)
    assert int(options(scripts(away)["vllm.sh"])["--cpu-offload-gb"]) >= 15


def test_plans_that_no_server_runs_say_why():
    made = replace(planned("ddp", 23, 23), strategy="fsdp", title="Fully sharded")
    left_out = launch_files(made, well_known_spec("llama-3-8b")).left_out
    for name in SERVERS:
        assert "cannot run the strategy Fully sharded" in left_out[name]
    t5 = well_known_spec("t5-small")
    for_t5 = launch_files(planned("single", 23, model="t5-small"), t5)
    assert "causal language models" in for_t5.left_out["vllm.sh"]


def test_the_script_gives_the_folder_and_further_options(tmp_path):
    (tmp_path / "vllm.sh").write_text(scripts(planned("single", 23))["vllm.sh"])
    fake = tmp_path / "vllm"
    fake.write_text('#!/bin/sh\necho "$CUDA_VISIBLE_DEVICES|$1|$2|$*"\n')
    fake.chmod(0o755)
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho '0, GPU-other'\necho '3, GPU-lab-a-0'\n")
    smi.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["sh", "vllm.sh", "my model", "--port", "9000"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    gpu, serve, folder, every = done.stdout.strip().split("|")
    assert (gpu, serve, folder) == ("3", "serve", "my model")
    assert every.endswith("--port 9000")

    def run(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "vllm.sh", *words],
            cwd=tmp_path,
            env=environment | more,
            capture_output=True,
            text=True,
        )

    alone = run()
    assert alone.returncode and "name the folder" in alone.stderr
    # In a job of the portal the variable is set. MIG instances have no index.
    job = run("m", CUDA_VISIBLE_DEVICES="GPU-lab-a-0,MIG-1,GPU-other,7")
    assert job.stdout.startswith("3,MIG-1,0,7|")
    away = run("m", CUDA_VISIBLE_DEVICES="GPU-lab-a-0,GPU-x")
    assert away.returncode == 2 and not away.stdout
    assert "no GPU with the UUID GPU-x on this machine" in away.stderr
    smi.write_text("#!/bin/sh\nexit 9\n")
    assert "nvidia-smi lists no GPUs" in run("m").stderr


class TestTrl:
    def test_each_setting_is_one_of_trl_or_of_the_trainer(self):
        from transformers import TrainingArguments

        known = OPTIONS["trl"] | {one.name for one in fields(TrainingArguments)}
        spec = well_known_spec("llama-3.2-1b")
        for strategy, free in (("single", (23,)), ("ddp", (23, 23)), ("fsdp", (9, 9))):
            asked = Workload(batch=8, precision="bf16")
            limits = PlanLimits(strategies=(strategy,), offload=False)
            (first, *_) = plan(spec, asked, make_offers(*free), limits=limits).plans
            files = {x.name: x.text for x in launch_files(first, spec).files}
            lines = files["sft.yaml"].splitlines()[1:]
            assert {line.partition(":")[0] for line in lines} <= known

    @pytest.mark.parametrize("optimizer", CHOICES["optimizer"])
    def test_every_optimizer_has_files_or_a_reason(self, optimizer):
        from transformers.training_args import OptimizerNames

        spec = well_known_spec("gpt2")
        asked = Workload(batch=2, precision="fp32", optimizer=optimizer)
        (first, *_) = plan(spec, asked, make_offers(23)).plans
        made = launch_files(first, spec)
        if optimizer in OPTIMIZERS:
            OptimizerNames(OPTIMIZERS[optimizer]["optim"])
            assert "sft.yaml" in {file.name for file in made.files}
        else:
            assert f"has no {optimizer}" in made.left_out["sft.yaml"]

    @pytest.mark.parametrize("attention", CHOICES["attention"])
    def test_every_attention_has_files(self, attention):
        spec = well_known_spec("gpt2")
        asked = Workload(batch=2, precision="fp32", attention=attention)
        (first, *_) = plan(spec, asked, make_offers(23)).plans
        files = {file.name for file in launch_files(first, spec).files}
        assert {"README.md", "sft.yaml"} <= files
