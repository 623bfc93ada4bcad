"""Databases as releases left them, and empty ones, for commands in processes."""

import gzip
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
from django.conf import settings
from django.db import connection
from psycopg import sql

from gpuportal.backup.database_copy import program
from tests.gpuportal.running import manage
from tests.migrated import (
    keep_postgresql,
    keep_sqlite,
    postgresql_file,
    restore_postgresql,
    sqlite_file,
)

FOLDER = Path(__file__).resolve().parent
_numbers = count(1)


@contextmanager
def release_database(
    release: str, var: Path, vendor: str = ""
) -> Iterator[dict[str, str]]:
    """Make a database as the release left it; yield the environment that names it.

    Args:
        release: its folder beside this file.
        var: the portal's folder, which gets the database of SQLite.
        vendor: kind of the database; empty: that of the test run.
    """
    vendor = vendor or connection.vendor
    text = gzip.decompress((FOLDER / release / f"{vendor}.sql.gz").read_bytes())
    if vendor == "sqlite":
        with closing(sqlite3.connect(var / "db.sqlite3")) as database:
            database.executescript(text.decode())
    with empty_database(var, vendor) as environ:
        if vendor == "postgresql":
            with psycopg.connect(environ["DATABASE_URL"], autocommit=True) as database:
                database.execute(text)
        yield environ


@contextmanager
def upgraded_database(
    release: str, var: Path, cache: Path, vendor: str = ""
) -> Iterator[dict[str, str]]:
    """Make a database of a release after ``migrate``; yield the environment naming it.

    The upgrade takes six seconds of CPU. The cache keeps its result for the tests that
    follow, while no migration and no package changes.

    Args:
        release: its folder beside this file.
        var: the portal's folder, which gets the database of SQLite.
        cache: folder of migrated databases.
        vendor: kind of the database; empty: that of the test run.
    """
    vendor = vendor or connection.vendor
    sqlite, file = vendor == "sqlite", var / "db.sqlite3"
    binaries = Path() if sqlite else Path(program("pg_dump")).parent
    kept = cache / release
    kept = sqlite_file(kept) if sqlite else postgresql_file(kept, binaries)
    if kept.exists():
        if sqlite:
            shutil.copyfile(kept, file)
            file.chmod(0o600)
        with empty_database(var, vendor) as environ:
            if not sqlite:
                restore_postgresql(kept, binaries, environ["DATABASE_URL"])
            yield environ
        return
    with release_database(release, var, vendor) as environ:
        done = manage(var, "migrate", "-v0", "--skip-checks", **environ)
        assert done.returncode == 0, done.stderr
        if sqlite:
            with closing(sqlite3.connect(file)) as made:
                keep_sqlite(made, kept)
        else:
            keep_postgresql(environ["DATABASE_URL"], binaries, kept)
        yield environ


@contextmanager
def empty_database(var: Path, vendor: str = "") -> Iterator[dict[str, str]]:
    """Make an empty database; yield the environment that names it.

    On SQLite that is the file below ``var``, which the first connection makes.
    """
    (var / "static").mkdir(parents=True, exist_ok=True)
    # A database of its own in the broker: what other tests counted is in the first.
    broker = {"REDIS_URL": settings.REDIS_URL.replace("db=0", "db=9")}
    if (vendor or connection.vendor) == "sqlite":
        yield broker
        return
    given = connection.settings_dict
    made = f"release_{os.getpid()}_{next(_numbers)}"
    name = sql.Identifier(made)
    server: dict[str, Any] = {
        "host": given["HOST"],
        "port": given["PORT"] or 5432,
        "user": given["USER"],
        "password": given["PASSWORD"],
    }
    with psycopg.connect(**server, dbname="postgres", autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(name))
        try:
            password = f":{given['PASSWORD']}" if given["PASSWORD"] else ""
            yield broker | {
                "DATABASE_URL": f"postgres://{given['USER']}{password}@"
                f"{given['HOST']}:{server['port']}/{made}"
            }
        finally:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))
