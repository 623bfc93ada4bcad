"""``manage.py job submit|list|gaps|log|stop``: Jobs in the operator's terminal.

The commands call the same services as the pages, so the same rules apply. A person who
may run manage.py may read the database. So there is no sign-in, but every act names a
User and is audited.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from django.core.management.base import BaseCommand
from django.utils import timezone

from placement.backfill.queries import gap_facts
from placement.backfill.service import queue_for_gaps, stop_in_gaps
from placement.jobs import queries as snapshots
from placement.jobs import service as jobs
from placement.jobs.job_arrays import launch_array
from placement.jobs.launch_checks import MOST_SCRIPT_BYTES
from placement.jobs.nodes import log_store
from placement.models import Backfill, Job
from placement.planner.launch.recipes import RECIPES
from placement.protocol.launchers import Launcher
from placement.rules.sweep import read_sweep
from reservations.models import Membership, User
from telemetry.protocol.coded_error import EXIT_REFUSED, CodedError, one_line
from telemetry.web.error_answers import message_of
from telemetry.web.plain_commands import CommandInvalid

FOLLOW_SECONDS = 0.5
ROWS = 50


class OneLine(argparse.ArgumentParser):
    """Reports invalid options of a subcommand in one line."""

    def error(self, message: str) -> NoReturn:
        """Exit with 2."""
        self.exit(2, f"{self.prog}: {message} (see --help)\n")


class Command(BaseCommand):
    """Impossible requests print one line and exit with 2."""

    help = "Submit, list, read and stop jobs. Each subcommand has its own --help."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the subcommands and their options."""
        # Django's own parser class would require its arguments for the subparsers.
        parser.usage = argparse.SUPPRESS
        words = parser.add_subparsers(
            dest="word", required=True, prog=parser.prog, parser_class=OneLine
        )
        _add_submit(words.add_parser("submit", help="start a job in a reservation"))
        listed = words.add_parser("list", help="list jobs, newest first")
        listed.add_argument("--state", choices=[state.value for state in Job.State])
        listed.add_argument("--user", help="a login name")
        listed.add_argument("--limit", type=int, default=ROWS)
        listed.add_argument("--json", action="store_true")
        log = words.add_parser("log", help="print the log of a job")
        log.add_argument("job", type=int)
        log.add_argument(
            "--follow",
            action="store_true",
            help="follow the log until the job has ended",
        )
        stop = words.add_parser(
            "stop", help="send SIGTERM, then SIGKILL after the grace time"
        )
        stop.add_argument("job", type=int)
        stop.add_argument("--as", dest="user", required=True, help="an operator")
        stop.add_argument("--reason", default="")
        stop.add_argument(
            "--gaps",
            action="store_true",
            help="JOB is the number of a job that runs in gaps",
        )
        waits = words.add_parser(
            "gaps", help="list the jobs in gaps and those that wait for one"
        )
        waits.add_argument("--json", action="store_true")

    def handle(self, *args: object, **options: Any) -> None:
        """Run the subcommand."""
        word = options["word"]
        act = {
            "submit": self._submit,
            "list": self._list,
            "log": self._log,
            "stop": self._stop,
            "gaps": self._gaps,
        }[word]
        try:
            act(options)
        except CodedError as error:
            self._refuse(f"job {word}: {message_of(error)}")
        except BrokenPipeError:
            # The reader closed the pipe: job log 5 | head.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except OSError as error:
            self._refuse(f"job {word}: {error}")
        except KeyboardInterrupt:
            sys.exit(130)

    def _refuse(self, text: str) -> None:
        self.stderr.write(one_line(text))
        sys.exit(EXIT_REFUSED)

    def _submit(self, options: dict[str, Any]) -> None:
        script = options["script"]
        launch = {
            "user": _user(options["user"]),
            "reservation_id": options["reservation"],
            "name": options["name"],
            "kind": Job.Kind.SCRIPT if script else Job.Kind.RECIPE,
            "recipe": "" if script else options["recipe"],
            "recipe_settings": dict(map(_setting, options["set"])),
            "script": _script(script) if script else "",
            "arguments": options["argument"],
            "launcher": options["launcher"],
            "environment_folder": options["environment_folder"],
            "node": options["node"],
            "gpu_count": options["gpus"],
            "retries": options["retries"],
            "retry_failed": options["retry_failed"],
            "after": options["after"],
            "now": timezone.now(),
        }
        if options["backfill"]:
            self._ask_for_gaps(launch, options)
            return
        if options["reservation"] is None:
            raise CommandInvalid("give --reservation or --backfill")
        if not options["sweep"]:
            self.stdout.write(str(jobs.launch(**launch).pk))
            return
        sweep = read_sweep("\n".join(options["sweep"]))
        array = launch_array(sweep=sweep, **launch)
        for pk in array.tasks.order_by("pk").values_list("pk", flat=True):
            self.stdout.write(str(pk))

    def _ask_for_gaps(self, launch: dict[str, Any], options: dict[str, Any]) -> None:
        if options["reservation"] is not None or options["sweep"] or options["node"]:
            raise CommandInvalid(
                "--backfill cannot be combined with --reservation, --node or --sweep"
            )
        user = launch["user"]
        payer = None
        if options["account"]:
            rows = Membership.objects.filter(
                user=user, account__name=options["account"]
            )
            payer = rows.first()
            if payer is None:
                raise CommandInvalid(f"{user} is not a member of {options['account']}")
        gone = ("user", "reservation_id", "node", "gpu_count", "now")
        job = {name: given for name, given in launch.items() if name not in gone}
        made = queue_for_gaps(
            user=user,
            job=job | {"gpus": launch["gpu_count"]},
            membership=payer,
            min_memory_gib=options["memory"],
            gpu_class=options["gpu_class"],
            shortest_minutes=options["shortest"],
            total_hours=options["total"],
            now=launch["now"],
        )
        self.stdout.write(str(made.pk))

    def _gaps(self, options: dict[str, Any]) -> None:
        now = timezone.now()
        rows = Backfill.objects.live().select_related("owner", "membership__account")
        facts = [gap_facts(row, now=now) for row in rows.order_by("pk")]
        if options["json"]:
            self.stdout.write(json.dumps(facts))
            return
        self.stdout.write(f"{'GAPS':>6}  {'STATE':9}  {'USER':12}  NAME: WHY")
        for row in facts:
            self.stdout.write(
                f"{row['id']:>6}  {row['state']:9}  {row['owner']:12.12}  "
                + one_line(f"{row['name']}: {row['reason']}")
            )

    def _list(self, options: dict[str, Any]) -> None:
        rows = Job.objects.select_related("owner", "node", "reservation")
        if options["state"]:
            rows = rows.filter(state=options["state"])
        if options["user"]:
            rows = rows.filter(owner=_user(options["user"]))
        if options["limit"] < 1:
            raise CommandInvalid("--limit must be at least 1")
        found = rows.prefetch_related("events").order_by("-pk")[: options["limit"]]
        if options["json"]:
            self.stdout.write(json.dumps([snapshots.job_facts(job) for job in found]))
            return
        self.stdout.write(f"{'JOB':>6}  {'STATE':9}  {'USER':12}  {'NODE':12}  NAME")
        for job in found:
            self.stdout.write(
                f"{job.pk:>6}  {job.state:9}  {job.owner.username:12.12}  "
                f"{job.node.name:12.12}  {one_line(job.name)}"
            )

    def _log(self, options: dict[str, Any]) -> None:
        job = _job(options["job"])
        offset = 0
        while True:
            job.refresh_from_db()
            ended = job.state not in Job.State.live()
            while (piece := log_store.read(job, offset=offset)).bytes:
                self.stdout.write(piece.data, ending="")
                self.stdout.flush()
                offset = piece.offset + piece.bytes
            # A cut or deleted log does not grow.
            whole = offset >= job.log_bytes or log_store.note(job)
            if not options["follow"] or (ended and whole):
                return
            time.sleep(FOLLOW_SECONDS)

    def _stop(self, options: dict[str, Any]) -> None:
        how = {
            "user": _user(options["user"]),
            "reason": options["reason"],
            "now": timezone.now(),
        }
        if options["gaps"]:
            row = stop_in_gaps(backfill_id=options["job"], **how)
            self.stdout.write(row.state)
            return
        self.stdout.write(jobs.stop(job_id=options["job"], **how).state)


def _add_submit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--user", required=True, help="a login name")
    parser.add_argument("--reservation", type=int)
    parser.add_argument("--backfill", action="store_true", help="run in gaps instead")
    parser.add_argument("--account", default="", help="account that pays for the gaps")
    parser.add_argument("--memory", type=float, default=0, metavar="GIB")
    parser.add_argument("--gpu-class", default="")
    parser.add_argument("--shortest", type=float, default=30, metavar="MINUTES")
    parser.add_argument("--total", type=float, metavar="HOURS")
    parser.add_argument("--name", required=True)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--recipe", choices=sorted(RECIPES))
    what.add_argument("--script", metavar="FILE")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="setting of the recipe",
    )
    parser.add_argument(
        "--after", type=int, metavar="JOB", help="begin once that job is done"
    )
    parser.add_argument(
        "--argument", action="append", default=[], help="argument of the script"
    )
    parser.add_argument(
        "--launcher",
        choices=[way.value for way in Launcher if way],
        default="",
        help="of the script",
    )
    parser.add_argument(
        "--environment-folder",
        default="",
        metavar="ENVIRONMENT",
        help="its programs come first on the PATH: the folder of a venv, conda "
        "environment or uv project on the node, or a conda environment's name",
    )
    parser.add_argument("--node", default="")
    parser.add_argument("--gpus", type=int)
    parser.add_argument("--retries", type=int, default=0)
    parser.add_argument(
        "--retry-failed", action="store_true", help="restart it when it failed, too"
    )
    parser.add_argument(
        "--sweep", action="append", default=[], metavar="NAME=VALUE,VALUE"
    )


def _user(name: str) -> User:
    user = User.objects.filter(username=name).first()
    if user is None:
        raise CommandInvalid(f"there is no user {name}")
    return user


def _job(pk: int) -> Job:
    job = Job.objects.filter(pk=pk).first()
    if job is None:
        raise CommandInvalid(f"there is no job {pk}")
    return job


def _script(name: str) -> str:
    path = Path(name)
    if path.stat().st_size > MOST_SCRIPT_BYTES:
        raise CommandInvalid(f"{name} is larger than {MOST_SCRIPT_BYTES // 1024} KiB")
    try:
        return path.read_text()
    except UnicodeDecodeError as error:
        raise CommandInvalid(f"{name} is not a text file") from error


def _setting(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals:
        raise CommandInvalid(f"--set {text}: write NAME=VALUE")
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, value
