"""``split``: solve splitting problems from a file, exactly.

The form of the cases and of the answers is in
``placement/planner/reference/split_cases.py``.
"""

import argparse
import json
from collections.abc import Mapping
from typing import Any

from placement.planner.cli.cli_command import CliCommand
from placement.planner.cli.json_input import json_from
from placement.planner.reference.split_cases import split
from placement.planner.values.errors import BadInput


def add_split_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--from",
        dest="source",
        required=True,
        metavar="FILE",
        help="JSON: one case, a list of cases, or {'cases': [...]}; - reads stdin",
    )
    parser.add_argument("--json", action="store_true", help="answer in JSON")


def split_answer(options: Mapping[str, Any]) -> str:
    """Return the answers: JSON, or a line for each case.

    One case gives one object. A list, or a file with "cases", gives a list with ids.

    Raises:
        BadInput: names the case and the field.
    """
    found = solve(json_from(options["source"], "from"))
    if options["json"]:
        return json.dumps(found)
    return "\n".join(_words(one) for one in _as_list(found))


def solve(data: object) -> dict[str, Any] | list[dict[str, Any]]:
    """Return the answer of one case, or of several in order with their ids.

    Raises:
        BadInput: names the case and the field.
    """
    cases = data.get("cases") if isinstance(data, Mapping) else data
    if cases is None:
        return split(data)
    if not isinstance(cases, list):
        raise BadInput({"cases": "must be a list"})
    found = []
    for index, case in enumerate(cases):
        name = case.get("id", index) if isinstance(case, Mapping) else index
        try:
            found.append({"id": name, **split(case)})
        except BadInput as error:
            raise BadInput(
                {f"case {name}: {key}": why for key, why in error.fields.items()}
            ) from error
    return found


def _as_list(found: dict[str, Any] | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return found if isinstance(found, list) else [found]


def _words(found: Mapping[str, Any]) -> str:
    """Return one answer as a line for people."""
    head = [str(found["id"])] if "id" in found else []
    if found.get("feasible") is False:
        return "  ".join([*head, f"does not fit: {found['reason']}"])
    rest = [f"{name} {value}" for name, value in found.items() if name != "id"]
    return "  ".join([*head, *rest])


SPLIT = CliCommand(
    "split",
    "Split layers, pipelines or shards over unequal GPUs; decide on a move.",
    add_split_options,
    split_answer,
)
