"""The version of this portal, and whether it can read a backup of another version."""

from django.db.migrations.loader import MigrationLoader

from gpuportal.backup.backup_refusals import BackupUnusable
from gpuportal.backup.manifest import Manifest
from telemetry import paths


def portal_version() -> str:
    """Return the version of this checkout."""
    return paths.release()


def known_migrations() -> set[tuple[str, str]]:
    """Return every migration that this version has."""
    return set(MigrationLoader(None).disk_migrations)


def refuse_newer(made: Manifest) -> None:
    """Refuse a backup with a migration that this version does not have.

    Raises:
        BackupUnusable: with both versions.
    """
    known = known_migrations()
    apps = {app for app, _ in known}
    unknown = [
        f"{app}.{name}"
        for app, name in made.migrations
        if app in apps and (app, name) not in known
    ]
    if unknown:
        raise BackupUnusable(
            f"The backup was made by version {made.version} of the portal, which is "
            f"newer than this one ({portal_version()}). It does not know {unknown[0]}. "
            "Upgrade the portal first."
        )
