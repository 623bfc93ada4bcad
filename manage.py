#!/usr/bin/env python
"""Run a command of the portal: ``manage.py help`` lists them."""

import gc
import os
import sys


def main() -> None:
    """Pass the command line to Django.

    The garbage collector waits until the command is imported. What is imported stays,
    so to look for garbage would take a sixth of the start and find nothing.
    """
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpuportal.settings")
    gc.disable()
    from django.core.management import ManagementUtility
    from django.core.management.base import BaseCommand

    class Utility(ManagementUtility):
        """Begins to collect when the command is there."""

        def fetch_command(self, subcommand: str) -> BaseCommand:
            """Return the command with this name."""
            try:
                return super().fetch_command(subcommand)
            finally:
                gc.freeze()
                gc.enable()

    Utility(sys.argv).execute()


if __name__ == "__main__":
    main()
