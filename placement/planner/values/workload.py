"""What to run with a model: task, batch, sequence length, precision, optimizer.

`batch` is the batch of one optimizer step (or one inference call), over all Gpus. With
accumulation A and N replicas each Gpu runs A microbatches of ceil(batch / (N x A)).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from placement.planner.values.errors import WorkloadInvalid
from placement.planner.values.json_value import JsonValue
from telemetry.protocol.sentences import sentence

Task = Literal["train", "infer"]
Precision = Literal[
    "fp32",
    "bf16",
    "fp16",
    "autocast_bf16",
    "autocast_fp16",
    "mixed_fp16",
    "megatron_bf16",
]
Optimizer = Literal[
    "sgd",
    "momentum",
    "rmsprop",
    "adam",
    "adamw",
    "lion",
    "muon",
    "adafactor",
    "adam8bit",
    "adamw8bit",
    "lion8bit",
    "rmsprop8bit",
]
Checkpointing = Literal["none", "selective", "full"]
Attention = Literal["eager", "math", "efficient", "flash"]
OptimizerLoop = Literal["foreach", "forloop", "fused"]
Offload = Literal["none", "cpu", "nvme"]

MAX_BATCH = 2**20
MAX_SEQUENCE = 2**22
CHOICES: dict[str, tuple[str, ...]] = {
    "task": get_args(Task),
    "precision": get_args(Precision),
    "optimizer": get_args(Optimizer),
    "checkpointing": get_args(Checkpointing),
    "attention": get_args(Attention),
    "loss": ("plain", "fused"),
    "optimizer_loop": get_args(OptimizerLoop),
    "accelerator": ("cuda", "cpu"),
    "offload": get_args(Offload),
}
RANGES = {
    "batch": (1, MAX_BATCH),
    "sequence_length": (1, MAX_SEQUENCE),
    "accumulation": (1, MAX_BATCH),
    "target_length": (0, MAX_SEQUENCE),
    "kv_block_tokens": (1, 4096),
    "prefill_tokens": (0, MAX_BATCH * MAX_SEQUENCE),
}
MASTER_OPTIMIZERS = ("sgd", "momentum", "adam", "adamw")
"""Optimizers that Megatron can step on its fp32 copy of the weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload(JsonValue):
    """One way to run a model. Raises WorkloadInvalid with every invalid field."""

    task: Task = "train"
    batch: int = 8
    """Sequences (or images) per optimizer step or inference call, over all Gpus."""
    sequence_length: int = 512
    """Tokens per sequence. Vision models have a fixed number and ignore it."""
    precision: Precision = "autocast_bf16"
    optimizer: Optimizer = "adamw"
    checkpointing: Checkpointing = "none"
    accumulation: int = 1
    """Microbatches per optimizer step on each Gpu."""
    attention: Attention = "flash"
    """flash: keeps no scores, on Ampere and later. efficient: torch's memory-efficient
    kernel, which keeps none either and also runs on older cards.
    """
    loss: Literal["plain", "fused"] = "plain"
    """plain: torch's cross entropy on fp32 logits. fused: a kernel that overwrites the
    16-bit logits with their gradient (flash-attn, Liger, MosaicML's default).
    """
    optimizer_loop: OptimizerLoop = "foreach"
    """How torch steps the optimizer. foreach, the default on CUDA, needs temporaries as
    large as all parameters; forloop twice the largest tensor; fused none.
    """
    accelerator: Literal["cuda", "cpu"] = "cuda"
    """cpu: dropout masks are as wide as activations and no CUDA context exists."""
    offload: Offload = "none"
    """Place of optimizer state and its step if not on the Gpu."""
    offload_parameters: bool = False
    """Weights are there too and are copied to the Gpu layer by layer."""
    target_length: int = 0
    """Encoder-decoders: tokens per target sequence; 0: the same number as in the
    source.
    """
    keeps_gradients: bool = False
    """zero_grad(set_to_none=False), torch's default before 2.0: gradients stay
    alive.
    """
    kv_block_tokens: int = 1
    """Inference: tokens per block of the paged cache (vLLM: 16); 1: no paging."""
    prefill_tokens: int = 0
    """Inference: prompt tokens that pass through the model together (chunked prefill,
    arXiv:2308.16369); 0: all prompts at once.
    """

    def __post_init__(self) -> None:
        problems: dict[str, str] = {}
        for name, options in CHOICES.items():
            if getattr(self, name) not in options:
                problems[name] = sentence(
                    "must be one of {options}", options=", ".join(options)
                )
        for name, (low, high) in RANGES.items():
            value = getattr(self, name)
            if type(value) is not int or not low <= value <= high:
                problems[name] = sentence(
                    "must be a whole number from {low} to {high}",
                    low=low,
                    high=f"{high:,}",
                )
        if not problems:
            problems = _contradictions(self)
        if problems:
            raise WorkloadInvalid(problems)

    @property
    def trains(self) -> bool:
        """Return True for training, False for inference."""
        return self.task == "train"

    def microbatch(self, replicas: int = 1) -> int:
        """Return the sequences that one Gpu holds at once.

        >>> Workload(batch=8, accumulation=2).microbatch(replicas=2)
        2
        """
        return math.ceil(self.batch / (replicas * self.accumulation))

    def prompt_piece(self, sequences: int, length: int) -> tuple[int, int]:
        """Return (sequences, tokens of each) that pass through the model together.

        >>> Workload(task="infer", prefill_tokens=512).prompt_piece(4, 256)
        (2, 256)
        """
        most = self.prefill_tokens
        if not most or sequences * length <= most:
            return sequences, length
        return max(1, min(sequences, most // length)), min(length, most)

    def replace(self, **changes: Any) -> "Workload":
        """Return the same Workload with some fields changed, checked again."""
        return replace(self, **changes)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Workload":
        """Read a form, an API body or the result of `to_json`. Raises
        WorkloadInvalid.
        """
        if not isinstance(data, Mapping):
            raise WorkloadInvalid({"workload": sentence("must be an object")})
        known = {field.name for field in fields(cls)}
        unknown = [str(name)[:40] for name in data if name not in known]
        if unknown:
            raise WorkloadInvalid(
                {name: sentence("is not a field of a workload") for name in unknown}
            )
        return cls(**data)


def _contradictions(asked: Workload) -> dict[str, str]:
    """Return the fields that are valid alone but contradict each other."""
    problems: dict[str, str] = {}
    if asked.trains and asked.prefill_tokens:
        problems["prefill_tokens"] = sentence("only inference reads prompts")
    if asked.accumulation > asked.batch:
        problems["accumulation"] = sentence(
            "{accumulation} microbatches of a batch of {batch}",
            accumulation=asked.accumulation,
            batch=asked.batch,
        )
    if not asked.trains and asked.accumulation > 1:
        problems["accumulation"] = sentence("only training accumulates")
    if type(asked.keeps_gradients) is not bool:
        problems["keeps_gradients"] = sentence("must be true or false")
    if type(asked.offload_parameters) is not bool:
        problems["offload_parameters"] = sentence("must be true or false")
    elif asked.offload_parameters and asked.offload == "none":
        problems["offload_parameters"] = sentence("needs offload to cpu or nvme")
    if not asked.trains and asked.offload != "none" and not asked.offload_parameters:
        problems["offload"] = sentence(
            "inference has no optimizer state; offload parameters too"
        )
    if (
        asked.trains
        and asked.precision == "megatron_bf16"
        and asked.optimizer not in MASTER_OPTIMIZERS
    ):
        problems["optimizer"] = sentence(
            "Megatron steps an fp32 copy with one of {master_optimizers}",
            master_optimizers=", ".join(MASTER_OPTIMIZERS),
        )
    return problems
