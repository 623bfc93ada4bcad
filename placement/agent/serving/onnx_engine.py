"""ONNX Runtime: load a file, run it, measure it. One thread calls this, serially.

No library of custom operators is ever registered. Weights in other files are in folders
of the node, under names that were checked before the model was downloaded.
"""

import gc
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as _runtime

from placement.agent.serving.model_limits import RunNote, TimeLimits
from placement.agent.serving.tensors import DATATYPES, OF_ONNX
from placement.planner.values.tensor_signature import Tensor

WARM_RUNS = 2
PROFILE_RUNS = 20
FEWEST_RUNS = 5
PROFILE_SECONDS = 0.4
"""For one batch size. Slow models are measured with fewer runs."""
UNPROFILED_SECONDS = 0.1
FREE_SIZE = 8
"""Size of free dimensions besides the batch, when a model is measured."""
RUNTIME_ERRORS: tuple[type[Exception], ...] = (
    *(RuntimeError, ValueError, TypeError, MemoryError),
    *(
        kind
        for kind in vars(_runtime).values()
        if isinstance(kind, type) and issubclass(kind, Exception)
    ),
)
"""Errors of ONNX Runtime: its own classes have no common base except Exception."""


class EngineError(Exception):
    """The model cannot be loaded or run, in words for its page."""


class ModelOverLimit(EngineError):
    """The model takes more time or memory than allowed, so it is not served."""


@dataclass(slots=True)
class LoadedModel:
    """A model that can run."""

    session: Any
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    sizes: dict[str, tuple[str, ...]]
    """Input -> its dimensions as the model names them."""
    batches: bool = False
    """Whether its rows are independent, so that requests may share a run."""
    note: str = ""
    path: str = ""
    """Its file."""
    run_seconds: float = TimeLimits.run
    """The time limit of one run for requests."""


class Engine:
    """Creates sessions with the best available provider."""

    def __init__(
        self,
        *,
        cuda: bool,
        threads: int,
        room_bytes: int,
        limits: TimeLimits | None = None,
        note: RunNote | None = None,
    ) -> None:
        """``note``: read by the parent process. None without a parent."""
        self.limits, self.note = limits or TimeLimits(), note or RunNote()
        self._running: tuple[float, Any] | None = None
        """Deadline (monotonic) and options of the present run."""
        there = ort.get_available_providers()
        self.providers: list[Any] = ["CPUExecutionProvider"]
        if cuda and "CUDAExecutionProvider" in there:
            options = {"gpu_mem_limit": str(room_bytes), "device_id": "0"}
            self.providers.insert(0, ("CUDAExecutionProvider", options))
        self.threads = threads

    @property
    def provider(self) -> str:
        """Return the provider: cuda or cpu."""
        return "cuda" if len(self.providers) > 1 else "cpu"

    def load(self, path: Path) -> LoadedModel:
        """Load one file. Raises EngineError.

        Only the parent process can end a load, by its deadline in the note.
        """
        options = ort.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        try:
            with self.note.during(str(path), self.limits.load):
                session = ort.InferenceSession(
                    str(path), sess_options=options, providers=self.providers
                )
            inputs = tuple(_info(one) for one in session.get_inputs())
            outputs = tuple(_info(one) for one in session.get_outputs())
        except RUNTIME_ERRORS as error:
            raise EngineError(_error_line(error)) from None
        named = {
            one.name: tuple(str(size) for size in one.shape)
            for one in session.get_inputs()
        }
        return LoadedModel(
            session,
            inputs,
            outputs,
            named,
            path=str(path),
            run_seconds=self.limits.run,
        )

    def run(
        self,
        model: LoadedModel,
        feeds: Mapping[str, Any],
        *,
        seconds: float | None = None,
    ) -> dict[str, Any]:
        """Run one inference, ended if it takes too long.

        Args:
            model: the model to run.
            feeds: its inputs.
            seconds: its time limit. None: the model's.

        Raises:
            ModelOverLimit: it took longer.
            EngineError: it failed.
        """
        names = [one.name for one in model.outputs]
        within = model.run_seconds if seconds is None else seconds
        options = ort.RunOptions()
        try:
            with self.note.during(model.path, within) as until:
                self._running = (until, options)
                found = model.session.run(names, dict(feeds), options)
            return dict(zip(names, found, strict=True))
        except RUNTIME_ERRORS as error:
            if options.terminate:
                raise ModelOverLimit(f"one run took longer than {within:g} s") from None
            raise EngineError(_error_line(error)) from None
        finally:
            self._running = None

    def end_overdue(self) -> None:
        """End a run that exceeds its deadline. Called by another thread."""
        running = self._running
        if running is not None and time.monotonic() > running[0]:
            running[1].terminate = True

    def unload(self, model: LoadedModel) -> None:
        """Free its memory."""
        model.session = None
        gc.collect()

    def measure(
        self, model: LoadedModel, most_batch: int, clock: Callable[[], float]
    ) -> dict[int, list[float]]:
        """Return seconds of single runs by batch size. Sets ``batches`` and ``note``.

        A model that cannot run on random inputs counts as taking 0.1 s until real ones
        are measured.

        Raises:
            ModelOverLimit: it takes more time or memory than allowed.
        """
        free = _free_batch(model)
        self._tries_end = time.monotonic() + self.limits.tries
        try:
            if free and most_batch > 1:
                model.batches, model.note = self._rows_apart(model)
            elif most_batch > 1:
                model.note = "its batch size is fixed, so each request runs alone"
            size, profile = 1, {}
            while size <= (most_batch if model.batches else 1):
                profile[size] = self._runs(model, random_inputs(model, size), clock)
                size *= 2
            slowest = max(max(seconds) for seconds in profile.values())
            model.run_seconds = max(self.limits.run, self.limits.slowest * slowest)
        except ModelOverLimit:
            raise
        except EngineError as error:
            if _of_memory(error):
                raise ModelOverLimit(
                    f"it needs more memory than it may take: {error}"
                ) from None
            model.batches = False
            model.note = f"not measured: it does not run on made-up inputs ({error})"
            return {1: [UNPROFILED_SECONDS]}
        return profile

    def _runs(
        self, model: LoadedModel, feeds: Mapping[str, Any], clock: Callable[[], float]
    ) -> list[float]:
        for _ in range(WARM_RUNS):
            self._try(model, feeds)
        found: list[float] = []
        end = clock() + PROFILE_SECONDS
        while len(found) < PROFILE_RUNS:
            if len(found) >= FEWEST_RUNS and clock() > end:
                break
            begun = clock()
            self._try(model, feeds)
            found.append(clock() - begun)
        return found

    def _try(self, model: LoadedModel, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Run once on random inputs. Raises EngineError."""
        left = self._tries_end - time.monotonic()
        if left <= 0:
            raise ModelOverLimit(f"trying it took longer than {self.limits.tries:g} s")
        return self.run(model, feeds, seconds=min(left, self.limits.try_run))

    def _rows_apart(self, model: LoadedModel) -> tuple[bool, str]:
        """Whether two rows in one run give the same results as alone."""
        first, second = random_inputs(model, 1, seed=1), random_inputs(model, 1, seed=2)
        both = {name: np.concatenate([first[name], second[name]]) for name in first}
        alone = [self._try(model, one) for one in (first, second)]
        together = self._try(model, both)
        for name, value in together.items():
            apart = [np.asarray(one[name]) for one in alone]
            fits = all(one.ndim and one.shape[0] == 1 for one in apart)
            if not fits or np.asarray(value).shape[0] != 2:
                return False, f"{name} has not one row for each of the input's"
            if not _close(np.asarray(value), np.concatenate(apart)):
                return False, "a row's answer depends on the others in its batch"
        return True, ""


def random_inputs(model: LoadedModel, rows: int, seed: int = 0) -> dict[str, Any]:
    """Return inputs of the right form: noise, small integers, empty texts."""
    noise = np.random.default_rng(seed)
    found = {}
    for one in model.inputs:
        shape = [FREE_SIZE if size == -1 else size for size in one.shape]
        if one.shape and one.shape[0] == -1:
            shape[0] = rows
        if one.datatype == "BYTES":
            found[one.name] = np.full(shape, "", dtype=np.object_)
        elif one.datatype.startswith("FP"):
            floats = noise.standard_normal(shape)
            found[one.name] = floats.astype(DATATYPES[one.datatype])
        else:
            found[one.name] = noise.integers(0, 2, shape).astype(
                DATATYPES[one.datatype]
            )
    return found


def _free_batch(model: LoadedModel) -> bool:
    """Whether the first dimension is free everywhere, and is the same one."""
    everywhere = (*model.inputs, *model.outputs)
    first = {sizes[0] if sizes else "" for sizes in model.sizes.values()}
    return (
        all(one.shape and one.shape[0] == -1 for one in everywhere) and len(first) == 1
    )


def _info(said: Any) -> Tensor:
    """Return an input or output in the protocol's words. Raises EngineError."""
    if said.type not in OF_ONNX:
        raise EngineError(f"{said.name} is a {said.type}, which cannot be sent")
    shape = tuple(size if isinstance(size, int) else -1 for size in said.shape)
    return Tensor(said.name, OF_ONNX[said.type], shape)


def _close(one: np.ndarray, other: np.ndarray) -> bool:
    if one.shape != other.shape:
        return False
    if one.dtype.kind == "f":
        return bool(np.allclose(one, other, rtol=1e-3, atol=1e-4, equal_nan=True))
    return bool(np.array_equal(one, other))


def _of_memory(error: BaseException) -> bool:
    """Whether a run failed for lack of memory. ONNX Runtime only has a message."""
    return bool(re.search("failed to allocate|bad_alloc|MemoryError", f"{error}", re.I))


def _error_line(error: BaseException) -> str:
    """Return the runtime's message on one line, without paths of this machine."""
    text = " ".join(str(error).split())
    return "".join(c for c in text if c.isprintable())[:300] or type(error).__name__


def monotonic() -> float:
    """Return the clock of all measurements here, in seconds."""
    return time.perf_counter()
