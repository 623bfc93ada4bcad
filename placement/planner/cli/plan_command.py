"""``plan``: the ranked ways to run a model on GPUs, with reasons.

SOURCE is a well-known name, a config.json, .safetensors or ONNX file, or
module:callable (runs that code, in a child process). The form of the file of GPUs is in
``placement/planner/values/gpu_list.py``. If nothing fits, the answer names the GPU that
is too small and its missing bytes.
"""

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from placement.planner.cli.cli_command import CliCommand
from placement.planner.cli.json_input import json_from
from placement.planner.cli.workload_options import (
    add_workload_options,
    options_for_cards,
    workload_of,
)
from placement.planner.launch.files import launch_files
from placement.planner.model.spec import ModelSpec
from placement.planner.sandbox.model_source import find
from placement.planner.search import planner
from placement.planner.search.card_support import cards_of
from placement.planner.search.memory_savings import PlanLimits
from placement.planner.symbolic.followed_model import adapted_and_followed
from placement.planner.symbolic.torch_check import torch_installed
from placement.planner.values.errors import BadInput
from placement.planner.values.gpu_availability import GpuOffer
from placement.planner.values.gpu_list import offers_from_list
from placement.planner.values.objective import OBJECTIVES
from placement.planner.values.plan import PlanSet
from placement.planner.values.strategies import TITLES

MOST_GIB = 2**20
REMEDIES = {
    "no-fused": "fused_optimizer",
    "no-accumulation": "accumulation",
    "no-checkpointing": "checkpointing",
    "no-small-optimizer": "small_optimizer",
    "no-offload": "offload",
    "no-quantization": "quantization",
}


@dataclass(frozen=True)
class Question:
    """The arguments of the command, parsed and validated."""

    spec: ModelSpec
    options: Mapping[str, Any]
    limits: PlanLimits


def add_plan_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--gpus", required=True, metavar="FILE", help="JSON list of GPUs; - reads stdin"
    )
    add_common_options(parser)


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options that do not depend on the source of the GPUs."""
    parser.add_argument(
        "source",
        help="well-known name, config.json, .safetensors, .onnx, module:callable",
    )
    parser.add_argument("--wish", choices=OBJECTIVES, help="what to rank by")
    parser.add_argument("--max-gpus", type=int, metavar="N", help="use at most N GPUs")
    parser.add_argument(
        "--host-memory",
        type=float,
        metavar="GIB",
        help="free memory of each node for offloading; default: as the GPUs say "
        "(host_free_bytes), else unknown",
    )
    parser.add_argument(
        "--disk",
        type=float,
        metavar="GIB",
        help="free disk of each node for offloading (disk_free_bytes)",
    )
    parser.add_argument(
        "--strategy",
        action="append",
        choices=TITLES,
        metavar="WORD",
        help=f"only this strategy; can be repeated: {', '.join(TITLES)}",
    )
    parser.add_argument(
        "--lora",
        type=int,
        default=0,
        metavar="RANK",
        help="train LoRA adapters of this rank only",
    )
    parser.add_argument(
        "--lora-targets",
        nargs="+",
        default=(),
        metavar="NAME",
        help="linear layers that get an adapter (default: the usual ones)",
    )
    parser.add_argument(
        "--weights",
        choices=("full", "int8", "nf4"),
        help="bits of the frozen weights: unchanged, 8 or 4",
    )
    parser.add_argument(
        "--files",
        metavar="DIR",
        help="write the launch files of the first plan to this folder",
    )
    parser.add_argument("--json", action="store_true", help="answer in JSON")
    for name, field in REMEDIES.items():
        words = f"no plan with {field.replace('_', ' ')}"
        parser.add_argument(f"--{name}", action="store_true", help=words)
    add_workload_options(parser)


def plan_answer(options: Mapping[str, Any]) -> str:
    """Return the Plans for the GPUs of a file.

    Raises:
        CodedError: by field.
        OSError: the launch files cannot be written.
    """
    offers = with_host(offers_from_list(json_from(options["gpus"], "gpus")), options)
    question = question_of(options_for_cards(options, cards_of(offers)))
    return text_of(PlanAnswer(plans_for_file(question, offers)), question)


@dataclass(frozen=True)
class PlanAnswer:
    """Plans, and the start of the best one if the calendar was searched."""

    found: PlanSet
    start: str = ""
    end: str = ""
    earliest: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as a plain dict."""
        more = {"start": self.start, "end": self.end, "earliest": self.earliest}
        return {**self.found.to_json(), **(more if self.start else {})}

    def table(self) -> str:
        """Return all Plans, the rejected strategies, and the start as text."""
        lines = [self.found.table()]
        if self.start:
            lines.append(f"Planned for {self.start} to {self.end}.")
        if self.earliest is not None:
            gpus = ", ".join(self.earliest["gpus"])
            lines.append(
                f"Earliest start of the first: {self.earliest['start']}, {gpus}."
            )
        return "\n".join(lines)


def write_files(found: PlanSet, spec: ModelSpec, folder: str | None) -> list[str]:
    """Write the first Plan's launch files. Return the written and the missing ones.

    Raises:
        BadInput: there is no Plan, or the path is not a folder.
        OSError: the folder cannot be written.
    """
    if folder is None:
        return []
    if found.best is None:
        raise BadInput({"files": "nothing fits, so there is nothing to start"})
    where = Path(folder)
    if where.exists() and not where.is_dir():
        raise BadInput({"files": f"{folder[:200]} is not a folder"})
    where.mkdir(parents=True, exist_ok=True)
    made = launch_files(found.best, spec)
    said = []
    for file in made.files:
        path = where / file.name
        path.write_text(file.text, encoding="utf-8")
        how = f": {file.command}" if file.command else ""
        said.append(f"Wrote {path}{how}")
    said += [f"No {name}: {why}" for name, why in made.left_out.items()]
    return [*said, *made.notes]


def question_of(options: Mapping[str, Any]) -> Question:
    """Read the model and the limits.

    Raises:
        BadInput: by field.
    """
    source = find(options["source"])
    spec = adapted_and_followed(
        source.closed_spec(),
        source.model if torch_installed() else None,
        workload_of(options),
        weights=options["weights"] or "full",
        lora_rank=options["lora"],
        lora_targets=options["lora_targets"],
        path=str(Path.cwd()),
    )
    most = options["max_gpus"]
    if most is not None and most < 1:
        raise BadInput({"max-gpus": "must be at least 1"})
    forbidden = {
        field: not options[name.replace("-", "_")] for name, field in REMEDIES.items()
    }
    strategies = tuple(options["strategy"] or ())
    return Question(
        spec, options, PlanLimits(max_gpus=most, strategies=strategies, **forbidden)
    )


def plans_for_file(question: Question, offers: Sequence[GpuOffer]) -> PlanSet:
    """Plan on the GPUs of a file.

    Raises:
        CodedError: by field.
    """
    return planner.plan(
        question.spec,
        workload_of(question.options),
        offers,
        limits=question.limits,
        objective=question.options["wish"],
    )


def with_host(offers: Iterable[GpuOffer], options: Mapping[str, Any]) -> list[GpuOffer]:
    """Return GPUs whose nodes have the memory and the disk of the options.

    Raises:
        BadInput: a size is below zero or no number.
    """

    def size_bytes(option: str) -> int | None:
        gibs = options[option]
        if gibs is None:
            return None
        if not 0 <= gibs <= MOST_GIB:  # NaN too
            field = option.replace("_", "-")
            raise BadInput({field: f"must be from 0 to {MOST_GIB:,} GiB"})
        return int(gibs * 2**30)

    memory, disk = size_bytes("host_memory"), size_bytes("disk")
    return [
        replace(
            one,
            host_free_bytes=one.host_free_bytes if memory is None else memory,
            disk_free_bytes=one.disk_free_bytes if disk is None else disk,
        )
        for one in offers
    ]


def text_of(answer: PlanAnswer, question: Question) -> str:
    """Return an answer as JSON or tables. Writes the launch files if requested.

    Raises:
        BadInput: the launch files cannot be made.
        OSError: they cannot be written.
    """
    written = write_files(answer.found, question.spec, question.options["files"])
    if question.options["json"]:
        return json.dumps(answer.to_json())
    return "\n".join([answer.table(), *written])


PLAN = CliCommand(
    "plan",
    "Rank the ways to run a model on the GPUs of a file.",
    add_plan_options,
    plan_answer,
)
