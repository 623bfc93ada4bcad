"""A command of the command line, and how it is run."""

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from placement.planner.values.errors import PlacementError

EXIT_BAD_INPUT = 2


@dataclass(frozen=True)
class CliCommand:
    """One command: its options, and the text that answers them."""

    name: str
    help: str
    """One sentence."""
    add_arguments: Callable[[argparse.ArgumentParser], None]
    answer: Callable[[Mapping[str, Any]], str]
    """Options by name -> what is printed. Raises PlacementError or OSError."""


def run_command(command: CliCommand, options: Mapping[str, Any]) -> int:
    """Answer and print. Return the exit status.

    Bad input is one line on standard error and status 2.
    """
    try:
        text = command.answer(options)
    except (PlacementError, OSError) as error:
        print(one_line(f"{command.name}: {error}"), file=sys.stderr)
        return EXIT_BAD_INPUT
    print(text)
    return 0


def one_line(text: str) -> str:
    """Return an error as one printable line; it may quote a file.

    >>> one_line("split: \\x1b[2J\\n is no kind")
    'split: ?[2J is no kind'
    """
    plain = (c if c.isprintable() else "?" for c in " ".join(text.split()))
    return "".join(plain)[:1000]
