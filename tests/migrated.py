"""Migrated databases without rows, kept between runs of the suite.

A migration of an empty database takes five to ten seconds of CPU, because Django
renders the models again for each operation. The copy of a migrated file takes a
millisecond, and a dump is restored in half a second.

``python -m tests.migrated FOLDER`` keeps an SQLite file in the folder.
``python -m tests.migrated FOLDER BINARIES URL...`` makes PostgreSQL databases that
do not exist yet, with the programs in the folder BINARIES.
"""

import contextlib
import hashlib
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import django
import psycopg
from psycopg import sql

ROOT = Path(__file__).resolve().parents[1]
APPS = ("telemetry", "reservations", "placement", "gpuportal")


def schema_key() -> str:
    """Return a key that changes with every migration, trigger and package."""
    read = hashlib.sha256(repr(django.VERSION).encode())
    paths = [ROOT / "requirements.txt"]
    for app in APPS:
        paths += sorted((ROOT / app).glob("migrations/*.py"))
        paths += (ROOT / app).glob("models/triggers.py")
    for path in paths:
        read.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return read.hexdigest()[:16]


def _migrate(var: str, **environ: str) -> None:
    subprocess.run(
        [sys.executable, "manage.py", "migrate", "-v0"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "GPUPORTAL_VAR": var, **environ},
        check=True,
    )


# --- SQLite ------------------------------------------------------------------------


def sqlite_file(cache: Path) -> Path:
    """Return where the cache folder keeps an SQLite file with this schema."""
    return cache / f"{schema_key()}.sqlite3"


def keep_sqlite(made: sqlite3.Connection, kept: Path) -> None:
    """Copy an SQLite database into the cache, in place of earlier ones."""
    with (
        _in_place_of_older(kept) as draft,
        contextlib.closing(sqlite3.connect(draft)) as into,
    ):
        made.backup(into)


def make_sqlite(cache: Path) -> Path:
    """Return the kept SQLite file. Make it where it is missing."""
    kept = sqlite_file(cache)
    if not kept.exists():
        with tempfile.TemporaryDirectory() as var:
            _migrate(var)
            with contextlib.closing(sqlite3.connect(f"{var}/db.sqlite3")) as made:
                keep_sqlite(made, kept)
    return kept


def copy_migrated(cache: Path, to: Path) -> None:
    """Make an SQLite file with the schema and no row, for a portal of a test.

    The copy is of the file that the test database is copied from.
    """
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(make_sqlite(cache), to)
    # As `manage.py migrate` leaves it.
    to.chmod(0o600)


# --- PostgreSQL --------------------------------------------------------------------


def make_postgresql(cache: Path, binaries: Path, urls: Sequence[str]) -> None:
    """Make a migrated PostgreSQL database at each address.

    The first is migrated where the cache has no dump for this schema and these
    programs. The others are restored from the dump.
    """
    kept = postgresql_file(cache, binaries)
    for url in urls:
        server, _, name = url.rpartition("/")
        with psycopg.connect(f"{server}/postgres", autocommit=True) as admin:
            admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        if kept.exists():
            restore_postgresql(kept, binaries, url)
            continue
        with tempfile.TemporaryDirectory() as var:
            _migrate(var, DATABASE_URL=url)
        keep_postgresql(url, binaries, kept)


def postgresql_file(cache: Path, binaries: Path) -> Path:
    """Return where the cache folder keeps a dump with this schema."""
    version = subprocess.run(
        [binaries / "pg_dump", "--version"], capture_output=True, text=True, check=True
    ).stdout.split()[2]
    return cache / f"{schema_key()}-{version}.dump"


def keep_postgresql(url: str, binaries: Path, kept: Path) -> None:
    """Dump a database into the cache, in place of earlier ones."""
    with _in_place_of_older(kept) as draft:
        dump = [binaries / "pg_dump", "-Fc", "-d", url, "-f", draft]
        subprocess.run(dump, check=True)


def restore_postgresql(kept: Path, binaries: Path, url: str) -> None:
    """Restore a dump of the cache into an empty database."""
    restore = [binaries / "pg_restore", "--exit-on-error", "-d", url, kept]
    subprocess.run(restore, check=True)


@contextlib.contextmanager
def _in_place_of_older(kept: Path) -> Iterator[Path]:
    """Yield where to write a file of the cache. It takes the place of older ones."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    draft = kept.with_suffix(f".{os.getpid()}")
    yield draft
    # In this order: a run beside this one finds the old file or the new one.
    draft.replace(kept)
    for path in kept.parent.glob(f"*{kept.suffix}"):
        if path != kept:
            path.unlink(missing_ok=True)


def main(arguments: Sequence[str]) -> None:
    """Make what the arguments name."""
    cache, *rest = arguments
    if rest:
        make_postgresql(Path(cache), Path(rest[0]), rest[1:])
    else:
        make_sqlite(Path(cache))


if __name__ == "__main__":
    main(sys.argv[1:])
