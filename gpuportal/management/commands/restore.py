"""Restore a backup into an empty site."""

from argparse import ArgumentParser
from pathlib import Path

from django.core.management.base import CommandError

from gpuportal.backup import service
from gpuportal.backup.manifest import read_manifest
from telemetry.web.plain_commands import CommandInvalid, PlainCommand

SHOWN = 20


class Command(PlainCommand):
    """``manage.py restore BACKUP --key-file FILE``."""

    help = (
        "Restore a backup of `manage.py backup` into this site, whose database must be "
        "empty. A backup of SQLite can be restored into PostgreSQL."
    )
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options: the backup and its key."""
        parser.add_argument("backup", type=Path, metavar="BACKUP")
        parser.add_argument(
            "--key-file",
            type=Path,
            metavar="FILE",
            help="private key that opens the secrets (age or OpenSSH)",
        )
        parser.add_argument(
            "--without-secrets",
            action="store_true",
            help="leave the secrets as they are here",
        )

    def handle(
        self,
        *args: object,
        backup: Path,
        key_file: Path | None,
        without_secrets: bool,
        **options: object,
    ) -> None:
        """Restore, compare, and print the differences.

        Raises:
            CommandError: the restored data differ from the original.
        """
        if key_file and without_secrets:
            raise CommandInvalid("Give either --key-file or --without-secrets.")
        sealed = service.SECRETS in read_manifest(backup).files
        if sealed and not (key_file or without_secrets):
            raise CommandInvalid(
                "The backup has secrets. Give --key-file FILE, or --without-secrets."
            )
        found = service.restore_backup(backup, key_file)
        if found:
            for line in found[:SHOWN]:
                self.stderr.write(line)
            raise CommandError(
                f"{len(found)} differences from the original.", returncode=1
            )
        self.stdout.write(
            "Restored: no difference in balances, quotas, ranks and rows, and the "
            "books add up."
        )
