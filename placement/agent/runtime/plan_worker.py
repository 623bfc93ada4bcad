"""One process of recipe ``tiny-transformer``, started by torchrun.

    python -m torch.distributed.run ... -m placement.agent.runtime.plan_worker '{...}'
    [PLAN]

The first argument are the settings of recipe ``tiny-transformer``, PLAN is a plan.json;
without one each process has a copy of the model. Rank 0 prints one JSON object a line:
step, steps, loss (the mean over all data of the step), step_seconds, tokens_per_s, and
of every rank what lies on its Gpu: ``peak_bytes_<rank>`` with CUDA (torch's own count),
``state_bytes_<rank>`` on the CPU (parameters, gradients and optimizer state).

A ``checkpoint/`` in the folder is gone on from, also with another number of ranks; one
is written every ``checkpoint_seconds``, at the end, and on SIGTERM: the ranks agree on
the step at which to stop, and end with 0.
"""

import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from placement.agent.runtime.by_deepspeed import trainer_of
from placement.agent.runtime.rank_groups import RankGroups, begin
from placement.agent.runtime.stop_flag import StopFlag
from placement.agent.runtime.trainer import Trainer
from placement.agent.runtime.training_checkpoint import CheckpointUnusable, resume, save
from placement.planner.launch.backends import TORCH
from placement.planner.launch.execution import (
    Execution,
    NotRunnable,
    execution_of,
    execution_without_plan,
)
from placement.planner.values.errors import BadInput
from placement.planner.values.plan import Plan

PRINT_EVERY_SECONDS = 0.5
CANNOT_RUN = 2
MOST_RANKS_TOLD = 11
"""Ranks that one line names. With more ranks the largest value is printed."""


def read_plan(path: Path, settings: dict[str, Any]) -> tuple[Plan, Execution]:
    """Return the Plan of a plan.json and the recipe's Execution of it.

    Raises:
        NotRunnable: the recipe cannot follow the Plan, with the reason.
        PlanInvalid: the file is not a Plan.
    """
    plan = Plan.from_json(json.loads(path.read_text()))
    return plan, execution_of(plan, settings)


def agree(loss: float, *, stop: bool, device: torch.device) -> tuple[float, bool]:
    """Return the sum of all ranks' parts of the loss, and whether any is to stop."""
    both = torch.tensor([loss, float(stop)], dtype=torch.float64, device=device)
    distributed.all_reduce(both)
    return float(both[0]), bool(both[1] > 0)


def memory(trainer: Trainer) -> dict[str, int]:
    """Return the memory use of every rank's Gpu. All ranks must call it."""
    device = trainer.ranks.device
    cuda = device.type == "cuda"
    own = torch.cuda.max_memory_allocated() if cuda else trainer.state_bytes()
    mine = torch.tensor([own], device=device)
    found = [torch.zeros_like(mine) for _ in range(trainer.how.ranks)]
    distributed.all_gather(found, mine)
    name = "peak_bytes" if cuda else "state_bytes"
    sizes = [int(one) for one in found]
    if len(sizes) > MOST_RANKS_TOLD:
        return {f"{name}_most": max(sizes)}
    return {f"{name}_{rank}": size for rank, size in enumerate(sizes)}


def train(trainer: Trainer, asked: StopFlag) -> None:
    """Train from the checkpoint, or from the start, until the last step or TERM.

    Raises:
        CheckpointUnusable: there is a checkpoint that this training cannot load.
    """
    settings, device = trainer.settings, trainer.ranks.device
    first, last = resume(trainer), settings["steps"] - 1
    if first > last:
        if trainer.ranks.rank == 0:
            print(f"all {settings['steps']} steps are already done", flush=True)
        return
    every = settings["checkpoint_seconds"] or math.inf
    saved_at = printed_at = started_at = time.monotonic()
    printed_step = first - 1
    for step in range(first, settings["steps"]):
        began = time.monotonic()
        loss, stop = agree(trainer.step(), stop=asked.to_stop, device=device)
        now = time.monotonic()
        ends = stop or step == last
        # By the clock of rank 0 alone, because all ranks must count and save together.
        due = _first_says(
            (
                now - printed_at >= PRINT_EVERY_SECONDS or step == first or ends,
                now - saved_at >= every or ends,
            ),
            device,
        )
        if due[0]:
            pace = (now - printed_at) / (step - printed_step)
            line = {
                "step": step,
                "steps": settings["steps"],
                "loss": round(loss, 6),
                "seconds": round(now - started_at, 1),
                **_throughput(trainer, pace),
                **(_parameters(trainer) if step == first else {}),
                **memory(trainer),
            }
            if trainer.ranks.rank == 0:
                print(json.dumps(line), flush=True)
            printed_at, printed_step = time.monotonic(), step
        paused_at = time.monotonic()
        if found := trainer.evaluate(step, ends=step == last):
            line = {"step": step, "steps": settings["steps"], **found}
            if trainer.ranks.rank == 0:
                print(json.dumps(line), flush=True)
        if due[1]:
            if stop and trainer.ranks.rank == 0:
                print("stop requested", flush=True)
            save(trainer, step)
            trainer.export()
            saved_at = time.monotonic()
        # Evaluations and checkpoints are no part of a step's time.
        printed_at += time.monotonic() - paused_at
        if stop:
            break
        while time.monotonic() - began < settings["seconds_per_step"]:
            if asked.to_stop:
                break
            time.sleep(0.05)


def _parameters(trainer: Trainer) -> dict[str, int]:
    """Return the number of parameters, and of the trained ones if some are frozen."""
    count, trained = trainer.parameter_count, trainer.trainable_count
    some = {} if trained == count else {"trainable_parameters": trained}
    return {"parameters": count, **some}


def _throughput(trainer: Trainer, step_seconds: float) -> dict[str, float]:
    """Return the throughput of all copies together."""
    settings, how = trainer.settings, trainer.how
    done = settings["batch"] * settings.get("seq", 1) * how.replicas
    done *= how.microbatches * how.accumulation
    units = "tokens" if "seq" in settings else "items"
    return {
        "step_seconds": round(step_seconds, 6),
        f"{units}_per_s": round(done / max(step_seconds, 1e-9), 1),
    }


def _first_says(words: Sequence[bool], device: torch.device) -> list[bool]:
    said = torch.tensor([float(word) for word in words], device=device)
    distributed.broadcast(said, 0)
    return [word > 0 for word in said.tolist()]


def log_placement(plan: Plan | None, trainer: Trainer) -> None:
    """Write the placement into the log."""
    how, device = trainer.how, trainer.ranks.device
    if plan is None:
        print(
            f"tiny-transformer: {trainer.parameter_count} parameters, {how.ranks} "
            f"process(es) on {device.type}",
            flush=True,
        )
        return
    by = "" if how.backend == TORCH else f", with {how.backend}"
    title = f"{plan.title} on {device.type}{by}"
    print(f"tiny-transformer by its plan: {title}", flush=True)
    if how.scaled_from is not None:
        cuts = ", ".join(map(str, how.bounds[1:-1]))
        print(
            f"the plan was made for {how.scaled_from} layers; this model has "
            f"{how.bounds[-1]} and is cut before layer {cuts}",
            flush=True,
        )
    pairs = zip(plan.by_process, how.places, strict=True)
    for rank, (shard, place) in enumerate(pairs):
        pieces = [
            f"{how.bounds[n]}-{how.bounds[n + 1] - 1}"
            for n in how.pieces_of(place.stage)
        ]
        print(
            f"rank {rank}: {shard.gpu_label}, layers {' and '.join(pieces)}, "
            f"copy {place.replica}, part {place.tensor_rank}",
            flush=True,
        )


def main(argv: list[str]) -> int:
    """Train with the settings in argv[1], by the Plan in argv[2] where there is one."""
    asked = StopFlag()
    settings = json.loads(argv[1])
    plan: Plan | None = None
    try:
        if len(argv) > 2:
            plan, how = read_plan(Path(argv[2]), settings)
        device = begin()
        if plan is None:
            how = execution_without_plan(
                distributed.get_world_size(), layers=settings["layers"] + 2
            )
    except (NotRunnable, BadInput, OSError, ValueError) as error:
        print(f"the plan cannot be run: {error}", flush=True)
        return CANNOT_RUN
    try:
        trainer = trainer_of(how)(how, settings, RankGroups(how, device))
        if trainer.ranks.rank == 0:
            log_placement(plan, trainer)
        train(trainer, asked)
    except NotRunnable as error:
        print(f"the plan cannot be run: {error}", flush=True)
        return CANNOT_RUN
    except CheckpointUnusable as error:
        print(f"cannot resume from checkpoint/: {error}", flush=True)
        return CANNOT_RUN
    finally:
        distributed.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
