"""Start one of the recipes that train through torchrun.

    python -m placement.agent.runtime.recipe_launch RECIPE <processes> '<settings>'
    [plan.json]

With a plan.json the workers follow it. This runs like ``torchrun --standalone
--nproc-per-node N`` with two differences: a SIGTERM, which torchrun passes on to the
workers, ends it without a traceback, and one line names the rank that failed. In a Job
over several nodes it runs on each node for the ranks there. The environment gives the
address of the rendezvous. The files of recipes that train a Hugging Face model are
checked before.

A rank that is alone starts without torchrun, which would import torch a second time: it
begins two seconds earlier, and the Job takes 200 MB less of the node's memory.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from placement.agent.runtime.fine_tune_inputs import check_inputs
from placement.agent.runtime.images.image_folder import check_image_inputs
from placement.planner.launch.recipes import (
    FINE_TUNE,
    FINE_TUNE_IMAGES,
    OF_PRETRAINED,
    OWN_MODEL,
    PRE_TRAIN,
    TINY_TRANSFORMER,
)
from placement.planner.values.errors import LaunchInvalid
from placement.protocol.job_parts import ending
from placement.protocol.launchers import MEETING_SECONDS

WORKERS = {
    TINY_TRANSFORMER.name: "plan_worker",
    OWN_MODEL.name: "own_worker",
    FINE_TUNE.name: "fine_tune_worker",
    FINE_TUNE_IMAGES.name: "images.image_worker",
    PRE_TRAIN.name: "pre_train_worker",
}
"""Recipe -> its worker's module in this folder."""
FAILED = 1
CANNOT_RUN = 2
ALONE = {
    **dict.fromkeys(("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK"), "0"),
    **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), "1"),
    "MASTER_ADDR": "127.0.0.1",
    # Any free one: no other rank looks for it.
    "MASTER_PORT": "0",
}
"""torchrun's variables, for a rank that is alone."""
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""The signals that torchrun passes on to its workers."""


def torchrun_rendezvous(environ: Mapping[str, str]) -> list[str]:
    """Return torchrun's options for this node: alone, or one of several."""
    if "GPUPORTAL_NODE_RANK" not in environ:
        return ["--standalone"]
    return [
        *("--nnodes", environ["GPUPORTAL_NODE_COUNT"]),
        *("--node-rank", environ["GPUPORTAL_NODE_RANK"]),
        *("--rdzv-backend", "static"),
        *("--rdzv-id", environ["PET_RDZV_ID"]),
        *("--rdzv-conf", f"timeout={MEETING_SECONDS}"),
        *("--master-addr", environ["GPUPORTAL_MEETING_ADDRESS"]),
        *("--master-port", environ["GPUPORTAL_MEETING_PORT"]),
    ]


def _check(recipe: str, settings: Mapping[str, Any]) -> None:
    """Check the files that a recipe reads. Raises LaunchInvalid."""
    if recipe == FINE_TUNE_IMAGES.name:
        check_image_inputs(settings, os.environ)
    else:
        reads_weights = recipe == FINE_TUNE.name
        check_inputs(settings, os.environ, reads_weights=reads_weights)


def main(argv: list[str]) -> int:
    """Run the workers. 0: they ended normally or by a requested stop."""
    recipe, processes, settings, plan = argv[1], argv[2], argv[3], argv[4:]
    worker = [f"placement.agent.runtime.{WORKERS[recipe]}", settings, *plan]
    if recipe in OF_PRETRAINED:
        try:
            _check(recipe, json.loads(settings))
        except LaunchInvalid as error:
            for field, problem in error.fields.items():
                print(f"{recipe} cannot start: {field}: {problem}", flush=True)
            return CANNOT_RUN
    # torch takes seconds to import, so the log gets a line before.
    print(f"{recipe}: starting {processes} process(es)", flush=True)
    if processes == "1" and "GPUPORTAL_NODE_RANK" not in os.environ:
        return run_alone(worker)
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        run.main(
            [
                *torchrun_rendezvous(os.environ),
                "--nproc-per-node",
                processes,
                "-m",
                *worker,
            ]
        )
    except SignalException as ended:
        print(f"ended by signal {int(ended.sigval)}", flush=True)
    except ChildFailedError as failed:
        rank, first = failed.get_first_failure()
        return _failed(rank, first.exitcode)
    return 0


def run_alone(worker: Sequence[str]) -> int:
    """Run one worker that has no peers. 0: it ended normally or by a signal to this
    process.
    """
    came: list[int] = []
    process: subprocess.Popen[bytes] | None = None

    def pass_on(number: int, _frame: object) -> None:
        came.append(number)
        if process is not None:
            process.send_signal(number)

    for number in PASSED_ON:
        signal.signal(number, pass_on)
    # The interpreter that torchrun would take.
    python = os.environ.get("PYTHON_EXEC", sys.executable)
    process = subprocess.Popen([python, "-u", "-m", *worker], env=os.environ | ALONE)
    if came:
        process.send_signal(came[0])
    exit_code = process.wait()
    if came:
        print(f"ended by signal {came[0]}", flush=True)
        return 0
    return _failed(0, exit_code) if exit_code else 0


def _failed(rank: int, exit_code: int) -> int:
    print(f"gpuportal: rank {rank} {ending(exit_code)}", flush=True)
    return FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv))
