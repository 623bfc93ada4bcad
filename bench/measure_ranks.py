"""Measure the allocations of each of two gloo ranks: DDP, FSDP2, DeepSpeed ZeRO on CPU.

    OMP_NUM_THREADS=1 python -m bench.measure_ranks fsdp2 --world 2 --batch 4
    OMP_NUM_THREADS=1 python -m bench.measure_ranks ds2 --bucket 500000 --write FILE

The net is the one of tests/data/memory/distributed_cpu.json (Embedding, blocks of
LayerNorm, Linear, GELU, Linear and a residual sum, Linear), AdamW without foreach. The
measurements are those of bench/measure_case.py: the allocator's events, the peak of
step 2, and the live bytes at its start. `--trace` prints the largest events of step 2
with their callers. `--resident` measures with the kernel instead of the profiler (see
run_resident).
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SIZES = {"vocab": 4000, "hidden": 512, "inner": 2048, "blocks": 8, "seq": 64}


def make_net(sizes: dict[str, int]) -> Any:
    """Return the net, in fp32."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(sizes["hidden"])
            self.up = nn.Linear(sizes["hidden"], sizes["inner"])
            self.act = nn.GELU()
            self.down = nn.Linear(sizes["inner"], sizes["hidden"])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.down(self.act(self.up(self.norm(x))))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(sizes["vocab"], sizes["hidden"])
            self.blocks = nn.ModuleList(Block() for _ in range(sizes["blocks"]))
            self.head = nn.Linear(sizes["hidden"], sizes["vocab"], bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.table(x)
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    torch.manual_seed(0)
    return Net()


def deepspeed_config(options: argparse.Namespace, stage: int) -> dict[str, Any]:
    """Return a DeepSpeed config with one bucket size in all its fields."""
    zero: dict[str, Any] = {"stage": stage}
    if options.bucket:
        zero["reduce_bucket_size"] = options.bucket
        if stage == 3:
            zero["stage3_prefetch_bucket_size"] = options.bucket
        else:
            zero["allgather_bucket_size"] = options.bucket
    if options.overlap is not None:
        zero["overlap_comm"] = options.overlap
    return {
        "train_micro_batch_size_per_gpu": options.batch,
        "gradient_accumulation_steps": options.accumulation,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "bf16": {"enabled": options.precision == "bf16"},
    }


def run_rank(options: argparse.Namespace) -> None:
    """Run one rank: build, two marked steps under the profiler, write the
    measurements.
    """
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.profiler import ProfilerActivity, profile, record_function

    from bench.measure_case import Stream

    dist.init_process_group("gloo")
    reachable = 0
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
        net = make_net(SIZES | json.loads(options.sizes))
        count = sum(one.numel() for one in net.parameters())
        vocab, seq = net.table.num_embeddings, SIZES["seq"]
        step_of = _wrap(options, net)
        for step in (1, 2):
            x = torch.randint(0, vocab, (options.batch, seq))
            if step == 2:
                reachable = reachable_bytes()
            with record_function(f"#fwd{step}"):
                pass
            step_of(x, nn.functional.cross_entropy, record_function, step)
        gc.collect()
    stream = Stream(prof)
    if options.trace and dist.get_rank() == options.trace_rank:
        _trace(prof, stream, options.trace)
    start, end = stream.ranges["fwd2"][0], stream.ranges["zero2"][1]
    inside = [
        live
        for time, live in zip(stream.times, stream.live, strict=True)
        if start <= time <= end
    ]
    answer = {
        "n_params": count,
        "steady": stream.at(start),
        "reachable": reachable,
        "peak": max(inside),
        "phases": {
            phase: stream.peak(f"{phase}2")
            for phase in ("forward", "bwd", "opt")
            if f"{phase}2" in stream.ranges
        },
    }
    Path(options.out, f"{dist.get_rank()}.json").write_text(json.dumps(answer))
    dist.barrier()
    dist.destroy_process_group()


def run_resident(options: argparse.Namespace) -> None:
    """Measure one rank with the kernel: reachable storages, and what step 2 adds to
    them.

    Every block of 64 KiB or more is a separate mapping (`launch` sets glibc's
    threshold), so a free by any thread is seen at once. The result is resident memory
    at its highest (VmHWM, reset before step 2) less the resident memory before. Blocks
    that are never written to are not resident: buckets of the default size are not.
    """
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.profiler import record_function

    if options.kind == "ddp":
        raise SystemExit("--resident: DDP's buckets are C++'s, no storage reaches them")
    dist.init_process_group("gloo")
    net = make_net(SIZES | json.loads(options.sizes))
    count = sum(one.numel() for one in net.parameters())
    vocab, seq = net.table.num_embeddings, SIZES["seq"]
    step_of = _wrap(options, net)
    answer: dict[str, int] = {"n_params": count}
    for step in (1, 2):
        x = torch.randint(0, vocab, (options.batch, seq))
        if step == 2:
            dist.barrier()
            answer["reachable"] = reachable_bytes()
            Path("/proc/self/clear_refs").write_text("5")
            before = _resident("VmRSS")
        step_of(x, nn.functional.cross_entropy, record_function, step)
    answer["peak"] = answer["reachable"] + _resident("VmHWM") - before
    Path(options.out, f"{dist.get_rank()}.json").write_text(json.dumps(answer))
    dist.barrier()
    dist.destroy_process_group()


def _resident(field: str) -> int:
    """Return the bytes of one field of this process's status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = [one for one in lines if one.startswith(f"{field}:")]
    return int(line.split()[1]) * 1024


def reachable_bytes() -> int:
    """Return the bytes of all storages that Python can reach, which are alive between
    steps.

    The allocator's stream shows more: frees by gloo's own threads after the main thread
    has released a block are not seen (the profiler watches threads by their state), so
    the block stays in the running sum. Its addresses are used again, which proves that
    it is free.
    """
    import torch

    gc.collect()
    seen: dict[int, int] = {}
    for one in gc.get_objects():
        if type(one) in (torch.Tensor, torch.nn.Parameter):
            for tensor in (one, one.grad):
                if tensor is not None and tensor.device.type == "cpu":
                    storage = getattr(tensor, "_local_tensor", tensor).untyped_storage()
                    seen[storage.data_ptr()] = storage.nbytes()
        elif type(one).__name__ == "DTensor":
            for tensor in (one._local_tensor, one.grad and one.grad._local_tensor):
                if tensor is not None:
                    storage = tensor.untyped_storage()
                    seen[storage.data_ptr()] = storage.nbytes()
    return sum(seen.values())


def _wrap(options: argparse.Namespace, net: Any) -> Any:
    """Return the step function of one kind of parallelism."""
    import torch

    kind = options.kind
    if options.precision == "bf16" and not kind.startswith("ds"):
        net = net.to(torch.bfloat16)
    if kind.startswith("ds"):
        import deepspeed

        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, foreach=False)
        engine, *_ = deepspeed.initialize(
            model=net,
            optimizer=optimizer,
            config=deepspeed_config(options, int(kind[2:])),
        )
        return _deepspeed_step(options, engine)
    if kind == "ddp":
        net = torch.nn.parallel.DistributedDataParallel(
            net, gradient_as_bucket_view=bool(options.view)
        )
    else:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        policy = MixedPrecisionPolicy()
        if options.precision == "mixed":
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
        for block in net.blocks:
            fully_shard(block, mp_policy=policy)
        fully_shard(net, mp_policy=policy)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, foreach=False)
    return _torch_step(options, net, optimizer)


def _torch_step(options: argparse.Namespace, net: Any, optimizer: Any) -> Any:
    def step(x: Any, loss_of: Any, record: Any, number: int) -> None:
        for _ in range(options.accumulation):
            with record(f"#forward{number}"):
                loss = loss_of(net(x).flatten(0, 1).float(), x.flatten())
            with record(f"#bwd{number}"):
                loss.backward()
        with record(f"#opt{number}"):
            optimizer.step()
        with record(f"#zero{number}"):
            optimizer.zero_grad(set_to_none=True)

    return step


def _deepspeed_step(options: argparse.Namespace, engine: Any) -> Any:
    def step(x: Any, loss_of: Any, record: Any, number: int) -> None:
        for _ in range(options.accumulation):
            with record(f"#forward{number}"):
                loss = loss_of(engine(x).flatten(0, 1).float(), x.flatten())
            with record(f"#bwd{number}"):
                engine.backward(loss)
            with record(f"#opt{number}"):
                engine.step()
        with record(f"#zero{number}"):
            pass

    return step


def _trace(prof: Any, stream: Any, low: int) -> None:
    """Print every event of step 2 of at least `low` bytes, with the calls around it."""
    events = sorted(
        prof.profiler.kineto_results.events(),
        key=lambda one: (one.start_ns(), -one.duration_ns()),
    )
    stacks: dict[int, list[tuple[int, str]]] = {}
    start, end = stream.ranges["fwd2"][0], stream.ranges["zero2"][1]
    if low < 0:
        start, low = 0, -low
    for event in events:
        stack = stacks.setdefault(event.start_thread_id(), [])
        while stack and stack[-1][0] < event.start_ns():
            stack.pop()
        if event.name() != "[memory]":
            stack.append((event.start_ns() + event.duration_ns(), event.name()))
        elif start <= event.start_ns() <= end and abs(event.nbytes()) >= low:
            live = stream.at(event.start_ns())
            who = " > ".join(name for _, name in stack)[-100:]
            print(
                f"{event.nbytes():>12,} {live:>14,}  t{event.start_thread_id()} {who}"
            )


def launch(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Start the ranks as separate processes. Return their answers in order."""
    with tempfile.TemporaryDirectory() as out:
        started = []
        for rank in range(options.world):
            environment = {
                **os.environ,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(options.world),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(options.port),
                "DS_ACCELERATOR": "cpu",
                "OMP_NUM_THREADS": "1",
                "MALLOC_MMAP_THRESHOLD_": str(64 * 1024),
                "MALLOC_TRIM_THRESHOLD_": "0",
            }
            command = [sys.executable, "-m", "bench.measure_ranks", *sys.argv[1:]]
            started.append(subprocess.Popen([*command, "--out", out], env=environment))
        codes = [process.wait() for process in started]
        if any(codes):
            raise SystemExit(f"ranks ended with {codes}")
        return [
            json.loads(Path(out, f"{rank}.json").read_text())
            for rank in range(options.world)
        ]


def main() -> None:
    """Measure one setting; as a child (`--out`), be one rank of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["ddp", "fsdp2", "ds0", "ds1", "ds2", "ds3"])
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--batch", type=int, default=4, help="sequences per rank")
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--bucket", type=int, default=0, help="elements; 0: default")
    parser.add_argument("--overlap", type=lambda word: word == "true")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--view", type=int, default=0)
    parser.add_argument("--sizes", default="{}", help="JSON over the net's sizes")
    parser.add_argument("--port", type=int, default=29611)
    parser.add_argument("--trace", type=int, default=0)
    parser.add_argument("--trace-rank", type=int, default=0)
    parser.add_argument("--resident", action="store_true")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--out")
    options = parser.parse_args()
    if options.out:
        (run_resident if options.resident else run_rank)(options)
        return
    ranks = launch(options)
    for rank, answer in enumerate(ranks):
        print(rank, json.dumps(answer))
    if options.write:
        cases = json.loads(options.write.read_text()) if options.write.exists() else []
        left_out = ("write", "out", "port", "trace", "trace_rank")
        given = {k: v for k, v in vars(options).items() if k not in left_out}
        cases.append({"given": given, "ranks": ranks})
        options.write.write_text(json.dumps(cases, indent=1))


if __name__ == "__main__":
    main()
