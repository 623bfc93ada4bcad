#!/usr/bin/env python
"""Run a command of the portal: ``manage.py help`` lists them."""

import os
import sys


def main() -> None:
    """Pass the command line to Django."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpuportal.settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
