"""Save a whole training, and resume it with the same or another number of ranks.

``checkpoint/`` in the Job's folder, by torch.distributed.checkpoint: weights, the
optimizer's state of every parameter, the loss scale, the position in the data and the
random numbers. Everything is saved under the parameters' names and as the shards of
each rank, so another number of ranks or another strategy reads the parts it needs.
``about.json`` beside it has the step. A checkpoint is written into
``checkpoint.part/``, and both folders swap names in one call. A reader sees the whole
old one or the whole new one, even when the writer is killed.
"""

import ctypes
import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.distributed import checkpoint

from placement.agent.runtime.trainer import Trainer

CHECKPOINT = Path("checkpoint")
VERSION = 1
AT_FDCWD = -100
RENAME_EXCHANGE = 2
"""linux/fcntl.h, linux/fs.h."""


class CheckpointUnusable(ValueError):
    """There is a checkpoint that this training cannot load."""


def save(trainer: Trainer, step: int) -> None:
    """Save the state of all ranks after a step. All ranks must call it."""
    draft = CHECKPOINT.with_suffix(".part")
    rank = trainer.ranks.rank
    # Ranks on other nodes write into a folder there.
    first_here = int(os.environ.get("LOCAL_RANK", rank)) == 0
    if first_here and draft.is_dir():
        shutil.rmtree(draft)
    distributed.barrier()
    state = trainer.held(to_read=False) | _positions(trainer)
    try:
        checkpoint.save(state, checkpoint_id=draft)
        distributed.barrier()
        if first_here:
            draft.mkdir(exist_ok=True)
            (draft / "about.json").write_text(
                json.dumps(_checkpoint_header(trainer, step))
            )
    except (OSError, checkpoint.CheckpointException):
        # A partial checkpoint on a full disk would use the space of the next one.
        if first_here:
            shutil.rmtree(draft, ignore_errors=True)
        raise
    if first_here:
        put_in_place(draft, CHECKPOINT)
    if rank == 0:
        print(f"checkpoint of step {step} saved to {CHECKPOINT}/", flush=True)


def put_in_place(draft: Path, target: Path) -> None:
    """Give a draft of a folder its name, and delete the previous folder of that name.

    Uses RENAME_EXCHANGE of renameat2(2). On file systems without it (NFS) there is no
    such folder for a moment between two renames.
    """
    if not target.is_dir():
        draft.replace(target)
        return
    rename = ctypes.CDLL(None, use_errno=True).renameat2
    names = os.fsencode(draft), os.fsencode(target)
    if rename(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE) == 0:
        shutil.rmtree(draft)
        return
    before = target.with_suffix(".before")
    shutil.rmtree(before, ignore_errors=True)
    target.replace(before)
    draft.replace(target)
    shutil.rmtree(before)


def resume(trainer: Trainer) -> int:
    """Load the checkpoint if there is one. Return the step to begin with.

    Raises:
        CheckpointUnusable: it is of another model or optimizer, or incomplete.
    """
    file = CHECKPOINT / "about.json"
    if not file.is_file():
        return 0
    try:
        about = json.loads(file.read_text())
        if about["version"] != VERSION:
            raise CheckpointUnusable(f"it is of version {about['version']}")
        same_copies = about["replicas"] == trainer.how.replicas
        same_ranks = about["ranks"] == trainer.how.ranks
        held = trainer.held(to_read=True)
        beside = _positions(trainer, data=same_copies, random=same_ranks)
        checkpoint.load(state := held | beside, checkpoint_id=CHECKPOINT)
    except (OSError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointUnusable(" ".join(str(error).split())[:300]) from error
    except checkpoint.CheckpointException as error:
        first = next(iter(error.failures.values()), (error,))[0]
        raise CheckpointUnusable(" ".join(str(first).split())[:300]) from error
    trainer.take(held)
    trainer.scale.factor = about["loss_scale"]
    trainer.scale.good_steps = about["good_steps"]
    trainer.seek(int(about["step"]) + 1, state.get(_data_key(trainer)))
    if same_ranks:
        torch.set_rng_state(state[f"random.{trainer.ranks.rank}"])
    if trainer.ranks.rank == 0:
        before = f"{about['ranks']} process(es), {about['strategy']}"
        print(f"resuming after step {about['step']}, saved by {before}", flush=True)
    return int(about["step"]) + 1


def stored_shapes() -> dict[str, torch.Size]:
    """Return the shape of every whole tensor in the checkpoint, by name."""
    stored = checkpoint.FileSystemReader(CHECKPOINT).read_metadata()
    return {
        name: about.size
        for name, about in stored.state_dict_metadata.items()
        if isinstance(about, checkpoint.metadata.TensorStorageMetadata)
    }


def _checkpoint_header(trainer: Trainer, step: int) -> dict[str, Any]:
    how = trainer.how
    return {
        "version": VERSION,
        "step": step,
        "ranks": how.ranks,
        "replicas": how.replicas,
        "strategy": how.strategy,
        "loss_scale": trainer.scale.factor,
        "good_steps": trainer.scale.good_steps,
        "settings": dict(trainer.settings),
    }


def _positions(
    trainer: Trainer, *, data: bool = True, random: bool = True
) -> dict[str, Any]:
    """Return the position in the data and the random state of this rank, by name."""
    found: dict[str, Any] = {}
    position = trainer.data_position()
    if data and position is not None:
        found[_data_key(trainer)] = position
    if random:
        found[f"random.{trainer.ranks.rank}"] = torch.get_rng_state()
    return found


def _data_key(trainer: Trainer) -> str:
    return f"data.{trainer.ranks.place.replica}"
