"""Follow cases in a separate process: `python -m placement.planner.symbolic.child`.

Reads one JSON object from standard input: {"cases": [...], "address_bytes",
"cpu_seconds", "path"}. Writes one line of JSON per event: {"import_seconds"} first,
{"at", "what", "share"} during a case, and {"at", "answer"} or {"at", "problem"} per
case.

The limits are set before a case is read: address space, processor time, no new
processes, no sockets (placement.planner.sandbox.jail). The output of a model's own code
goes to standard error. `path` is put in front of the module path for entry points,
which run a user's code. So only that user may start this process.
"""

import atexit
import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import IO, Any

EXIT_BAD_REQUEST = 2
EXIT_NO_TORCH = 3


def main() -> int:
    """Answer every case. Return 0, or one of the exit codes above."""
    events = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        asked = json.load(sys.stdin)
        cases = asked["cases"]
    except (ValueError, KeyError, TypeError):
        return EXIT_BAD_REQUEST
    began = time.process_time()
    # Imported objects stay alive, so a collection during the imports finds little.
    gc.disable()
    try:
        import torch
        import transformers  # noqa: F401  (before the limits: it reads many files)

        from placement.planner.sandbox import transformers_build  # noqa: F401
        from placement.planner.symbolic.training_step import follow_step  # noqa: F401
    except ImportError:
        return EXIT_NO_TORCH
    from placement.planner.sandbox.jail import end_at_sockets, limit

    torch.set_num_threads(1)
    tell(events, import_seconds=round(time.process_time() - began, 3))
    limit(
        address_bytes=asked["address_bytes"],
        cpu_seconds=int(time.process_time()) + asked["cpu_seconds"],
        files=None,
    )
    end_at_sockets()
    skip_in_collections()
    gc.enable()
    # Otherwise the interpreter looks at every object when it ends, which takes CPU.
    atexit.register(gc.freeze)
    if asked.get("path"):
        sys.path.insert(0, str(Path(asked["path"])))
    for place, case in enumerate(cases):
        tell(events, at=place, **one(case, events, place))
        # The case has imported more.
        skip_in_collections()
    return 0


def skip_in_collections() -> None:
    """Free what nobody uses. Later collections skip what is left.

    That is the million objects of the libraries, which stay.
    """
    gc.collect()
    gc.freeze()


def one(data: dict[str, Any], events: IO[str], place: int) -> dict[str, Any]:
    """Return {"answer"} or {"problem": {code, field, detail}} of one case."""
    from placement.planner.symbolic.case import Case
    from placement.planner.symbolic.shapes import Unsupported
    from placement.planner.symbolic.training_step import follow_step
    from placement.planner.values.errors import BadInput

    def progress(what: str, share: float) -> None:
        tell(events, at=place, what=what, share=round(share, 3))

    try:
        return {"answer": follow_step(Case.from_json(data), progress)}
    except BadInput as error:
        return problem(error.code, error.field, error.detail)
    except Unsupported as error:
        return problem("unsupported", error.name, error.why)
    except MemoryError:
        return problem("too-large", "model", "following it needs too much memory")
    except RecursionError:
        return problem("too-deep", "model", "its code calls itself too deep")
    except Exception as error:
        # The model's own code. The user reads every error that it raises.
        text = " ".join(str(error).split())
        return problem("failed", "model", f"{type(error).__name__}: {text}")


def problem(code: str, field: str, detail: str) -> dict[str, Any]:
    """Return a problem as data, cut to a length that a page can show."""
    return {"problem": {"code": code, "field": field[:120], "detail": detail[:400]}}


def tell(events: IO[str], **event: Any) -> None:
    """Write one event."""
    events.write(json.dumps(event) + "\n")
    events.flush()


if __name__ == "__main__":
    sys.exit(main())
