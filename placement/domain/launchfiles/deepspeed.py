"""DeepSpeed's JSON for a Plan: what its own documentation calls the ds_config.

Fields: deepspeed.ai, "DeepSpeed Configuration JSON" (0.19). Two rules of it bite:
train_batch_size = Gpus of a replica x micro batch x accumulation, checked at the start;
and the default buckets of 5e8 elements, which on a small model need more memory than
the model (PLACEMENT.md 1.1), so they are sized from the model here.
"""

from typing import Any

from placement.domain.launchfiles.errors import Made, NoSuchLaunch
from placement.domain.plan import Plan
from placement.domain.spec import ModelSpec

STAGES = {"single": 0, "ddp": 0, "zero1": 1, "zero2": 2, "fsdp": 3}
STAGED = ("pipeline", "gpipe")
LARGEST_BUCKET = 500_000_000
"""DeepSpeed's default: no larger one was ever of use."""
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.01}},
    "adam": {"type": "Adam", "params": {"lr": 1e-4}},
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


def config(plan: Plan, spec: ModelSpec) -> Made:
    """The configuration of a training Plan.

    Raises:
        NoSuchLaunch: inference, uneven shares, tensor parallelism, hybrids.
    """
    launch = plan.launch
    strategy = launch["strategy"]
    if launch["task"] != "train":
        raise NoSuchLaunch("DeepSpeed's training configuration is not for inference.")
    if strategy not in STAGES and strategy not in STAGED:
        raise NoSuchLaunch(
            f"DeepSpeed cannot run “{plan.title}”: it shares out evenly and cuts "
            "models by ZeRO or stages only."
        )
    pieces = launch["accumulation"]
    if strategy in STAGED:
        pieces *= launch["microbatches"]
    replicas = launch["data_degree"]
    micro = -(-launch["batch"] // (replicas * pieces))
    values: dict[str, Any] = {
        "train_batch_size": replicas * micro * pieces,
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": pieces,
        **LOWER[launch["precision"]],
    }
    notes = []
    if values["train_batch_size"] != launch["batch"]:
        notes.append(
            f"DeepSpeed needs equal microbatches: the batch is "
            f"{values['train_batch_size']} instead of {launch['batch']}."
        )
    if launch["optimizer"] in OPTIMIZERS:
        values["optimizer"] = OPTIMIZERS[launch["optimizer"]]
        notes.append("The learning rate in deepspeed.json is a place to write yours.")
    else:
        values["zero_allow_untested_optimizer"] = True
        notes.append(
            f"Give deepspeed.initialize your own {launch['optimizer']} optimizer."
        )
    if strategy in STAGED:
        notes.append(
            f"In your script: PipelineModule(layers, num_stages="
            f"{launch['pipeline_degree']}); its stages begin at the layers "
            f"{launch['bounds'][:-1]} of this Plan."
        )
        values["zero_optimization"] = {"stage": 0}
    else:
        values["zero_optimization"] = zero(plan, spec)
        if launch["engine"] != "deepspeed":
            notes.append("This Plan was worked out for torch; buckets differ a little.")
    return Made(values, tuple(notes))


def zero(plan: Plan, spec: ModelSpec) -> dict[str, Any]:
    """The section ``zero_optimization``, with buckets sized from the model."""
    launch = plan.launch
    stage = STAGES[launch["strategy"]]
    section: dict[str, Any] = {"stage": stage}
    if stage == 0:
        return section
    bucket = launch.get("reduce_bucket_size") or largest_layer(spec)
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
            "stage3_param_persistence_threshold": min(100_000, bucket),
            "stage3_max_live_parameters": 2 * bucket,
            "stage3_gather_16bit_weights_on_model_save": True,
        }
    device = launch["offload"]
    if device == "none" and launch["offload_optimizer"]:
        device = "cpu"
    if device != "none":
        section["offload_optimizer"] = _offload(device)
        if launch["offload_parameters"] and stage == 3:
            section["offload_param"] = _offload(device)
    return section


def largest_layer(spec: ModelSpec) -> int:
    """Elements of the largest layer: what one bucket has to hold."""
    return max(1, *(layer.parameters for layer in spec.layers))


def _offload(device: str) -> dict[str, Any]:
    section: dict[str, Any] = {"device": device, "pin_memory": True}
    if device == "nvme":
        section["nvme_path"] = "/local_nvme"
    return section
