"""The arguments of Hugging Face's Trainer and of TRL that a Plan determines.

Names: transformers 5.23 "TrainingArguments"; TRL 1.16 "SFTConfig" and "ModelConfig",
which `trl sft --config` reads as YAML.
"""

import json
import math
from typing import Any

from placement.planner.launch.files import accelerate
from placement.planner.launch.files.adaptation_files import (
    adapter_config,
    dtype_of,
    quantization_config,
)
from placement.planner.launch.files.launch_file_error import (
    NoSuchLaunch,
    head_comment,
)
from placement.planner.model.spec import ModelSpec
from placement.planner.values.plan import Plan
from telemetry.protocol.sentences import sentence

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {"optim": "adamw_torch"},
    # Adam is AdamW without weight decay.
    "adam": {"optim": "adamw_torch", "weight_decay": 0.0},
    "sgd": {"optim": "sgd"},
    "momentum": {"optim": "sgd", "optim_args": "momentum=0.9"},
    "adam8bit": {"optim": "adamw_bnb_8bit"},
    "adamw8bit": {"optim": "adamw_bnb_8bit"},
    "adafactor": {"optim": "adafactor"},
    "rmsprop": {"optim": "rmsprop"},
    "rmsprop8bit": {"optim": "rmsprop_bnb_8bit"},
    "lion": {"optim": "lion_32bit"},
    "lion8bit": {"optim": "lion_8bit"},
}
"""Optimizer of a Plan -> arguments. The Trainer has no Muon."""
ATTENTION = {"flash": "sdpa", "efficient": "sdpa", "math": "eager", "eager": "eager"}
"""Attention of a Plan -> `attn_implementation`. torch's "sdpa" takes the fused kernel
that the card has.
"""


def trainer_arguments(plan: Plan, spec: ModelSpec) -> dict[str, Any]:
    """Return the arguments of `TrainingArguments` that a Plan determines.

    Raises:
        NoSuchLaunch: accelerate, by which the Trainer starts, cannot run the Plan.
    """
    launch = plan.launch
    if launch["task"] != "train":
        raise NoSuchLaunch(sentence("The Trainer's arguments are not for inference."))
    config = accelerate.config(plan, spec).values
    by_deepspeed = "deepspeed_config" in config
    mixed = (accelerate.LOWER if by_deepspeed else accelerate.MIXED)[
        launch["precision"]
    ]
    if launch["optimizer"] not in OPTIMIZERS:
        raise NoSuchLaunch(
            sentence(
                "The Trainer has no {optimizer}: give your own to its `optimizers`.",
                optimizer=launch["optimizer"],
            )
        )
    optimizer = OPTIMIZERS[launch["optimizer"]]
    if launch["optimizer_loop"] == "fused" and optimizer["optim"] == "adamw_torch":
        optimizer = optimizer | {"optim": "adamw_torch_fused"}
    pieces = launch["accumulation"]
    micro = math.ceil(launch["batch"] / (launch["data_degree"] * pieces))
    recomputed = launch["checkpointing"] == "full"
    values: dict[str, Any] = {
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": pieces,
        "bf16": mixed == "bf16",
        "fp16": mixed == "fp16",
        # FSDP is configured by accelerate's file and refuses both.
        "gradient_checkpointing": recomputed and "fsdp_config" not in config,
        **optimizer,
    }
    if launch.get("loss", plan.workload.loss) == "fused":
        values["use_liger_kernel"] = True
    return values


def command_line(values: dict[str, Any]) -> str:
    """Return arguments as a shell reads them. Switches that are off are left out.

    >>> command_line({"bf16": True, "fp16": False, "optim": "sgd"})
    '--bf16 --optim sgd'
    """
    words = []
    for name, value in values.items():
        if value is True:
            words.append(f"--{name}")
        elif value is not False:
            words.append(f"--{name} {value}")
    return " ".join(words)


def sft_config(plan: Plan, spec: ModelSpec) -> str:
    """Return YAML for `trl sft --config`.

    Raises:
        NoSuchLaunch: TRL does not train such a model, or cannot run the Plan.
    """
    if plan.launch["task"] != "train":
        raise NoSuchLaunch(sentence("TRL trains, and this plan is for inference."))
    if spec.head != "causal_lm":
        raise NoSuchLaunch(
            sentence("TRL's supervised fine-tuning is for causal language models.")
        )
    values = trainer_arguments(plan, spec)
    values |= {
        "max_length": plan.launch["sequence_length"],
        "dtype": dtype_of(plan),
        "attn_implementation": ATTENTION[plan.launch["attention"]],
        "accelerate_config": "accelerate.json",
    }
    if (adapters := adapter_config(plan, spec)) is not None:
        said = adapters.values
        values |= {
            "use_peft": True,
            "lora_r": said["r"],
            "lora_alpha": said["lora_alpha"],
            "lora_dropout": said["lora_dropout"],
            "lora_target_modules": said["target_modules"],
        }
    if (quantized := quantization_config(plan, spec)) is not None:
        names = {"bnb_4bit_use_double_quant": "use_bnb_nested_quant"}
        left = ("quant_method", "bnb_4bit_compute_dtype")  # TRL computes in `dtype`
        values |= {
            names.get(name, name): value
            for name, value in quantized.values.items()
            if name not in left
        }
    # JSON's scalars and lists are YAML's.
    lines = [f"{name}: {json.dumps(value)}" for name, value in values.items()]
    return "\n".join([head_comment(plan), *lines]) + "\n"
