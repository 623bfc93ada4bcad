"""Make and restore a backup. ``verification.py`` compares a copy with the original."""

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from django.conf import settings
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

from gpuportal.backup import (
    database_copy,
    manifest,
    media_archive,
    sealed_secrets,
    verification,
)
from gpuportal.backup.backup_refusals import (
    BackupKeyWrong,
    BackupNotMade,
    BackupUnusable,
    SiteNotEmpty,
    reason_of,
)
from gpuportal.backup.backup_version import (
    known_migrations,
    portal_version,
    refuse_newer,
)
from gpuportal.backup.manifest import Manifest
from gpuportal.backup.media_archive import MEDIA
from telemetry import paths

SECRETS = "secrets.age"
PARTIAL = ".partial"
NAME = "%Y-%m-%dT%H%M%SZ"


@dataclass(frozen=True)
class BackupSummary:
    """The values that a command prints about a backup."""

    folder: Path
    manifest: Manifest
    files: int
    """Uploads, results and logs in it."""

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(one.bytes for one in self.manifest.files.values())


def make_backup(
    folder: Path, key: sealed_secrets.Recipient | None, now: datetime
) -> BackupSummary:
    """Write a backup into a new folder below ``folder``, named by the instant.

    Until it is complete, the name ends with `.partial`. A failed backup is removed.

    Args:
        folder: folder of the backups. It is made if it is missing.
        key: encrypts the secrets; None leaves them out.
        now: instant of the data.

    Raises:
        BackupNotMade: the folder cannot be written, the disk is full, pg_dump failed.
    """
    target = folder / now.astimezone(UTC).strftime(NAME)
    partial = target.with_name(target.name + PARTIAL)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if target.exists():
            raise BackupNotMade(f"{target} exists already.")
        partial.mkdir(mode=0o700)
    except OSError as error:
        raise BackupNotMade(f"{folder}: {error.strerror}") from error
    try:
        figures = database_copy.write_copy(partial, now)
        files = media_archive.write_archive(Path(settings.MEDIA_ROOT), partial / MEDIA)
        if key is not None:
            sealed_secrets.write_secrets(secrets_of_site(), partial / SECRETS, key)
        made = Manifest(
            format=manifest.FORMAT,
            version=portal_version(),
            made_at=now.astimezone(UTC).isoformat(),
            vendor=connection.vendor,
            migrations=sorted(MigrationRecorder(connection).applied_migrations()),
            files={one.name: manifest.file_sum(one) for one in partial.iterdir()},
            facts=figures,
        )
        manifest.write_manifest(partial, made)
        partial.rename(target)
    except (OSError, sqlite3.Error) as error:
        why = reason_of(error)
        raise BackupNotMade(f"{folder}: {why}. Nothing was kept.") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return BackupSummary(target, made, files)


def secrets_of_site() -> dict[str, str]:
    """Return the texts of ``var/secret`` by name, and Django's key from its source.

    Passwords in the environment of the services are not included. They are in
    ``/etc/gpuportal``, which only root can read completely.
    """
    texts = {
        path.name: path.read_text()
        for path in sorted((paths.var_dir() / "secret").glob("*"))
        if path.is_file() and not path.is_symlink()
    }
    return texts | {"secret_key": settings.SECRET_KEY}


def remove_old(folder: Path, keep: int) -> list[Path]:
    """Delete all but the newest ``keep`` complete backups of a folder. Return the
    deleted ones.
    """
    whole = sorted(
        path.parent
        for path in folder.glob(f"*/{manifest.FILE}")
        if not path.parent.name.endswith(PARTIAL)
    )
    gone = whole[:-keep]
    for path in gone:
        shutil.rmtree(path)
    return gone


def restore_backup(folder: Path, key_file: Path | None) -> list[str]:
    """Restore a backup into this site, which must be empty.

    A backup of SQLite can be restored into PostgreSQL, too.

    Args:
        folder: folder of the backup.
        key_file: private key of the secrets; None leaves the secrets out.

    Returns:
        a line for each difference from the original; an empty list if both are equal.

    Raises:
        SiteNotEmpty: the database has tables, or there are uploads.
        BackupDamaged, BackupUnusable, BackupKeyWrong: see their sentences.
    """
    made = manifest.read_manifest(folder)
    refuse_newer(made)
    media = Path(settings.MEDIA_ROOT)
    if not database_copy.is_empty():
        raise SiteNotEmpty(
            f"The database {connection.settings_dict['NAME']} has tables. Restore into "
            "an empty one."
        )
    if media.exists() and any(media.iterdir()):
        raise SiteNotEmpty(f"{media} has files. Move them away first.")
    if made.vendor == "postgresql" and connection.vendor == "sqlite":
        raise BackupUnusable(
            "The backup is of a PostgreSQL database. Set DATABASE_URL to an empty one."
        )
    secrets: dict[str, str] = {}
    if key_file is not None:
        if SECRETS not in made.files:
            raise BackupKeyWrong(
                "The backup has no secrets: it was made without a key."
            )
        secrets = sealed_secrets.read_secrets(folder / SECRETS, key_file)
    try:
        with _fresh(media) as unpacked:
            media_archive.read_archive(folder / MEDIA, unpacked)
            _restore_database(made, folder)
            if media.exists():
                media.rmdir()
            unpacked.rename(media)
    except OSError as error:
        raise BackupUnusable(
            f"It cannot be restored here: {reason_of(error)}."
        ) from error
    sealed_secrets.put_secrets(secrets, paths.var_dir() / "secret")
    return verification.differences_from(made, {})


def _restore_database(made: Manifest, folder: Path) -> None:
    copy = folder / database_copy.FILES[made.vendor]
    target = connection.settings_dict
    connection.close()
    if made.vendor == connection.vendor == "postgresql":
        database_copy.restore_postgresql(copy, target)
        return
    if made.vendor == connection.vendor:
        # The empty file that the connection made, and the files beside it.
        name = Path(target["NAME"])
        for path in (name, *name.parent.glob(f"{name.name}-*")):
            path.unlink(missing_ok=True)
        database_copy.unpack_sqlite(copy, name)
        return
    if sorted(made.migrations) != sorted(known_migrations()):
        raise BackupUnusable(
            f"The backup was made by version {made.version}. To change the database, "
            "restore it into SQLite with this version first, and back that up."
        )
    with tempfile.TemporaryDirectory(dir=settings.VAR_DIR) as place:
        plain = Path(place) / "backup.sqlite3"
        database_copy.unpack_sqlite(copy, plain)
        database_copy.run_here("manage.py", "migrate", "-v0")
        database_copy.run_here(
            "-m", "gpuportal.backup.row_transfer", GPUPORTAL_BACKUP_SQLITE=str(plain)
        )


@contextmanager
def _fresh(media: Path) -> Iterator[Path]:
    """Yield the path of a new folder beside the media. It is removed afterwards if it
    still exists.
    """
    path = media.with_name(f"{media.name}.restored")
    shutil.rmtree(path, ignore_errors=True)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
