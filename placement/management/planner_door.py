"""A command of ``placement.planner`` as a ``manage.py`` command."""

import argparse
import sys
from collections.abc import Mapping
from typing import Any, ClassVar

from django.core.management.base import BaseCommand

from placement.planner.cli.cli_command import CliCommand
from telemetry.protocol.coded_error import EXIT_REFUSED, CodedError, one_line


class PlannerCommand(BaseCommand):
    """The same options, output and exit status as ``python -m placement.planner``.

    Needs neither the database nor the broker.
    """

    requires_system_checks: list[str] = []
    command: ClassVar[CliCommand]

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        self.command.add_arguments(parser)

    def answer(self, options: Mapping[str, Any]) -> str:
        """Return the output. Raises CodedError or OSError."""
        return self.command.answer(options)

    def handle(self, *args: object, **options: Any) -> None:
        """Run and print. Bad input: one line on stderr and exit status 2."""
        try:
            text = self.answer(options)
        except (CodedError, OSError) as error:
            self.stderr.write(one_line(f"{self.command.name}: {error}"))
            sys.exit(EXIT_REFUSED)
        self.stdout.write(text)
