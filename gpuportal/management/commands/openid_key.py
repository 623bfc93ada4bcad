"""`manage.py openid_key`: the key that signs ID tokens, and a new one."""

from datetime import datetime, timedelta
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils import timezone

from gpuportal.openid_provider import signing_key
from reservations.models import AuditEntry
from reservations.store.audit_log import audit_act
from telemetry.web.plain_commands import PlainCommand

REPLACED = "openid.key-replaced"
PAUSE = timedelta(hours=1)
"""Between two new keys. Services may need that long to fetch the last one."""


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
                _rotate(timezone.now(), force=options["force"])
            names = [key["kid"] for key in signing_key.public_keys()]
        except signing_key.SigningKeyInvalid as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"signs: {names[0]}")
        for name in names[1:]:
            self.stdout.write(f"verifies only: {name}")


def _rotate(now: datetime, *, force: bool) -> None:
    """Replace the key. The audit log has it first, so that no new key is unknown to it.

    Raises:
        SigningKeyInvalid: the file holds no key.
        CommandError: the key was replaced lately.
    """
    signing_key.signing_key()
    lately = AuditEntry.objects.filter(verb=REPLACED, at__gt=now - PAUSE)
    if not force and lately.exists():
        raise CommandError(
            "the key was replaced within the last hour; a second new key lets services "
            "refuse what the first one replaced had signed (--force does it)"
        )
    audit_act(verb=REPLACED, subject="site", actor=None, now=now)
    signing_key.rotate()
