"""One process of recipe ``fine-tune``: a Hugging Face model on a text data set.

    python -m torch.distributed.run ... -m placement.agent.runtime.fine_tune_worker
    '{...}' [PLAN]

The first argument are the settings of recipe ``fine-tune``. A plan.json decides how the
model is replicated, sharded or cut. Without one each process has a replica. Prints the
lines of ``placement.agent.runtime.plan_worker``, and of each evaluation ``eval_loss``:
the mean loss of the held-out tokens.

With each checkpoint, the folder ``model`` of the output folder has the model in Hugging
Face's format: ``from_pretrained`` loads it. Only .safetensors files are read, no code
of the model's folder is run, and nothing is downloaded. With a rank of LoRA only
adapters are trained, and ``model`` has them in PEFT's format, or the model with the
adapters added to its weights. Below adapters the weights may have 4 or 8 bits.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
)
from torch.distributed.fsdp import FSDPModule
from torch.utils.data import Dataset, default_collate

from placement.agent.runtime.bitsandbytes_weights import (
    constant_bytes,
    keep_packing,
    quantization_of,
    weight_count,
)
from placement.agent.runtime.fine_tune_inputs import (
    MARK,
    model_folder,
    output_folder,
    texts_of,
)
from placement.agent.runtime.learning_rate import clip_gradients, rate_ratio
from placement.agent.runtime.lora_adapters import (
    save_adapters,
    save_merged,
    with_adapters,
)
from placement.agent.runtime.model_stage import StageOfRank, names_of
from placement.agent.runtime.own_worker import OwnTrainer, run
from placement.agent.runtime.rank_groups import RankGroups
from placement.agent.runtime.sharded_model import LOWER, blocks_of, share_out
from placement.agent.runtime.tiny_transformer import LEFT_OUT, loss_of
from placement.agent.runtime.token_blocks import (
    TOKENS,
    TokenBlocks,
    divided,
    write_tokens,
)
from placement.agent.runtime.tp_plan import cut_by_family, packings, unpacked
from placement.agent.runtime.trainer import Trainer, inner_optimizers
from placement.agent.runtime.training_checkpoint import put_in_place, stored_shapes
from placement.planner.launch.execution import (
    Execution,
    NotRunnable,
    execution_on_node,
)
from placement.planner.launch.quantized_bases import FULL, QUANTIZED
from placement.planner.values.errors import LaunchInvalid
from placement.planner.values.plan import Plan

OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
LOCAL: Mapping[str, bool] = {"local_files_only": True, "trust_remote_code": False}
"""Nothing is downloaded, and no code of a model's folder is run."""


def import_transformers() -> Any:
    """Import transformers without its progress bars and without the network."""
    os.environ |= OFFLINE
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


def dtype_of(how: Execution) -> torch.dtype:
    """Return the type in which the weights are kept."""
    return torch.bfloat16 if how.precision == "bf16" else torch.float32


def without_plan(
    how: Execution, device: torch.device, settings: Mapping[str, Any]
) -> Execution:
    """Return the Execution of a training that no Plan decides, with its precision.

    A CPU computes in fp32. A card multiplies in 16 bits, which is several times faster:
    in fp32 it also stores the attention scores of models with grouped heads
    (docs/accuracy.md). Weights below adapters are frozen, so they are kept in bf16 too,
    and quantized ones are multiplied in bf16 on a CPU as well (QLoRA).
    """
    weights = str(settings.get("weights", how.weights))
    quantized = weights in QUANTIZED
    if device.type != "cuda":
        precision = "bf16" if quantized else how.precision
    elif not torch.cuda.is_bf16_supported(including_emulation=False):
        precision = "autocast_fp16"
    else:
        precision = "bf16" if settings.get("lora_rank") else "autocast_bf16"
    return replace(
        how, precision=precision, weights=weights if quantized else how.weights
    )


def loaded_model(
    folder: Path, how: Execution, device: torch.device | str = "cpu"
) -> nn.Module:
    """Return the language model of a folder with its weights.

    Args:
        folder: of the model.
        how: the Execution.
        device: where quantized weights lie. Others are in the node's memory.

    Raises:
        LaunchInvalid: it is no language model that transformers knows, or weights are
            missing.
        NotRunnable: the Plan recomputes activations, which this family does not.
    """
    transformers = import_transformers()
    quantized = {}
    if how.weights != FULL:
        config = quantization_of(how, transformers)
        quantized = {"quantization_config": config, "device_map": {"": device}}
    try:
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            use_safetensors=True,
            dtype=dtype_of(how),
            output_loading_info=True,
            **quantized,
            **LOCAL,
        )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        why = " ".join(str(error).split())[:400]
        raise LaunchInvalid(
            {"model": f"transformers cannot load {folder}: {why}"}
        ) from error
    if missing := sorted(info["missing_keys"]):
        raise LaunchInvalid({"model": f"{folder} lacks weights: {missing[:5]}"})
    keep_packing(model)
    return prepared(model, how)


def prepared(model: Any, how: Execution) -> nn.Module:
    """Return a model in training mode that recomputes activations as planned.

    Raises:
        NotRunnable: the Plan recomputes activations, which this family does not.
    """
    if how.checkpointing:
        if not model.supports_gradient_checkpointing:
            family = model.config.model_type
            raise NotRunnable(
                f"the family {family} cannot recompute activations; choose a plan "
                "without checkpointing"
            )
        model.gradient_checkpointing_enable({"use_reentrant": False})
    made: nn.Module = model
    return made.train()


def in_turns(
    act: Callable[[], list[nn.Module]], device: torch.device
) -> list[nn.Module]:
    """Let the ranks of a node act one after another. Return the result of this rank.

    Whole weights are then in the node's memory once, not once for each rank.
    """
    mine = int(os.environ["LOCAL_RANK"])
    turns = torch.tensor(int(os.environ["LOCAL_WORLD_SIZE"]), device=device)
    # Nodes may have different numbers of ranks, and all of them meet at each barrier.
    distributed.all_reduce(turns, distributed.ReduceOp.MAX)
    made: list[list[nn.Module]] = []
    for turn in range(int(turns)):
        if turn == mine:
            made.append(act())
        distributed.barrier()
    return made[0]


class FineTuneTrainer(OwnTrainer):
    """A rank of a training of a Hugging Face model."""

    def __init__(
        self, how: Execution, settings: Mapping[str, Any], ranks: RankGroups
    ) -> None:
        """Load the model and the data.

        Raises:
            LaunchInvalid: at the setting that names what cannot be used.
            NotRunnable: the model cannot do what the Plan says.
        """
        self.folder = model_folder(settings["model"], os.environ)
        self.next_step = 0
        self.staged: StageOfRank | None = None
        self.is_evaluating = False
        super().__init__(how, settings, ranks)
        if self.staged is not None:
            self.parameter_count = self.staged.parameter_count
            self.trainable_count = self.staged.trainable_count
        elif how.weights != FULL:
            self.parameter_count = sum(map(weight_count, self.params))
        if not settings["steps"]:
            count = len(self.data)  # type: ignore[arg-type]
            batches = count / (self.batch_size * how.replicas)
            steps = settings["epochs"] * batches / how.accumulation
            self.settings = {**settings, "steps": max(1, math.ceil(steps))}

    def first_model(self) -> nn.Module:
        """Return the model with the weights with which the training begins."""
        return loaded_model(self.folder, self.how, self.ranks.device)

    @property
    def batch_size(self) -> int:
        """Return the sequences of one forward and backward of a replica."""
        return int(self.settings["batch"]) * self.how.microbatches

    def _loss_function(self, settings: Mapping[str, Any]) -> Callable[..., Any]:
        return loss_of

    def _build(self) -> Sequence[nn.Module]:
        how, ranks = self.how, self.ranks
        self.autocast = None if how.shares_out else LOWER.get(how.precision)

        def placed() -> list[nn.Module]:
            model = base = self.first_model()
            table: Any = base.get_input_embeddings()  # type: ignore[operator]
            self.vocabulary = getattr(table, "num_embeddings", 0)
            blocks = blocks_of(model)
            if self.settings.get("lora_rank"):
                model = with_adapters(base, self.settings)
            inner = names_of(model)[base]
            self.packed = {
                f"{inner}.{name}" if inner else name: packing
                for name, packing in packings(base).items()
            }
            parts, bases, tied = [model], [base], None
            if how.stages > 1:
                stage = StageOfRank(base, model, how, ranks.place.stage)
                parts, bases, tied = stage.parts, stage.bases, stage.is_tied
                self.staged = stage
            if how.tensor_degree > 1:
                mesh, along = ranks.along("tensor"), how.sequence_parallel
                for piece in bases:
                    cut_by_family(piece, mesh, along=along, tied=tied)
            if how.shares_out:
                share_out(model, how, ranks.sharing, blocks=blocks)
            elif how.weights == FULL and how.tensor_degree == 1:
                for part in parts:
                    part.to(ranks.device)
            return parts

        parts = in_turns(placed, ranks.device)
        if self.staged is not None:
            self.staged.make_groups(ranks)
        return parts

    def stage_module(self, part: nn.Module) -> nn.Module:
        """Return the module that the schedule calls for a part of the model."""
        assert self.staged is not None
        return self.staged.module(part, self.autocast)

    def stage_loss(self, logits: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of a microbatch, or the sum over its sequences."""
        if not self.is_evaluating:
            return loss_of(logits, following)
        return loss_of(logits, following, reduction="sum") / following.shape[1]

    def join_gradients(self) -> None:
        """Add up the gradients of a weight that the first and the last stage have."""
        if self.staged is not None:
            self.staged.sum_shared()

    def _data_set(self) -> Dataset[Any]:
        """Return the blocks to train on. The first rank of each node tokenizes them."""
        settings = self.settings
        path = Path(settings["data"])
        self.preprocessor = import_transformers().AutoTokenizer.from_pretrained(
            self.folder, use_fast=True, **LOCAL
        )
        if int(os.environ["LOCAL_RANK"]) == 0:
            write_tokens(
                TOKENS,
                texts_of(path, settings["column"]),
                self.preprocessor,
                is_one_text=path.suffix == ".txt",
                most=self.vocabulary,
            )
        distributed.barrier()
        blocks = TokenBlocks(TOKENS, settings["seq"])
        rest, self.held_out = divided(
            blocks, settings["evaluation_pct"], settings["seed"]
        )
        wanted = self.batch_size * self.how.replicas
        if len(rest) < wanted:
            raise LaunchInvalid(
                {
                    "data": f"{path} has {len(blocks)} sequences of {settings['seq']} "
                    f"tokens, {len(rest)} of them to train on. One step needs {wanted}"
                }
            )
        return rest

    def seek(self, step: int, position: torch.Tensor | None) -> None:
        """Continue with the data and the learning rate of a step."""
        super().seek(step, position)
        self.next_step = step

    def prepare_update(self) -> None:
        """Set the learning rate of this step and clip its gradients."""
        settings = self.settings
        rate = settings["learning_rate"] * rate_ratio(
            self.next_step,
            settings["steps"],
            schedule=settings["learning_rate_schedule"],
            warmup_pct=settings["warmup_pct"],
        )
        # ZeroRedundancyOptimizer copies its groups to the optimizer that it wraps.
        wrapper = getattr(self.optimizer, "param_groups", [])
        inner = [one.param_groups for one in inner_optimizers(self.optimizer)]
        for group in (*wrapper, *(group for groups in inner for group in groups)):
            group["lr"] = rate
        if settings["clip_norm"]:
            stage = self.staged
            clip_gradients(
                self.trained,
                settings["clip_norm"],
                ranks=self.how.ranks // self.how.stages,
                device=self.ranks.device,
                staged=stage is not None,
                shared=stage.counted_elsewhere if stage is not None else None,
            )

    def step(self) -> float:
        """Take one optimizer step. Return this rank's part of the mean loss."""
        loss = super().step()
        self.next_step += 1
        return loss

    def kept_weights(self, part: nn.Module) -> Mapping[str, torch.Tensor]:
        """Return the weights that a checkpoint keeps: with LoRA the adapters only."""
        if not self.settings.get("lora_rank"):
            return part.state_dict()
        named = part.named_parameters()
        return {name: p.detach() for name, p in named if p.requires_grad}

    def state_bytes(self) -> int:
        """Return the bytes of weights, gradients and optimizer state on this rank."""
        return super().state_bytes() + constant_bytes(self.parts[0])

    def held(self, *, to_read: bool) -> dict[str, torch.Tensor]:
        """Return this rank's weights and optimizer state by name."""
        found = super().held(to_read=to_read)
        if self.staged is not None:
            found = self.staged.named_once(found)
        stored = stored_shapes() if to_read and self.packed else {}
        for name, packing in self.packed.items():
            stem = f"optimizer.{name}."
            for key in (f"model.{name}", *(k for k in found if k.startswith(stem))):
                # Earlier checkpoints have the weights of GPT-2 as they are.
                if key in found and stored.get(key) != found[key].shape:
                    found[key] = unpacked(found[key], packing)
        return found

    def _output(self, inputs: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(inputs, use_cache=False).logits
        return logits

    def evaluate(self, step: int, *, ends: bool) -> dict[str, float]:
        """Return the mean loss of the held-out tokens if it is due.

        The ranks take equally many forward passes, as FSDP needs.
        """
        every = self.settings["evaluation_steps"]
        due = ends or (every and (step + 1) % every == 0)
        if not due or not len(self.held_out):
            return {}
        size, count = self.batch_size, len(self.held_out)
        first = self.ranks.place.replica * size
        sums = torch.zeros(3, dtype=torch.float64, device=self.ranks.device)
        for part in self.parts:
            part.eval()
        self.is_evaluating = True
        with torch.no_grad():
            for start in range(first, first + count, size * self.how.replicas):
                mine = range(start, min(start + size, count))
                pairs = [self.held_out[number] for number in mine or (0,)]
                inputs, targets = (
                    one.to(self.ranks.device) for one in default_collate(pairs)
                )
                if self.schedule is None:
                    loss, right = self.evaluated(inputs, targets)
                    sums[0] += loss * len(mine)
                    sums[2] += right * bool(mine)
                else:
                    sums[0] += self._staged_loss(inputs, targets, size) * bool(mine)
                sums[1] += len(mine) if self.has_loss else 0
        self.is_evaluating = False
        for part in self.parts:
            part.train()
        for module in self.model.modules():
            # ZeRO-2 keeps whole weights until the next backward, which does not come.
            if isinstance(module, FSDPModule):
                module.reshard()
        distributed.all_reduce(sums)
        return self.results(float(sums[0] / sums[1]), float(sums[2] / sums[1]))

    def evaluated(
        self, inputs: torch.Tensor, targets: torch.Tensor
    ) -> tuple[torch.Tensor, int]:
        """Return the mean loss of held-out sequences, and what `results` divides."""
        return self._loss(inputs, targets), 0

    def results(self, loss: float, right: float) -> dict[str, float]:
        """Return what an evaluation prints.

        Args:
            loss: mean of all that is held out.
            right: the part of it that `evaluated` counted.
        """
        return {"eval_loss": round(loss, 6)}

    @property
    def has_loss(self) -> bool:
        """Return whether this rank computes the loss."""
        return self.staged is None or self.staged.last

    def _staged_loss(
        self, inputs: torch.Tensor, targets: torch.Tensor, size: int
    ) -> float:
        """Return the sum of the losses of some sequences, on the last stage only.

        The schedule takes a batch of always the same size.
        """
        lacks = size - len(inputs)
        given = torch.cat([inputs, inputs[:1].expand(lacks, -1)])
        padding = torch.full_like(targets[:1], LEFT_OUT).expand(lacks, -1)
        losses: list[torch.Tensor] = []
        stage = self.staged
        assert stage is not None
        ends = {"target": torch.cat([targets, padding]), "losses": losses}
        self.schedule.eval(
            *((given,) if stage.first else ()),
            **(ends if stage.last else {}),
            return_outputs=False,
        )
        return float(sum(losses)) / self.scale.factor

    def export(self) -> None:
        """Write the model and its tokenizer, and replace the previous ones."""
        model: Any = self.parts[0]
        adapters = bool(self.settings.get("lora_rank"))
        if self.staged is not None:
            kept = {n: v for p in self.parts for n, v in self.kept_weights(p).items()}
            state: Mapping[str, Any] = self.staged.gathered(kept, self.ranks)
        elif self.how.shares_out or self.how.tensor_degree > 1:
            whole = StateDictOptions(
                full_state_dict=True, cpu_offload=True, ignore_frozen_params=adapters
            )
            state = get_model_state_dict(model, options=whole)
        else:
            state = self.kept_weights(model)
        if self.ranks.rank == 0:
            target = output_folder(self.settings)
            draft = target.with_suffix(".part")
            shutil.rmtree(draft, ignore_errors=True)
            if adapters:
                self._save_adapters(state, draft)
            else:
                model.save_pretrained(draft, state_dict=state)
            self.preprocessor.save_pretrained(draft)
            (draft / MARK).write_text(json.dumps(dict(self.settings), indent=1) + "\n")
            put_in_place(draft, target)
            print(f"model saved to {target}/", flush=True)
        distributed.barrier()

    def _save_adapters(self, state: Mapping[str, Any], draft: Path) -> None:
        """Write the adapters, or the model with the adapters in its weights."""
        base = self.settings["model"]
        model = self.parts[0] if self.staged is None else self.staged.outline
        if self.settings["lora_output"] == "adapters":
            save_adapters(model, state, draft, base)
            return
        adapters = draft.with_suffix(".adapters")
        shutil.rmtree(adapters, ignore_errors=True)
        save_adapters(model, state, adapters, base)
        base_model = loaded_model(self.folder, replace(self.how, weights=FULL))
        save_merged(base_model, adapters, draft)
        shutil.rmtree(adapters)


def main(argv: list[str]) -> int:
    """Train with the settings in argv[1], by the Plan in argv[2] where there is one."""
    settings = json.loads(argv[1])

    def execution(plan: Plan) -> Execution:
        return execution_on_node(plan, settings)

    def trainer(how: Execution, ranks: RankGroups) -> Trainer:
        if len(argv) == 2:
            how = without_plan(how, ranks.device, settings)
        return FineTuneTrainer(how, settings, ranks)

    return run(argv, settings["model"], execution, trainer)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
