"""``estimate``: the bytes that a model needs, in closed form or symbolically.

SOURCE is a well-known name, a config.json, .safetensors or ONNX file, or
module:callable (runs that code, in a child process). ``--spec FILE`` answers the memory
reference cases instead.
"""

import argparse
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from placement.planner.cli.cli_command import CliCommand
from placement.planner.cli.estimate_table import estimate_table
from placement.planner.cli.json_input import json_from
from placement.planner.cli.workload_options import add_workload_options, workload_of
from placement.planner.memory.estimate import estimate, interval
from placement.planner.model.sharding import Sharding
from placement.planner.model.well_known import as_published
from placement.planner.reference.memory_cases import closed_case
from placement.planner.sandbox.model_source import Source, find
from placement.planner.symbolic.case import Case, of_workload, partial_input, read_case
from placement.planner.symbolic.child_process import SymbolicFailed, run
from placement.planner.symbolic.torch_check import torch_installed
from placement.planner.values.errors import BadInput, SpecInvalid
from placement.planner.values.strategies import (
    DDP,
    RANK_STRATEGIES,
    SINGLE,
    STRATEGIES,
    Axis,
)
from placement.planner.values.workload import Workload
from telemetry.protocol.coded_error import CodedError

MOST_CASES = 10_000
METHODS = ("closed", "symbolic")


def add_estimate_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "source",
        nargs="?",
        help="well-known name, config.json, .safetensors, .onnx, module:callable",
    )
    parser.add_argument(
        "--spec", metavar="FILE", help="reference cases as JSON; - reads stdin"
    )
    parser.add_argument(
        "--method",
        choices=METHODS,
        help="closed: formulas; symbolic: follow one step through the model's code",
    )
    parser.add_argument("--json", action="store_true", help="answer in JSON")
    add_workload_options(parser)
    parser.add_argument(
        "--strategy",
        choices=RANK_STRATEGIES,
        default=SINGLE.key,
        metavar="WORD",
        help=f"one of {', '.join(RANK_STRATEGIES)} (default: %(default)s)",
    )
    parser.add_argument(
        "--ranks", type=int, default=1, metavar="N", help="GPUs that share the work"
    )
    parser.add_argument(
        "--input",
        default="{}",
        metavar="JSON",
        help="with --method symbolic: the batch, such as "
        '{"kind": "cls_img", "size": 224}',
    )


def estimate_answer(options: Mapping[str, Any]) -> str:
    """Return one estimate as a table or JSON; with --spec, one object per case.

    Raises:
        BadInput: by field.
        SymbolicFailed: the child process returned no answer.
    """
    if bool(options["spec"]) == bool(options["source"]):
        raise BadInput({"source": "give a SOURCE or --spec FILE"})
    if options["spec"]:
        found = answers(json_from(options["spec"], "spec"), options["method"])
        return json.dumps(found, indent=None if options["json"] else 1)
    answer = one(options)
    if options["json"]:
        return json.dumps(answer)
    return estimate_table(options["source"], answer)


# --- one model ----------------------------------------------------------------------


def one(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer for a SOURCE, with the interval of the bytes on the card.

    Raises:
        BadInput: by field.
        SymbolicFailed: the child process returned no answer.
    """
    workload = workload_of(options)
    source = find(options["source"])
    if options["method"] == "symbolic":
        answer = _symbolic(source, workload, options)
    else:
        answer = _closed(source, workload, options)
    low, likely, high = interval(answer["peak_bytes"], workload)
    return {**answer, "low_bytes": low, "likely_bytes": likely, "high_bytes": high}


def sharding_of(options: Mapping[str, Any]) -> Sharding:
    """Return the Sharding of --strategy and --ranks. Raises WorkloadInvalid."""
    strategy, ranks = options["strategy"], options["ranks"]
    known = STRATEGIES[strategy]
    if known.axis is Axis.NONE and ranks != 1:
        raise BadInput({"ranks": "more than one needs a --strategy"})
    if known.has_stages:
        detail = f"the ranks of {strategy} differ: `plan` estimates each of them"
        raise BadInput({"strategy": detail})
    degree = "tensor_degree" if known.axis is Axis.TENSOR else "data_degree"
    degrees: dict[str, Any] = {degree: ranks}
    # torch's default: gradients are copied into buckets and are not views of them.
    return Sharding(strategy=strategy, bucket_view=strategy != DDP.key, **degrees)


def _closed(
    source: Source, workload: Workload, options: Mapping[str, Any]
) -> dict[str, Any]:
    spec = as_published(source.closed_spec(), trains=workload.trains)
    began = time.process_time()
    made = estimate(spec, workload, sharding_of(options))
    return {
        "peak_bytes": made.peak_bytes,
        "param_bytes": made.parameter_bytes,
        "grad_bytes": made.gradient_bytes,
        "opt_state_bytes": made.optimizer_bytes,
        "activation_bytes": sum(layer.activation_bytes for layer in made.layers),
        "phase_peak_bytes": made.phase_bytes,
        "method": "closed",
        "seconds": round(time.process_time() - began, 6),
        "components": made.components,
        "notes": list(made.notes),
    }


def _symbolic(
    source: Source, workload: Workload, options: Mapping[str, Any]
) -> dict[str, Any]:
    if source.model is None:
        detail = (
            "sizes without code cannot be followed: --method closed, or config.json"
        )
        raise SpecInvalid({"method": detail})
    if not STRATEGIES[options["strategy"]].keeps_state_whole:
        raise BadInput({"strategy": "only single and ddp are followed symbolically"})
    sharding_of(options)
    try:
        given = partial_input(json.loads(options["input"]))
    except ValueError as error:
        raise BadInput({"input": f"is not JSON: {error}"}) from error
    case = of_workload(source.model, given, workload, replicas=options["ranks"])
    return _one_answer(run([case], path=str(Path.cwd())).answers[0])


def _one_answer(answer: dict[str, Any] | CodedError) -> dict[str, Any]:
    if isinstance(answer, CodedError):
        raise answer
    return answer


# --- the reference cases --------------------------------------------------------------


def answers(data: object, method: str | None) -> Any:
    """Return the answer for one spec object, or a list for several, each with its id.

    Raises:
        BadInput: names the case and the field.
        SymbolicFailed: the child process returned no answer.
    """
    alone, specs = specs_of(data)
    chosen = method or ("symbolic" if torch_installed() else "closed")
    names = [
        str(spec.get("id", place)) if isinstance(spec, Mapping) else str(place)
        for place, spec in enumerate(specs)
    ]
    if chosen == "closed":
        found = [
            _named(names[place], lambda s=spec: closed_case(s, time.process_time))
            for place, spec in enumerate(specs)
        ]
    else:
        cases: list[Case] = [
            _named(names[place], lambda s=spec: read_case(s))
            for place, spec in enumerate(specs)
        ]
        if was_traced(data):
            cases = [replace(case, traced=True) for case in cases]
        told = run(cases).answers if cases else []
        found = [
            _named(name, lambda a=answer: _one_answer(a))
            for name, answer in zip(names, told, strict=True)
        ]
    if alone:
        return found[0]
    return [{"id": name, **answer} for name, answer in zip(names, found, strict=True)]


def specs_of(data: object) -> tuple[bool, list[Any]]:
    """Return whether a file has a single spec, and its spec objects. Raises
    BadInput.
    """
    if isinstance(data, Mapping) and data.get("cases") is None:
        return True, [_spec_in(data)]
    cases = data["cases"] if isinstance(data, Mapping) else data
    if not isinstance(cases, list):
        raise BadInput({"cases": "must be a list"})
    if len(cases) > MOST_CASES:
        raise BadInput({"cases": f"{len(cases):,}; at most {MOST_CASES:,}"})
    return False, [_spec_in(case) for case in cases]


def was_traced(data: object) -> bool:
    """Return whether a file of cases states that its steps were traced, not run.

    Under FakeTensorMode transformers makes masks that it does not make otherwise
    (masking_utils.is_tracing), so such steps are followed as traced.
    """
    meta = data.get("meta") if isinstance(data, Mapping) else None
    truth = meta.get("truth") if isinstance(meta, Mapping) else None
    return isinstance(truth, str) and truth.startswith("FakeTensorMode")


def _spec_in(case: Any) -> Any:
    return case["spec"] if isinstance(case, Mapping) and "spec" in case else case


def _named(name: str, make: Any) -> Any:
    try:
        return make()
    except BadInput as error:
        problems = {f"case {name}: {key}": why for key, why in error.fields.items()}
        raise BadInput(problems) from error
    except SymbolicFailed as error:
        raise SymbolicFailed(error.code, f"case {name}: {error.detail}") from error


ESTIMATE = CliCommand(
    "estimate",
    "Estimate the memory of training or running a model on one rank.",
    add_estimate_options,
    estimate_answer,
)
