"""A command of the command line, and the function that runs it."""

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from telemetry.protocol.coded_error import EXIT_REFUSED, CodedError, one_line


@dataclass(frozen=True)
class CliCommand:
    """One command: its options, and the function that returns its output."""

    name: str
    help: str
    """One sentence."""
    add_arguments: Callable[[argparse.ArgumentParser], None]
    answer: Callable[[Mapping[str, Any]], str]
    """Options by name -> the text to print. Raises CodedError or OSError."""


def run_command(command: CliCommand, options: Mapping[str, Any]) -> int:
    """Print the command's output. Return the exit status.

    Invalid input gives one line on standard error and status 2.
    """
    try:
        text = command.answer(options)
    except (CodedError, OSError) as error:
        print(one_line(f"{command.name}: {error}"), file=sys.stderr)
        return EXIT_REFUSED
    print(text)
    return 0
