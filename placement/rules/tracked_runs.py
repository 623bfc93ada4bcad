"""Find the runs that tools for tracking experiments have written into results."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

TENSORBOARD = "TensorBoard"
WANDB = "Weights & Biases"
MLFLOW = "MLflow"
_EVENTS = "events.out.tfevents."
_WANDB_RUNS = ("offline-run-", "run-")
_WANDB_SUFFIX = ".wandb"
_MLFLOW_META = "meta.yaml"
_MLFLOW_RUN_DEPTH = 3
"""STORE/EXPERIMENT/RUN/meta.yaml."""


@dataclass(frozen=True, order=True)
class TrackedRuns:
    """The runs of one tool in one folder of a Job's results."""

    tool: str
    folder: str
    """Inside the results folder; "." is that folder."""
    runs: int
    command: str
    """What shows them, in the folder that has been downloaded."""


def event_files(paths: Iterable[str]) -> list[str]:
    """Return the paths of TensorBoard's event files, in the order of their writing.

    >>> event_files(["a/events.out.tfevents.2.host", "x.txt"])
    ['a/events.out.tfevents.2.host']
    """
    return sorted(path for path in paths if _name(path).startswith(_EVENTS))


def tracked_runs(paths: Sequence[str]) -> list[TrackedRuns]:
    """Return the runs of TensorBoard, wandb and MLflow among a Job's results.

    >>> [one.command for one in tracked_runs(["wandb/offline-run-1-a/run-a.wandb"])]
    ['wandb sync wandb/offline-run-1-a']
    """
    found = []
    logs = {_folder(path) for path in event_files(paths)}
    if logs:
        top = _common(logs)
        command = f"tensorboard --logdir {shlex.quote(top)}"
        found.append(TrackedRuns(TENSORBOARD, top, len(logs), command))
    for path in paths:
        folder = _folder(path)
        is_run = _name(folder).startswith(_WANDB_RUNS)
        if is_run and path.endswith(_WANDB_SUFFIX):
            command = f"wandb sync {shlex.quote(folder)}"
            found.append(TrackedRuns(WANDB, folder, 1, command))
    stores: dict[str, int] = {}
    for path in paths:
        parts = PurePosixPath(path).parts
        # Experiments have such a file too, one folder higher. Their numbers are digits.
        if parts[-1] == _MLFLOW_META and len(parts) > _MLFLOW_RUN_DEPTH - 1:
            experiment, run = parts[-3], parts[-2]
            if experiment.isdigit() and not run.isdigit():
                store = "/".join(parts[:-3]) or "."
                stores[store] = stores.get(store, 0) + 1
    for store, count in stores.items():
        command = f"mlflow ui --backend-store-uri {shlex.quote(store)}"
        found.append(TrackedRuns(MLFLOW, store, count, command))
    return sorted(found)


def run_names(folders: Iterable[str]) -> dict[str, str]:
    """Return the name of the run in each folder; "": there is only one.

    >>> run_names(["logs/train", "logs/eval"])
    {'logs/eval': 'eval', 'logs/train': 'train'}
    """
    known = sorted(set(folders))
    if len(known) == 1:
        return {known[0]: ""}
    top = PurePosixPath(_common(known))
    return {one: str(PurePosixPath(one).relative_to(top)) for one in known}


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _folder(path: str) -> str:
    return path.rpartition("/")[0] or "."


def _common(folders: Iterable[str]) -> str:
    """Return the innermost folder that has all of some folders."""
    rows = [[] if one == "." else one.split("/") for one in folders]
    shared = []
    for parts in zip(*rows, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return "/".join(shared) or "."
