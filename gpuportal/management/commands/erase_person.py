"""Erase a person. The login becomes an alias, and every balance stays."""

from argparse import ArgumentParser

from django.utils import timezone

from gpuportal.manage.erasure_of_person import erase
from reservations.models import User
from telemetry.web.plain_commands import CommandInvalid, PlainCommand


class Command(PlainCommand):
    """``manage.py erase_person LOGIN --confirm LOGIN``."""

    help = "Erase everything that identifies a person. This cannot be undone."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Require the login twice, so that a typing error erases nobody."""
        parser.add_argument("login")
        parser.add_argument(
            "--confirm",
            required=True,
            metavar="LOGIN",
            help="the login again",
        )

    def handle(
        self, *args: object, login: str, confirm: str, **options: object
    ) -> None:
        """Erase the person, or print why not."""
        user = User.objects.filter(username=login).first()
        if user is None:
            raise CommandInvalid(f"There is no login {login!r}.")
        alias = erase(user_id=user.pk, typed=confirm, actor=None, now=timezone.now())
        self.stdout.write(f"Erased: the login is {alias} now.")
