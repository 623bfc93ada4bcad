"""Read the facts about a portal that is to be upgraded."""

import http.client
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from django.conf import settings
from django.db import DatabaseError, connection
from django.db.migrations import Migration
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.state import ProjectState
from django.utils import timezone

from gpuportal.backup import last_backup
from gpuportal.monitoring import health, migrations_due
from gpuportal.upgrade.migration_effects import (
    EffectKind,
    MigrationEffect,
    contract_since,
    effects_of,
    tables_made,
)
from gpuportal.upgrade.readiness import parts_not_in_order
from gpuportal.upgrade.release_folders import ReleaseUnusable, release_of
from gpuportal.upgrade.upgrade_report import (
    NodeRelease,
    PendingEffect,
    PendingMigration,
    UpgradeFacts,
    releases_behind,
)
from placement.models import Job
from placement.protocol.job_lifecycle import JobState
from reservations.models import Reservation
from reservations.rules.lifecycle import State
from telemetry import paths
from telemetry.models import Node

_RELEASE = re.compile(r"^## (\d+\.\d+\.\d+) \(", re.MULTILINE)


def upgrade_facts(
    installed: Path | None, *, web: str, lost_packages: Sequence[str] = ()
) -> UpgradeFacts:
    """Read everything once. Nothing is changed.

    Args:
        installed: folder of the release that runs; None: not known.
        web: address of the web processes that run.
        lost_packages: Python packages that only the installed release has.
    """
    last, now = last_backup.read_last(), time.time()
    pending: tuple[PendingMigration, ...] = ()
    unknown: tuple[str, ...] = ()
    database = too_old = False
    counts = (0, 0, 0)
    nodes: tuple[NodeRelease, ...] = ()
    try:
        too_old = migrations_due.made_before_first_release()
        pending = tuple(_pending())
        unknown = tuple(migrations_due.unknown())
        counts = _going_on()
        nodes = tuple(_nodes())
        database = True
    except DatabaseError:
        pass  # The report says that it does not answer.
    return UpgradeFacts(
        installed=_release(installed),
        new=paths.release(),
        published=published_releases(),
        database=database,
        too_old=too_old,
        unknown=unknown,
        pending=pending,
        backup_failure=last.failure,
        backup_age_seconds=None if last.made_at is None else now - last.made_at,
        verified_age_seconds=None
        if last.verified_at is None
        else now - last.verified_at,
        running_jobs=counts[0],
        waiting_jobs=counts[1],
        running_bookings=counts[2],
        nodes=nodes,
        disk_free_bytes=min(
            shutil.disk_usage(folder).free
            for folder in (settings.VAR_DIR, paths.BASE_DIR)
        ),
        lost_packages=tuple(lost_packages),
        not_in_order=_not_in_order(web),
        manage_command=settings.MANAGE_COMMAND,
    )


def published_releases() -> tuple[str, ...]:
    """Return the releases of the changelog, the newest first."""
    try:
        text = (paths.BASE_DIR / "CHANGELOG.md").read_text()
    except OSError:
        return ()
    return tuple(_RELEASE.findall(text))


def lost_to(folder: Path) -> list[str]:
    """Return what keeps an older release from running on this database.

    That is every contract step that the database has and the release lacks, unless the
    release had stopped using what the step removes.

    Raises:
        DatabaseError: the database does not answer.
    """
    executor = MigrationExecutor(connection)
    loader = executor.loader
    found = []
    for app, name in sorted(loader.applied_migrations or {}):
        key = (app, name)
        if app not in migrations_due.OUR_APPS or key not in loader.disk_migrations:
            continue
        if (folder / app / "migrations" / f"{name}.py").is_file():
            continue
        migration = loader.disk_migrations[key]
        since = contract_since(migration)
        behind = releases_behind(_release(folder), since, published_releases())
        if since and behind is not None and behind <= 0:
            continue
        before = loader.project_state(key, at_end=False)
        found += [
            f"{app}.{name} {effect.text}"
            for effect in _effects(migration, before)
            if effect.kind is EffectKind.CONTRACT
        ]
    return found


def _not_in_order(web: str) -> tuple[str, ...] | None:
    try:
        return tuple(parts_not_in_order(web))
    except (OSError, http.client.HTTPException, ValueError):
        return None


def _release(folder: Path | None) -> str:
    try:
        return release_of(folder) if folder else ""
    except ReleaseUnusable:
        return ""


def _effects(migration: Migration, before: ProjectState) -> list[MigrationEffect]:
    remakes = connection.vendor == "sqlite"
    return effects_of(migration, before, remakes_tables=remakes)


def _pending() -> Iterator[PendingMigration]:
    executor = MigrationExecutor(connection)
    loader = executor.loader
    plan = executor.migration_plan(loader.graph.leaf_nodes())
    made: set[str] = set()
    for migration, _ in plan:
        key = (migration.app_label, migration.name)
        made |= tables_made(migration)
        effects: tuple[PendingEffect, ...] = ()
        # Those of packages only add.
        if migration.app_label in migrations_due.OUR_APPS:
            before = loader.project_state(key, at_end=False)
            effects = tuple(
                PendingEffect(kind=one.kind.value, text=one.text, rows=_rows(one.table))
                for one in _effects(migration, before)
                if one.table not in made
            )
        yield PendingMigration(
            name=".".join(key),
            contract_since=contract_since(migration),
            effects=effects,
        )


def _rows(table: str) -> int | None:
    """Return about how many rows a table has."""
    if table not in connection.introspection.table_names():
        return None
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            # The planner's estimate: to count takes as long as the migration.
            cursor.execute(
                "SELECT reltuples::bigint FROM pg_class WHERE oid = to_regclass(%s)",
                [table],
            )
        else:
            name = connection.ops.quote_name(table)
            cursor.execute(f"SELECT COUNT(*) FROM {name}")
        (rows,) = cursor.fetchone()
    return max(0, int(rows))


def _going_on() -> tuple[int, int, int]:
    """Return the running jobs, the waiting jobs, and the running bookings."""
    # No row is read: the columns may be those of the installed release.
    running = Job.objects.filter(state__in=JobState.on_node()).count()
    waiting = Job.objects.filter(state=JobState.QUEUED).count()
    return running, waiting, Reservation.objects.filter(state=State.ACTIVE).count()


def _nodes() -> Iterator[NodeRelease]:
    """Read the nodes, from a database that may be older than this code."""
    now = timezone.now()
    with connection.cursor() as cursor:
        columns = {
            column.name
            for column in connection.introspection.get_table_description(
                cursor, Node._meta.db_table
            )
        }
    rows, wanted = Node.objects.in_service(), ["name", "last_seen_at"]
    if "release" in columns:
        wanted.append("release")
    if "engine" in columns:
        rows = rows.filter(engine=Node.Engine.PORTAL)
    for row in rows.order_by("name").values(*wanted):
        seen = row["last_seen_at"]
        yield NodeRelease(
            name=row["name"],
            release=row.get("release", ""),
            silent=seen is None
            or (now - seen).total_seconds() > health.NODE_SILENT_SECONDS,
        )
