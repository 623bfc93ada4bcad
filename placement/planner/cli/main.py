"""Read the arguments of ``python -m placement.planner`` and run a command."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from placement.planner.cli.cards_command import CARDS_COMMAND
from placement.planner.cli.cli_command import run_command
from placement.planner.cli.estimate_command import ESTIMATE
from placement.planner.cli.plan_command import PLAN
from placement.planner.cli.split_command import SPLIT
from telemetry.protocol.coded_error import EXIT_REFUSED, one_line

PROGRAM = "python -m placement.planner"
CLOSED_PIPE = 128 + 13
"""Exit status of a program that SIGPIPE ends."""
COMMANDS = (ESTIMATE, PLAN, SPLIT, CARDS_COMMAND)


class OneLineParser(argparse.ArgumentParser):
    """A parser that reports a wrong option in one line."""

    def error(self, message: str) -> NoReturn:
        """Print the problem and how to get help. Exit with status 2."""
        text = one_line(f"{self.prog.split()[-1]}: {message}; see --help")
        self.exit(EXIT_REFUSED, f"{text}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    Args:
        arguments: without the program's name; None: those of this process.
    """
    parser = OneLineParser(
        prog=PROGRAM, description="Estimate, plan and split models over GPUs."
    )
    choices = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add_arguments(
            choices.add_parser(
                command.name, help=command.help, description=command.help
            )
        )
    options = vars(parser.parse_args(arguments))
    chosen = next(one for one in COMMANDS if one.name == options["command"])
    try:
        status = run_command(chosen, options)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader, such as head, has closed the pipe. Without a file behind it,
        # Python would report the flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED_PIPE
    return status
