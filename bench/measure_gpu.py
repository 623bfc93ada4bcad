"""Measure steps and inference on a real NVIDIA card, beside the planner's figures.

    python -m bench.measure_gpu [--only TEXT] [--write FILE]

Each case runs in a separate process, so that each has a fresh CUDA context and
allocator. Weights are random, and nothing is downloaded. Measured are, over whole steps
after the first one:

- the most bytes of tensors (`torch.cuda.max_memory_allocated`), beside `peak_bytes`;
- what the driver shows for the process (NVML), beside the interval low - likely - high;
- the seconds of a step (median of 5), of the prompts, and of one more token, beside
  the plan for this card alone.

bitsandbytes and peft are needed only by the cases that name them. A case whose package
is missing, or that fails, is printed with the reason.
"""

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from placement.planner.memory.estimate import context_of, estimate
from placement.planner.model.adaptation import with_lora, with_quantized
from placement.planner.model.sharding import Sharding
from placement.planner.model.spec import ModelSpec
from placement.planner.model.well_known import WELL_KNOWN
from placement.planner.sandbox.model_source import read_model
from placement.planner.search.memory_savings import PlanLimits
from placement.planner.search.planner import plan
from placement.planner.values.gpu_list import offers_from_list
from placement.planner.values.plan import Plan
from placement.planner.values.workload import Workload
from telemetry.protocol.gpu_cards import card_of

MEASURED_STEPS = 5
NEW_TOKENS = 64
CASE_SECONDS = 120
DTYPES = {"bf16": "bfloat16", "fp32": "float32", "autocast_bf16": "float32"}
LORA_TARGETS = ("q_proj", "v_proj")
HEADS = (
    "case",
    "tensors GB",
    "estimate",
    "shown GB",
    "low - high GB",
    "",
    "seconds",
    "planned / measured",
)


@dataclasses.dataclass(frozen=True)
class Case:
    """One model and what is done with it."""

    model: str
    workload: Workload
    lora: int = 0
    weights: str = "full"

    @property
    def title(self) -> str:
        """Return the case in words: it is the row's name in the table."""
        work = self.workload
        size = "" if self.model.startswith("vit") else f" x {work.sequence_length}"
        words = [self.model, work.precision, f"{work.batch}{size}"]
        if not work.trains:
            return " ".join([*words, "inference"])
        words.append(f"{work.optimizer} {work.optimizer_loop}")
        if self.lora:
            words.append(f"LoRA {self.lora}")
        if self.weights != "full":
            words.append(self.weights)
        if work.checkpointing != "none":
            words.append("checkpointing")
        if work.accumulation > 1:
            words.append(f"accumulation {work.accumulation}")
        return " ".join(words)


def _train(model: str, batch: int, sequence: int, precision: str, **more: Any) -> Case:
    lora, weights = more.pop("lora", 0), more.pop("weights", "full")
    work = Workload.from_json(
        Workload(batch=batch, sequence_length=sequence).to_json()
        | {"precision": precision, **more}
    )
    return Case(model, work, lora, weights)


CASES = (
    _train("gpt2", 8, 1024, "fp32"),
    _train("gpt2", 16, 1024, "autocast_bf16"),
    _train("gpt2-xl", 8, 1024, "autocast_bf16"),
    _train("bert-large", 32, 512, "autocast_bf16"),
    _train("vit-large", 64, 197, "autocast_bf16"),
    _train("llama-3.2-1b", 8, 2048, "bf16"),
    _train("llama-3.2-1b", 8, 2048, "autocast_bf16", optimizer_loop="fused"),
    _train("llama-3.2-1b", 16, 2048, "bf16", checkpointing="full", accumulation=4),
    _train("qwen3-4b", 2, 4096, "bf16", optimizer_loop="fused"),
    _train("llama-3-8b", 4, 2048, "bf16"),
    _train("llama-3-8b", 8, 2048, "bf16", checkpointing="full"),
    _train("llama-3-8b", 4, 2048, "bf16", optimizer="adamw8bit"),
    _train("llama-3-8b", 4, 2048, "bf16", lora=16),
    _train("llama-3-8b", 4, 2048, "bf16", lora=16, weights="nf4"),
    _train("mistral-7b", 8, 4096, "bf16", lora=16, checkpointing="full"),
    _train("llama-3-8b", 1, 2048, "bf16", task="infer"),
    _train("llama-3-8b", 32, 2048, "bf16", task="infer"),
    _train("qwen2.5-32b", 8, 1024, "bf16", task="infer"),
)


# --- what the planner says --------------------------------------------------------


def planned(case: Case, card: str, total_bytes: int) -> dict[str, float]:
    """Return the planner's bytes and seconds for the case on this card alone."""
    spec: ModelSpec = read_model(case.model)
    if case.lora:
        spec = with_lora(spec, rank=case.lora, targets=LORA_TARGETS)
    if case.weights == "nf4":
        spec = with_quantized(spec, "nf4")
    outside = context_of(card_of(card))
    found = estimate(spec, case.workload, Sharding(), context_bytes=outside)
    offers = offers_from_list([{"name": card, "free_bytes": total_bytes}])
    nothing = PlanLimits(
        fused_optimizer=False,
        accumulation=False,
        checkpointing=False,
        small_optimizer=False,
        offload=False,
        quantization=False,
        strategies=("single",),
    )
    plans = plan(spec, case.workload, offers, limits=nothing).plans
    best: Plan | None = plans[0] if plans else None
    return {
        "peak_bytes": found.peak_bytes,
        "low_bytes": found.low_bytes,
        "likely_bytes": found.likely_bytes,
        "high_bytes": found.high_bytes,
        "step_seconds": best.step_seconds if best else 0.0,
        "compute_seconds": best.compute_seconds if best else 0.0,
        "decode_seconds": best.decode_seconds if best else 0.0,
    }


# --- in the child -----------------------------------------------------------------


def measured(case: Case) -> dict[str, Any]:
    """Run the case on the first GPU. Return its bytes and seconds."""
    import torch

    torch.manual_seed(0)
    model, inputs = _build(case)
    if not case.workload.trains:
        return _infer(model, inputs) | _shown()
    return _steps(case, model, inputs) | _shown()


def _build(case: Case) -> tuple[Any, dict[str, Any]]:
    import torch
    import transformers

    given = dict(WELL_KNOWN[case.model].config)
    given.pop("dtype", None)
    config = transformers.AutoConfig.for_model(given.pop("model_type"), **given)
    kind = {
        "bert": transformers.AutoModelForMaskedLM,
        "vit": transformers.AutoModelForImageClassification,
    }.get(config.model_type, transformers.AutoModelForCausalLM)
    dtype = getattr(torch, DTYPES[case.workload.precision])
    with torch.device("cuda"):
        model = kind.from_config(config, dtype=dtype, attn_implementation="sdpa")
    if case.weights == "nf4":
        model = _in_nf4(model)
    if case.lora:
        import peft

        model = peft.get_peft_model(
            model,
            peft.LoraConfig(
                r=case.lora, target_modules=list(LORA_TARGETS), lora_dropout=0.0
            ),
        )
    if case.workload.checkpointing == "full":
        model.gradient_checkpointing_enable()
        if case.lora:
            model.enable_input_require_grads()
    work = case.workload
    batch = work.batch // work.accumulation
    if config.model_type == "vit":
        size = (batch, 3, config.image_size, config.image_size)
        labels = torch.zeros(batch, dtype=torch.long, device="cuda")
        return model, {
            "pixel_values": torch.rand(size, device="cuda"),
            "labels": labels,
        }
    ids = torch.randint(config.vocab_size, (batch, work.sequence_length), device="cuda")
    cache = {"use_cache": False} if config.model_type != "bert" else {}
    return model, {"input_ids": ids, "labels": ids, **cache}


def _in_nf4(model: Any) -> Any:
    """Return the model with the linear layers of its blocks in nf4 (bitsandbytes)."""
    import bitsandbytes
    import torch

    for name, module in list(model.named_modules()):
        if isinstance(module, torch.nn.Linear) and "lm_head" not in name:
            made = bitsandbytes.nn.Linear4bit(
                module.in_features,
                module.out_features,
                bias=module.bias is not None,
                compute_dtype=torch.bfloat16,
                quant_type="nf4",
                compress_statistics=True,
                device="meta",
            )
            made.weight = bitsandbytes.nn.Params4bit(
                module.weight.data.cpu(),
                requires_grad=False,
                quant_type="nf4",
                compress_statistics=True,
            )
            parent = model.get_submodule(name.rpartition(".")[0])
            setattr(parent, name.rpartition(".")[2], made.to("cuda"))
    return model


def _optimizer(case: Case, parameters: list[Any]) -> Any:
    import torch

    if case.workload.optimizer == "adamw8bit":
        import bitsandbytes

        return bitsandbytes.optim.AdamW8bit(parameters, lr=1e-5)
    how: dict[str, Any] = {case.workload.optimizer_loop: True}
    return torch.optim.AdamW(parameters, lr=1e-5, **how)


def _steps(case: Case, model: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    import torch

    model.train()
    work = case.workload
    optimizer = _optimizer(case, [p for p in model.parameters() if p.requires_grad])
    seconds: list[float] = []
    for step in range(2 + MEASURED_STEPS):
        if step == 1:
            torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(work.accumulation):
            casting = (
                torch.autocast("cuda", dtype=torch.bfloat16)
                if work.precision == "autocast_bf16"
                else nullcontext()
            )
            with casting:
                loss = model(**inputs).loss / work.accumulation
            loss.backward()
            del loss
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        if step >= 2:
            seconds.append(time.perf_counter() - began)
    return {
        "step_seconds": statistics.median(seconds),
        "parameters": sum(p.numel() for p in model.parameters()),
    }


def _infer(model: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    import torch

    model.eval()
    ids = inputs["input_ids"]
    prompts: list[float] = []
    with torch.inference_mode():
        for step in range(3):
            if step == 1:
                torch.cuda.reset_peak_memory_stats()
            torch.cuda.synchronize()
            began = time.perf_counter()
            answer = model(input_ids=ids, use_cache=True, logits_to_keep=1)
            torch.cuda.synchronize()
            prompts.append(time.perf_counter() - began)
            if step < 2:
                del answer
        peak = torch.cuda.max_memory_allocated()
        cache, token = answer.past_key_values, ids[:, :1]
        tokens: list[float] = []
        for _ in range(NEW_TOKENS):
            began = time.perf_counter()
            model(input_ids=token, past_key_values=cache, use_cache=True)
            torch.cuda.synchronize()
            tokens.append(time.perf_counter() - began)
    return {
        "step_seconds": statistics.median(prompts[1:]),
        "decode_seconds": statistics.median(tokens),
        "prompt_peak_bytes": peak,
        "parameters": sum(p.numel() for p in model.parameters()),
    }


def _shown() -> dict[str, Any]:
    """Return what torch and the driver say of this process now."""
    import pynvml
    import torch

    pynvml.nvmlInit()
    card = pynvml.nvmlDeviceGetHandleByIndex(0)
    rows = pynvml.nvmlDeviceGetComputeRunningProcesses(card)
    return {
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "shown_bytes": sum(row.usedGpuMemory or 0 for row in rows),
        "processes": len(rows),
    }


# --- in the parent ----------------------------------------------------------------


def _card() -> tuple[str, int]:
    import pynvml

    pynvml.nvmlInit()
    first = pynvml.nvmlDeviceGetHandleByIndex(0)
    return pynvml.nvmlDeviceGetName(first), pynvml.nvmlDeviceGetMemoryInfo(first).total


def run(number: int) -> dict[str, Any]:
    """Measure a case in a child process. A failure is its last line."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "bench.measure_gpu", "--child", str(number)],
            capture_output=True,
            text=True,
            timeout=CASE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no answer in {CASE_SECONDS} s"}
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["no message"])[-1][:200]}
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def row(case: Case, said: dict[str, float], got: dict[str, Any]) -> str:
    """Return a line of the table."""
    if "error" in got:
        return f"| {case.title} | {got['error']} |"
    off = said["peak_bytes"] / got["peak_bytes"] - 1
    shown = got["shown_bytes"]
    inside = said["low_bytes"] <= shown <= said["high_bytes"]
    cells = [
        case.title,
        f"{got['peak_bytes'] / 1e9:.2f}",
        f"{off:+.1%}",
        f"{shown / 1e9:.2f}",
        f"{said['low_bytes'] / 1e9:.1f} - {said['high_bytes'] / 1e9:.1f}",
        "inside" if inside else "outside",
        f"{got['step_seconds']:.3f}",
        f"{said['step_seconds'] / got['step_seconds']:.2f}",
    ]
    if "decode_seconds" in got:
        cells += [
            f"{got['decode_seconds'] * 1000:.1f} ms a token",
            f"{said['decode_seconds'] / got['decode_seconds']:.2f}",
        ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Measure the cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--write", type=Path, help="write all figures as JSON")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        print(json.dumps(measured(CASES[options.child])))
        return
    card, total_bytes = _card()
    print(f"{card}, {total_bytes / 1e9:.1f} GB\n")
    print(f"| {' | '.join(HEADS)} |")
    print(f"|{' --- |' * len(HEADS)}")
    made = []
    for number, case in enumerate(CASES):
        if options.only not in case.title:
            continue
        said, got = planned(case, card, total_bytes), run(number)
        made.append({"case": case.title, "planned": said, "measured": got})
        print(row(case, said, got), flush=True)
        if options.write:
            facts = {"card": card, "total_bytes": total_bytes, "cases": made}
            options.write.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
