"""The programs that serve a language model with an OpenAI-compatible API.

Each is in an environment on the node. vLLM needs a GPU. The server of transformers runs
on the CPU, too, and answers one request at a time there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

AUTO: Final = "auto"
"""vLLM on GPUs if the environment has it, otherwise transformers."""
DTYPES: Mapping[str, str] = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
}
"""The names of a plan's precisions in the options of both programs."""
MEMORY_RATIO = 0.9
"""Part of each Gpu's memory that vLLM may take. It fills it with its KV cache."""


@dataclass(frozen=True, slots=True)
class LanguageModelServer:
    """One program."""

    name: str
    program: str
    """The file in the environment's folder of programs that shows that it is there."""
    package: str
    """The argument of ``pip install``."""
    licence: str


VLLM = LanguageModelServer("vllm", "vllm", "vllm", "Apache-2.0")
TRANSFORMERS = LanguageModelServer(
    "transformers", "transformers", "'transformers[serving]'", "Apache-2.0"
)
TEXT_SERVERS = {one.name: one for one in (VLLM, TRANSFORMERS)}


@dataclass(frozen=True, slots=True)
class ServedText:
    """The settings of one server."""

    name: str
    """The name of the model in requests."""
    folder: str
    """The folder of the model, in the form of Hugging Face."""
    context_tokens: int
    """The most tokens of a prompt and its answer together."""
    sequences: int
    """Requests that are computed together."""
    precision: str
    gpu_count: int


def vllm_words(text: ServedText, socket_path: str) -> list[str]:
    """Return the argv of vLLM (docs.vllm.ai "CLI Reference": serve)."""
    return [
        VLLM.program,
        "serve",
        text.folder,
        f"--uds={socket_path}",
        f"--served-model-name={text.name}",
        f"--max-model-len={text.context_tokens}",
        f"--max-num-seqs={text.sequences}",
        f"--dtype={DTYPES[text.precision]}",
        f"--tensor-parallel-size={max(1, text.gpu_count)}",
        f"--gpu-memory-utilization={MEMORY_RATIO}",
    ]


def with_indices(visible: str, listed: str) -> str:
    """Return CUDA_VISIBLE_DEVICES with indices instead of UUIDs.

    vLLM's releases until 2026 (0.20.1 for one) read indices only, and end with a
    ValueError otherwise. The UUID of a MIG instance has no index and stays.

    Args:
        visible: the variable's value. Its indices stay.
        listed: what `nvidia-smi --query-gpu=index,uuid --format=csv,noheader` prints.

    Raises:
        LookupError: nvidia-smi lists no GPU with one of the UUIDs.

    >>> with_indices("GPU-b,MIG-c", "0, GPU-a\\n1, GPU-b")
    '1,MIG-c'
    """
    indices = {}
    for line in listed.splitlines():
        index, _, uuid = line.partition(",")
        indices[uuid.strip()] = index.strip()
    named = visible.split(",") if visible else []
    if lost := [one for one in named if one.startswith("GPU-") and one not in indices]:
        raise LookupError(
            f"nvidia-smi lists no GPU with the UUID {', '.join(lost)} on this node"
        )
    return ",".join(indices.get(one, one) for one in named)


def transformers_words(text: ServedText) -> list[str]:
    """Return the arguments of ``transformers serve``.

    The model is named by its name: a link of that name in the folder where the program
    starts leads to the model.
    """
    return ["serve", text.name, f"--dtype={DTYPES[text.precision]}", "--device=auto"]
