"""`manage.py slurm check`: what the site's Slurm can do, and what is missing."""

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from gpuportal.doctor.diagnosis import (
    EXIT_CANNOT_RUN,
    exit_status,
    report_json,
    report_lines,
)
from gpuportal.doctor.slurm_diagnosis import slurm_report
from gpuportal.doctor.slurm_facts import slurm_facts
from telemetry.slurm.slurm_output import SlurmFailure


class Command(BaseCommand):
    """Prints one line for each check."""

    help = (
        "Check a Slurm cluster (docs/slurm.md): one line for each check, with the "
        "remedy. The exit status is 0 if all is well, 1 if there are problems, and 2 "
        "if Slurm's commands are not there."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the one action and its option."""
        parser.add_argument("action", choices=["check"])
        parser.add_argument("--json", action="store_true", help="for programs")

    def handle(self, *args: Any, **options: Any) -> None:
        """Check once."""
        try:
            facts = slurm_facts(timezone.now())
        except SlurmFailure as error:
            raise CommandError(
                f"{error}. Install Slurm's client and its slurm.conf, or set "
                "SLURM_FOLDER and SLURM_CONF.",
                returncode=EXIT_CANNOT_RUN,
            ) from error
        found = tuple(slurm_report(facts))
        lines = [report_json(found)] if options["json"] else report_lines(found)
        self.stdout.write("\n".join(lines))
        if status := exit_status(found):
            sys.exit(status)
