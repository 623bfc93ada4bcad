"""One process of recipe ``own-model``: the user's module on the user's data.

    python -m torch.distributed.run ... -m placement.agent.runtime.own_worker '{...}'
    [PLAN]

The settings name three callables as ``module:callable``, imported from a folder of
their owner. The model takes no arguments and returns a torch module. The data takes no
arguments and returns a sized data set of pairs (input, target). The loss takes (output,
target). None of them knows of replicas, shards or other processes. A plan.json decides
how the model is replicated or sharded. Without one each process has a replica. Prints
the lines of ``placement.agent.runtime.plan_worker``, with items instead of tokens."""

import importlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from placement.agent.runtime.by_deepspeed import ByDeepSpeed
from placement.agent.runtime.plan_worker import CANNOT_RUN, train
from placement.agent.runtime.rank_groups import RankGroups, begin
from placement.agent.runtime.sharded_model import LOWER, share_out
from placement.agent.runtime.stop_flag import StopFlag
from placement.agent.runtime.trainer import Trainer
from placement.agent.runtime.training_checkpoint import CheckpointUnusable
from placement.planner.launch.backends import DEEPSPEED
from placement.planner.launch.execution import (
    Execution,
    NotRunnable,
    execution_of_own,
    execution_without_plan,
)
from placement.planner.values.entry_point import EntryPoint
from placement.planner.values.errors import BadInput, SpecInvalid
from placement.planner.values.plan import Plan


def called(text: str) -> Callable[..., Any]:
    """Return the callable that an entry point names. Raises SpecInvalid."""
    entry = EntryPoint.read(text)
    try:
        found: Any = importlib.import_module(entry.module)
        for piece in entry.callable.split("."):
            found = getattr(found, piece)
    except (ImportError, AttributeError) as error:
        raise SpecInvalid({text: f"is not there: {error}"[:300]}) from error
    if not callable(found):
        raise SpecInvalid({text: f"is a {type(found).__name__}, not a callable"})
    made: Callable[..., Any] = found
    return made


class RemainingBatches(DistributedSampler[Any]):
    """Skips what an epoch has passed already, without reading it."""

    passed = 0
    """Items. 0 again once they were skipped."""

    def __iter__(self) -> Iterator[Any]:
        """Yield the rest of the epoch."""
        rest = list(super().__iter__())[self.passed :]
        self.passed = 0
        return iter(rest)


class OwnTrainer(Trainer):
    """A rank of a training with the user's model, data and loss."""

    loader_workers = 0
    """Processes that read the data. 0: this process does."""

    def __init__(
        self, how: Execution, settings: Mapping[str, Any], ranks: RankGroups
    ) -> None:
        """Call the entry points. Raises SpecInvalid if they return something else."""
        self.autocast: torch.dtype | None = None
        self.loss_fn = self._loss_function(settings)
        super().__init__(how, settings, ranks)
        self.data = self._data_set()
        self.batches = self._batches()

    def _loss_function(self, settings: Mapping[str, Any]) -> Callable[..., Any]:
        return called(settings["loss"])

    def _data_set(self) -> Dataset[Any]:
        """Return the sized data set of pairs (input, target)."""
        made: Dataset[Any] = called(self.settings["data"])()
        return made

    def _build(self) -> Sequence[nn.Module]:
        settings, how, ranks = self.settings, self.how, self.ranks
        torch.manual_seed(settings["seed"])
        model = called(settings["model"])()
        if not isinstance(model, nn.Module):
            kind = type(model).__name__
            raise SpecInvalid({settings["model"]: f"made a {kind}, not a torch module"})
        if how.precision == "bf16":
            model = model.to(torch.bfloat16)
        model.to(ranks.device)
        # Its first weights may differ, so all ranks start with those of rank 0.
        for tensor in (*model.parameters(), *model.buffers()):
            distributed.broadcast(tensor.data, 0)
        # Its running means are fp32, and torch requires the same type of the weights.
        batch_norms = any(isinstance(m, _BatchNorm) for m in model.modules())
        lowers = how.shares_out and not batch_norms
        self.autocast = None if lowers else LOWER.get(how.precision)
        if how.shares_out:
            if how.offload:
                model.to("cpu")
            share_out(model, how, ranks.sharing, lowers=lowers)
        return [model]

    def _batches(self, first_batch: int = 0) -> Iterator[list[torch.Tensor]]:
        settings, replicas, data = self.settings, self.how.replicas, self.data
        batch = settings["batch"] * self.how.microbatches
        count, wanted = len(data), batch * replicas  # type: ignore[arg-type]
        if count < wanted:
            raise SpecInvalid(
                {settings["data"]: f"{count} items; one step needs {wanted}"}
            )
        sampler = RemainingBatches(
            data,
            replicas,
            self.ranks.place.replica,
            seed=settings["seed"],
            drop_last=True,
        )
        loader = DataLoader(
            data,
            batch,
            sampler=sampler,
            drop_last=True,
            num_workers=self.loader_workers,
        )
        epoch, sampler.passed = divmod(first_batch, len(loader))
        sampler.passed *= batch

        def endless(epoch: int) -> Iterator[list[torch.Tensor]]:
            while True:
                sampler.set_epoch(epoch)
                yield from loader
                epoch += 1

        return endless(epoch)

    def data_position(self) -> None:
        """Nothing: the step determines it, because the order is drawn from the seed."""

    def seek(self, step: int, position: torch.Tensor | None) -> None:
        """Continue with the data of a step, divided by the current replicas."""
        self.batches = self._batches(step * self.how.accumulation)

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the next inputs of this copy, and their targets."""
        inputs, targets = next(self.batches)
        return inputs.to(self.ranks.device), targets.to(self.ranks.device)

    def _loss(self, tokens: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        dtype = self.autocast
        with torch.autocast(tokens.device.type, dtype, enabled=dtype is not None):
            output = self._output(tokens)
        loss: torch.Tensor = self.loss_fn(output.float(), following)
        return loss

    def _output(self, inputs: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.model(inputs)
        return output


class DeepSpeedOwnTrainer(ByDeepSpeed, OwnTrainer):
    """An `OwnTrainer` that trains with DeepSpeed."""


def main(argv: list[str]) -> int:
    """Train with the settings in argv[1], by the Plan in argv[2] where there is one."""
    settings = json.loads(argv[1])
    sys.path.insert(0, settings["folder"] or str(Path.home()))

    def execution(plan: Plan) -> Execution:
        return execution_of_own(plan, settings["backend"])

    def trainer(how: Execution, ranks: RankGroups) -> Trainer:
        kind = DeepSpeedOwnTrainer if how.backend == DEEPSPEED else OwnTrainer
        return kind(how, settings, ranks)

    return run(argv, settings["model"], execution, trainer)


def run(
    argv: list[str],
    title: str,
    execution: Callable[[Plan], Execution],
    made: Callable[[Execution, RankGroups], Trainer],
) -> int:
    """Train a model that is not cut. Return the exit status.

    Args:
        argv: the program, its settings, and the path of a Plan where there is one.
        title: names the model in the log.
        execution: returns the work of the processes for a Plan.
        made: returns the Trainer of this process.
    """
    asked = StopFlag()
    device = begin()
    try:
        how = execution_without_plan(distributed.get_world_size())
        if len(argv) > 2:
            how = execution(Plan.from_json(json.loads(Path(argv[2]).read_text())))
        trainer = made(how, RankGroups(how, device))
        if trainer.ranks.rank == 0:
            by = f" with {how.backend}" if how.backend == DEEPSPEED else ""
            count, trained = trainer.parameter_count, trainer.trainable_count
            some = "" if trained == count else f" ({trained} of them trained)"
            print(
                f"{title}: {count} parameters{some}, "
                f"{how.strategy}{by}, {how.ranks} process(es) on {device.type}, "
                f"{trainer.how.precision}",
                flush=True,
            )
        train(trainer, asked)
    except CheckpointUnusable as error:
        print(f"cannot resume from checkpoint/: {error}", flush=True)
        return CANNOT_RUN
    except (NotRunnable, BadInput, OSError) as error:
        print(f"this cannot be run: {error}", flush=True)
        return CANNOT_RUN
    finally:
        distributed.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
