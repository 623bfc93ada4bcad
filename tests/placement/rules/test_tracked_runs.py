"""Runs that TensorBoard, wandb and MLflow have written are found by their paths."""

import pytest

from placement.rules.tracked_runs import TrackedRuns, run_names, tracked_runs

pytestmark = pytest.mark.pure
EVENTS = "events.out.tfevents.1795.host.1.0"


def test_runs_of_all_tools_are_found_with_the_command_that_shows_them():
    paths = [
        "model/model.safetensors",
        f"my logs/train/{EVENTS}",
        f"my logs/eval/{EVENTS}",
        "wandb/offline-run-20261128_101010-ab12/files/config.yaml",
        "wandb/offline-run-20261128_101010-ab12/run-ab12.wandb",
        "wandb/run-ab12.wandb",
        "mlruns/0/meta.yaml",
        "mlruns/0/0a1b/meta.yaml",
        "mlruns/0/0a1b/metrics/loss",
        "mlruns/0/2c3d/meta.yaml",
        "mlruns/models/m-1/meta.yaml",
    ]
    assert tracked_runs(paths) == [
        TrackedRuns("MLflow", "mlruns", 2, "mlflow ui --backend-store-uri mlruns"),
        TrackedRuns("TensorBoard", "my logs", 2, "tensorboard --logdir 'my logs'"),
        TrackedRuns(
            "Weights & Biases",
            "wandb/offline-run-20261128_101010-ab12",
            1,
            "wandb sync wandb/offline-run-20261128_101010-ab12",
        ),
    ]
    assert tracked_runs([]) == [] and tracked_runs(["meta.yaml", "0/meta.yaml"]) == []


def test_files_in_the_results_folder_itself_have_its_name():
    (found,) = tracked_runs([EVENTS])
    assert (found.folder, found.command) == (".", "tensorboard --logdir .")
    (store,) = tracked_runs(["0/0a1b/meta.yaml"])
    assert (store.folder, store.runs) == (".", 1)
    assert run_names([".", "eval"]) == {".": ".", "eval": "eval"}
    assert run_names(["logs", "logs"]) == {"logs": ""}
