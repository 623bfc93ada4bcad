"""Run the training step twice and measure the second one.

The second step is the steady state: optimizer states exist and gradients are gone.
"""

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch

from placement.planner.symbolic import phantom
from placement.planner.symbolic.case import Case
from placement.planner.symbolic.case_module import BuiltCase, build, class_of
from placement.planner.symbolic.dispatch_mode import StepMode
from placement.planner.symbolic.gradient_sum import Summing
from placement.planner.symbolic.kernels import attention_context, on_a_gpu
from placement.planner.symbolic.operator_routing import Router
from placement.planner.symbolic.optimizers import optimizer
from placement.planner.symbolic.storage_tracker import PHASES, Tracker, storage_bytes
from placement.planner.symbolic.workspaces import Workspaces
from placement.planner.values.errors import SpecInvalid

STEPS = 2
CUDA_BLOCK_BYTES = 512
"""torch's caching allocator hands out blocks of whole 512 bytes."""
AUTOCAST = {"autocast_bf16": torch.bfloat16, "autocast_fp16": torch.float16}
Progress = Callable[[str, float], None]


def follow_step(
    case: Case, progress: Progress = lambda _what, _share: None
) -> dict[str, Any]:
    """Return the bytes of one case; keys as in ``reference/memory_cases.py``.

    `progress` is called with the current part and the finished share, 0 to 1. `seconds`
    is processor time without imports.

    Raises:
        SpecInvalid: the model cannot be built.
        Unsupported: an operator without a symbolic result.
    """
    progress("reading the model's class", 0.05)
    known = class_of(case)
    started = time.process_time()
    tracker = Tracker(CUDA_BLOCK_BYTES if case.accelerator == "cuda" else 1)
    mode = StepMode(tracker)
    Router(mode)
    Workspaces(mode, case.accelerator)
    if not case.traced:
        Summing(mode).learn()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kernel = attention_context(case.accelerator, case.attention)
        with mode, kernel, _functions(case, tracker), _world(case, tracker):
            progress("building the model", 0.1)
            built = build(case, known)
            answer = _Run(case, built, tracker).steps(progress)
    answer["method"] = "symbolic"
    answer["seconds"] = round(time.process_time() - started, 4)
    if case.ignored:
        answer["ignored"] = list(case.ignored)
    return answer


class _Run:
    """One built case."""

    def __init__(self, case: Case, built: BuiltCase, tracker: Tracker) -> None:
        self.case, self.built, self.tracker = case, built, tracker
        self.trained = [one for one in built.model.parameters() if one.requires_grad]
        self.optimizer: torch.optim.Optimizer | None = None
        self.activation_bytes = 0
        self.grad_bytes = 0
        self.forward_flops = 0

    def steps(self, progress: Progress) -> dict[str, Any]:
        """Run all steps. Return the answer for the last."""
        if not self.case.trains:
            return self.inference(progress)
        if not self.trained:
            raise SpecInvalid({"freeze": "leaves no parameter to train"})
        buckets = self.buckets()
        self.optimizer = optimizer(self.built.model, self.case, self.trained)
        for number in range(STEPS):
            self.tracker.forget_peaks()
            self.step(_part(progress, 0.2 + 0.4 * number, 0.4))
        del buckets
        return self.answer()

    def step(self, progress: Progress) -> None:
        """Run forward and backward of every microbatch, then the optimizer."""
        assert self.optimizer is not None
        count = self.case.accumulation
        for number in range(count):
            progress("forward", number / (count + 1))
            self.tracker.enter("fwd")
            before, self.tracker.flops = self.tracker.live_bytes, 0
            with self.autocast():
                loss = self.built.loss()
            self.forward_flops = self.tracker.flops
            if count > 1:
                loss = loss / count
            self.activation_bytes = self.tracker.live_bytes - before
            progress("backward", (number + 0.4) / (count + 1))
            self.tracker.enter("bwd")
            loss.backward()
            del loss
        progress("optimizer", count / (count + 1))
        self.tracker.enter("opt")
        grads = [one.grad for one in self.trained if one.grad is not None]
        self.grad_bytes = storage_bytes(grads)
        del grads
        self.optimizer.step()
        self.tracker.enter("zero")
        self.optimizer.zero_grad(set_to_none=self.case.set_to_none)
        self.tracker.note()

    def inference(self, progress: Progress) -> dict[str, Any]:
        """Run one forward without gradients."""
        progress("forward", 0.3)
        self.tracker.forget_peaks()
        self.tracker.enter("fwd")
        before, self.tracker.flops = self.tracker.live_bytes, 0
        with torch.no_grad(), self.autocast():
            loss = self.built.loss()
        self.forward_flops = self.tracker.flops
        self.activation_bytes = self.tracker.live_bytes - before
        del loss
        self.tracker.note()
        return self.answer()

    def autocast(self) -> AbstractContextManager[Any]:
        """Return mixed precision, with its cache of 16-bit weights."""
        kind = AUTOCAST.get(self.case.precision)
        if kind is None:
            return nullcontext()
        return torch.autocast("cpu", kind)

    def buckets(self) -> list[torch.Tensor]:
        """Make the buckets into which DistributedDataParallel copies gradients before
        it sends them.
        """
        made = []
        if self.case.ranks > 1:
            for kind in sorted({one.dtype for one in self.trained}, key=str):
                count = sum(one.numel() for one in self.trained if one.dtype == kind)
                made.append(phantom.dense((count,), kind))
                self.tracker.count_storage(made[-1])
        return made

    def answer(self) -> dict[str, Any]:
        """Return the numbers."""
        states = self.optimizer.state.values() if self.optimizer else ()
        kept = [one for state in states for one in state.values() if _is_tensor(one)]
        phases = self.tracker.phase_peak_bytes
        return {
            "peak_bytes": max(phases.values()),
            "param_bytes": storage_bytes(self.built.model.parameters()),
            "grad_bytes": self.grad_bytes,
            "opt_state_bytes": storage_bytes(kept),
            "activation_bytes": self.activation_bytes,
            "forward_flops": self.forward_flops,
            "phase_peak_bytes": {one: phases[one] for one in PHASES if one in phases},
        }


def _part(progress: Progress, start: float, length: float) -> Progress:
    """Return progress of a part as progress of the whole."""
    return lambda what, share: progress(what, start + length * share)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _functions(case: Case, tracker: Tracker) -> AbstractContextManager[Any]:
    if case.accelerator == "cpu":
        return nullcontext()
    return on_a_gpu(tracker, case.attention)


@contextmanager
def _world(case: Case, tracker: Tracker) -> Iterator[None]:
    """Set the environment of the model's code, and restore it afterwards."""
    with ExitStack() as changes:
        state = torch.get_rng_state

        def counted() -> torch.Tensor:
            # Checkpoints keep the generator's state, which no operator makes.
            made = state()
            tracker.count_storage(made)
            return made

        changes.enter_context(patch.object(torch, "get_rng_state", counted))
        if case.traced:
            from transformers import masking_utils

            changes.enter_context(
                patch.object(masking_utils, "is_tracing", lambda *_a, **_n: True)
            )
        yield
