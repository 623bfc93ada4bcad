"""Published GPU runs against the closed form's interval.

Files: published.json and mpt_fits.json beside the reference data. Models that are not
in the table of well-known ones are defined here by their public configs.
"""

from dataclasses import dataclass
from typing import Any

from placement.planner.memory.estimate import (
    CONTEXT_BYTES,
    OLD_CONTEXT_BYTES,
    WORKSPACE_BYTES,
    estimate,
    interval,
)
from placement.planner.model.adaptation import with_lora
from placement.planner.model.families.config_json import parse_config
from placement.planner.model.quantized_weights import Scheme, quantized
from placement.planner.model.sharding import ONE_RANK, Sharding
from placement.planner.model.spec import ModelSpec
from placement.planner.model.well_known import well_known_spec
from placement.planner.values.workload import Workload

CONFIGS: dict[str, dict[str, Any]] = {
    "phi-1.5 1.3B": {
        "model_type": "phi",
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 24,
        "num_attention_heads": 32,
        "vocab_size": 51200,
    },
    "StableLM Alpha 3B": {
        "model_type": "gpt_neox",
        "hidden_size": 4096,
        "intermediate_size": 16384,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "vocab_size": 50688,
        "max_position_embeddings": 4096,
    },
    "CodeLlama 34B": {
        "model_type": "llama",
        "hidden_size": 8192,
        "intermediate_size": 22016,
        "num_hidden_layers": 48,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
        "max_position_embeddings": 16384,
    },
}
KNOWN = {
    "Llama 2 7B": "llama-2-7b",
    "Llama 2 13B": "llama-2-13b",
    "Falcon 40B": "falcon-40b",
    "Llama 3.2 3B": "llama-3.2-3b",
    "Llama 3.1 8B": "llama-3.1-8b",
    "Llama 3.1 70B": "llama-3.1-70b",
}
LONGEST = {"phi-1.5 1.3B": 1044, "StableLM Alpha 3B": 1034}
"""Tokens of the longest Alpaca sample by tokenizer; Llama 2's: 1304."""
LITGPT_TARGETS = {"gpt_neox": ("query_key_value",)}
MPT_SIZES = {
    "125m": (768, 12, 12),
    "350m": (1024, 16, 24),
    "760m": (1536, 12, 24),
    "1b": (2048, 16, 24),
    "3b": (2560, 20, 32),
    "7b": (4096, 32, 32),
    "13b": (5120, 40, 40),
    "30b": (7168, 56, 48),
    "70b": (8192, 64, 80),
}
CARD_GIB = {40: 39.4, 80: 79.2}
"""Total memory that CUDA reports on A100 and H100 cards sold as 40 and 80 GB."""
GENERATED_TOKENS = 50
"""litgpt's generate scripts make 50 new tokens of a short prompt."""


@dataclass(frozen=True)
class Row:
    """One published run: measured bytes, estimated bytes."""

    name: str
    measured_bytes: float
    low_bytes: int
    likely_bytes: int
    high_bytes: int
    remark: str = ""

    @property
    def inside(self) -> bool:
        """Return whether the interval holds the measurement."""
        return self.low_bytes <= self.measured_bytes <= self.high_bytes

    @property
    def width_ratio(self) -> float:
        """Return the width of the interval over its middle."""
        return (self.high_bytes - self.low_bytes) / self.likely_bytes


def named_spec(name: str) -> ModelSpec:
    """Return the ModelSpec of a published model's name."""
    if name in KNOWN:
        return well_known_spec(KNOWN[name])
    return parse_config(CONFIGS[name], name=name)


def bert_large_rows(rows: list[dict[str, Any]]) -> list[Row]:
    """Return Hugging Face's bert-large on a V100 with CUDA 11.2, by nvidia-smi.

    torch kept gradients then, the context was the old one, and attention was eager.
    """
    large = {
        "model_type": "bert",
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
        "architectures": ["BertForSequenceClassification"],
    }
    spec = parse_config(large)
    made = []
    for row in rows:
        given = row["config"]
        pieces = given["grad_accum"]
        workload = Workload(
            batch=given["batch"] * pieces,
            sequence_length=given["seq"],
            accumulation=pieces,
            precision="fp32" if given["precision"] == "fp32" else "autocast_fp16",
            optimizer="adam8bit" if given["optimizer"] == "adam8bit" else "adamw",
            optimizer_loop="forloop",
            attention="eager",
            checkpointing="full" if given["checkpointing"] else "none",
            keeps_gradients=True,
        )
        peak = estimate(spec, workload).peak_bytes
        low, likely, high = interval(peak, workload, context_bytes=OLD_CONTEXT_BYTES)
        measured = row["expected"]["nvml_used"] * 2**20
        name = (
            f"bert-large {given['precision']}, {given['batch']} x {given['seq']}, "
            f"accumulation {pieces}, {given['optimizer']}"
        )
        made.append(Row(name, measured, low, likely, high))
    return made


def reserved_rows(cases: list[dict[str, Any]], peaks: dict[str, int]) -> list[Row]:
    """Return allocation traces of the CPU cases, replayed through the caching
    allocator's rules.

    Context and workspaces are added to both sides.
    """
    made = []
    outside = CONTEXT_BYTES + WORKSPACE_BYTES
    for case in cases:
        reserved = case["truth"].get("simulated_cuda_reserved_peak_bytes")
        if reserved:
            name = case["spec"]["id"]
            bounds = interval(peaks[name], Workload())
            made.append(Row(name, reserved + outside, *bounds))
    return made


def tensor_row(
    name: str,
    measured: float,
    spec: ModelSpec,
    workload: Workload,
    sharding: Sharding = ONE_RANK,
    remark: str = "",
) -> Row:
    """Return a run whose tensors' peak was published."""
    peak = estimate(spec, workload, sharding).peak_bytes + WORKSPACE_BYTES
    return Row(name, measured, peak, peak, peak, remark)


def torchtune_rows(rows: list[dict[str, Any]]) -> list[Row]:
    """Return Llama 3.2 3B, bf16, two packed sequences, with one technique after
    another.
    """
    spec = well_known_spec("llama-3.2-3b")
    packed = Workload(
        batch=2, sequence_length=4096, precision="bf16", optimizer_loop="fused"
    )
    settings = {
        "packed": (packed, ""),
        "+activation checkpointing": (
            packed.replace(checkpointing="full", loss="fused"),
            "chunked cross entropy counted as a fused one",
        ),
    }
    made = []
    for row in rows:
        found = settings.get(row["config"]["technique"])
        if found is not None:
            measured = row["expected"]["peak_active"] * 2**30
            name = f"Llama 3.2 3B {row['config']['technique']}"
            made.append(tensor_row(name, measured, spec, found[0], remark=found[1]))
    return made


def litgpt_rows(rows: list[dict[str, Any]]) -> list[Row]:
    """Return LoRA of rank 8 on queries and values, and generation, in bf16 or nf4.

    litgpt computes its loss in chunks, counted as a fused one, and quantizes the head
    too.
    """
    made = []
    for row in rows:
        given, measured = row["config"], row["expected"]["max_gpu_ram"]
        if not isinstance(measured, int | float):
            continue
        spec = named_spec(row["model"])
        if given["quant"] == "nf4":
            spec = quantized(spec, Scheme("bitsandbytes_4bit"))
        if given.get("phase") == "inference":
            workload = Workload(
                task="infer",
                batch=1,
                sequence_length=GENERATED_TOKENS,
                precision="bf16",
            )
        else:
            default = ("q_proj", "v_proj")
            targets = LITGPT_TARGETS.get(spec.family, default)
            spec = with_lora(spec, rank=8, targets=targets)
            workload = Workload(
                batch=given["micro_batch"],
                sequence_length=LONGEST.get(row["model"], 1304),
                precision="bf16",
                loss="fused",
            )
        made.append(tensor_row(row["id"], measured * 1e9, spec, workload))
    return made


def mpt_case(row: dict[str, Any]) -> tuple[ModelSpec, Workload, Sharding]:
    """Return one of MosaicML's FSDP runs (fused cross entropy, flash attention, no
    biases).
    """
    size = row["model"].removeprefix("MPT-").lower()
    hidden, heads, layers = MPT_SIZES[size]
    given = row["config"]
    spec = parse_config(
        {
            "model_type": "gpt_neox",
            "hidden_size": hidden,
            "num_attention_heads": heads,
            "num_hidden_layers": layers,
            "intermediate_size": 4 * hidden,
            "vocab_size": 50368,
            "max_position_embeddings": given["seq"],
            "tie_word_embeddings": True,
            "attention_bias": False,
        },
        name=row["model"],
    )
    amp = given["precision"] == "amp_bf16"
    ranks, pieces = given["gpus"], given["grad_accum"]
    workload = Workload(
        batch=given["micro_batch"] * ranks * pieces,
        accumulation=pieces,
        sequence_length=given["seq"],
        precision="autocast_bf16" if amp else "bf16",
        optimizer="adamw",
        optimizer_loop="forloop",
        loss="fused",
        checkpointing="full" if given["activation_checkpointing"] else "none",
    )
    return spec, workload, Sharding(strategy="fsdp", data_degree=ranks)


def mpt_verdict(row: dict[str, Any]) -> str:
    """Return comfortable, tight or does not fit, as the verdict on a run that
    fitted.
    """
    made = estimate(*mpt_case(row))
    room = CARD_GIB[row["expected"]["gpu_memory_GB"]] * 2**30
    if made.likely_bytes <= room:
        return "comfortable"
    return "tight" if made.low_bytes <= room else "does not fit"
