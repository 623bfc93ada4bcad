"""`manage.py doctor`: check every part of the portal."""

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from gpuportal.doctor.diagnosis import exit_status, report_json, report_lines
from gpuportal.doctor.portal_diagnosis import portal_report
from gpuportal.doctor.portal_facts import portal_facts


class Command(BaseCommand):
    """Prints one line for each check."""

    help = (
        "Check the portal: one line for each check, with the remedy of a problem. The "
        "exit status is 0 if all is well, and 1 if there are problems."
    )
    # They are part of what it reports.
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options."""
        parser.add_argument("--json", action="store_true", help="for programs")

    def handle(self, *args: Any, **options: Any) -> None:
        """Check once."""
        found = tuple(portal_report(portal_facts()))
        lines = [report_json(found)] if options["json"] else report_lines(found)
        self.stdout.write("\n".join(lines))
        if status := exit_status(found):
            sys.exit(status)
