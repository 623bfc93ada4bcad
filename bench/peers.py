"""accelerate's and DeepSpeed's own estimates for a model of the cases.

Both need a torch module, which is built on the meta device, without memory. Their
numbers are for the states (accelerate: the largest of its four; DeepSpeed: one Gpu's
share). Neither has activations or uses the batch.
"""

import contextlib
import importlib.util
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ACCELERATE_PRECISIONS = {
    "fp32": "float32",
    "bf16": "bfloat16",
    "autocast_bf16": "bfloat16",
    "autocast_fp16": "float16",
}


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress the output of DeepSpeed and transformers at import, which would break
    tables.
    """
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def build_on_meta(spec: dict[str, Any], models: Path) -> Any:
    """Return the case's module on the meta device; None if transformers lacks its
    class.
    """
    import torch

    found = importlib.util.spec_from_file_location("refmodels", models)
    assert found is not None and found.loader is not None, models
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    with quiet(), torch.device("meta"):
        return module.build(spec)[0]


def accelerate_bytes(module: Any, precision: str) -> int:
    """Return accelerate estimate-memory: the largest of model, gradients, optimizer,
    step.
    """
    from accelerate.commands.estimate import estimate_training_usage
    from accelerate.utils import calculate_maximum_sizes

    total, _ = calculate_maximum_sizes(module)
    made = estimate_training_usage(total, ACCELERATE_PRECISIONS[precision])
    return int(max(made.values()))


def deepspeed_bytes(parameters: int, largest: int, *, stage: int, ranks: int) -> int:
    """Return DeepSpeed's estimate_zero2/3_model_states_mem_needs, nothing offloaded."""
    with quiet():
        from deepspeed.runtime.zero.stage3 import (
            estimate_zero3_model_states_mem_needs as zero3,
        )
        from deepspeed.runtime.zero.stage_1_and_2 import (
            estimate_zero2_model_states_mem_needs as zero2,
        )
    if stage == 3:
        made = zero3(
            parameters,
            largest,
            num_gpus_per_node=ranks,
            cpu_offload=False,
            cpu_offload_params=False,
        )
        return int(made[1])
    return int(zero2(parameters, num_gpus_per_node=ranks, cpu_offload=False)[1])
