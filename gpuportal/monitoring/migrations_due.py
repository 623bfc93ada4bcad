"""Whether the database is as this version of the portal expects it."""

import time

from django.db import DEFAULT_DB_ALIAS, connections
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader

OUR_APPS = frozenset({"telemetry", "reservations", "placement"})
KEPT_SECONDS = 60.0
"""How long a page goes by what it found last: reading the files takes a while."""
_found: tuple[float, list[str]] | None = None


def waiting(alias: str = DEFAULT_DB_ALIAS) -> list[str]:
    """Migrations that ``manage.py migrate`` would run, as ``app.name``.

    Raises:
        DatabaseError: the database does not answer.
    """
    executor = MigrationExecutor(connections[alias])
    plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    return [f"{migration.app_label}.{migration.name}" for migration, _ in plan]


def recently_waiting() -> list[str]:
    """The same, read once a minute in each process."""
    global _found
    now = time.monotonic()
    if _found is None or now - _found[0] > KEPT_SECONDS:
        _found = (now, waiting())
    return _found[1]


def unknown(alias: str = DEFAULT_DB_ALIAS) -> list[str]:
    """Migrations of ours that the database has run and this version does not know.

    Raises:
        DatabaseError: the database does not answer.
    """
    loader = MigrationLoader(connections[alias])
    return [
        f"{app}.{name}"
        for app, name in sorted(loader.applied_migrations or {})
        if app in OUR_APPS and (app, name) not in loader.disk_migrations
    ]
