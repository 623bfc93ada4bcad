"""``manage.py split``: solve splitting problems from a file, exactly.

Needs neither the database nor the broker. The form of the cases and of the answers
stands in ``placement/planner/reference/split_cases.py``.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand

from placement.management.options import one_line
from placement.planner.reference.split_cases import answer
from placement.planner.values.errors import BadInput

MOST_FILE_BYTES = 16 * 2**20
"""Of JSON, which may take 50 times that in memory."""


class Command(BaseCommand):
    """One case answers one object; a list, or a file with "cases", a list with ids."""

    help = "Split layers, pipelines or shards over unequal GPUs; decide about a move."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument(
            "--from",
            dest="source",
            required=True,
            metavar="FILE",
            help="JSON: one case, a list of cases, or {'cases': [...]}; - reads stdin",
        )
        parser.add_argument("--json", action="store_true", help="answer in JSON")

    def handle(self, *args: object, **options: Any) -> None:
        """Read, solve, print. Bad input: one line on stderr and exit status 2."""
        try:
            found = solve(_read(options["source"]))
        except BadInput as error:
            self.stderr.write(one_line(f"split: {error}"))
            sys.exit(2)
        if options["json"]:
            self.stdout.write(json.dumps(found))
            return
        for one in found if isinstance(found, list) else [found]:
            self.stdout.write(_words(one))


def solve(data: object) -> dict[str, Any] | list[dict[str, Any]]:
    """Answer one case, or each of several in order with its id.

    Raises:
        BadInput: names the case and the field.
    """
    cases = data.get("cases") if isinstance(data, Mapping) else data
    if cases is None:
        return answer(data)
    if not isinstance(cases, list):
        raise BadInput({"cases": "must be a list"})
    found = []
    for index, case in enumerate(cases):
        name = case.get("id", index) if isinstance(case, Mapping) else index
        try:
            found.append({"id": name, **answer(case)})
        except BadInput as error:
            raise BadInput(
                {f"case {name}: {key}": why for key, why in error.problems.items()}
            ) from error
    return found


def _read(source: str) -> object:
    """Return what a file says.

    Raises:
        BadInput: it cannot be read, is too large, or is no JSON.
    """
    try:
        if source == "-":
            data = sys.stdin.buffer.read(MOST_FILE_BYTES + 1)
        else:
            with Path(source).open("rb") as file:
                data = file.read(MOST_FILE_BYTES + 1)
    except OSError as error:
        raise BadInput({source[:200]: error.strerror or "cannot be read"}) from error
    if len(data) > MOST_FILE_BYTES:
        raise BadInput({source[:200]: f"is larger than {MOST_FILE_BYTES} bytes"})
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadInput({source[:200]: f"is not JSON: {error}"}) from error


def _words(found: Mapping[str, Any]) -> str:
    """Return one answer as lines for people."""
    head = [str(found["id"])] if "id" in found else []
    if found.get("feasible") is False:
        return "  ".join([*head, f"does not fit: {found['reason']}"])
    rest = [f"{name} {value}" for name, value in found.items() if name != "id"]
    return "  ".join([*head, *rest])
