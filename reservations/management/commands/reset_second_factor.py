"""Remove the second factors of a person who lost them."""

from argparse import ArgumentParser

from django.utils import timezone

from reservations.accounts.people import end_other_sessions
from reservations.accounts.second_factors import service
from reservations.models import User
from telemetry.web.plain_commands import CommandInvalid, PlainCommand


class Command(PlainCommand):
    """``manage.py reset_second_factor LOGIN``."""

    help = (
        "Remove the second factors and recovery codes of a person who lost them, and "
        "end the person's sessions. The password alone signs in afterwards."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Take the login."""
        parser.add_argument("login")

    def handle(self, *args: object, login: str, **options: object) -> None:
        """Remove them, or print that there are none."""
        user = User.objects.filter(username=login, erased_at=None).first()
        if user is None:
            raise CommandInvalid(f"There is no login {login!r}.")
        now = timezone.now()
        count = service.reset(user=user, actor=None, now=now)
        end_other_sessions(user=user, kept=None, now=now)
        self.stdout.write(f"Removed {count} second factors of {login}.")
