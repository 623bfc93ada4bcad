"""Commands that print an error on one line."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from telemetry.protocol.coded_error import EXIT_REFUSED, CodedError, one_line


class CommandInvalid(CodedError):
    """A command was given invalid arguments."""

    code = "command-invalid"


class PlainCommand(BaseCommand):
    """A command that prints a refusal on one line and ends with exit status 2."""

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Run the command.

        Raises:
            CommandError: with exit status 2, if the rules refuse it or the input is
                invalid.
        """
        try:
            return super().execute(*args, **options)
        except CodedError as error:
            text = error.text(timezone.get_current_timezone())
            raise CommandError(one_line(text), returncode=EXIT_REFUSED) from error
