"""`manage.py slurm`: what the site's Slurm can do, who used it, and charges for it."""

import json
import sys
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from gpuportal.board.slurm_holders import people_by_unix_user
from gpuportal.doctor.diagnosis import (
    EXIT_CANNOT_RUN,
    EXIT_PROBLEMS,
    exit_status,
    report_json,
    report_lines,
)
from gpuportal.doctor.slurm_diagnosis import slurm_report
from gpuportal.doctor.slurm_facts import slurm_facts
from reservations.fairshare.slurm_import import SlurmImport, days_before, import_day
from telemetry.slurm.sacct_usage import SlurmUsage, sum_usage
from telemetry.slurm.slurm_commands import SlurmCommands, SlurmNotInstalled
from telemetry.slurm.slurm_output import SlurmFailure

MOST_DAYS = 366
HOUR_SECONDS = 3600
NOBODY = "-"


class Command(BaseCommand):
    """Prints one line for each check, or for each user and account."""

    help = (
        "Ask a Slurm cluster (docs/slurm.md). check: one line for each fact, with the "
        "remedy. usage: the GPU time of each user and account, as sacct counts it. "
        "import: charge it in the ledger, once for each run of a job. The exit status "
        "is 0 if all is well, 1 if there are problems, and 2 if Slurm cannot be asked."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the action and its options."""
        parser.add_argument("action", choices=["check", "usage", "import"])
        parser.add_argument("--json", action="store_true", help="for programs")
        parser.add_argument(
            "--days",
            type=int,
            default=30,
            help="for usage and import: how far back (default 30)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Do what was asked."""
        if not 1 <= options["days"] <= MOST_DAYS:
            raise CommandError(
                f"--days: from 1 to {MOST_DAYS}", returncode=EXIT_CANNOT_RUN
            )
        try:
            if options["action"] == "usage":
                self._print_usage(options["days"], as_json=options["json"])
            elif options["action"] == "import":
                self._import(options["days"], as_json=options["json"])
            else:
                self._check(as_json=options["json"])
        except SlurmNotInstalled as error:
            raise CommandError(
                f"{error}. Install Slurm's client and its slurm.conf, or set "
                "SLURM_FOLDER and SLURM_CONF.",
                returncode=EXIT_CANNOT_RUN,
            ) from error
        except SlurmFailure as error:
            raise CommandError(str(error), returncode=EXIT_CANNOT_RUN) from error

    def _check(self, *, as_json: bool) -> None:
        found = tuple(slurm_report(slurm_facts(timezone.now())))
        lines = [report_json(found)] if as_json else report_lines(found)
        self.stdout.write("\n".join(lines))
        if status := exit_status(found):
            sys.exit(status)

    def _import(self, days: int, *, as_json: bool) -> None:
        now = timezone.now()
        commands = SlurmCommands(conf=settings.SLURM_CONF, folder=settings.SLURM_FOLDER)
        done = SlurmImport()
        for start, end in days_before(now, days):
            import_day(commands, start, end, now=now, done=done)
        left_out = [
            {"user": user, "account": account, "runs": runs, "why": why}
            for (user, account, why), runs in done.left_out.most_common()
        ]
        if as_json:
            numbers = {
                "added": done.added,
                "gpu_seconds": done.gpu_seconds,
                "known": done.known,
                "running": done.running,
                "booked": done.booked,
                "left_out": left_out,
                "invalid_lines": done.invalid_lines,
                "failure": done.failure,
            }
            self.stdout.write(json.dumps(numbers, indent=1, ensure_ascii=False))
        else:
            self._print_import(done, left_out)
        if done.failure:
            sys.exit(EXIT_PROBLEMS)

    def _print_import(self, done: SlurmImport, left_out: list[dict[str, Any]]) -> None:
        self.stdout.write(
            f"Added {done.added} runs ({done.gpu_seconds / HOUR_SECONDS:.1f} credits). "
            f"{done.known} were there, and {done.running} still run."
        )
        if done.booked:
            self.stdout.write(
                f"{done.booked} runs were in bookings of the portal, which pay."
            )
        for one in left_out:
            self.stdout.write(
                f"Left out {one['runs']} runs of Unix user {one['user'] or NOBODY}, "
                f"account {one['account'] or NOBODY}: {one['why']}."
            )
        if done.failure:
            self.stdout.write(f"Not everything was read: {done.failure}.")

    def _print_usage(self, days: int, *, as_json: bool) -> None:
        end = timezone.now()
        start = end - timedelta(days=days)
        commands = SlurmCommands(conf=settings.SLURM_CONF, folder=settings.SLURM_FOLDER)
        found = sum_usage(
            commands.runs(start, end),
            start=int(start.timestamp()),
            end=int(end.timestamp()),
        )
        rows = _rows(found)
        if as_json:
            self.stdout.write(json.dumps(rows, indent=1, ensure_ascii=False))
            return
        for row in rows:
            name = row["person"] or NOBODY
            self.stdout.write(
                f"{row['gpu_hours']:>10.1f} GPU-hours  {row['runs']:>6} runs  "
                f"account {row['account'] or NOBODY}  Unix user {row['user']}  "
                f"person {name}"
            )
        if not rows:
            self.stdout.write(f"No job of Slurm had a GPU in the last {days} days.")


def _rows(found: Iterable[SlurmUsage]) -> list[dict[str, Any]]:
    """Return the lines with the portal's people. None: nobody, or several people, have
    the Unix user."""
    found = tuple(found)
    people = people_by_unix_user({one.user for one in found})
    return [
        {
            "account": one.account,
            "user": one.user,
            "person": people[one.user].name if one.user in people else None,
            "runs": one.runs,
            "gpu_hours": round(one.gpu_seconds / HOUR_SECONDS, 3),
        }
        for one in found
    ]
