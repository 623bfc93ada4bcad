"""Training with DeepSpeed as in `trainer.py`: ZeRO 1 to 3, offload, 1F1B pipeline.

Run with the JSON of ``placement.planner.launch.files.deepspeed``, which is
ds_config.json in the Job's folder. Data, log lines and checkpoints are those of the
other strategies: a checkpoint holds whole tensors by their names, which the first rank
gathers one after another, so torch goes on from DeepSpeed's and DeepSpeed from torch's.

Nothing is compiled: torch's optimizers step, and on the CPU gloo exchanges instead of
DeepSpeed's shared-memory operator. Only NVMe offload needs an operator of its own
(async_io), built on the node by a compiler, ninja and libaio; without them it is
refused in words.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed, nn

from placement.agent.runtime.offload import DRIVE
from placement.agent.runtime.tiny_transformer import loss_of
from placement.agent.runtime.trainer import Trainer
from placement.planner.launch.execution import NotRunnable
from placement.planner.launch.files.deepspeed import config_to_run

if TYPE_CHECKING:
    from placement.planner.launch.execution import Execution

CONFIG = Path("ds_config.json")
SHARED_MEMORY = "deepspeed_shm_comm"
"""Its operator for exchanges between processes of one machine without Gpus."""


def import_deepspeed(device: torch.device) -> Any:
    """Import DeepSpeed for a device. Raises NotRunnable where it is not installed."""
    if device.type == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch")
    try:
        import deepspeed
    except ImportError as error:
        raise NotRunnable(f"DeepSpeed is not installed here: {error}") from error
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    deepspeed.ops.__compatible_ops__[SHARED_MEMORY] = False
    return deepspeed


def check_drive() -> None:
    """Raise NotRunnable if NVMe offload cannot work, because its operator is not
    built.
    """
    from deepspeed.ops.op_builder import AsyncIOBuilder
    from torch.utils.cpp_extension import verify_ninja_availability

    try:
        verify_ninja_availability()
    except RuntimeError as error:
        raise NotRunnable(
            "DeepSpeed's NVMe offload is built on the node, and the program ninja is "
            "not there: choose torch, or offload to the CPU"
        ) from error
    if not AsyncIOBuilder().is_compatible(verbose=False):
        raise NotRunnable(
            "DeepSpeed's NVMe offload is built on the node, and libaio's header is not "
            "there (libaio-dev): choose torch, or offload to the CPU"
        )


class ByDeepSpeed(Trainer):
    """A Trainer that uses a DeepSpeed engine. Mixed into a class that builds the
    model.
    """

    engine: Any

    def _set_up(self) -> None:
        how, ranks = self.how, self.ranks
        self.deepspeed = import_deepspeed(ranks.device)
        self.deepspeed.init_distributed(verbose=False, dist_init_required=False)
        if how.on_drive:
            check_drive()
        largest = max(
            sum(p.numel() for p in one.parameters()) for one in self._bucket_modules()
        )
        config = config_to_run(
            how,
            batch=self.settings["batch"],
            learning_rate=self.settings["learning_rate"],
            bucket=max(1, largest),
            cuda=ranks.device.type == "cuda",
            folder=str(DRIVE.resolve()),
        )
        if int(os.environ.get("LOCAL_RANK", "0")) == 0:
            CONFIG.write_text(json.dumps(config, indent=2) + "\n")
        distributed.barrier()
        whole = self._stages() if how.stages > 1 else self.parts[0]
        with contextlib.redirect_stdout(io.StringIO()):
            self.engine, *_ = self.deepspeed.initialize(
                model=whole,
                model_parameters=list(whole.parameters()),
                config=str(CONFIG),
                dist_init_required=False,
            )
        self.optimizer = self.engine.optimizer
        self.model = self.engine

    def _bucket_modules(self) -> Iterator[nn.Module]:
        """Yield the modules of each bucket: layers of lists, or the whole."""
        for part in self.parts:
            lists = (m for m in part.modules() if isinstance(m, _LISTS))
            inner = [block for one in lists for block in one.children()]
            yield from inner or [part]

    def _stages(self) -> nn.Module:
        """Return this rank's layers as DeepSpeed's stage. The bounds are the Plan's."""
        from deepspeed.pipe import PipelineModule

        how, bounds = self.how, self.how.bounds
        stage = self.ranks.place.stage

        class Staged(PipelineModule):  # type: ignore[misc]
            """Cut at the Plan's bounds, not evenly."""

            def _partition_layers(self, method: str = "") -> None:
                self.parts = list(bounds)
                self._set_bounds(start=bounds[stage], stop=bounds[stage + 1])

        own = self.parts[0]
        # One module of DeepSpeed for the whole stage, in place of its first.
        layers = [nn.Identity() for _ in range(bounds[-1])]
        layers[bounds[stage]] = own  # type: ignore[call-overload]
        with contextlib.redirect_stdout(io.StringIO()):
            return Staged(layers=layers, num_stages=how.stages, loss_fn=loss_of)

    def step(self) -> float:
        """Take one optimizer step; return this rank's part of the mean loss."""
        if self.how.stages > 1:
            return self._staged_step()
        pieces, total = self.how.accumulation, 0.0
        for _ in range(pieces):
            loss = self._loss(*self.batch())
            self.engine.backward(loss)
            self.engine.step()
            total += float(loss.detach()) / pieces
        return total / self.how.replicas

    def _staged_step(self) -> float:
        size = self.settings["batch"]
        pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        for _ in range(self.how.accumulation):
            tokens, following = self.batch()
            pairs += zip(tokens.split(size), following.split(size), strict=True)
        loss = self.engine.train_batch(iter(pairs))
        # Every rank gets the mean of all.
        last = self.ranks.place.stage == self.how.stages - 1
        return float(loss) / self.how.replicas if last else 0.0

    def held(self, *, to_read: bool) -> dict[str, torch.Tensor]:
        """Return whole tensors, on the first rank or where they are read."""
        if self.how.stages > 1:
            return super().held(to_read=to_read)
        if to_read:
            self._create_zero_state()
        keep = to_read or self.ranks.rank == 0
        found: dict[str, torch.Tensor] = {}
        (module,) = self.parts
        known = {id(p): p for p in self.params}
        for name, param in module.named_parameters(remove_duplicate=False):
            for key, value in self._gather_one(known[id(param)], keep=keep):
                found[f"optimizer.{name}.{key}" if key else f"model.{name}"] = value
        if keep:
            buffers = dict(module.named_buffers())
            named = {n: buffers[n] for n in module.state_dict() if n in buffers}
            found |= {f"model.{name}": buffer for name, buffer in named.items()}
        return found

    def _gather_one(self, param: nn.Parameter, *, keep: bool) -> list[tuple[str, Any]]:
        """Return a weight ("") and its optimizer state, gathered. All ranks must call
        it.
        """
        from deepspeed.utils import (
            safe_get_full_fp32_param,
            safe_get_full_optimizer_state,
        )

        if not param.requires_grad:
            with self._gathered([param]):
                gathered = [("", param.detach().to("cpu", copy=True))]
            return gathered if keep else []
        found = [("", safe_get_full_fp32_param(param))]
        for key in self._state_keys():
            found.append((key, safe_get_full_optimizer_state(param, key)))
        count = self._count()
        if not keep:
            return []
        kept = [(key, value.to("cpu", copy=True)) for key, value in found]
        return [*kept, *([] if count is None else [("step", count.clone())])]

    def take(self, held: Mapping[str, torch.Tensor]) -> None:
        """Distribute the loaded state. All ranks must call it."""
        from deepspeed.utils import (
            safe_set_full_fp32_param,
            safe_set_full_optimizer_state,
        )

        if self.how.stages > 1:
            super().take(held)
            return
        (module,) = self.parts
        for name, param in module.named_parameters():
            value = held[f"model.{name}"]
            with self._gathered([param]), torch.no_grad():
                param.copy_(value)
            if not param.requires_grad:
                continue
            device = self.ranks.device
            safe_set_full_fp32_param(param, value.to(device))
            for key in self._state_keys():
                state = held[f"optimizer.{name}.{key}"]
                safe_set_full_optimizer_state(param, state.to(device), key)
            if (count := held.get(f"optimizer.{name}.step")) is not None:
                for own in self._states():
                    own["step"].copy_(count)

    def _create_zero_state(self) -> None:
        """Create the state of the first step, all zero."""
        sharing = self.engine.optimizer
        for flat in self._flat_pieces():
            state = self.engine.basic_optimizer.state[flat]
            if not state:
                state |= {key: torch.zeros_like(flat) for key in self._state_keys()}
                if self.how.optimizer in ("adamw", "adam"):
                    state["step"] = torch.zeros((), dtype=torch.float32)
        if self.how.zero_stage < 3:
            sharing._lazy_init_hp_params_optimizer_state()

    def _flat_pieces(self) -> list[torch.Tensor]:
        """Return the pieces of the fp32 weights that this rank steps, by group."""
        sharing = self.engine.optimizer
        name = (
            "fp32_partitioned_groups_flat"
            if self.how.zero_stage == 3
            else "single_partition_of_fp32_groups"
        )
        return list(getattr(sharing, name))

    def _gathered(self, params: list[nn.Parameter]) -> Any:
        if self.how.zero_stage < 3:
            return contextlib.nullcontext()
        return self.deepspeed.zero.GatheredParameters(params, modifier_rank=0)

    def _states(self) -> list[dict[str, Any]]:
        """Return the optimizer's state of each flat piece on this rank."""
        return list(self.engine.basic_optimizer.state.values())

    def _state_keys(self) -> list[str]:
        """Return the names of the tensors that are stored of each parameter."""
        return STATE_KEYS[self.how.optimizer]

    def _count(self) -> torch.Tensor | None:
        counts = [own["step"] for own in self._states() if "step" in own]
        return counts[0] if counts else None

    def state_bytes(self) -> int:
        """Return the bytes of parameters, gradients and optimizer state on this
        rank.
        """
        if self.how.stages > 1:
            return super().state_bytes()
        kept: list[Any] = []
        for param in self.params:
            kept += [getattr(param, "ds_tensor", None), param.data, param.grad]
        if not self.how.offload:
            kept += self._flat_pieces()
            for state in self._states():
                kept += state.values()
        if self.how.keeps_weights_away:
            kept = []
        sizes: dict[int, int] = {}
        for one in kept:
            if isinstance(one, torch.Tensor) and one.numel():
                storage = one.untyped_storage()
                sizes[storage.data_ptr()] = storage.nbytes()
        return sum(sizes.values())


_LISTS = (nn.ModuleList, nn.ModuleDict)
STATE_KEYS = {
    "adamw": ["exp_avg", "exp_avg_sq"],
    "adam": ["exp_avg", "exp_avg_sq"],
    "sgd": [],
    "momentum": ["momentum_buffer"],
}


class DeepSpeedTrainer(ByDeepSpeed, Trainer):
    """The ready model."""


def trainer_of(how: Execution) -> type[Trainer]:
    """Return the Trainer that runs the ready model."""
    return DeepSpeedTrainer if how.backend == "deepspeed" else Trainer
