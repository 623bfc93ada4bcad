"""Each rank's live bytes in a step of a strategy, and those of the estimate.

Every storage is recorded when an operator makes it and forgotten when it is freed by
any thread, because the profiler's stream does not see the frees of gloo's threads. On
the CPU the Gpu's memory and the node's are one, so offloading is not tested here.
"""

import gc
import math
import warnings
import weakref
from dataclasses import replace

import torch
from torch import distributed
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from placement.agent.runtime.by_deepspeed import trainer_of
from placement.planner.memory.estimate import estimate
from placement.planner.model.families.config_json import parse_config
from placement.planner.model.sharding import Sharding
from placement.planner.search.candidates.other_schedules import kept_pieces
from placement.planner.values.workload import Workload

SIZES = {
    "layers": 4,
    "hidden": 128,
    "heads": 4,
    "seq": 64,
    "batch": 4,
    "seed": 7,
    "learning_rate": 1e-3,
    "dropout": 0.0,
}
"""Large enough that the weights outweigh the counters beside them."""
MOST_STEPS = 5
NEAR = 1.005
"""Of the estimate: a peak below this needs no other step to compare with."""


class LiveBytes(TorchDispatchMode):
    """Bytes of all live storages, now and at most."""

    def __init__(self):
        super().__init__()
        self.sizes = {}
        self.now = self.most = 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for one in gc.get_objects():
                if isinstance(one, torch.Tensor):
                    self.note(one)
                    if one.is_leaf and one.grad is not None:
                        self.note(one.grad)

    def note(self, tensor):
        tensor = getattr(tensor, "_local_tensor", tensor)
        if not tensor.is_meta:
            self.note_storage(tensor.untyped_storage())

    def note_storage(self, storage):
        size, key = storage.nbytes(), storage._cdata
        if key not in self.sizes:
            weakref.finalize(storage, self.forget, key)
        self.now += size - self.sizes.get(key, 0)
        self.sizes[key] = size
        self.most = max(self.most, self.now)

    def forget(self, key):
        self.now -= self.sizes.pop(key, 0)

    def __enter__(self):
        # FSDP frees gathered weights by a change of their size, which is no operator.
        self.resize = torch.UntypedStorage.resize_

        def resized(storage, size):
            self.resize(storage, size)
            self.note_storage(storage)

        torch.UntypedStorage.resize_ = resized
        return super().__enter__()

    def __exit__(self, *why):
        torch.UntypedStorage.resize_ = self.resize
        return super().__exit__(*why)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for one in tree_iter(made):
            if isinstance(one, torch.Tensor):
                self.note(one)
        return made


def measured(how, groups, said):
    """Return of every rank the most bytes alive in a step after the first.

    gloo's threads free a buffer a moment after it was used, and later on a busy
    machine. That can only add to a peak: where one is above what the estimate says, it
    is the least of several steps.
    """
    gc.collect()
    before = LiveBytes().now
    trainer = trainer_of(how)(how, SIZES, groups)
    trainer.step()
    least = [math.inf] * how.ranks
    for _ in range(MOST_STEPS):
        gc.collect()
        with LiveBytes() as live:
            trainer.step()
        least = list(map(min, least, _of_all_ranks(live.most - before, how)))
        if all(most <= NEAR * one for most, one in zip(least, said, strict=True)):
            break
    return least


def _of_all_ranks(number, how):
    mine = torch.tensor([number])
    found = [torch.zeros_like(mine) for _ in range(how.ranks)]
    distributed.all_gather(found, mine)
    return [int(one) for one in found]


def expected(how):
    """Return the estimate of every rank. OPT's blocks are the recipe's."""
    spec = parse_config(
        {
            "model_type": "opt",
            "vocab_size": 64,
            "hidden_size": SIZES["hidden"],
            "ffn_dim": 4 * SIZES["hidden"],
            "num_hidden_layers": SIZES["layers"],
            "num_attention_heads": SIZES["heads"],
            "activation_function": "gelu",
            # Its table has two places more.
            "max_position_embeddings": SIZES["seq"] - 2,
            "word_embed_proj_dim": SIZES["hidden"],
            "do_layer_norm_before": True,
            "dropout": 0,
            "attention_dropout": 0,
            "activation_dropout": 0,
            "tie_word_embeddings": False,
        }
    )
    assert spec.shape is not None
    # The recipe begins at the first row of its table, and uses all of them.
    spec = replace(spec, shape=replace(spec.shape, positions=SIZES["seq"]))
    pieces = how.microbatches * how.accumulation * how.replicas
    workload = Workload(
        batch=SIZES["batch"] * pieces,
        sequence_length=SIZES["seq"],
        accumulation=how.accumulation,
        precision=how.precision,
        optimizer=how.optimizer,
        optimizer_loop=how.optimizer_loop,
        checkpointing="full" if how.checkpointing else "none",
        accelerator="cpu",
    )
    ranks = range(how.ranks)
    return [estimate(spec, workload, _sharding(how, rank)).peak_bytes for rank in ranks]


def _sharding(how, rank):
    """The rank's part as the planner describes it."""
    stage = how.places[rank].stage
    given = {
        "strategy": {"zero1_uneven": "zero1"}.get(how.strategy, how.strategy),
        "data_degree": how.replicas,
        "tensor_degree": how.tensor_degree,
        "sequence_parallel": how.sequence_parallel,
        # As planned: ZeRO-2 is for DeepSpeed, whichever library runs it.
        "engine": "auto" if how.backend == "torch" else "deepspeed",
        "share_ratio": how.shares[rank] if how.shares else None,
    }
    if how.backend == "deepspeed" and how.strategy == "fsdp":
        given["strategy"] = "zero3"
    if how.stages == 1:
        return Sharding(**given)
    pieces = how.pieces_of(stage)
    chunks = [(how.bounds[n], how.bounds[n + 1]) for n in pieces]
    given |= {
        "strategy": "gpipe" if how.schedule == "gpipe" else "pipeline",
        "pipeline_degree": how.stages,
        "pipeline_schedule": how.schedule,
        "microbatches": how.microbatches,
        "in_flight": min(how.stages - stage, how.microbatches),
    }
    if how.schedule == "gpipe":
        given["in_flight"] = how.microbatches
    if len(pieces) > 1:
        kept = kept_pieces(stage, how.stages, len(pieces), how.microbatches)
        return Sharding(
            **given | {"chunks": tuple(chunks), "virtual_stages": 2, "in_flight": kept}
        )
    ((first, last),) = chunks
    return Sharding(**given, first_layer=first, last_layer=last)
