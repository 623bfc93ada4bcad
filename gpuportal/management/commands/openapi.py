"""Print the API's schema, or keep docs/openapi.json."""

import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError
from django.core.serializers.json import DjangoJSONEncoder

from gpuportal.api import api
from gpuportal.http.api_contract import breaking_changes
from telemetry.web.plain_commands import PlainCommand


class Command(PlainCommand):
    """``manage.py openapi`` and ``manage.py openapi --write docs/openapi.json``."""

    help = (
        "Print the schema of the API (OpenAPI 3.1). With --write it replaces FILE, "
        "unless programs written for FILE would break."
    )
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument(
            "--write",
            type=Path,
            metavar="FILE",
            help="schema that programs rely on, such as docs/openapi.json",
        )

    def handle(self, *args: Any, write: Path | None, **options: Any) -> None:
        """Print it, or compare and write it."""
        text = schema_text()
        if write is None:
            self.stdout.write(text, ending="")
            return
        if write.exists():
            try:
                kept = json.loads(write.read_text())
                broken = breaking_changes(kept, json.loads(text))
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise CommandError(
                    f"{write} is not a schema of the API: {error!r}"
                ) from error
            if broken:
                raise CommandError(
                    f"{write} was not written. Version 1 of the API only grows, and "
                    f"{len(broken)} changes would break programs: {' '.join(broken)}"
                )
        try:
            write.write_text(text)
        except OSError as error:
            raise CommandError(f"{write}: {error.strerror}") from error
        self.stdout.write(f"{write} is written.")


def schema_text() -> str:
    """Return the schema as it is kept: indented, with sorted keys."""
    schema = api.get_openapi_schema()
    return json.dumps(schema, cls=DjangoJSONEncoder, indent=1, sort_keys=True) + "\n"
