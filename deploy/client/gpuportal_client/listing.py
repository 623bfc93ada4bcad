"""The output of commands: rows in columns, facts in lines, or the answer as JSON."""

import json

from gpuportal_client.portal_api import Refused

JSON_OPTION = {"action": "store_true", "help": "print the portal's answer as JSON"}


def text(value):
    """Return a value in one line without control characters; "" for None."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        value = f"{value:.3f}".rstrip("0").rstrip(".")
    line = "" if value is None else str(value)
    return "".join(one if one.isprintable() else " " for one in line)


def show(args, answer, rows):
    """Print the answer as JSON with --json, otherwise rows in aligned columns."""
    if args.json:
        print(json.dumps(answer, indent=2, ensure_ascii=False))
        return
    cells = [[text(value) for value in row] for row in rows]
    # The last column is not padded.
    widths = [max(map(len, column)) for column in zip(*cells)][:-1]
    for row in cells:
        padded = [cell.ljust(width) for cell, width in zip(row, widths)]
        print("  ".join([*padded, *row[len(widths) :]]).rstrip())


def facts(args, answer, inner=None):
    """Print the answer as JSON with --json, otherwise simple values by their name."""
    kept = {
        name.replace("_", " "): value
        for name, value in (inner or answer).items()
        if value not in (None, "") and not isinstance(value, (dict, list))
    }
    show(args, answer, kept.items())


def take_number(parser, actions, what):
    """Add what to do (default: list) and the number to do it with."""
    parser.add_argument("--json", **JSON_OPTION)
    parser.add_argument(
        "what",
        nargs="?",
        default="list",
        choices=("list", *actions),
        help="what to do (default: list)",
    )
    parser.add_argument("number", nargs="?", type=int, help=f"number of the {what}")


def needs_number(args):
    """Return the number of what an action is for."""
    if args.number is None:
        raise Refused(f"{args.word} {args.what} needs a number", 2)
    return args.number
