"""One rank's part of a training that a Plan describes: model, data, step."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from torch.nn.parallel import DistributedDataParallel

from placement.agent.runtime.loss_scale import LossScale, local
from placement.agent.runtime.offload import DRIVE, HostStep, onto_drive, prime
from placement.agent.runtime.rank_groups import RankGroups
from placement.agent.runtime.sharded_model import (
    LOWER,
    OwnersStep,
    cut_layers,
    optimizer_of,
    share_out,
)
from placement.agent.runtime.tiny_transformer import (
    MarkovText,
    TinyTransformer,
    TransformerBlock,
    loss_of,
)
from placement.planner.launch.backends import TORCH
from placement.planner.launch.execution import Execution


def autocast_of(how: Execution) -> torch.dtype | None:
    """Return the type of autocast. None: it is off, or FSDP gathers 16-bit weights."""
    return None if how.shares_out else LOWER.get(how.precision)


def whole_model(how: Execution, settings: Mapping[str, Any]) -> TinyTransformer:
    """Return the recipe's model with its first weights, the same on every rank."""
    torch.manual_seed(settings["seed"])
    model = TinyTransformer(
        layers=settings["layers"],
        hidden=settings["hidden"],
        heads=settings["heads"],
        seq=settings["seq"],
        dropout=settings["dropout"],
    )
    for block in model.blocks.values():
        assert isinstance(block, TransformerBlock)
        block.checkpointing = how.checkpointing
    model.autocast = autocast_of(how)
    return model.to(torch.bfloat16) if how.precision == "bf16" else model


class Trainer:
    """The part of one process. `step` returns this rank's part of the loss."""

    def __init__(
        self, how: Execution, settings: Mapping[str, Any], ranks: RankGroups
    ) -> None:
        """Build this rank's part of the model and its optimizer."""
        self.how, self.settings, self.ranks = how, settings, ranks
        self.parts = self._build()
        self.params = [p for part in self.parts for p in part.parameters()]
        self.trained = [p for p in self.params if p.requires_grad]
        self.parameter_count = sum(p.numel() for p in self.params)
        self.trainable_count = sum(p.numel() for p in self.trained)
        self.model = self.parts[0]
        self.optimizer: Any = None
        self.averages_itself = False
        self.schedule: Any = None
        self._set_up()
        self.scale = LossScale(
            ranks.device,
            needed=how.backend == TORCH and how.precision == "autocast_fp16",
        )
        self.text = MarkovText(seed=settings["seed"], rank=ranks.place.replica)
        # Dropout differs between copies, and is equal on the tensor ranks of one copy.
        torch.manual_seed(settings["seed"] + 1 + ranks.place.replica)

    def _set_up(self) -> None:
        """Wrap the parts for exchanging gradients, and create the optimizer."""
        how, ranks = self.how, self.ranks
        copies = ranks.group("replica")
        cut = how.tensor_degree > 1 or how.stages > 1
        if how.zero_stage < 2 and not cut and how.replicas > 1:
            self.model = DistributedDataParallel(
                self.model, process_group=copies, gradient_as_bucket_view=True
            )
        self.averages_itself = cut and how.replicas > 1
        self.optimizer = optimizer_of(
            self.trained, how, group=copies, rate=self.settings["learning_rate"]
        )
        if how.on_drive:
            for optimizer in inner_optimizers(self.optimizer):
                onto_drive(optimizer, DRIVE / str(ranks.rank))
        self.schedule = self._schedule() if how.stages > 1 else None

    def _build(self) -> Sequence[nn.Module]:
        how, ranks = self.how, self.ranks
        parts = []
        for piece in how.pieces_of(ranks.place.stage):
            part = whole_model(how, self.settings)
            part.keep(how.bounds[piece], how.bounds[piece + 1])
            if not (how.shares_out and how.offload):
                part.to(ranks.device)
            if how.tensor_degree > 1:
                cut_layers(part, ranks.along("tensor"), along=how.sequence_parallel)
            if how.shares_out:
                share_out(part, how, ranks.sharing)
            parts.append(part)
        return parts

    def _schedule(self) -> Any:
        """Return the pipeline schedule of this rank's stages."""
        how, ranks = self.how, self.ranks
        stages: list[Any] = [
            PipelineStage(
                self.stage_module(part),
                piece,
                len(how.bounds) - 1,
                ranks.device,
                group=ranks.group("stage"),
            )
            for piece, part in zip(
                how.pieces_of(ranks.place.stage), self.parts, strict=True
            )
        ]

        def loss_fn(logits: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
            # Read when it runs, because the scale changes.
            return self.stage_loss(logits, following) * self.scale.factor

        if how.schedule == "interleaved":
            return ScheduleInterleaved1F1B(
                stages, how.microbatches, loss_fn, scale_grads=False
            )
        # With fewer microbatches than stages 1F1B equals GPipe, and torch refuses it.
        alternates = how.schedule == "1f1b" and how.microbatches >= how.stages
        kind = Schedule1F1B if alternates else ScheduleGPipe
        return kind(stages[0], how.microbatches, loss_fn, scale_grads=False)

    def stage_module(self, part: nn.Module) -> nn.Module:
        """Return the module that the schedule calls for a part of the model."""
        return part

    def stage_loss(self, logits: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        """Return the loss of a microbatch on the last stage."""
        return loss_of(logits, following)

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the next tokens of this replica, and what follows them."""
        size = self.settings["batch"] * self.how.microbatches
        tokens = self.text.batch(size, self.settings["seq"]).to(self.ranks.device)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def data_position(self) -> torch.Tensor | None:
        """Return the position in this replica's data. None: the step determines it."""
        return self.text.draw.get_state()

    def seek(self, step: int, position: torch.Tensor | None) -> None:
        """Continue with the data of a step.

        Args:
            position: the stored position. None: with another number of copies, each
                continues from its own position.
        """
        if position is None:
            seed = self.settings["seed"] * 1009 + self.ranks.place.replica + 1
            self.text.draw.manual_seed(seed + 1_000_003 * step)
        else:
            self.text.draw.set_state(position)

    def step(self) -> float:
        """Take one optimizer step. Return this rank's part of the mean loss.

        The parts of all ranks add up to it.
        """
        pieces = self.how.accumulation
        self._forget_gradients()
        total = 0.0
        for number in range(pieces):
            run = self._whole if self.schedule is None else self._staged
            total += run(last=number == pieces - 1) / pieces
        self.join_gradients()
        if self.averages_itself:
            self._average()
        if self.scale.settle(self.params):
            self.prepare_update()
            self.optimizer.step()
        ranks = self.ranks
        return total / self.how.replicas if ranks.place.tensor_rank == 0 else 0.0

    def join_gradients(self) -> None:
        """Add up gradients of a weight that several stages have."""

    def prepare_update(self) -> None:
        """Change the gradients or the learning rate of a step before it is taken."""

    def _whole(self, *, last: bool) -> float:
        tokens, following = self.batch()
        with self._exchange(last=last):
            loss = self._loss(tokens, following)
            (loss * (self.scale.factor / self.how.accumulation)).backward()
        return float(loss.detach())

    def _loss(self, tokens: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        return loss_of(self.model(tokens), following)

    def _forget_gradients(self) -> None:
        """Reset gradients in place: new ones would exist beside DDP's buckets."""
        if isinstance(self.model, DistributedDataParallel):
            for param in self.params:
                if param.grad is not None:
                    param.grad.zero_()
        else:
            self.optimizer.zero_grad()

    def _exchange(self, *, last: bool) -> Any:
        """Let copies exchange gradients only in the last backward of a step.

        With FSDP they are exchanged each time, because it would have to keep them whole
        until then.
        """
        if isinstance(self.model, DistributedDataParallel) and not last:
            return self.model.no_sync()
        return contextlib.nullcontext()

    def _staged(self, *, last: bool) -> float:
        """Run one batch through the pipeline. Only its last stage has the loss."""
        assert self.schedule is not None
        tokens, following = self.batch()
        stage, stages = self.ranks.place.stage, self.how.stages
        losses: list[torch.Tensor] = []
        given = (tokens,) if stage == 0 else ()
        ends = {"target": following, "losses": losses} if stage == stages - 1 else {}
        self.schedule.step(*given, **ends, return_outputs=False)
        if last:
            # Here and not by the schedule, which would divide the sum again each time.
            for param in self.params:
                if param.grad is not None:
                    param.grad.div_(self.how.accumulation * self.how.microbatches)
        if not losses:
            return 0.0
        return float(torch.stack(losses).mean().detach()) / self.scale.factor

    def _average(self) -> None:
        """Average the gradients of the copies."""
        for param in self.params:
            if param.grad is not None:
                grad = local(param.grad)
                distributed.all_reduce(grad, group=self.ranks.group("replica"))
                grad.div_(self.how.replicas)

    def held(self, *, to_read: bool) -> dict[str, torch.Tensor]:
        """Return this rank's weights and optimizer state by name.

        Args:
            to_read: the caller writes into these tensors, and `take` loads them.
        """
        found: dict[str, torch.Tensor] = {}
        names: dict[torch.Tensor, str] = {}
        if to_read:
            for optimizer in inner_optimizers(self.optimizer):
                prime(optimizer)
        for part in self.parts:
            names |= {param: name for name, param in part.named_parameters()}
            weights = self.kept_weights(part)
            found |= {f"model.{n}": value for n, value in weights.items()}
        for host in host_steps(self.optimizer):
            pairs = zip(host.hosts, host.params, strict=True)
            names |= {copy: names[param] for copy, param in pairs}
        for optimizer in inner_optimizers(self.optimizer):
            for param, state in optimizer.state.items():
                found |= {
                    f"optimizer.{names[param]}.{key}": value
                    for key, value in state.items()
                    if isinstance(value, torch.Tensor)
                }
        return found

    def kept_weights(self, part: nn.Module) -> Mapping[str, torch.Tensor]:
        """Return the weights of a part that a checkpoint keeps, by name."""
        return part.state_dict()

    def take(self, held: Mapping[str, torch.Tensor]) -> None:
        """Continue from the values written into the tensors that `held` returned."""
        for host in host_steps(self.optimizer):
            host.refresh()

    def evaluate(self, step: int, *, ends: bool) -> dict[str, float]:
        """Return the results of the evaluation that is due after a step; {}: none is.

        All ranks must call it.

        Args:
            step: the step that was taken last.
            ends: it is the last one of the training.
        """
        return {}

    def export(self) -> None:
        """Write the model in the format of other tools, beside a checkpoint.

        All ranks must call it. The recipe's own model has no such format.
        """

    def state_bytes(self) -> int:
        """Return the bytes of parameters, gradients and optimizer state on this rank.

        Without the part in the node's memory.
        """
        kept: list[torch.Tensor] = []
        for param in self.params:
            kept += [param.data, *([] if param.grad is None else [param.grad])]
        if not host_steps(self.optimizer):
            for optimizer in inner_optimizers(self.optimizer):
                for state in optimizer.state.values():
                    kept += [t for t in state.values() if isinstance(t, torch.Tensor)]
        return sum(local(t).numel() * t.element_size() for t in kept)


def inner_optimizers(optimizer: Any) -> Sequence[torch.optim.Optimizer]:
    """Return the plain optimizers of a rank, without sharding wrappers: none or one."""
    found = optimizer
    if isinstance(found, OwnersStep):
        found = found.own
    if isinstance(found, HostStep):
        found = found.inner
    elif isinstance(found, ZeroRedundancyOptimizer):
        found = found.optim
    return [] if found is None else [found]


def host_steps(optimizer: Any) -> Sequence[HostStep]:
    """Return the optimizers that step in the node's memory: none or one."""
    found = optimizer.own if isinstance(optimizer, OwnersStep) else optimizer
    return [found] if isinstance(found, HostStep) else []
