"""One process of a training that a Plan describes, started by torchrun.

    python -m torch.distributed.run ... -m placement.runtime.plan_worker PLAN '{...}'

PLAN is a plan.json; the second argument are the settings of recipe
``tiny-transformer``. Rank 0 prints one JSON object a line: step, steps, loss (the mean
over all data of the step), step_seconds, tokens_per_s, and of every rank what lies on
its Gpu: ``peak_bytes_<rank>`` with CUDA (torch's own count), ``state_bytes_<rank>`` on
the CPU (parameters, gradients and optimizer state). SIGTERM: the ranks agree on the
step at which to stop, save the weights in ``checkpoint/`` (by
torch.distributed.checkpoint, so that another number of ranks can read it), and end
with 0.
"""

import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_model_state_dict

from placement.domain.errors import BadInput
from placement.domain.execution import Execution, NotRunnable, execution_of
from placement.domain.plan import Plan
from placement.runtime.ranks import Ranks, begin
from placement.runtime.stage_worker import PRINT_EVERY_SECONDS, Asked
from placement.runtime.trainer import Trainer

CHECKPOINT = Path("checkpoint")
CANNOT_RUN = 2
MOST_RANKS_TOLD = 11
"""By name in one line; of more ranks the largest number is told."""


def read_plan(path: Path, settings: dict[str, Any]) -> tuple[Plan, Execution]:
    """Return a plan.json and what it means for the recipe.

    Raises:
        NotRunnable: with the reason in words.
        PlanInvalid: it is no Plan.
    """
    plan = Plan.from_json(json.loads(path.read_text()))
    return plan, execution_of(plan, settings)


def agree(loss: float, *, stop: bool, device: torch.device) -> tuple[float, bool]:
    """Return the sum of all ranks' parts of the loss, and whether any is to stop."""
    both = torch.tensor([loss, float(stop)], dtype=torch.float64, device=device)
    distributed.all_reduce(both)
    return float(both[0]), bool(both[1] > 0)


def memory(trainer: Trainer) -> dict[str, int]:
    """What lies on every rank's Gpu. All ranks must call it."""
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


def train(trainer: Trainer, asked: Asked) -> int:
    """Train until the last step or until TERM; return the last step."""
    settings, how, device = trainer.settings, trainer.how, trainer.ranks.device
    last = settings["steps"] - 1
    done = settings["batch"] * settings.get("seq", 1) * how.replicas
    done *= how.microbatches * how.accumulation
    units = "tokens" if "seq" in settings else "items"
    printed_at, printed_step = time.monotonic(), -1
    for step in range(settings["steps"]):
        began = time.monotonic()
        loss, stop = agree(trainer.step(), stop=asked.to_stop, device=device)
        now = time.monotonic()
        # By the clock of rank 0 alone: all must agree to count memory together.
        due = now - printed_at >= PRINT_EVERY_SECONDS
        if _first_says(due or step in (0, last) or stop, device):
            pace = (now - printed_at) / (step - printed_step)
            line = {
                "step": step,
                "steps": settings["steps"],
                "loss": round(loss, 6),
                "step_seconds": round(pace, 6),
                f"{units}_per_s": round(done / max(pace, 1e-9), 1),
                **memory(trainer),
            }
            if trainer.ranks.rank == 0:
                print(json.dumps(line), flush=True)
            printed_at, printed_step = time.monotonic(), step
        if stop:
            break
        while time.monotonic() - began < settings["seconds_per_step"]:
            if asked.to_stop:
                break
            time.sleep(0.05)
    return step


def _first_says(word: bool, device: torch.device) -> bool:
    said = torch.tensor([float(word)], device=device)
    distributed.broadcast(said, 0)
    return bool(said[0] > 0)


def save(trainer: Trainer, step: int) -> None:
    """Write the weights of all ranks, whole or not at all."""
    weights: dict[str, Any] = {}
    for part in trainer.parts:
        weights |= get_model_state_dict(part)
    draft = CHECKPOINT.with_suffix(".part")
    checkpoint.save({"model": weights}, checkpoint_id=draft)
    distributed.barrier()
    if trainer.ranks.rank == 0:
        about = {"step": step, "settings": trainer.settings}
        (draft / "about.json").write_text(json.dumps(about))
        if CHECKPOINT.is_dir():
            shutil.rmtree(CHECKPOINT)
        draft.replace(CHECKPOINT)
        print(f"weights of step {step} saved to {CHECKPOINT}/", flush=True)


def tell(plan: Plan, how: Execution, device: torch.device) -> None:
    """Say in the log what runs where."""
    print(f"tiny-transformer by its plan: {plan.title} on {device.type}", flush=True)
    if how.scaled_from is not None:
        cuts = ", ".join(map(str, how.bounds[1:-1]))
        print(
            f"the plan was made for {how.scaled_from} layers; this model has "
            f"{how.bounds[-1]} and is cut before layer {cuts}",
            flush=True,
        )
    for shard, place in zip(plan.shards, how.places, strict=True):
        pieces = [
            f"{how.bounds[n]}-{how.bounds[n + 1] - 1}"
            for n in how.pieces_of(place.stage)
        ]
        print(
            f"rank {shard.rank}: {shard.gpu_label}, layers {' and '.join(pieces)}, "
            f"copy {place.replica}, part {place.tensor_rank}",
            flush=True,
        )


def main(argv: list[str]) -> int:
    """Train by the Plan in argv[1] with the settings in argv[2]."""
    asked = Asked()
    settings = json.loads(argv[2])
    try:
        plan, how = read_plan(Path(argv[1]), settings)
    except (NotRunnable, BadInput, OSError, ValueError) as error:
        print(f"the plan cannot be run: {error}", flush=True)
        return CANNOT_RUN
    device = begin()
    try:
        ranks = Ranks(how, device)
        trainer = Trainer(how, settings, ranks)
        if ranks.rank == 0:
            tell(plan, how, device)
        save(trainer, train(trainer, asked))
    finally:
        distributed.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
