"""Read launch files with the libraries' own parsers, in a separate process (torch).

stdin: {"files": {...}, "family": {...}}; stdout: each library's result.
"""

import atexit
import gc
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

os.environ["DS_ACCELERATOR"] = "cpu"
ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
"""Environment of a Trainer that torchrun starts with one process."""


class Replicas:
    """DeepSpeed reads the number of Gpus that share the data from it."""

    def __init__(self, count: int) -> None:
        self.count = count

    def get_data_parallel_world_size(self) -> int:
        """Return the number of replicas."""
        return self.count


def deepspeed(values: dict[str, Any], replicas: int) -> dict[str, Any]:
    """Return DeepSpeed's parse of its JSON. It raises if the batch does not add up."""
    from deepspeed.runtime import config

    # Without a rank it would assume one process, and read no world size.
    with mock.patch.object(config.dist, "get_rank", return_value=0):
        read = config.DeepSpeedConfig(values, mpu=Replicas(replicas))
    return {
        "train_batch_size": read.train_batch_size,
        "stage": read.zero_optimization_stage,
        "bucket": read.zero_config.reduce_bucket_size,
        "bf16": read.bfloat16_config.enabled,
        "offload": bool(read.zero_config.offload_optimizer),
    }


def accelerate(values: dict[str, Any]) -> dict[str, Any]:
    """Return accelerate's parse of its file, and the environment that its launcher
    sets.
    """
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import (
        _validate_launch_command,
        launch_command_parser,
    )

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "accelerate.json"
        path.write_text(json.dumps(values))
        read = load_config_from_file(str(path))
        parser = launch_command_parser()
        arguments = parser.parse_args(["--config_file", str(path), "train.py"])
        args, _defaults, _mixed = _validate_launch_command(arguments)
    return {
        "type": str(read.distributed_type),
        "processes": read.num_processes,
        "fsdp_version": getattr(args, "fsdp_version", None),
        "use_fsdp": bool(args.use_fsdp),
        "use_deepspeed": bool(args.use_deepspeed),
    }


def torchrun(words: list[str]) -> dict[str, Any]:
    """Return torchrun's parse of its arguments."""
    from torch.distributed.run import get_args_parser

    read = get_args_parser().parse_args([*words[1:], "train.py"])
    return {"nnodes": read.nnodes, "nproc": read.nproc_per_node, "rank": read.node_rank}


def device_map(values: dict[str, int], family: dict[str, Any]) -> dict[str, Any]:
    """Run accelerate's own check that every tensor of the model has a place."""
    import torch
    import transformers
    from accelerate.utils.modeling import check_device_map

    config = getattr(transformers, family["config"])(**family["values"])
    with torch.device("meta"):
        model = getattr(transformers, family["model"])(config)
    check_device_map(model, dict(values))
    return {"modules": len(values)}


TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 64,
}
TRAINED: dict[str, Any] = {
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "max_steps": 1,
    "learning_rate": 3e-4,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": [],
    "disable_tqdm": True,
}


def _words(count: int) -> list[dict[str, Any]]:
    """Return sequences of token numbers, as a Trainer takes them."""
    import torch

    rows = torch.arange(16 * count).reshape(count, 16) % 64
    return [{"input_ids": row, "labels": row} for row in rows]


def trainer(values: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a Trainer's script with DeepSpeed's file, which takes a
    step.
    """
    import deepspeed
    import torch
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        Trainer,
        TrainingArguments,
    )

    os.environ |= ALONE | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    cpu = not torch.cuda.is_available()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "deepspeed.json"
        path.write_text(json.dumps(values))
        args = TrainingArguments(
            output_dir=folder,
            deepspeed=str(path),
            use_cpu=cpu,
            **TRAINED | options,
        )
        model = LlamaForCausalLM(LlamaConfig(**TINY))
        made = Trainer(model=model, args=args, train_dataset=_words(4))
        loss = made.train().training_loss
    engine = made.model_wrapped
    return {
        "type": type(engine).__name__,
        "loss": round(loss, 2),
        "micro": engine.train_micro_batch_size_per_gpu(),
        "accumulation": engine.gradient_accumulation_steps(),
        "clipping": engine.gradient_clipping(),
        "stage": engine.zero_optimization_stage(),
        "bf16": engine.bfloat16_enabled(),
        "offload": bool(engine.zero_offload_optimizer()),
        "offload_param": bool(engine.zero_offload_param()),
    }


def adapters(lora: dict[str, Any], quantized: dict[str, Any] | None) -> dict[str, Any]:
    """Return PEFT's and bitsandbytes' form of a tiny Llama: trained parameters, and
    types.
    """
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import (
        AutoModelForCausalLM,
        BitsAndBytesConfig,
        LlamaConfig,
        LlamaForCausalLM,
    )

    with tempfile.TemporaryDirectory() as folder:
        LlamaForCausalLM(LlamaConfig(**TINY)).save_pretrained(f"{folder}/model")
        Path(folder, "adapter_config.json").write_text(json.dumps(lora))
        by = BitsAndBytesConfig.from_dict(quantized) if quantized else None
        model = AutoModelForCausalLM.from_pretrained(
            f"{folder}/model", dtype=torch.bfloat16, quantization_config=by
        )
        model = get_peft_model(model, LoraConfig.from_pretrained(folder))
    words = torch.arange(16)[None]
    model(input_ids=words, labels=words).loss.backward()
    named = dict(model.named_parameters())
    learned = {name for name, one in named.items() if one.grad is not None}
    base = named["base_model.model.model.layers.0.self_attn.q_proj.base_layer.weight"]
    return {
        "learned": sorted({name.split(".")[-4] for name in learned}),
        "rank": named[min(learned)].shape[0],
        "base": type(base).__name__,
        "base_bytes": base.numel() * base.element_size(),
    }


def arguments(values: dict[str, Any]) -> dict[str, Any]:
    """Return `TrainingArguments`' parse of the arguments that a Plan determines."""
    from transformers import TrainingArguments

    with tempfile.TemporaryDirectory() as folder:
        read = TrainingArguments(output_dir=folder, use_cpu=True, **values)
    return {name: str(getattr(read, name)) for name in values}


CHECKS = {
    one.__name__: one
    for one in (
        *(deepspeed, accelerate, torchrun, device_map, trainer),
        *(adapters, arguments),
    )
}


def main() -> None:
    """Answer each request with the result or the error."""
    # Imported objects stay, so collections would free nothing.
    gc.disable()
    atexit.register(gc.freeze)
    answers = []
    said, sys.stdout = sys.stdout, io.StringIO()  # the libraries chat
    for question in json.load(sys.stdin):
        try:
            answers.append(CHECKS[question["check"]](*question["with"]))
        except Exception as error:  # whatever a library says of a bad file
            answers.append({"error": f"{type(error).__name__}: {error}"[:300]})
    sys.stdout = said
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
