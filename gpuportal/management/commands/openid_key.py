"""`manage.py openid_key`: the key that signs ID tokens, and a new one."""

from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils import timezone

from gpuportal.openid_provider import signing_key
from telemetry.web.plain_commands import PlainCommand


class Command(PlainCommand):
    """Prints the name of the key. Services fetch the public key by themselves."""

    help = "Print the name of the key that signs ID tokens for other services."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the option."""
        parser.add_argument(
            "--rotate",
            action="store_true",
            help="make a new key; the previous one still verifies what it signed",
        )
        parser.add_argument(
            "--force",
            action="store_true",
            help="also if the last key was made within an hour; ID tokens of the key "
            "before it are refused from then on",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Print the name. With --rotate, replace the key first.

        Raises:
            CommandError: the file holds no key, or the key was replaced lately.
        """
        try:
            if options["rotate"]:
                signing_key.replace(timezone.now(), force=options["force"])
            names = [key["kid"] for key in signing_key.public_keys()]
        except (signing_key.SigningKeyInvalid, signing_key.ReplacedLately) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"signs: {names[0]}")
        for name in names[1:]:
            self.stdout.write(f"verifies only: {name}")
