"""Call the user's `module:callable` and describe the model that it returns.

    python -m placement.planner.sandbox.entry_build MODULE:CALLABLE [NAME]

This runs the user's code. It is allowed in a Job's sandbox or when an operator starts
it, and it refuses to run in the web process. The callable takes no arguments and
returns a torch module. It is called with meta as the default device, so nothing is
allocated. The output is that of placement.planner.sandbox.model_file_reader: one line
of JSON on standard output (the code's own output goes to standard error), exit 0 with a
ModelSpec, exit 2 with a problem.

Limits are those of the Job around it. This process sets only processor time and the
size of written files, because the code may need data, libraries and processes.
"""

import importlib
import resource
import sys
from pathlib import Path
from typing import Any

from placement.planner.model.spec import ModelSpec
from placement.planner.sandbox.jail import (
    EXIT_REFUSED,
    OUTPUT_MAX_BYTES,
    own_output,
    problem,
    say,
)
from placement.planner.values.entry_point import EntryPoint
from placement.planner.values.errors import BadInput, FileRefused, SpecInvalid

CPU_SECONDS = 300


def main(arguments: list[str]) -> int:
    """Call one entry point and print the answer. Return 0 or EXIT_REFUSED."""
    answers = own_output()
    try:
        if len(arguments) not in (1, 2):
            raise FileRefused("usage", "entry", "MODULE:CALLABLE [NAME]")
        entry = EntryPoint.read(arguments[0])
        name = arguments[1] if len(arguments) == 2 else entry.callable
        return say(answers, spec_of_entry(entry, name[:120]).to_json(), 0)
    except BadInput as error:
        told = problem(error.code, error.field, error.detail)
    return say(answers, told, EXIT_REFUSED)


def spec_of_entry(entry: EntryPoint, name: str) -> ModelSpec:
    """Return the ModelSpec of the module that an entry point returns. Runs its code.

    Raises FileRefused in a process with Django, SpecInvalid for a failed call.
    """
    module = built(entry)
    from placement.planner.sandbox.meta_model import spec_of_module

    note = (
        f"{entry} was called with meta tensors: parameters exact, activations a guess"
    )
    return spec_of_module(module, name=name, source="entry", notes=[note])


def built(entry: EntryPoint) -> Any:
    """Return the entry point's result, on meta. Runs its code. Raises as
    spec_of_entry.
    """
    if "django" in sys.modules:
        detail = "runs a user's code. Start it as a job, or as the admin in a shell"
        raise FileRefused("not-here", "entry", detail)
    import torch

    torch.set_num_threads(1)
    try:
        found: Any = importlib.import_module(entry.module)
        for piece in entry.callable.split("."):
            found = getattr(found, piece)
    except (ImportError, AttributeError) as error:
        raise SpecInvalid({"entry": f"is not there: {error}"[:300]}) from error
    if not callable(found):
        raise SpecInvalid({"entry": f"is a {type(found).__name__}, not a callable"})
    try:
        with torch.device("meta"):
            return found()
    except Exception as error:
        text = f"failed: {type(error).__name__}: {' '.join(str(error).split())}"
        raise SpecInvalid({"entry": text[:300]}) from error


def _limit() -> None:
    for which, bound in (
        (resource.RLIMIT_CPU, CPU_SECONDS),
        (resource.RLIMIT_FSIZE, OUTPUT_MAX_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(which)
        ceiling = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        resource.setrlimit(which, (ceiling, ceiling))


if __name__ == "__main__":
    _limit()
    sys.path.insert(0, str(Path.cwd()))
    sys.exit(main(sys.argv[1:]))
