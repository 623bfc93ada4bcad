"""Verify a backup: restore it elsewhere and compare the copy with the original.

``facts.py`` collects the figures that are compared.
"""

import tempfile
from contextlib import ExitStack
from pathlib import Path

from gpuportal.backup import database_copy, facts, manifest, media_archive
from gpuportal.backup.backup_refusals import BackupUnusable, reason_of
from gpuportal.backup.backup_version import known_migrations, refuse_newer
from gpuportal.backup.manifest import Manifest
from gpuportal.backup.media_archive import MEDIA


def verify_backup(folder: Path) -> list[str]:
    """Restore a backup into a scratch database and compare it with the original.

    The books are checked too. The site's data are not touched.

    Returns:
        a line for each difference; an empty list if both are equal.

    Raises:
        BackupDamaged: a file is missing, cut short or changed.
        BackupUnusable: a newer portal made it, or the scratch folder has no space.
        BackupNotMade: PostgreSQL's server programs are not installed.
    """
    made = manifest.read_manifest(folder)
    refuse_newer(made)
    try:
        return _differences_after_restore(made, folder)
    except OSError as error:
        raise BackupUnusable(
            f"It cannot be restored for a check in {tempfile.gettempdir()}: "
            f"{reason_of(error)}."
        ) from error


def _differences_after_restore(made: Manifest, folder: Path) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="gpuportal-verify-") as place:
        scratch = Path(place)
        scratch.chmod(0o711)
        media_archive.read_archive(folder / MEDIA, scratch / "media")
        var = scratch / "var"
        var.mkdir()
        copy = folder / database_copy.FILES[made.vendor]
        # A separate address, because the settings of this process name the site's
        # database.
        environ = {"GPUPORTAL_VAR": str(var), "DATABASE_URL": ""}
        with ExitStack() as stack:
            if made.vendor == "sqlite":
                database_copy.unpack_sqlite(copy, var / "db.sqlite3")
            else:
                url = stack.enter_context(
                    database_copy.scratch_server(scratch / "server")
                )
                server = {"HOST": str(scratch / "server"), **_SCRATCH}
                database_copy.restore_postgresql(copy, server, roles=False)
                environ["DATABASE_URL"] = url
            return differences_from(made, environ)


_SCRATCH = {"PORT": "", "USER": "gpuportal", "PASSWORD": "", "NAME": "postgres"}


def differences_from(made: Manifest, environ: dict[str, str]) -> list[str]:
    """Migrate a restored database, check its books, and compare its figures.

    Args:
        made: the list of the backup, with the figures of the original.
        environ: addresses of the restored database. Empty: the site's own.

    Returns:
        a line for each difference; an empty list if both are equal.
    """
    same = sorted(made.migrations) == sorted(known_migrations())
    if not same:
        database_copy.run_here("manage.py", "migrate", "-v0", **environ)
    found, wrong = database_copy.facts_of(made.made_at, **environ)
    return [*wrong, *facts.differences(made.facts, found, same_schema=same)]
