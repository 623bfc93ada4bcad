"""Estimated against measured memory: the error table of docs/accuracy.md.

    python -m bench.estimate

Rows are tests/data/memory: allocator bytes of real training steps on CPU. Nothing is
fitted to them; the tape follows torch's derivatives. Rows of unknown code (conv nets,
plain MLPs) go through the bare tensor list, whose activations are a guess.
"""

import json
import platform
import statistics
import time
from pathlib import Path
from typing import Any

from placement.domain.blocks import layer_norm, mlp
from placement.domain.costs import LayerCost
from placement.domain.estimate import Estimate, estimate
from placement.domain.families import parse_config
from placement.domain.inventory import TensorInfo, spec_from_inventory
from placement.domain.phases import rank_phases
from placement.domain.sharding import Sharding
from placement.domain.spec import ModelSpec, TransformerShape
from placement.domain.replay import LayerReplay, replay
from placement.domain.tape import Tape, Value
from placement.domain.workload import Workload

DATA = Path(__file__).resolve().parent.parent / "tests" / "data" / "memory"
FAMILY_OF = {"GPTNeoXConfig": "gpt_neox", "ViTConfig": "vit", "T5Config": "t5"}


def load(name: str) -> list[dict[str, Any]]:
    """The cases of one file."""
    cases: list[dict[str, Any]] = json.loads((DATA / name).read_text())["cases"]
    return cases


def spec_of(case: dict[str, Any]) -> ModelSpec | None:
    """The ModelSpec of a case's config; None for code that is no known family."""
    model = case["spec"]["model"]
    if "config_class" not in model:
        return None
    name = model["config_class"]
    family = FAMILY_OF.get(name, name.removesuffix("Config").lower())
    return parse_config(
        {
            **model["config"],
            "model_type": family,
            "architectures": [model["hf_class"]],
        }
    )


def workload_of(case: dict[str, Any]) -> Workload:
    """The Workload of a case, as the CPU ran it (for-loop optimizer, no context)."""
    given = case["spec"]
    batch = given["input"]["batch"]
    pieces = given.get("grad_accum", 1)
    optimizer = given["optimizer"]["name"]
    if optimizer == "sgd" and given["optimizer"].get("momentum"):
        optimizer = "momentum"
    return Workload(
        batch=batch * pieces,
        sequence_length=given["input"].get("seq", 1),
        precision=given["precision"],
        optimizer=optimizer,
        checkpointing="full" if given.get("checkpointing") else "none",
        accumulation=pieces,
        attention=attention_of(case),
        optimizer_loop="forloop",
        accelerator="cpu",
    )


def attention_of(case: dict[str, Any]) -> Any:
    """Which kernel ran. SDPA on CPU uses flash unless dropout is in the way; where the
    case does not say, the same rule is applied to its config."""
    if case["spec"]["model"].get("attn") == "eager":
        return "eager"
    kernels = case["truth"].get("attention_kernels")
    if kernels is not None:
        return "flash" if any("flash" in kernel for kernel in kernels) else "math"
    spec = spec_of(case)
    dropped = spec is not None and spec.shape and spec.shape.attention_dropout_ratio
    return "math" if dropped else "flash"


def plain_spec(case: dict[str, Any]) -> ModelSpec | None:
    """The MLP of the cases as a bare tensor list; conv nets are not spelled out."""
    model = case["spec"]["model"]
    if model.get("torch") != "MLP":
        return None
    args = model["args"]
    inner = [args["dh"]] * (args["depth"] - 1)
    sizes = [args["din"], *inner, args["dout"]]
    tensors = []
    for i in range(args["depth"]):
        shape = (sizes[i + 1], sizes[i])
        tensors.append(TensorInfo(f"net.{2 * i}.weight", shape, "fp32"))
        tensors.append(TensorInfo(f"net.{2 * i}.bias", shape[:1], "fp32"))
    return spec_from_inventory(tensors, name="mlp", source="safetensors")


def milliseconds(spec: ModelSpec, workload: Workload) -> float:
    """CPU time of one estimate, median of 5."""
    times = []
    for _ in range(5):
        start = time.process_time()
        estimate(spec, workload)
        times.append((time.process_time() - start) * 1000)
    return statistics.median(times)


def row(case: dict[str, Any]) -> float | None:
    """Print one row; the peak's relative error, None for guesses."""
    name = case["spec"]["id"]
    truth = case["truth"]
    spec = spec_of(case) or plain_spec(case)
    if spec is None:
        print(f"{name:<44} code of no known family: needs the symbolic tracker")
        return None
    workload = workload_of(case)
    made: Estimate = estimate(spec, workload)
    error = made.peak_bytes / truth["peak_bytes"] - 1
    states = (
        made.parameter_bytes == truth["param_bytes"]
        and made.optimizer_bytes == truth["opt_state_bytes"]
    )
    print(
        f"{name:<44}{truth['peak_bytes'] / 1e9:>9.3f}{made.peak_bytes / 1e9:>9.3f}"
        f"{error:>9.2%}{'exact' if states else 'WRONG':>8}  {made.peak_phase:<10}"
        f"{milliseconds(spec, workload):>6.2f}"
        f"{'  (a guess)' if made.activations_are_a_guess else ''}"
    )
    return None if made.activations_are_a_guess else error


# The model of distributed_cpu.json: LayerNorm, Linear, GELU, Linear, residual.
NET = TransformerShape(
    hidden=512,
    heads=1,
    kv_heads=1,
    head_dim=512,
    intermediate=2048,
    vocab=4000,
    positions=64,
    norm="layernorm",
    activation="gelu",
    biases=True,
)


def net_costs(sequences: int) -> list[LayerCost]:
    """Layer costs of that model, for one rank's sequences of 64 tokens."""
    tokens = sequences * 64
    block = 2 * NET.hidden + 2 * NET.hidden * NET.intermediate
    block += NET.hidden + NET.intermediate
    table = NET.vocab * NET.hidden

    def tape() -> Tape:
        return Tape(compute_width=4.0, residual_width=4.0, mask_width=0.0)

    def stream() -> Value:
        return Value(tokens * NET.hidden, 4.0)

    first = tape()
    ids = Value(tokens, 8, constant=True)
    out = first.simple([ids], tokens * NET.hidden, 4.0, weight_grad_bytes=4.0 * table)
    layers = [("embedding", table, table, replay(first.ops, ids, out))]
    middle, x = tape(), stream()
    made = middle.add(x, mlp(middle, NET, layer_norm(middle, NET, x), 1))
    inner = NET.hidden * NET.intermediate
    layers += [("block", block, inner, replay(middle.ops, x, made))] * 8
    last, x = tape(), stream()
    logits = last.linear(x, NET.hidden, NET.vocab, bias=False)
    logs = last.simple([logits], logits.elements, 4.0, keep_output=True)
    loss = last.simple([logs], 1, 4.0)
    layers.append(("head", table, table, replay(last.ops, x, loss)))
    return [net_cost(*layer) for layer in layers]


def net_cost(kind: str, elements: int, largest: int, made: LayerReplay) -> LayerCost:
    """One layer of that model in fp32 under Adam."""
    return LayerCost(
        name=kind,
        kind=kind,
        elements=elements,
        tied_elements=0,
        largest=largest,
        parameter_bytes=4 * elements,
        gradient_bytes=4 * elements,
        optimizer_bytes=8 * elements,
        kept_bytes=int(made.kept_bytes),
        forward_peak_bytes=int(made.forward_peak_bytes),
        backward_peak_bytes=int(made.backward_peak_bytes),
        weight_copy_bytes=0,
        output_bytes=int(made.output_bytes),
        cache_bytes=0,
        gathered_bytes=4 * elements,
        forward_flops=0.0,
        recompute_flops=0.0,
        trained_elements=elements,
        moment_width=4.0,
    )


def distributed_rows() -> None:
    """Per-rank peaks of DDP, ZeRO-2 and FSDP2 on two gloo ranks."""
    shardings = {
        "ddp": Sharding(strategy="ddp", data_degree=2, bucket_view=False),
        "ds2": Sharding(strategy="zero2", data_degree=2),
        "fsdp2": Sharding(strategy="fsdp", data_degree=2),
    }
    workload = Workload(
        batch=8, precision="fp32", optimizer_loop="forloop", accelerator="cpu"
    )
    costs = net_costs(4)
    for case in load("distributed_cpu.json"):
        sharding = shardings[case["kind"]]
        bucket = case["bucket_elements"]
        if case["kind"] == "ds2":
            size = bucket if isinstance(bucket, int) else 500_000_000
            sharding = Sharding(strategy="zero2", data_degree=2, bucket_elements=size)
        peak = rank_phases(costs, workload, sharding).peak_bytes
        ranks = "  ".join(
            f"rank {rank} {measured / 1e6:.1f} MB {peak / measured - 1:+.1%}"
            for rank, measured in enumerate(case["peak_bytes_per_rank"])
        )
        print(f"{case['id']:<24} estimated {peak / 1e6:8.1f} MB   {ranks}")


def main() -> None:
    """Print all tables."""
    print(f"{platform.machine()}, Python {platform.python_version()}\n")
    print(
        f"{'case':<44}{'meas. GB':>9}{'est. GB':>9}{'error':>9}{'states':>8}  "
        f"{'peak in':<10}{'ms':>6}"
    )
    errors = []
    for name in ("measured_cpu.json", "simulated_large.json"):
        for case in load(name):
            error = row(case)
            if error is not None:
                errors.append(error)
    sizes = sorted(abs(error) for error in errors)
    print(
        f"\ntransformers: {len(sizes)} rows, median {statistics.median(sizes):.2%}, "
        f"p90 {sizes[int(0.9 * (len(sizes) - 1))]:.2%}, worst {sizes[-1]:.2%}, "
        f"under by more than 5 %: {sum(error < -0.05 for error in errors)}\n"
    )
    distributed_rows()


if __name__ == "__main__":
    main()
