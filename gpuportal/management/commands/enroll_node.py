"""`manage.py enroll_node NAME`: let a machine report its Gpus."""

import os
import secrets
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.management.base import CommandError, CommandParser
from django.utils import timezone

from placement.protocol import signing
from telemetry import paths
from telemetry.inventory.enrollment import enroll_node, renew_token
from telemetry.web.plain_commands import PlainCommand

NODE_FILES = Path("/etc/gpuportal")
"""Paths on the node, as in ``deploy/node.env.example``."""


class Command(PlainCommand):
    """Makes the node's row, its token and the order key, and prints what to copy."""

    help = (
        "Enrol a node, write its token to a file of mode 600, "
        "and print which files the node needs."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options."""
        parser.add_argument("name", help="letters, digits, - and _; at most 63")
        parser.add_argument(
            "--simulated", action="store_true", help="its GPUs are simulated"
        )
        parser.add_argument(
            "--renew", action="store_true", help="a new token for an enrolled node"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Enrol a node or renew its token. A failure is one line."""
        name, simulated = options["name"], options["simulated"]
        if simulated and not settings.ALLOW_SIMULATED_GPUS:
            raise CommandError(
                "this site takes no simulated GPUs; ALLOW_SIMULATED_GPUS=1 allows them"
            )
        try:
            if options["renew"]:
                _node, token = renew_token(name=name)
            else:
                now = timezone.now()
                _node, token = enroll_node(name=name, simulated=simulated, now=now)
        except ValidationError as error:
            raise CommandError(" ".join(error.messages)) from error
        path = write_token(Path(settings.VAR_DIR) / "secret", name, token)
        # A node refuses every command that it cannot verify.
        signing.public_key_pem()
        key = paths.secret_file(signing.PUBLIC)
        done = "has a new token" if options["renew"] else "is enrolled"
        self.stdout.write(
            f"{name} {done}. Copy these files to {name}, owner root, mode 600:\n"
            f"  {path}  ->  {NODE_FILES / 'node.token'}\n"
            f"  {key}  ->  {NODE_FILES / 'order_key.pub'}"
        )


def write_token(folder: Path, name: str, token: str) -> Path:
    """Write a token into a file that only its owner can read, replacing an old one."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / f"node-{name}.token"
    draft = folder / f".{path.name}.{secrets.token_hex(4)}"
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(token)
    draft.replace(path)
    return path
