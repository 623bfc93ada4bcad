"""Three lines beside the files of a Plan: its content, its start, and its reader."""

from collections.abc import Collection

from placement.planner.launch.files.adaptation_files import dtype_of
from placement.planner.launch.files.launch_file_error import NoSuchLaunch, one_line
from placement.planner.launch.files.trainer_arguments import (
    ATTENTION,
    command_line,
    trainer_arguments,
)
from placement.planner.model.spec import ModelSpec
from placement.planner.values.humanize import gib, seconds
from placement.planner.values.plan import Plan
from placement.planner.values.strategies import strategy_of


def script_of(plan: Plan) -> str:
    """Return the name of the user's script in the commands of a Plan."""
    return "train.py" if plan.launch["task"] == "train" else "infer.py"


def readme(plan: Plan, spec: ModelSpec, names: Collection[str]) -> str:
    """Return the text.

    Args:
        plan: the Plan.
        spec: its model.
        names: names of the files beside it.
    """
    worst = min(plan.shards, key=lambda one: one.headroom_bytes)
    gpus = ", ".join(shard.gpu_label for shard in plan.shards)
    first = (
        f"{plan.title}: {plan.model} on {gpus}, {seconds(plan.step_seconds)} a step; "
        f"{worst.gpu_label} holds {gib(worst.likely_bytes)} of {gib(worst.free_bytes)}."
    )
    lines = [first, _load(plan, names), _start(plan, spec, names)]
    return "\n".join(one_line(line) for line in lines) + "\n"


def _load(plan: Plan, names: Collection[str]) -> str:
    """Return how a script loads the planned model."""
    told = [f"dtype={dtype_of(plan)}"]
    told.append(f'attn_implementation="{ATTENTION[plan.launch["attention"]]}"')
    if "quantization_config.json" in names:
        said = "BitsAndBytesConfig.from_dict(json.load(open(...)))"
        told.append(f"quantization_config={said} of quantization_config.json")
    if "device_map.json" in names and plan.launch["task"] != "train":
        told.append("device_map=json.load(open('device_map.json'))")
    load = f"Load: from_pretrained(MODEL, {', '.join(told)})"
    if "adapter_config.json" in names:
        peft = "get_peft_model(model, LoraConfig.from_pretrained('.'))"
        if plan.launch["task"] != "train":
            peft = "PeftModel.from_pretrained(model, ADAPTER)"
        load += f"; adapters: {peft}"
    return f"{load}."


def _start(plan: Plan, spec: ModelSpec, names: Collection[str]) -> str:
    launch = plan.launch
    if launch["task"] != "train":
        told = f"Start: sh launch.sh {script_of(plan)}"
        if launch["offload_parameters"]:
            told += "; before it runs: accelerate.cpu_offload(model)"
        if chunk := launch.get("prefill_tokens"):
            # Of each sequence, and the plan counts those of all of them.
            length = max(1, chunk // plan.workload.microbatch(launch["data_degree"]))
            told += f"; in it: model.generate(..., prefill_chunk_size={length})"
        return f"{told}."
    try:
        options = command_line(trainer_arguments(plan, spec))
    except NoSuchLaunch:
        return f"Start: sh launch.sh {script_of(plan)}; {_of_your_script(plan, names)}"
    start = "accelerate launch --config_file accelerate.json"
    told = f"Start: {start} {script_of(plan)} {options}"
    if launch["checkpointing"] == "selective":
        told += " (recompute attention in your model's code)"
    if "sft.yaml" in names:
        told += (
            "; or: trl sft --config sft.yaml --model_name_or_path MODEL "
            "--dataset_name DATA"
        )
    return f"{told}."


def _of_your_script(plan: Plan, names: Collection[str]) -> str:
    """Return the steps that only the script can do: cut the model, and recompute."""
    launch = plan.launch
    parts = []
    if strategy_of(plan.strategy).has_stages:
        parts.append(f"it cuts the model before the layers {launch['bounds'][1:-1]}")
    if launch["tensor_degree"] > 1:
        parts.append(f"it cuts every layer in {launch['tensor_degree']}")
    parts.append("as plan.json says")
    if "ds_config.json" in names:
        parts.append("or gives ds_config.json to deepspeed.initialize")
    if launch["checkpointing"] != "none":
        parts.append("and recomputes activations (torch.utils.checkpoint)")
    return f"{', '.join(parts)}."
