"""`manage.py upgrade`: what an upgrade to this release will do, and the test after it.

`deploy/upgrade` does the upgrade itself, because it needs root.
"""

import http.client
import sys
from argparse import ArgumentParser
from pathlib import Path

from django.db import DatabaseError
from django.utils import timezone

from gpuportal.doctor.diagnosis import (
    exit_status,
    problem,
    report_json,
    report_lines,
    well,
)
from gpuportal.upgrade import readiness, self_test, upgrade_facts
from gpuportal.upgrade.upgrade_report import upgrade_report
from reservations.store.audit_log import audit_act
from telemetry.web.plain_commands import CommandInvalid, PlainCommand

LINK = Path("/opt/gpuportal")
WEB = "http://127.0.0.1:8010"


class Command(PlainCommand):
    """Prints one line for each fact."""

    help = (
        "Say what an upgrade to this release will do (--check), or test a portal that "
        "was just upgraded (--self-test). The exit status is 0 if all is well, and 1 "
        "if something needs a decision. deploy/upgrade does the upgrade."
    )
    # They are run on a database that waits for migrations.
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        what = parser.add_mutually_exclusive_group(required=True)
        what.add_argument(
            "--check", action="store_true", help="say what the upgrade will do"
        )
        what.add_argument(
            "--self-test", action="store_true", help="test the portal that runs"
        )
        what.add_argument(
            "--back-to",
            type=Path,
            metavar="FOLDER",
            help="say whether an older release can run on the present database",
        )
        what.add_argument(
            "--not-in-order",
            action="store_true",
            help="print the parts of the portal that are not in order now",
        )
        parser.add_argument(
            "--installed",
            type=Path,
            metavar="FOLDER",
            default=LINK,
            help=f"the release that runs (default: {LINK})",
        )
        parser.add_argument(
            "--lost",
            action="append",
            default=[],
            metavar="PACKAGE",
            help="a Python package that only the installed release has",
        )
        parser.add_argument(
            "--web",
            default=WEB,
            metavar="ADDRESS",
            help=f"where the web processes listen (default: {WEB})",
        )
        parser.add_argument(
            "--before",
            action="append",
            default=[],
            metavar="PART",
            help="with --self-test: a part that was not in order before",
        )
        parser.add_argument(
            "--note",
            nargs=2,
            metavar=("FROM", "TO"),
            help="with --self-test: if all is well, note in the audit log what ran "
            "before, and what runs",
        )
        parser.add_argument("--json", action="store_true", help="for programs")

    def handle(
        self,
        *args: object,
        check: bool,
        back_to: Path | None,
        installed: Path,
        lost: list[str],
        web: str,
        before: list[str],
        not_in_order: bool,
        note: list[str] | None,
        json: bool,
        **options: object,
    ) -> None:
        """Print the report, and exit with its status."""
        for folder in (back_to, installed if installed != LINK else None):
            if folder is not None and not (folder / "manage.py").is_file():
                raise CommandInvalid(f"{folder} is not a release of the portal.")
        if not web.startswith("http://"):
            raise CommandInvalid(f"--web is {web}. It begins with http://.")
        if not_in_order:
            self.stdout.write(" ".join(self._not_in_order(web)))
            return
        try:
            if check:
                facts = upgrade_facts.upgrade_facts(
                    installed, web=web, lost_packages=lost
                )
                found = list(upgrade_report(facts))
            elif back_to:
                fix = "Restore the backup from before the upgrade."
                lost_to = upgrade_facts.lost_to(back_to)
                found = [problem("database", text, fix) for text in lost_to]
                found = found or [well("database", "the older release can use it")]
            else:
                found = self_test.self_test(web, before=before)
                if note and not exit_status(found):
                    audit_act(
                        verb="portal.upgraded",
                        subject="portal",
                        actor=None,
                        now=timezone.now(),
                        reason=" → ".join(note),
                    )
        except DatabaseError as error:
            raise CommandInvalid(f"The database does not answer: {error}") from error
        lines = [report_json(found)] if json else report_lines(found)
        self.stdout.write("\n".join(lines))
        if status := exit_status(found):
            sys.exit(status)

    def _not_in_order(self, web: str) -> list[str]:
        try:
            return readiness.parts_not_in_order(web)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise CommandInvalid(f"{web} does not answer: {error}") from error
