"""Make a backup, or verify one."""

from argparse import ArgumentParser
from pathlib import Path

from django.core.management.base import CommandError
from django.db import connection
from django.utils import timezone

from gpuportal.backup import last_backup, sealed_secrets, service, verification
from telemetry.protocol.coded_error import CodedError
from telemetry.web.plain_commands import CommandInvalid, PlainCommand

SHOWN = 20


class Command(PlainCommand):
    """``manage.py backup FOLDER`` and ``manage.py backup FOLDER --verify``."""

    help = (
        "Write the database, uploads, results, logs and encrypted secrets into a new "
        "folder below FOLDER. With --verify it is restored into a scratch database at "
        "once, and balances, quotas, ranks and rows are compared."
    )
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options: the folder, the key, and others."""
        parser.add_argument("folder", type=Path, metavar="FOLDER")
        parser.add_argument(
            "--key",
            metavar="PUBLIC",
            default="",
            help="public key that encrypts the secrets: age1..., ssh-ed25519 ... or "
            "ssh-rsa .... Without one the secrets are left out",
        )
        parser.add_argument(
            "--new-key",
            type=Path,
            metavar="FILE",
            help="make a key: FILE gets the private one, which opens the secrets. Keep "
            "it on another machine",
        )
        parser.add_argument(
            "--verify",
            action="store_true",
            help="verify the backup. If FOLDER is a backup, only verify that one",
        )
        parser.add_argument(
            "--keep",
            type=int,
            metavar="N",
            help="afterwards delete all but the newest N backups in FOLDER",
        )

    def handle(
        self,
        *args: object,
        folder: Path,
        key: str,
        new_key: Path | None,
        verify: bool,
        keep: int | None,
        **options: object,
    ) -> None:
        """Make or verify a backup, and record it for the operator's page and the
        metrics.

        Raises:
            CommandError: the backup was made but differs from the original.
        """
        if keep is not None and keep < 1:
            raise CommandInvalid("--keep is 1 or more.")
        if key and new_key:
            raise CommandInvalid("Give either --key or --new-key.")
        recipient = sealed_secrets.recipient(key) if key else None
        try:
            if verify and (folder / service.manifest.FILE).exists():
                self._verify(folder)
                last_backup.note_verified()
                return
            if new_key:
                public = sealed_secrets.make_key(new_key)
                recipient = sealed_secrets.recipient(public)
                self.stdout.write(
                    f"{new_key} opens the secrets: keep it on another machine. "
                    f"Next time: --key {public}"
                )
            made = service.make_backup(folder, recipient, timezone.now())
            self.stdout.write(
                f"{made.folder}: {made.bytes / 2**20:.1f} MiB, the "
                f"{connection.display_name} database and {made.files} uploads, results "
                "and logs."
            )
            if recipient is None:
                self.stdout.write(
                    "The secrets are not in it: there was no --key. Without them nodes "
                    "must be enrolled again after a restore."
                )
            if verify:
                self._verify(made.folder)
            last_backup.note_made(verified=verify)
        except (CodedError, CommandError) as error:
            last_backup.note_failure(str(error))
            raise
        for path in service.remove_old(folder, keep) if keep else []:
            self.stdout.write(f"{path} was deleted.")

    def _verify(self, folder: Path) -> None:
        found = verification.verify_backup(folder)
        if found:
            for line in found[:SHOWN]:
                self.stderr.write(line)
            raise CommandError(
                f"{folder} is not the original: {len(found)} differences.", returncode=1
            )
        self.stdout.write(
            f"{folder} was restored into a scratch database: no difference in "
            "balances, quotas, ranks and rows, and the books add up."
        )
