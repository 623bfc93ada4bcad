"""``manage.py plan``: where and how a model could run, ranked, with reasons.

SOURCE is a well-known name, a config.json, .safetensors or ONNX file, or
module:callable (runs that code, in a child process). With ``--gpus FILE`` neither the
database nor the broker is needed; the form of FILE stands in
``placement/planner/values/gpu_list.py``. ``--gpus live`` (the default) asks the portal,
now or for --hours from --at. That nothing fits is an answer: it says what lacks how
much."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from django.core.management.base import BaseCommand
from django.db import OperationalError
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from redis.exceptions import ConnectionError as NoBroker

from placement.management.options import (
    add_workload_options,
    one_line,
    workload_of,
)
from placement.management.sources import find, spec_of_entry
from placement.planner.launch.files import launch_files
from placement.planner.model.spec import ModelSpec
from placement.planner.search.memory_savings import Limits
from placement.planner.search.planner import plan as make_plan_set
from placement.planner.values.errors import BadInput, PlacementError
from placement.planner.values.gpu_availability import GpuOffer
from placement.planner.values.gpu_list import offers_from_list
from placement.planner.values.objective import WISHES
from placement.planner.values.plan import PlanSet
from placement.planner.values.strategies import TITLES
from placement.plans import service as planning
from placement.plans.model_registry import adapted
from reservations.models import User

MOST_FILE_BYTES = 16 * 2**20
LIVE = "live"
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
    """What was asked, read and checked."""

    spec: ModelSpec
    options: Mapping[str, Any]
    limits: Limits


class Command(BaseCommand):
    """Plans as tables, or all of it as JSON."""

    help = "Rank the ways to run a model on GPUs of a file, or of the portal."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument(
            "source",
            help="well-known name, config.json, .safetensors, .onnx, module:callable",
        )
        parser.add_argument(
            "--gpus", default=LIVE, metavar="FILE|live", help="JSON list; - reads stdin"
        )
        parser.add_argument("--at", metavar="TIME", help="live: 2030-05-01T09:00")
        parser.add_argument("--hours", type=float, help="live: how long; default 4")
        parser.add_argument(
            "--user", help="live: the user whose reservations count as free"
        )
        parser.add_argument("--wish", choices=WISHES, help="what to rank by")
        parser.add_argument("--max-gpus", type=int, metavar="N")
        parser.add_argument(
            "--strategy",
            action="append",
            choices=TITLES,
            metavar="WORD",
            help=f"only this strategy; can be repeated: {', '.join(TITLES)}",
        )
        parser.add_argument(
            "--lora", type=int, default=0, metavar="RANK", help="train adapters only"
        )
        parser.add_argument("--lora-targets", nargs="+", default=(), metavar="NAME")
        parser.add_argument("--weights", choices=("full", "int8", "nf4"))
        parser.add_argument(
            "--files",
            metavar="DIR",
            help="write the launch files of the first plan to this folder",
        )
        parser.add_argument("--json", action="store_true", help="answer in JSON")
        for name in REMEDIES:
            parser.add_argument(f"--{name}", action="store_true")
        add_workload_options(parser)

    def handle(self, *args: object, **options: Any) -> None:
        """Plan and print. Bad input: one line on stderr and exit status 2."""
        try:
            asked = question_of(options)
            answer = answered(asked)
            written = write_files(answer.found, asked.spec, options["files"])
        except (PlacementError, OSError) as error:
            self._refuse(str(error))
        except (OperationalError, NoBroker) as error:
            self._refuse(
                f"gpus: the portal's database or Redis cannot be reached: {error}"
            )
        if options["json"]:
            self.stdout.write(json.dumps(answer.to_json()))
        else:
            self.stdout.write("\n".join([answer.table(), *written]))

    def _refuse(self, problem: str) -> NoReturn:
        self.stderr.write(one_line(f"plan: {problem}"))
        sys.exit(2)


@dataclass(frozen=True)
class PlanAnswer:
    """Plans, and where the calendar was asked, when the best could start."""

    found: PlanSet
    start: str = ""
    end: str = ""
    earliest: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain dict."""
        more = {"start": self.start, "end": self.end, "earliest": self.earliest}
        return {**self.found.to_json(), **(more if self.start else {})}

    def table(self) -> str:
        """All Plans, what lost, and the start."""
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
    """Write the first Plan's launch files; return what was written, and what not.

    Raises:
        BadInput: there is no Plan, or the folder is no folder.
        OSError: it cannot be written.
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
    spec = source.spec
    if spec is None:
        assert source.model is not None
        spec = spec_of_entry(source.model["entry"], str(Path.cwd()))
    spec = adapted(
        spec,
        weights=options["weights"] or "full",
        lora_rank=options["lora"],
        lora_targets=options["lora_targets"],
    )
    most = options["max_gpus"]
    if most is not None and most < 1:
        raise BadInput({"max-gpus": "must be at least 1"})
    forbidden = {
        field: not options[name.replace("-", "_")] for name, field in REMEDIES.items()
    }
    strategies = tuple(options["strategy"] or ())
    return Question(
        spec, options, Limits(max_gpus=most, strategies=strategies, **forbidden)
    )


def answered(asked: Question) -> PlanAnswer:
    """Plan on the Gpus of a file, or on the portal's.

    Raises:
        PlacementError: by field.
    """
    options = asked.options
    if options["gpus"] == LIVE:
        return _live(asked)
    for name in ("at", "hours", "user"):
        if options[name] is not None:
            raise BadInput({name: "belongs to --gpus live: a file has no calendar"})
    found = make_plan_set(
        asked.spec,
        workload_of(options),
        read_gpus(options["gpus"]),
        limits=asked.limits,
        wish=options["wish"],
    )
    return PlanAnswer(found)


def read_gpus(source: str) -> Sequence[GpuOffer]:
    """The Gpus of a file. Raises BadInput."""
    try:
        if source == "-":
            text = sys.stdin.read(MOST_FILE_BYTES + 1)
        else:
            with Path(source).open(encoding="utf-8") as file:
                text = file.read(MOST_FILE_BYTES + 1)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise BadInput({"gpus": f"{source[:200]}: cannot be read: {error}"}) from error
    if len(text) > MOST_FILE_BYTES:
        raise BadInput({"gpus": f"more than {MOST_FILE_BYTES:,} characters"})
    try:
        return offers_from_list(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise BadInput({"gpus": f"is not JSON: {error}"}) from error


def _live(asked: Question) -> PlanAnswer:
    """Plan on the portal's Gpus; say when the first Plan could start."""
    options = asked.options
    now = timezone.now()
    at = _instant(options["at"])
    hours = 4.0 if options["hours"] is None else options["hours"]
    user = _user(options["user"])
    workload = workload_of(options)
    if options["wish"] == "soonest":
        soonest = planning.soonest_plans(
            user=user,
            spec=asked.spec,
            workload=workload,
            at=at,
            hours=hours,
            now=now,
            limits=asked.limits,
        )
        found, offered = soonest.found, soonest.offered
    else:
        offered = planning.offered(user=user, at=at, hours=hours, now=now)
        found = planning.make_plans(
            spec=asked.spec,
            workload=workload,
            offers=offered.offers,
            limits=asked.limits,
            wish=options["wish"],
        )
    earliest = None
    if found.best is not None:
        start = planning.earliest_start(plan=found.best, at=at, hours=hours, now=now)
        earliest = None if start is None else start.to_json()
    return PlanAnswer(
        found, offered.start.isoformat(), offered.end.isoformat(), earliest
    )


def _instant(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        at = parse_datetime(text)
    except ValueError:
        at = None
    if at is None:
        raise BadInput({"at": f"'{text[:40]}' is not a time such as 2030-05-01T09:00"})
    return timezone.make_aware(at) if timezone.is_naive(at) else at


def _user(name: str | None) -> User | None:
    if name is None:
        return None
    found = User.objects.filter(username=name).first()
    if found is None:
        raise BadInput({"user": f"there is no user '{name[:80]}'"})
    return found
