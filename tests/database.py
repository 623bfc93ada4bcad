"""The test database: migrated once, then copied for every run.

Django renders the models again for each operation of a migration. That takes four
seconds of CPU, and the statements themselves take a fifth of a second.
"""

import contextlib
import hashlib
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import django
from django.apps import apps
from django.db import connection
from django.test.utils import setup_databases, teardown_databases


def schema_key() -> str:
    """Return a key that changes with every migration, trigger and version of Django."""
    read = hashlib.sha256(repr(django.VERSION).encode())
    for app in apps.get_app_configs():
        folder = Path(app.path)
        for path in (
            *sorted(folder.glob("migrations/*.py")),
            folder / "models/triggers.py",
        ):
            if path.exists():
                read.update(f"{app.label}/{path.name}\n".encode() + path.read_bytes())
    return read.hexdigest()[:16]


ROOT = Path(__file__).resolve().parents[1]


def copy_migrated(cache: Path, to: Path) -> None:
    """Make an SQLite file with the schema and no row, for a portal of a test.

    The file from which the test database is copied is copied. If the cache folder has
    none of these migrations, ``manage.py migrate`` makes one.
    """
    kept = cache / f"{schema_key()}.sqlite3"
    to.parent.mkdir(parents=True, exist_ok=True)
    try:
        shutil.copyfile(kept, to)
    except FileNotFoundError:
        with tempfile.TemporaryDirectory() as var:
            known = {"PATH": os.environ["PATH"], "GPUPORTAL_VAR": var}
            subprocess.run(
                [sys.executable, "manage.py", "migrate", "-v0"],
                cwd=ROOT,
                env=known,
                check=True,
            )
            with contextlib.closing(sqlite3.connect(f"{var}/db.sqlite3")) as made:
                _keep(made, kept)
        shutil.copyfile(kept, to)
    # As `manage.py migrate` leaves it.
    to.chmod(0o600)


@contextlib.contextmanager
def migrated_database(cache: Path) -> Iterator[None]:
    """Provide a test database while the context is open.

    On SQLite it is a copy of the file in the cache folder, if there is one of these
    migrations. Otherwise it is migrated, and a copy goes into the cache. ``migrate``
    runs in both cases, and finds nothing to do in a copy.
    """
    sqlite = connection.vendor == "sqlite"
    kept = cache / f"{schema_key()}.sqlite3"
    copied = False
    if sqlite:
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(kept, connection.settings_dict["TEST"]["NAME"])
            copied = True
    made = setup_databases(verbosity=0, interactive=False, keepdb=copied)
    if sqlite and not copied:
        connection.ensure_connection()
        _keep(connection.connection, kept)
    yield
    teardown_databases(made, verbosity=0)


def _keep(made: sqlite3.Connection, kept: Path) -> None:
    """Copy an SQLite database into the cache, in place of earlier ones."""
    draft = kept.with_suffix(f".{os.getpid()}")
    with contextlib.closing(sqlite3.connect(draft)) as into:
        made.backup(into)
    # In this order: a run beside this one finds the old file or the new one.
    draft.replace(kept)
    for path in kept.parent.glob("*.sqlite3"):
        if path != kept:
            path.unlink(missing_ok=True)
