#!/usr/bin/env python
"""Run a command of the portal: ``manage.py help`` lists them."""

import gc
import os
import sys


def main() -> None:
    """Pass the command line to Django.

    The garbage collector waits until the command is imported. What is imported stays,
    so to look for garbage would take a sixth of the start and find nothing.

    If the database does not answer or lacks a table, print one line and exit with 2.
    ``--traceback`` shows where.
    """
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpuportal.settings")
    gc.disable()
    from django.core.management import ManagementUtility
    from django.core.management.base import BaseCommand
    from django.db import OperationalError, ProgrammingError

    class Utility(ManagementUtility):
        """Begins to collect when the command is there."""

        def fetch_command(self, subcommand: str) -> BaseCommand:
            """Return the command with this name."""
            try:
                return super().fetch_command(subcommand)
            finally:
                gc.freeze()
                gc.enable()

    try:
        Utility(sys.argv).execute()
    except (OperationalError, ProgrammingError) as error:
        # A ProgrammingError of another kind is a fault of ours.
        missing = type(error.__cause__).__name__ in (
            "UndefinedTable",
            "UndefinedColumn",
        )
        ours = isinstance(error, ProgrammingError) and not missing
        if ours or "--traceback" in sys.argv:
            raise
        reason = " ".join(str(error).split())
        sys.stderr.write(
            f"CommandError: The database cannot be used: {reason}. If it is new or "
            "from an earlier version, run: manage.py migrate\n"
        )
        sys.exit(2)


if __name__ == "__main__":
    main()
