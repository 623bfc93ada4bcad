"""The files that start a Plan: torchrun, DeepSpeed, accelerate, device map.

`launch_files` returns every file that can start a Plan, each with its purpose. Files
for launchers that cannot run the Plan are left out, with the reason. Pure: text in
memory.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass

from placement.planner.launch.files import (
    accelerate,
    adaptation_files,
    deepspeed,
    device_map,
    server_scripts,
    torchrun,
    trainer_arguments,
)
from placement.planner.launch.files.launch_file_error import NoSuchLaunch, RenderedFile
from placement.planner.launch.files.readme import readme, script_of
from placement.planner.model.spec import ModelSpec
from placement.planner.values.plan import Plan
from telemetry.protocol.sentences import sentence

__all__ = ["LaunchFile", "LaunchFiles", "NoSuchLaunch", "launch_files"]


@dataclass(frozen=True, slots=True)
class LaunchFile:
    """One file, and how to use it."""

    name: str
    text: str
    about: str
    """One sentence."""
    command: str = ""
    """The command that starts with it; "" if the commands of other files read it."""


@dataclass(frozen=True, slots=True)
class LaunchFiles:
    """The files with which a Plan can be started."""

    files: tuple[LaunchFile, ...]
    left_out: dict[str, str]
    """File name -> why this Plan has none."""
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Maker:
    """One kind of configuration."""

    name: str
    make: Callable[[Plan, ModelSpec], RenderedFile | str | None]
    """Returns a configuration or a text; None if the Plan does not need it."""
    about: str
    command: str = ""


ABOUT_PLAN = sentence(
    "The plan itself: ranks, shards and schedule, as the portal's recipes read it."
)
MAKERS = (
    _Maker(
        "deepspeed.json",
        deepspeed.trainer_config,
        sentence(
            "DeepSpeed's configuration for Hugging Face's Trainer and accelerate, "
            "which fill in each “auto”: ZeRO with buckets sized from the model, and "
            "offload."
        ),
        "sh launch.sh {script} --deepspeed deepspeed.json",
    ),
    _Maker(
        "ds_config.json",
        deepspeed.config,
        sentence(
            "DeepSpeed's configuration in numbers, for a script that calls "
            "deepspeed.initialize: batch sizes, precision, offload, ZeRO."
        ),
        "deepspeed --num_gpus {nproc} {script} --deepspeed_config ds_config.json",
    ),
    _Maker(
        "accelerate.json",
        accelerate.config,
        sentence("accelerate's configuration; it reads JSON like YAML."),
        "accelerate launch --config_file accelerate.json {script}",
    ),
    _Maker(
        "device_map.json",
        device_map.device_map,
        sentence(
            "Which module lies on which GPU: transformers' device_map. The GPUs of "
            "this plan are counted from 0."
        ),
    ),
    _Maker(
        "adapter_config.json",
        adaptation_files.adapter_config,
        sentence(
            "The LoRA adapters of this plan, for PEFT's LoraConfig.from_pretrained."
        ),
    ),
    _Maker(
        "quantization_config.json",
        adaptation_files.quantization_config,
        sentence(
            "How the weights are quantized when they are loaded: transformers' "
            "BitsAndBytesConfig."
        ),
    ),
    _Maker(
        "sft.yaml",
        trainer_arguments.sft_config,
        sentence(
            "Fine-tuning by TRL as planned: batch, precision, recomputation, "
            "optimizer, adapters, quantized weights."
        ),
        "trl sft --config sft.yaml --model_name_or_path MODEL --dataset_name DATA",
    ),
)
SERVER_MAKERS = (
    _Maker(
        "vllm.sh",
        server_scripts.vllm_script,
        sentence("Serves the model by vLLM on the GPUs of this plan."),
        "{adapter}sh vllm.sh MODEL_FOLDER",
    ),
    _Maker(
        "sglang.sh",
        server_scripts.sglang_script,
        sentence("Serves the model by SGLang on the GPUs of this plan."),
        "sh sglang.sh MODEL_FOLDER",
    ),
)
"""Only for Plans of inference."""
ABOUT_README = sentence(
    "The plan in three lines: what it is, how to load it, how to start it."
)


def launch_files(plan: Plan, spec: ModelSpec) -> LaunchFiles:
    """Return all files of a Plan. Deterministic; takes a few hundred microseconds."""
    files = [
        LaunchFile("plan.json", _json(plan.to_json()), ABOUT_PLAN),
        LaunchFile(
            "launch.sh",
            torchrun.script(plan),
            sentence(
                "Starts your script with torchrun: one process per GPU of this plan."
            ),
            f"sh launch.sh {script_of(plan)}",
        ),
    ]
    left_out: dict[str, str] = {}
    notes: list[str] = []
    trains = plan.launch["task"] == "train"
    has_adapters = spec.shape is not None and spec.shape.lora_rank
    adapter = "ADAPTER=ADAPTER_FOLDER " if has_adapters else ""
    for maker in MAKERS if trains else (*MAKERS, *SERVER_MAKERS):
        try:
            made = maker.make(plan, spec)
        except NoSuchLaunch as error:
            left_out[maker.name] = str(error)
            continue
        if made is None:
            continue
        text = made
        if isinstance(made, RenderedFile):
            notes += made.notes
            text = _json(made.values)
        command = maker.command.format(
            nproc=plan.launch["nproc"], script=script_of(plan), adapter=adapter
        )
        files.append(LaunchFile(maker.name, str(text), maker.about, command))
    notes += _recomputation_notes(plan)
    text = readme(plan, spec, {file.name for file in files})
    files.insert(0, LaunchFile("README.md", text, ABOUT_README))
    return LaunchFiles(tuple(files), left_out, tuple(dict.fromkeys(notes)))


def _recomputation_notes(plan: Plan) -> list[str]:
    """Return the notes on recomputation that a script has to follow."""
    how = plan.launch["checkpointing"]
    if how == "none" or plan.launch["task"] != "train":
        return []
    if how == "selective":
        return [
            sentence(
                "This plan recomputes the attention only. The Trainer has no switch "
                "for it: use torch.utils.checkpoint in your model's code."
            )
        ]
    return [
        sentence(
            "This plan recomputes activations. accelerate.json does it for FSDP; else "
            "the script does: model.gradient_checkpointing_enable(), "
            "--gradient_checkpointing, or activation_checkpoint_interval=1 of "
            "PipelineModule."
        )
    ]


def _json(values: object) -> str:
    return json.dumps(values, indent=2) + "\n"
