"""Start recipe ``tiny-transformer`` or ``own-model`` through torchrun.

    python -m placement.runtime.launch RECIPE <processes> '<settings>' [plan.json]

With a plan.json the workers do what it says. The same as ``torchrun --standalone
--nproc-per-node N``, but a SIGTERM, which torchrun passes on to the workers, ends it
quietly instead of with a traceback.
"""

import sys

OWN_MODEL = "own-model"


def main(argv: list[str]) -> int:
    """Run the workers; 0 when they ended well or were asked to end."""
    recipe, processes, settings, plan = argv[1], argv[2], argv[3], argv[4:]
    name = "own_worker" if recipe == OWN_MODEL else "plan_worker"
    worker = [f"placement.runtime.{name}", settings, *plan]
    # Torch takes seconds to import; the log should not be silent meanwhile.
    print(f"{recipe}: starting {processes} process(es)", flush=True)
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException

    try:
        run.main(
            [
                "--standalone",
                *("--nproc-per-node", processes),
                *("-m", *worker),
            ]
        )
    except SignalException as ended:
        print(f"ended by signal {int(ended.sigval)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
