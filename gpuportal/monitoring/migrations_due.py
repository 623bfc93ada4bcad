"""Whether the database matches this version of the portal."""

import time

from django.db import DEFAULT_DB_ALIAS, connections
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from telemetry import paths

OUR_APPS = frozenset({"telemetry", "reservations", "placement"})
BEFORE_FIRST_RELEASE = frozenset(
    {
        ("telemetry", "0002_keeping"),
        ("reservations", "0002_token"),
        ("placement", "0002_moves"),
    }
)
"""Migrations that the first release replaced by one for each app."""
TOO_OLD = "This database was made by a version before 0.1.0. It cannot be upgraded."
KEPT_SECONDS = 60.0
"""How long a result is cached, because reading the files takes a while."""
_found: tuple[float, list[str]] | None = None


def made_before_first_release(alias: str = DEFAULT_DB_ALIAS) -> bool:
    """Return whether a version before 0.1.0 made the database.

    Raises:
        DatabaseError: the database does not answer.
    """
    applied = MigrationRecorder(connections[alias]).applied_migrations()
    return not BEFORE_FIRST_RELEASE.isdisjoint(applied)


def way_to_new_database(alias: str = DEFAULT_DB_ALIAS) -> str:
    """Return the remedy for a database that is too old, as one sentence."""
    var = paths.var_dir()
    if connections[alias].settings_dict["NAME"] == var / "db.sqlite3":
        return f"Move {var} to another place and start again: a new one is made."
    return "Make an empty database, as docs/operations.md says, and run migrate."


def waiting(alias: str = DEFAULT_DB_ALIAS) -> list[str]:
    """Return the migrations that ``manage.py migrate`` would run, as ``app.name``.

    Raises:
        DatabaseError: the database does not answer.
    """
    executor = MigrationExecutor(connections[alias])
    plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    return [f"{migration.app_label}.{migration.name}" for migration, _ in plan]


def recently_waiting() -> list[str]:
    """Return `pending_migrations`, read at most once a minute in each process."""
    global _found
    now = time.monotonic()
    if _found is None or now - _found[0] > KEPT_SECONDS:
        _found = (now, waiting())
    return _found[1]


def unknown(alias: str = DEFAULT_DB_ALIAS) -> list[str]:
    """Return the portal's migrations that the database has run and this version does
    not know.

    Raises:
        DatabaseError: the database does not answer.
    """
    loader = MigrationLoader(connections[alias])
    return [
        f"{app}.{name}"
        for app, name in sorted(loader.applied_migrations or {})
        if app in OUR_APPS and (app, name) not in loader.disk_migrations
    ]
