"""`manage.py set_unix_users FILE`: set the Unix user of each person's jobs."""

import sys
from pathlib import Path
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import CommandError, CommandParser
from django.utils import timezone

from reservations.accounts import people
from reservations.accounts.csv_table import decoded, read_sheet
from reservations.models import User
from telemetry.protocol.coded_error import CodedError
from telemetry.web.error_answers import message_of
from telemetry.web.plain_commands import CommandInvalid, PlainCommand

COLUMNS = ("user", "unix_user")


class Command(PlainCommand):
    """Sets the Unix users. All rows are checked first: a file with a mistake changes
    nothing.
    """

    help = "Set people's Unix users from a CSV with the columns user and unix_user."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options: the table, and the acting operator."""
        parser.add_argument("file", help="a CSV in UTF-8; - reads the standard input")
        parser.add_argument(
            "--as", dest="actor", required=True, help="an operator's login"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Read, check every row, then set."""
        actor = User.objects.filter(username=options["actor"]).first()
        if actor is None or not actor.is_operator:
            raise CommandInvalid(f"{options['actor']} is not an operator")
        wanted = self._read(options["file"])
        try:
            changes = people.set_unix_users(
                {user.pk: unix_user for user, unix_user in wanted},
                actor=actor,
                now=timezone.now(),
            )
        except CodedError as error:
            raise CommandInvalid(message_of(error)) from error
        changed = sum(map(bool, changes.values()))
        self.stdout.write(f"{changed} of {len(wanted)} people changed.")

    def _read(self, name: str) -> list[tuple[User, str]]:
        """Return people with their new Unix users. CommandError names every mistake."""
        try:
            data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
            rows = read_sheet(decoded(data), known=COLUMNS, needed=COLUMNS)
        except OSError as error:
            raise CommandInvalid(f"{name}: {error.strerror}") from error
        field = User._meta.get_field("unix_user")
        known = {user.username: user for user in User.objects.filter(erased_at=None)}
        found, wrong = [], []
        for row in rows:
            user = known.get(row["user"])
            if user is None:
                wrong.append(
                    f"row {row.number}: there is no login {row['user'][:40]!r}"
                )
                continue
            try:
                found.append((user, str(field.clean(row["unix_user"], user))))
            except ValidationError as error:
                wrong.append(f"row {row.number}: {' '.join(error.messages)}")
        if wrong:
            raise CommandError("\n".join(wrong), returncode=2)
        return found
