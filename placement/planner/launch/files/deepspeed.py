"""DeepSpeed's JSON for a Plan, in two forms.

* ``ds_config.json`` has numbers only. DeepSpeed itself reads it: scripts that call
  ``deepspeed.initialize``, DeepSpeed's launcher, and the recipes.
* ``deepspeed.json`` has "auto" where Hugging Face's Trainer (transformers 5.23,
  ``integrations/deepspeed.py``) or accelerate (1.15) sets the value: batch sizes,
  accumulation, clipping and precision. The Trainer refuses a number that differs from
  its own arguments. It has no optimizer: the Trainer makes its own, and an accelerate
  script may not have a second one.

Fields: deepspeed.ai, "DeepSpeed Configuration JSON" (0.19). Pitfalls:

* train_batch_size = Gpus of a replica x micro batch x accumulation. DeepSpeed checks it
  at the start.
* The default buckets of 5e8 elements need more memory than a small model itself
  (docs/design/placement.md#states). This module sizes them from the model.
* Gradients are clipped to a norm of 1 unless gradient_clipping is 0.
* "Adam" means AdamW unless adam_w_mode is false.
* DeepSpeed's fused optimizers are compiled on the node at the first step. This module
  selects torch's (torch_adam), which need no compiler.
"""

from collections.abc import Mapping
from typing import Any

from placement.planner.launch.execution import Execution
from placement.planner.launch.files.deepspeed_memory import (
    HELD_AS,
    HELD_BY_TRAINER,
    deepspeed_needs,
    memory_notes,
)
from placement.planner.launch.files.launch_file_error import NoSuchLaunch, RenderedFile
from placement.planner.model.spec import ModelSpec
from placement.planner.values.plan import Plan
from placement.planner.values.strategies import strategy_of
from telemetry.protocol.sentences import sentence

LARGEST_BUCKET = 500_000_000
"""DeepSpeed's default. A larger bucket has never been useful."""
KEPT_WHOLE = 100_000
"""DeepSpeed's default: smaller tensors are not sharded. In a small model that would be
every tensor, so it is at most a hundredth of a layer: its norms and biases.
"""
NEVER = 2**31 - 1
"""Steps between DeepSpeed's lines in the log. The recipes' workers print their own."""
NVME = "/local_nvme"
"""The name of a node's drive in DeepSpeed's configuration."""
AUTO = "auto"
"""The Trainer or accelerate fills in the value."""
TORCH_ADAM: dict[str, Any] = {"torch_adam": True}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {
        "type": "AdamW",
        "params": {"lr": 1e-4, "weight_decay": 0.01, **TORCH_ADAM},
    },
    "adam": {"type": "Adam", "params": {"lr": 1e-4, "adam_w_mode": False} | TORCH_ADAM},
    "sgd": {"type": "SGD", "params": {"lr": 1e-2}},
    "momentum": {"type": "SGD", "params": {"lr": 1e-2, "momentum": 0.9}},
}
LOWER: dict[str, dict[str, Any]] = {
    "bf16": {"bf16": {"enabled": True}},
    "fp16": {"fp16": {"enabled": True, "loss_scale": 0, "initial_scale_power": 16}},
    "mixed_fp16": {"fp16": {"enabled": True, "loss_scale": 0}},
    "megatron_bf16": {"bf16": {"enabled": True}},
    "autocast_bf16": {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}},
    "autocast_fp16": {"torch_autocast": {"enabled": True, "dtype": "float16"}},
    "fp32": {},
}


def trainer_config(plan: Plan, spec: ModelSpec) -> RenderedFile:
    """Return the configuration of a training Plan for the Trainer and accelerate.

    Raises:
        NoSuchLaunch: inference, uneven shares, tensor parallelism, hybrids, stages;
            DeepSpeed needs more memory than a GPU has.
    """
    launch = plan.launch
    _check(plan)
    if strategy_of(launch["strategy"]).has_stages:
        raise NoSuchLaunch(
            sentence(
                "Hugging Face's Trainer and accelerate do not run DeepSpeed's "
                "pipeline: use ds_config.json in a script with PipelineModule."
            )
        )
    section = zero(launch, _bucket(launch, spec))
    needs = deepspeed_needs(plan, spec, section, HELD_BY_TRAINER)
    notes = [
        *memory_notes(plan, needs, "deepspeed.json"),
        *_offload_notes(section, launch),
    ]
    values = {
        "train_batch_size": AUTO,
        "train_micro_batch_size_per_gpu": AUTO,
        "gradient_accumulation_steps": AUTO,
        "gradient_clipping": AUTO,
        "bf16": {"enabled": AUTO},
        "fp16": {"enabled": AUTO, "loss_scale": 0, "initial_scale_power": 16},
        "zero_allow_untested_optimizer": True,
        **_with_section(section),
    }
    return RenderedFile(values, tuple(notes))


def _check(plan: Plan) -> None:
    """Raise NoSuchLaunch for a Plan for which DeepSpeed has no configuration."""
    launch = plan.launch
    strategy = strategy_of(launch["strategy"])
    if launch["task"] != "train":
        raise NoSuchLaunch(
            sentence("DeepSpeed's training configuration is not for inference.")
        )
    if "deepspeed" not in strategy.launchers:
        raise NoSuchLaunch(
            sentence(
                "DeepSpeed cannot run “{plan}”: it supports only equal shares (ZeRO) "
                "and stages.",
                plan=plan.title,
            )
        )
    if strategy.has_stages and (
        launch["offload"] != "none" or launch["offload_optimizer"]
    ):
        raise NoSuchLaunch(
            sentence("DeepSpeed cannot offload in a pipeline: use torchrun.")
        )


def _offload_notes(section: Mapping[str, Any], launch: Mapping[str, Any]) -> list[str]:
    """Return notes on a configuration that offloads."""
    if "offload_optimizer" not in section:
        return []
    notes: list[str] = []
    if section["stage"] != (strategy_of(launch["strategy"]).zero_stage or 0):
        notes.append(
            sentence(
                "The configuration says ZeRO stage {stage}: DeepSpeed offloads by it.",
                stage=section["stage"],
            )
        )
    if section["offload_optimizer"]["device"] == "nvme":
        notes.append(
            sentence(
                "Set nvme_path to a folder on the node's own drive; it is {path} now.",
                path=NVME,
            )
        )
    return notes


def config(plan: Plan, spec: ModelSpec) -> RenderedFile:
    """Return the configuration of a training Plan for DeepSpeed itself.

    Raises:
        NoSuchLaunch: inference, uneven shares, tensor parallelism, hybrids; DeepSpeed
            needs more memory than a GPU has.
    """
    launch = plan.launch
    strategy = launch["strategy"]
    _check(plan)
    values = _values(launch, _bucket(launch, spec))
    section = values["zero_optimization"]
    needs = deepspeed_needs(plan, spec, section, HELD_AS)
    notes = [
        *memory_notes(plan, needs, "ds_config.json"),
        *_offload_notes(section, launch),
    ]
    if values["train_batch_size"] != launch["batch"]:
        notes.append(
            sentence(
                "DeepSpeed needs equal microbatches: the batch is "
                "{train_batch_size} instead of {batch}.",
                train_batch_size=values["train_batch_size"],
                batch=launch["batch"],
            )
        )
    if launch["optimizer"] in OPTIMIZERS:
        notes.append(sentence("Set your own learning rate in ds_config.json."))
    else:
        notes.append(
            sentence(
                "Give deepspeed.initialize your own {optimizer} optimizer.",
                optimizer=launch["optimizer"],
            )
        )
    if strategy_of(strategy).has_stages:
        notes.append(
            sentence(
                "In your script: PipelineModule(layers, "
                "num_stages={pipeline_degree}). Its stages begin at the layers "
                "{bounds} of this plan.",
                pipeline_degree=launch["pipeline_degree"],
                bounds=launch["bounds"][:-1],
            )
        )
    return RenderedFile(values, tuple(notes))


def config_to_run(
    how: Execution,
    *,
    batch: int,
    learning_rate: float,
    bucket: int,
    cuda: bool,
    folder: str,
) -> dict[str, Any]:
    """Return the complete ds_config for a recipe's own model.

    Args:
        how: the Execution of its processes.
        batch: batch of one process, or of one microbatch.
        learning_rate: of its optimizer.
        bucket: elements of its largest layer.
        cuda: whether there are Gpus. Memory can be pinned only then.
        folder: the absolute path of the folder for tensors offloaded to the drive.
    """
    pieces = how.accumulation * (how.microbatches if how.schedule else 1)
    launch = {
        "strategy": how.strategy,
        "batch": batch * how.replicas * pieces,
        "data_degree": how.replicas,
        "accumulation": how.accumulation,
        "microbatches": how.microbatches,
        "precision": how.precision,
        "optimizer": how.optimizer,
        "offload": "nvme" if how.on_drive else "cpu" if how.offload else "none",
        "offload_optimizer": how.offload,
        "offload_parameters": how.keeps_weights_away,
    }
    values = _values(launch, bucket)
    section = values["optimizer"]
    params = section["params"] | {"lr": learning_rate}
    values["optimizer"] = section | {"params": params}
    values["steps_per_print"] = NEVER
    for name in ("offload_optimizer", "offload_param"):
        if name in values["zero_optimization"]:
            values["zero_optimization"][name]["pin_memory"] = cuda
            if how.on_drive:
                values["zero_optimization"][name]["nvme_path"] = folder
    return values


def _values(launch: Mapping[str, Any], bucket: int) -> dict[str, Any]:
    """Return the configuration for a Plan's ``launch`` and a bucket size."""
    staged = strategy_of(launch["strategy"]).has_stages
    pieces = launch["accumulation"]
    if staged:
        pieces *= launch["microbatches"]
    replicas = launch["data_degree"]
    micro = -(-launch["batch"] // (replicas * pieces))
    values: dict[str, Any] = {
        "train_batch_size": replicas * micro * pieces,
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": pieces,
        "gradient_clipping": 0.0,
        **LOWER[launch["precision"]],
    }
    if launch["optimizer"] in OPTIMIZERS:
        values["optimizer"] = OPTIMIZERS[launch["optimizer"]]
    if launch["optimizer"] not in ("adamw", "adam"):
        values["zero_allow_untested_optimizer"] = True
    return values | _with_section({"stage": 0} if staged else zero(launch, bucket))


def _with_section(section: dict[str, Any]) -> dict[str, Any]:
    """Return ``zero_optimization``, and the sections that offloading needs beside
    it.
    """
    values: dict[str, Any] = {"zero_optimization": section}
    if "offload_optimizer" in section:
        # torch's own optimizer steps there. DeepSpeed's would have to be compiled.
        values["zero_force_ds_cpu_optimizer"] = False
    return values


def _bucket(launch: Mapping[str, Any], spec: ModelSpec) -> int:
    """Return the elements of one reduce bucket."""
    return int(launch.get("reduce_bucket_size") or largest_layer(spec))


def zero(launch: Mapping[str, Any], bucket: int) -> dict[str, Any]:
    """Return the section ``zero_optimization``, with buckets sized from the model.

    DeepSpeed offloads the optimizer only with ZeRO-1 to 3, and weights or to a drive
    only with ZeRO-3. A Plan of whole copies that offloads gets stage 2, which moves the
    gradients away as they are computed.
    """
    stage = strategy_of(launch["strategy"]).zero_stage or 0
    device = launch["offload"]
    if device == "none" and launch["offload_optimizer"]:
        device = "cpu"
    if launch["offload_parameters"] or device == "nvme":
        stage = 3
    elif device != "none" and not stage:
        stage = 2
    section: dict[str, Any] = {"stage": stage}
    if stage == 0:
        return section
    section |= {
        "contiguous_gradients": True,
        "overlap_comm": False,
        "reduce_bucket_size": min(bucket, LARGEST_BUCKET),
    }
    if stage < 3:
        section["allgather_bucket_size"] = min(bucket, LARGEST_BUCKET)
    else:
        section |= {
            "stage3_prefetch_bucket_size": min(bucket, LARGEST_BUCKET),
            "stage3_param_persistence_threshold": min(KEPT_WHOLE, bucket // 100),
            "stage3_max_live_parameters": 2 * bucket,
            "stage3_gather_16bit_weights_on_model_save": True,
        }
    if device != "none":
        section["offload_optimizer"] = _offload(device)
        if launch["offload_parameters"]:
            section["offload_param"] = _offload(device)
    return section


def largest_layer(spec: ModelSpec) -> int:
    """Return the elements of the largest layer, which one bucket has to hold."""
    return max(1, *(layer.parameters for layer in spec.layers))


def _offload(device: str) -> dict[str, Any]:
    section: dict[str, Any] = {"device": device, "pin_memory": True}
    if device == "nvme":
        section["nvme_path"] = NVME
    return section
