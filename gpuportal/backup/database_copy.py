"""Copy the database into one file, and from that file into a database."""

import gzip
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import connection, transaction

from gpuportal.backup.backup_refusals import (
    BackupDamaged,
    BackupNotMade,
    BackupUnusable,
)
from gpuportal.backup.facts import collect_facts

FILES = {"sqlite": "database.sqlite3.gz", "postgresql": "database.dump"}
"""Name of the copy by the kind of the database."""


def write_copy(folder: Path, now: datetime) -> dict[str, Any]:
    """Copy the live database into a folder. Return its figures.

    Copy and figures are of one state. Readers and writers are not blocked.

    Args:
        folder: folder of the backup, which gets one file of `FILES`.
        now: instant of the ranks in the figures.

    Raises:
        BackupNotMade: pg_dump is missing or failed.
    """
    target = folder / FILES[connection.vendor]
    if connection.vendor == "sqlite":
        return _write_sqlite(target, now)
    return _write_postgresql(target, now)


def _write_sqlite(target: Path, now: datetime) -> dict[str, Any]:
    plain = target.with_suffix("")
    with connection.cursor() as cursor:
        # Deferred: the first read fixes the state, and no writer has to wait.
        cursor.execute("BEGIN DEFERRED")
        try:
            facts = collect_facts(now)
            with closing(sqlite3.connect(plain)) as copy:
                connection.connection.backup(copy)
        finally:
            cursor.execute("ROLLBACK")
    with plain.open("rb") as source, gzip.open(target, "wb", compresslevel=6) as packed:
        shutil.copyfileobj(source, packed)
    plain.unlink()
    return facts


def _write_postgresql(target: Path, now: datetime) -> dict[str, Any]:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        cursor.execute("SELECT pg_export_snapshot()")
        (snapshot,) = cursor.fetchone()
        facts = collect_facts(now)
        _run(
            [
                *(program("pg_dump"), "--format=custom", "--no-owner"),
                *(f"--snapshot={snapshot}", f"--file={target}"),
            ],
            server_environ(connection.settings_dict),
        )
    return facts


def server_environ(database: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment with which PostgreSQL's programs find a database."""
    named = {
        "PGHOST": database["HOST"],
        "PGPORT": database["PORT"],
        "PGUSER": database["USER"],
        "PGPASSWORD": database["PASSWORD"],
        "PGDATABASE": database["NAME"],
        "PGSSLMODE": (database.get("OPTIONS") or {}).get("sslmode"),
    }
    return os.environ | {name: str(value) for name, value in named.items() if value}


def program(name: str) -> str:
    """Return the path of one of PostgreSQL's programs.

    Raises:
        BackupNotMade: it is not installed.
    """
    found = shutil.which(name)
    if found is None:
        # Debian does not put the programs of servers into the path.
        servers = Path("/usr/lib/postgresql").glob(f"*/bin/{name}")
        newest = max(servers, key=lambda p: float(p.parts[-3]), default=None)
        found = None if newest is None else str(newest)
    if found is None:
        raise BackupNotMade(
            f"{name} is not installed. It comes with PostgreSQL: apt-get install "
            "postgresql."
        )
    return found


def _run(command: list[str], environ: Mapping[str, str]) -> None:
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, check=False
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["it said nothing"]
        raise BackupNotMade(f"{Path(command[0]).name} failed: {lines[0]}")


# --- restore --------------------------------------------------------------------------


def unpack_sqlite(copy: Path, target: Path) -> None:
    """Write the copy of an SQLite database as a database.

    Raises:
        BackupDamaged: it cannot be unpacked, or SQLite finds it damaged.
        OSError: the database cannot be written. Nothing of it is left.
    """
    try:
        with gzip.open(copy) as packed, target.open("xb") as file:
            try:
                shutil.copyfileobj(packed, file)
            except BaseException:
                target.unlink()
                raise
        target.chmod(0o600)
        with closing(sqlite3.connect(target)) as database:
            found = database.execute("PRAGMA quick_check").fetchone()
    except (gzip.BadGzipFile, EOFError, sqlite3.DatabaseError) as error:
        raise BackupDamaged(f"{copy} is damaged: {error}") from error
    if found != ("ok",):
        raise BackupDamaged(f"{copy} is damaged: {found[0]}")


def restore_postgresql(
    copy: Path, database: Mapping[str, Any], *, roles: bool = True
) -> None:
    """Restore the copy of a PostgreSQL database: all of it, or nothing.

    Args:
        copy: file of pg_dump.
        database: as in Django's ``DATABASES``; it must be empty.
        roles: False leaves out the grants to roles, which a scratch server does not
            have.

    Raises:
        BackupDamaged: pg_restore refuses the file.
    """
    try:
        _run(
            [
                *(program("pg_restore"), "--no-owner"),
                *([] if roles else ["--no-privileges"]),
                *("--single-transaction", "--exit-on-error"),
                *("--dbname", str(database["NAME"]), str(copy)),
            ],
            server_environ(database),
        )
    except BackupNotMade as error:
        raise BackupDamaged(f"{copy} cannot be restored: {error}") from error


def is_empty() -> bool:
    """Return whether the database of the settings has no table."""
    return not connection.introspection.table_names()


def run_here(*arguments: str, **environ: str) -> str:
    """Run Python in the checkout with the settings of this process. Return its output.

    Args:
        arguments: of the interpreter.
        environ: different variables, such as DATABASE_URL.

    Raises:
        BackupUnusable: it failed, with its last line.
    """
    changed = os.environ | {"DJANGO_SETTINGS_MODULE": "gpuportal.settings"} | environ
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=settings.BASE_DIR,
        env={name: value for name, value in changed.items() if value},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise BackupUnusable(f"{' '.join(arguments[:2])} failed: {last}")
    return done.stdout


def facts_of(now: str, **environ: str) -> tuple[dict[str, Any], list[str]]:
    """Return the figures of the database that an environment names, and the faults of
    its books.
    """
    text = run_here("-m", "gpuportal.backup.facts", now, **environ)
    found = json.loads(text.strip().splitlines()[-1])
    return found["facts"], found["findings"]


@contextmanager
def scratch_server(folder: Path) -> Iterator[str]:
    """Run a private PostgreSQL server in a folder; yield the address of a database.

    It listens on a socket in the folder only. As root it runs as the user ``postgres``,
    because PostgreSQL refuses root.

    Raises:
        BackupNotMade: PostgreSQL's server is not installed or does not start.
    """
    folder.mkdir(mode=0o700)
    prefix: list[str] = []
    if os.getuid() == 0:
        shutil.chown(folder, "postgres")
        prefix = ["runuser", "-u", "postgres", "--"]
    data, log = folder / "data", folder / "log"
    control = [*prefix, program("pg_ctl"), "-D", str(data), "-w", "-s"]
    environ = dict(os.environ)
    _run(
        [
            *(*prefix, program("initdb"), "-D", str(data), "-A", "trust", "-N"),
            *("-U", "gpuportal", "-E", "UTF8", "--locale=C.UTF-8"),
        ],
        environ,
    )
    options = f"-c listen_addresses= -c unix_socket_directories={folder} -c fsync=off"
    # pg_ctl's server keeps the pipes open, so its output goes into a file.
    started = subprocess.run(
        [*control, "-l", str(log), "-o", options, "start"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    if started.returncode:
        raise BackupNotMade(f"A scratch PostgreSQL does not start; see {log}.")
    try:
        yield f"postgres://gpuportal@/{folder}/postgres"
    finally:
        subprocess.run(
            [*control, "-m", "immediate", "stop"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
