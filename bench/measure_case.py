"""Measure the memory of real training steps on CPU, to compare with the estimates.

    OMP_NUM_THREADS=1 python -m bench.measure_case CASES.json --models refmodels.py
    OMP_NUM_THREADS=1 python -m bench.measure_case CASES.json --write FILE

CASES.json holds `spec` objects in the form of tests/data/memory/measured_cpu.json. The
model, its optimizer and two whole steps are run under torch.profiler, whose `[memory]`
events are the CPU allocator's allocations and frees, in order. Live bytes are their
running sum, so nothing alive is missed and nothing is sampled. Phases are marked with
record_function. The peak is the second step's (optimizer state exists).

`--models` names the file that builds the plain torch models (`build(spec)`). It is
beside the shared reference data.
"""

import argparse
import bisect
import gc
import importlib.util
import json
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

PHASES = ("fwd", "bwd", "opt", "zero")
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def load_models(path: str) -> ModuleType:
    """Return the module that builds models from specs."""
    found = importlib.util.spec_from_file_location("refmodels", path)
    assert found is not None and found.loader is not None, path
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def make_optimizer(given: dict[str, Any], parameters: list[Any]) -> Any:
    """Return the torch optimizer that a spec names, otherwise with torch's defaults."""
    made = {
        "adamw": torch.optim.AdamW,
        "adam": torch.optim.Adam,
        "sgd": torch.optim.SGD,
        "adafactor": torch.optim.Adafactor,
    }[given["name"]]
    more = {"momentum": given["momentum"]} if given.get("momentum") else {}
    return made(parameters, lr=1e-4, **more)


def adapted(model: Any, given: dict[str, Any]) -> Any:
    """Return the model with a spec's LoRA adapters (peft), or parts frozen."""
    lora = given.get("lora")
    if lora:
        from peft import LoraConfig, get_peft_model

        targets = list(lora.get("targets") or lora["target_modules"])
        config = LoraConfig(
            r=lora["r"], target_modules=targets, lora_dropout=lora.get("dropout", 0.0)
        )
        model = get_peft_model(model, config)
    for name, parameter in model.named_parameters():
        if any(name.startswith(prefix) for prefix in given.get("freeze", [])):
            parameter.requires_grad_(False)
    return model


def run_steps(given: dict[str, Any], models: ModuleType) -> dict[str, Any]:
    """Run two training steps. Return counts of the model. Everything is freed on
    return.
    """
    torch.manual_seed(0)
    model, make_batch, loss_fn = models.build(given)
    precision = given["precision"]
    dtype = DTYPES.get(precision, torch.float32)
    model = adapted(model.to(dtype), given)
    model.train()
    if given.get("checkpointing"):
        model.gradient_checkpointing_enable()
        if given.get("lora"):
            model.enable_input_require_grads()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = make_optimizer(given["optimizer"], trained)
    pieces = given.get("grad_accum", 1)
    low = {"autocast_bf16": torch.bfloat16, "autocast_fp16": torch.float16}
    for step in (1, 2):
        for piece in range(pieces):
            batch = make_batch(dtype)
            kept = f"{step}" if piece == pieces - 1 else f"{step}.{piece}"
            casting = (
                torch.autocast("cpu", dtype=low[precision])
                if precision in low
                else nullcontext()
            )
            with record_function(f"#fwd{kept}"), casting:
                loss = loss_fn(model, batch)
            with record_function(f"#bwd{kept}"):
                (loss / pieces if pieces > 1 else loss).backward()
        with record_function(f"#opt{step}"):
            optimizer.step()
        with record_function(f"#zero{step}"):
            optimizer.zero_grad(set_to_none=True)
        del loss
    state = [
        value.nbytes
        for one in optimizer.state.values()
        for value in one.values()
        if isinstance(value, torch.Tensor)
    ]
    return {
        "n_params": sum(p.numel() for p in model.parameters()),
        "n_trainable": sum(p.numel() for p in trained),
        "param_bytes": sum(p.nbytes for p in model.parameters()),
        "buffer_bytes": sum(b.nbytes for b in model.buffers()),
        "grad_bytes": sum(p.nbytes for p in trained),
        "opt_state_bytes": sum(state),
    }


class Stream:
    """Running sum of the allocator's events, and the marked ranges of time."""

    def __init__(self, prof: Any) -> None:
        self.times: list[int] = []
        self.live: list[int] = []
        self.ranges: dict[str, tuple[int, int]] = {}
        total = 0
        events = prof.profiler.kineto_results.events()
        for event in sorted(events, key=lambda one: one.start_ns()):
            if event.name() == "[memory]":
                total += event.nbytes()
                self.times.append(event.start_ns())
                self.live.append(total)
            elif event.name().startswith("#"):
                end = event.start_ns() + event.duration_ns()
                self.ranges[event.name()[1:]] = (event.start_ns(), end)

    def at(self, time: int) -> int:
        """Return the live bytes at a time."""
        index = bisect.bisect_right(self.times, time) - 1
        return self.live[index] if index >= 0 else 0

    def peak(self, name: str) -> int:
        """Return the most live bytes inside a marked range, its first moment
        included.
        """
        start, end = self.ranges[name]
        low = bisect.bisect_left(self.times, start)
        high = bisect.bisect_right(self.times, end)
        return max([self.at(start), *self.live[low:high]])


def measure(given: dict[str, Any], models: ModuleType) -> dict[str, Any]:
    """Return the measurements of one spec, keys as in measured_cpu.json."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
        counts = run_steps(given, models)
        gc.collect()
    stream = Stream(prof)
    peaks = {}
    for phase in PHASES:
        names = [n for n in stream.ranges if n.split(".")[0] == f"{phase}2"]
        peaks[phase] = max(stream.peak(name) for name in names)
    first = [n for n in stream.ranges if n[3:].lstrip("o").startswith("1")]
    before, after = stream.ranges["fwd2"]
    names = {event.name() for event in prof.profiler.kineto_results.events()}
    return {
        **counts,
        "peak_bytes": max(peaks.values()),
        "peak_step1_bytes": max(stream.peak(name) for name in first),
        "phase_peak_bytes": peaks,
        "activation_bytes": stream.at(after) - stream.at(before),
        "attention_kernels": sorted(n for n in names if "scaled_dot_product_" in n),
    }


def main() -> None:
    """Measure every spec of a file. Print or write cases of the usual form."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", type=Path)
    parser.add_argument("--models", default="../shared/data/memory/refmodels.py")
    parser.add_argument("--only", default="")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    models = load_models(options.models)
    given = json.loads(options.cases.read_text())
    cases = given["cases"] if isinstance(given, dict) else given
    meta = {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "truth": "bench/measure_case.py: allocator events of two whole training "
        "steps on CPU, peak of the second",
    }
    made: list[dict[str, Any]] = []
    if options.write and options.write.exists():
        made = json.loads(options.write.read_text())["cases"]
    done = {case["spec"]["id"] for case in made}
    for case in cases:
        spec = case.get("spec", case)
        if options.only not in spec["id"] or spec["id"] in done:
            continue
        truth = measure(spec, models)
        made.append({"spec": spec, "truth": truth})
        print(spec["id"], json.dumps(truth), file=sys.stderr, flush=True)
        if options.write:
            written = json.dumps({"meta": meta, "cases": made}, indent=1)
            options.write.write_text(written + "\n")


if __name__ == "__main__":
    main()
