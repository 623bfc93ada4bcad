"""Run one strategy after the other on so many ranks, and report the losses.

    python -m tests.placement.agent.runtime.strategies_child NAMES FILE RANKS

The ranks are forked after torch is imported, which takes most of the time of starting
one. (test_recipes.py tests that torchrun starts the workers, and test_node.py that each
imports all by itself.) Each strategy is compared with a plain loop in one process: no
wrappers, one model, the same data. Rank 0 writes FILE: name -> results.
"""

import gc
import json
import os
import shutil
import sys
import time
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import torch
from torch import distributed

from placement.agent.runtime.by_deepspeed import (
    check_drive,
    import_deepspeed,
    trainer_of,
)
from placement.agent.runtime.own_worker import OwnTrainer
from placement.agent.runtime.rank_groups import RankGroups, begin
from placement.agent.runtime.sharded_model import KINDS
from placement.agent.runtime.tiny_transformer import MarkovText, loss_of
from placement.agent.runtime.trainer import whole_model
from placement.agent.runtime.training_checkpoint import CHECKPOINT, resume, save
from placement.planner.launch.execution import Execution, NotRunnable, RankPlace
from tests.placement.agent.runtime.forked_ranks import fork_ranks
from tests.placement.agent.runtime.strategies_memory import expected, measured

STEPS = 3
SETTINGS = {
    "layers": 4,
    "hidden": 32,
    "heads": 4,
    "seq": 16,
    "batch": 2,
    "seed": 7,
    "learning_rate": 3e-3,
    "dropout": 0.0,
}
WHOLE = (0, 6)
GROUPS = {}
"""The grid of ranks -> its groups."""


def places(stages, replicas, width):
    """Return the grid as the planner counts ranks: stage, replica, tensor rank."""
    return tuple(
        RankPlace(s, r, t)
        for s in range(stages)
        for r in range(replicas)
        for t in range(width)
    )


def execution(strategy, *, stages=1, replicas=1, width=1, **changes):
    known = {
        "strategy": strategy,
        "places": places(stages, replicas, width),
        "stages": stages,
        "replicas": replicas,
        "tensor_degree": width,
        "sequence_parallel": False,
        "zero_stage": 0,
        "shares": (),
        "schedule": "",
        "bounds": WHOLE,
        "microbatches": 1,
        "accumulation": 1,
        "precision": "fp32",
        "optimizer": "adamw",
        "optimizer_loop": "foreach",
        "checkpointing": False,
        "offload": False,
    }
    return Execution(**known | changes)


DDP = execution("ddp", replicas=2)
STAGED = execution(
    "pipeline", stages=2, schedule="1f1b", bounds=(0, 2, 6), microbatches=4
)
TWO = {
    "ddp": DDP,
    "ddp accumulated": replace(DDP, accumulation=3),
    "ddp checkpointed": replace(DDP, checkpointing=True),
    "ddp autocast bf16": replace(DDP, precision="autocast_bf16"),
    "ddp autocast fp16": replace(DDP, precision="autocast_fp16"),
    "ddp bf16": replace(DDP, precision="bf16", optimizer="sgd"),
    "ddp momentum": replace(DDP, optimizer="momentum", optimizer_loop="forloop"),
    "zero1": replace(DDP, strategy="zero1", zero_stage=1),
    "zero1 uneven": replace(
        DDP, strategy="zero1_uneven", zero_stage=1, shares=(5 / 6, 1 / 6)
    ),
    "zero2": replace(DDP, strategy="zero2", zero_stage=2, accumulation=2),
    "zero3": replace(DDP, strategy="fsdp", zero_stage=3, checkpointing=True),
    "zero3 offloaded": replace(DDP, strategy="fsdp", zero_stage=3, offload=True),
    "ddp offloaded": replace(DDP, offload=True),
    "zero1 uneven offloaded": replace(
        DDP, strategy="zero1_uneven", zero_stage=1, shares=(5 / 6, 1 / 6), offload=True
    ),
    "zero3 on the drive": replace(
        DDP, strategy="fsdp", zero_stage=3, offload=True, on_drive=True
    ),
    "1f1b on the drive": replace(STAGED, offload=True, on_drive=True),
    "zero3 autocast fp16": replace(
        DDP, strategy="fsdp", zero_stage=3, precision="autocast_fp16"
    ),
    "tensor": execution("tensor", width=2, checkpointing=True),
    "tensor and sequence": execution("tensor", width=2, sequence_parallel=True),
    "tensor autocast bf16": execution("tensor", width=2, precision="autocast_bf16"),
    "gpipe": replace(STAGED, strategy="gpipe", schedule="gpipe"),
    "1f1b": STAGED,
    "1f1b accumulated": replace(STAGED, accumulation=2, checkpointing=True),
    "1f1b autocast fp16": replace(STAGED, precision="autocast_fp16"),
    "1f1b few": replace(STAGED, microbatches=1),
    "interleaved": replace(
        STAGED, strategy="interleaved", schedule="interleaved", bounds=(0, 2, 3, 5, 6)
    ),
}
"""Names of TOLERANCE in the test."""
HYBRID = execution(
    "hybrid",
    stages=2,
    replicas=2,
    width=2,
    schedule="1f1b",
    bounds=(0, 2, 4),
    microbatches=4,
)
SHORT = {"layers": 2}
"""For eight ranks, and for checkpoints: their time grows with the number of weights."""
SHORT_BOUNDS = {
    WHOLE: (0, 4),
    (0, 2, 6): (0, 2, 4),
    (0, 2, 3, 5, 6): (0, 1, 2, 3, 4),
}
EIGHT = {
    "tensor x pipeline x copies": HYBRID,
    "the same with ZeRO-1, sequences cut": replace(
        HYBRID, zero_stage=1, sequence_parallel=True
    ),
    "interleaved, with ZeRO-1, sequences cut": replace(
        HYBRID,
        zero_stage=1,
        sequence_parallel=True,
        schedule="interleaved",
        bounds=(0, 1, 2, 3, 4),
    ),
    "tensor x copies with ZeRO-1": execution(
        "hybrid",
        replicas=4,
        width=2,
        zero_stage=1,
        sequence_parallel=True,
        bounds=(0, 4),
    ),
    "shards x copies": execution(
        "hsdp", replicas=8, zero_stage=3, shard_degree=4, bounds=(0, 4)
    ),
    "pipeline x copies": execution(
        "hybrid",
        stages=4,
        replicas=2,
        schedule="gpipe",
        bounds=(0, 1, 2, 3, 4),
        microbatches=4,
        accumulation=2,
    ),
}
ENGINE = replace(DDP, backend="deepspeed")
BY_DEEPSPEED = {
    "zero1": replace(ENGINE, strategy="zero1", zero_stage=1),
    "zero1 offloaded": replace(ENGINE, strategy="zero1", zero_stage=1, offload=True),
    "zero2": replace(
        ENGINE, strategy="zero2", zero_stage=2, accumulation=2, checkpointing=True
    ),
    "zero2 momentum": replace(
        ENGINE, strategy="zero2", zero_stage=2, optimizer="momentum"
    ),
    "zero2 adam": replace(ENGINE, strategy="zero2", zero_stage=2, optimizer="adam"),
    "zero2 autocast bf16": replace(
        ENGINE, strategy="zero2", zero_stage=2, precision="autocast_bf16"
    ),
    "zero3": replace(ENGINE, strategy="fsdp", zero_stage=3),
    "zero3 autocast bf16": replace(
        ENGINE, strategy="fsdp", zero_stage=3, precision="autocast_bf16"
    ),
    "zero3 offloaded": replace(
        ENGINE, strategy="fsdp", zero_stage=3, offload=True, keeps_weights_away=True
    ),
    "1f1b": replace(STAGED, backend="deepspeed"),
    "1f1b accumulated autocast bf16": replace(
        STAGED, backend="deepspeed", accumulation=2, precision="autocast_bf16"
    ),
}
"""Each with the JSON that is generated for it."""
CASES = {"two": TWO, "eight": EIGHT, "deepspeed": BY_DEEPSPEED}
ALONG = replace(execution("tensor", width=2), microbatches=4)
CHAINS = {
    "copies": [
        DDP,
        TWO["zero1"],
        TWO["zero1 uneven"],
        replace(TWO["zero2"], accumulation=1),
        TWO["zero3"],
        TWO["zero3 on the drive"],
        TWO["ddp offloaded"],
        TWO["zero1 uneven offloaded"],
        DDP,
    ],
    "momentum": [TWO["ddp momentum"], replace(TWO["zero3"], optimizer="momentum")],
    "scaled": [TWO["ddp autocast fp16"], TWO["zero3 autocast fp16"]],
    "cut": [
        ALONG,
        STAGED,
        TWO["interleaved"],
        replace(ALONG, sequence_parallel=True),
        TWO["gpipe"],
        STAGED,
    ],
}
"""Each step uses another strategy and continues from the checkpoint of the one
before.
"""
DEEPSPEED_CHAINS = {
    "copies": [
        TWO["zero1"],
        BY_DEEPSPEED["zero1"],
        BY_DEEPSPEED["zero3"],
        TWO["zero3"],
        replace(BY_DEEPSPEED["zero2"], accumulation=1),
        BY_DEEPSPEED["zero3 offloaded"],
        DDP,
    ],
    "stages": [STAGED, BY_DEEPSPEED["1f1b"], STAGED],
}
"""The same from torch to DeepSpeed and back."""
HANDED_ON = {
    names: {
        name: [replace(how, bounds=SHORT_BOUNDS[how.bounds]) for how in chain]
        for name, chain in chains.items()
    }
    for names, chains in (("two", CHAINS), ("deepspeed", DEEPSPEED_CHAINS))
}


def alone(how, steps=STEPS, settings=SETTINGS):
    """Return the losses of a plain loop over the data of all copies."""
    plain = replace(how, checkpointing=False, zero_stage=0, streams=False)
    model = whole_model(plain, settings)
    kind, extra = KINDS[how.optimizer]
    optimizer = kind(model.parameters(), lr=settings["learning_rate"], **extra)
    texts = [MarkovText(seed=settings["seed"], rank=r) for r in range(how.replicas)]
    size = settings["batch"] * how.microbatches
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        total = 0.0
        for text in texts:
            for _ in range(how.accumulation):
                tokens = text.batch(size, settings["seq"])
                loss = loss_of(model(tokens[:, :-1]), tokens[:, 1:])
                part = loss / (how.accumulation * how.replicas)
                part.backward()
                total += float(part.detach())
        optimizer.step()
        losses.append(total)
    return losses


def groups_of(how, device):
    """Return the groups of its grid, once made for all strategies.

    Each group of gloo has a thread that wakes up a hundred times a second.
    """
    grid = how.places, how.shard_degree
    if grid not in GROUPS:
        GROUPS[grid] = RankGroups(how, device)
    return GROUPS[grid]


def forget_stages():
    """Let another engine begin: DeepSpeed keeps the stages of the last one."""
    if groups := sys.modules.get("deepspeed.utils.groups"):
        groups.mpu = None


def together(how, device, factor=None, **settings):
    """Return the same losses of the planned run, and the memory of each rank."""
    forget_stages()
    trainer = trainer_of(how)(how, SETTINGS | settings, groups_of(how, device))
    if factor is not None:
        trainer.scale.factor = factor
    losses = []
    for _ in range(STEPS):
        loss = torch.tensor(trainer.step(), dtype=torch.float64)
        distributed.all_reduce(loss)
        losses.append(float(loss))
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(how.ranks)]
    distributed.all_gather(sizes, torch.tensor([trainer.state_bytes()]))
    return losses, [int(size) for size in sizes], trainer.scale.left_out


def handed_on(chain, device):
    """Return the losses if each step begins with a checkpoint of the last one."""
    losses = []
    for number, how in enumerate(chain):
        forget_stages()
        trainer = trainer_of(how)(how, SETTINGS | SHORT, groups_of(how, device))
        assert resume(trainer) == number
        loss = torch.tensor(trainer.step(), dtype=torch.float64)
        distributed.all_reduce(loss)
        losses.append(float(loss))
        save(trainer, number)
        distributed.barrier()
    shutil.rmtree(CHECKPOINT, ignore_errors=True)
    distributed.barrier()
    return losses


MEMORY = {
    "two": {
        name: TWO[name]
        for name in (
            "ddp",
            "ddp accumulated",
            "ddp checkpointed",
            "ddp autocast bf16",
            "ddp bf16",
            "zero1",
            "zero1 uneven",
            "zero2",
            "zero3",
            "tensor and sequence",
            "gpipe",
            "1f1b",
            "1f1b accumulated",
        )
    }
    | {
        "zero3 autocast bf16": replace(TWO["zero3"], precision="autocast_bf16"),
        # Equal pieces, as in a plan, because the estimate counts the mean piece.
        "interleaved": replace(TWO["interleaved"], bounds=(0, 2, 3, 4, 6)),
    },
    "deepspeed": {
        "zero1": BY_DEEPSPEED["zero1"],
        "zero2": BY_DEEPSPEED["zero2"],
        "zero3": BY_DEEPSPEED["zero3"],
        "1f1b": BY_DEEPSPEED["1f1b"],
    },
}
"""On the CPU, offloaded and other memory are the same."""


def memory(names, device):
    """Return by strategy each rank's largest number of live bytes, and the
    estimate's.
    """
    gc.collect()
    gc.freeze()
    found = {}
    for name, how in MEMORY[names].items():
        forget_stages()
        said = expected(how)
        found[name] = {
            "measured": measured(how, groups_of(how, device), said),
            "expected": said,
        }
    return found


def normed():
    """Return a model whose batch norm keeps fp32 beside its weights."""
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))


def items():
    inputs = torch.randn(16, 8, generator=torch.Generator().manual_seed(5))
    return torch.utils.data.TensorDataset(inputs, inputs.argmax(1))


def own_losses(how, device):
    """Return losses of a user's own model."""
    here = "tests.placement.agent.runtime.strategies_child"
    settings = SETTINGS | {
        "model": f"{here}:normed",
        "data": f"{here}:items",
        "loss": "torch.nn.functional:cross_entropy",
    }
    trainer = OwnTrainer(how, settings, groups_of(how, device))
    return [trainer.step() for _ in range(STEPS)]


def without_programs():
    """Return the report if DeepSpeed's own operators cannot be built."""
    path, os.environ["PATH"] = os.environ["PATH"], "/nowhere"
    try:
        check_drive()
    except NotRunnable as error:
        return str(error)
    finally:
        os.environ["PATH"] = path
    return ""


def rank_main(names, path, environ):
    os.environ |= environ
    # Files for the drive are in the folder of the process.
    os.chdir(Path(path).parent)
    device = begin()
    seen = {}
    changes = SHORT if names == "eight" else {}
    for name, how in CASES[names].items():
        began = time.monotonic()
        losses, state_bytes, left_out = together(how, device, **changes)
        gc.collect()
        # What is left is imported code and caches: the next collections skip it.
        gc.freeze()
        seen[name] = {
            "losses": losses,
            "state_bytes": state_bytes,
            "left_out": left_out,
            "alone": (
                alone(how, settings=SETTINGS | changes)
                if distributed.get_rank() == 0
                else None
            ),
            "seconds": time.monotonic() - began,
        }
        if distributed.get_rank() == 0:
            print(name, seen[name], flush=True)
    if names in HANDED_ON:
        seen["chains"] = {
            name: [
                handed_on(chain, device),
                (
                    alone(chain[0], len(chain), SETTINGS | SHORT)
                    if distributed.get_rank() == 0
                    else None
                ),
            ]
            for name, chain in HANDED_ON[names].items()
        }
    if names in MEMORY:
        seen["memory"] = memory(names, device)
    if names == "deepspeed":
        seen["extras"] = {"no ninja": without_programs()}
    if names == "two":
        seen["extras"] = {
            "dropped": together(DDP, device, dropout=0.4)[0],
            "dropped again": together(TWO["ddp checkpointed"], device, dropout=0.4)[0],
            "own": own_losses(replace(TWO["zero3"], precision="autocast_bf16"), device),
            "overflows": together(TWO["1f1b autocast fp16"], device, factor=2.0**120),
        }
    if distributed.get_rank() == 0:
        Path(path).write_text(json.dumps(seen))
    distributed.destroy_process_group()


def main(names, path, ranks):
    if names == "deepspeed":
        import_deepspeed(torch.device("cpu"))
        # Its engines import these when they begin, on each rank.
        for name in ("torch._inductor.compile_fx", "deepspeed.runtime.zero.muon"):
            import_module(name)
    fork_ranks(rank_main, ranks, names, path)


if __name__ == "__main__":
    main(*sys.argv[1:])
