"""`manage.py retire_node NAME`: retire a machine that will not come back."""

from typing import Any

from django.core.management.base import CommandParser
from django.utils import timezone

from reservations.operations.node_retirement import retire_node
from telemetry.web.plain_commands import PlainCommand


class Command(PlainCommand):
    """Takes a node off the board. Its history stays."""

    help = (
        "Retire a node: it leaves the board and the calendar, its token ends, its "
        "history stays. enroll_node --renew brings it back."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options."""
        parser.add_argument("name", help="an enrolled node")
        parser.add_argument("--reason", default="", help="for the audit log")

    def handle(self, *args: Any, **options: Any) -> None:
        """Retire the node. A failure is one line."""
        name = options["name"]
        count = retire_node(
            name=name, actor=None, reason=options["reason"], now=timezone.now()
        )
        self.stdout.write(f"{name} is retired, with {count} GPUs. Its history stays.")
