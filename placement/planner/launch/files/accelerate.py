"""accelerate's configuration for a Plan, in the form that `accelerate config` writes.

Fields: huggingface.co/docs/accelerate, "FSDP", "DeepSpeed" and the launcher's reference
(1.15).
"""

from collections.abc import Mapping
from typing import Any

from placement.planner.launch.files import deepspeed
from placement.planner.launch.files.adaptation_files import (
    LOADED,
    quantization_config,
    weights_of,
)
from placement.planner.launch.files.launch_file_error import NoSuchLaunch, RenderedFile
from placement.planner.launch.files.torchrun import PORT, gpus_by_node
from placement.planner.model.spec import ModelSpec
from placement.planner.values.plan import Plan
from placement.planner.values.strategies import Axis, Strategy, strategy_of
from telemetry.protocol.sentences import sentence

MIXED = {
    "fp32": "no",
    "bf16": "no",
    "fp16": "no",
    "autocast_bf16": "bf16",
    "autocast_fp16": "fp16",
    "mixed_fp16": "fp16",
    "megatron_bf16": "bf16",
}
LOWER = MIXED | {"bf16": "bf16", "fp16": "fp16"}
"""Precisions for which DeepSpeed's bf16 or fp16 is switched on."""
BY_ZERO_STAGE = ("MULTI_GPU", "DEEPSPEED", "DEEPSPEED", "FSDP")
"""The `distributed_type` of copies of the model."""


def config(plan: Plan, spec: ModelSpec) -> RenderedFile:
    """Return the configuration of a Plan that keeps the model whole or shares all of
    it.

    Raises:
        NoSuchLaunch: pipelines, tensor parallelism, hybrids, uneven shares; a strategy
            that only DeepSpeed has, if DeepSpeed cannot run the Plan.
    """
    launch = plan.launch
    strategy = strategy_of(launch["strategy"])
    nodes = gpus_by_node(plan)
    kind = _distributed_type(strategy, launch)
    if not kind:
        raise NoSuchLaunch(
            sentence(
                "accelerate has no configuration for “{plan}”: use torchrun and "
                "plan.json.",
                plan=plan.title,
            )
        )
    # The ranks would have to share this, and cannot.
    quantization_config(plan, spec)
    cpu = plan.workload.accelerator == "cpu"
    if cpu and kind == "MULTI_GPU":
        kind = "MULTI_CPU"
    values: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "debug": False,
        "distributed_type": kind,
        "downcast_bf16": "no",
        "enable_cpu_affinity": False,
        "gpu_ids": "all",
        "machine_rank": 0,
        "main_training_function": "main",
        "mixed_precision": MIXED[launch["precision"]],
        "num_machines": len(nodes),
        "num_processes": launch["nproc"],
        "rdzv_backend": "static" if len(nodes) == 1 else "c10d",
        "same_network": True,
        "use_cpu": cpu,
    }
    notes = []
    if len(nodes) > 1:
        values |= {"main_process_ip": nodes[0][0], "main_process_port": PORT}
        notes.append(
            sentence("On the other nodes set machine_rank to 1, 2, ... in their copy.")
        )
    if kind == "FSDP":
        values["fsdp_config"] = _fsdp(plan)
    if kind == "DEEPSPEED":
        section = deepspeed.trainer_config(plan, spec).values["zero_optimization"]
        values["deepspeed_config"] = {
            "deepspeed_config_file": "deepspeed.json",
            "zero3_init_flag": section["stage"] == 3,
        }
        if len(nodes) > 1:
            # Started on each node. The default would reach the others by ssh.
            values["deepspeed_config"]["deepspeed_multinode_launcher"] = "standard"
        # accelerate accepts it beside DeepSpeed's file only on the command line.
        del values["mixed_precision"]
        if (mixed := LOWER[launch["precision"]]) != "no":
            notes.append(
                sentence(
                    "The Trainer sets the precision in deepspeed.json: start it with "
                    "--{precision}. A script with an Accelerator of its own says "
                    "mixed_precision=“{precision}” there.",
                    precision=mixed,
                )
            )
    elif launch["precision"] in LOADED and weights_of(plan, spec) == "full":
        notes.append(
            sentence(
                "The weights themselves are {precision}: load the model so (dtype); "
                "accelerate's mixed precision is off.",
                precision=launch["precision"],
            )
        )
    return RenderedFile(values, tuple(notes))


def _distributed_type(strategy: Strategy, launch: Mapping[str, Any]) -> str:
    """Return accelerate's name of a strategy; "" if it has no configuration for it.

    FSDP offloads weights, gradients and optimizer state together, and only to the
    node's memory. DeepSpeed does all other offloading of a Plan.
    """
    if "accelerate" not in strategy.launchers:
        return ""
    if launch["task"] == "train":
        by_fsdp = strategy.zero_stage == 3 and launch["offload"] != "nvme"
        some = launch["offload_optimizer"] and not launch["offload_parameters"]
        offloads = launch["offload"] != "none" or launch["offload_optimizer"]
        if offloads and (some or not by_fsdp):
            return "DEEPSPEED"
    if strategy.axis is Axis.NONE:
        return "NO"
    return BY_ZERO_STAGE[strategy.zero_stage or 0]


def _fsdp(plan: Plan) -> dict[str, Any]:
    """Return the section for FSDP2, with every block sharded separately, as the
    estimate assumes.
    """
    launch = plan.launch
    return {
        "fsdp_version": 2,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_reshard_after_forward": True,
        "fsdp_activation_checkpointing": launch["checkpointing"] == "full",
        "fsdp_offload_params": launch["offload"] == "cpu",
        "fsdp_cpu_ram_efficient_loading": True,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    }
