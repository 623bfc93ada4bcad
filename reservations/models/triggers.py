"""Constraints that only the database can enforce, installed after every migrate.

PostgreSQL refuses overlapping live Allocations of one Gpu by an exclusion constraint.
SQLite has none, so a trigger raises the same name. Both databases refuse to update or
delete ledger and audit rows. SQLite must also refuse an insert with an existing key,
because ``INSERT OR REPLACE`` deletes the old row and fires no DELETE trigger. One
change is allowed: a text that names an erased person may be struck out once. Author,
act, time and amount stay for ever.

They are created after migrate and not by a migration, because a later AlterField
rebuilds the SQLite table and silently drops its triggers. The exclusion constraint is
not in ``Allocation.Meta``: Django would write it into such a rebuild, and SQLite would
refuse the statement.
"""

import json

from django.db import connections
from django.db.backends.utils import CursorWrapper

APPEND_ONLY = ("reservations_ledgerentry", "reservations_auditentry")
STRUCK_TEXT = "(erased)"
STRUCK_JSON = {"erased": True}
_STRUCK_JSON = json.dumps(STRUCK_JSON)
SQLITE_EVENTS = ("INSERT", "UPDATE", "DELETE")
TEXTS = ("reason", "detail")
"""Columns with free text."""

# A range of one number replaces equality: GiST supports it without btree_gist.
_POSTGRES_OVERLAP = """
ALTER TABLE reservations_allocation ADD CONSTRAINT allocation_no_overlap
EXCLUDE USING gist (
  tstzrange(start, "end", '[)') WITH &&, int8range(gpu_id, gpu_id, '[]') WITH &&)
WHERE (live)
"""
_POSTGRES_OVERLAP_IS_THERE = """
SELECT 1 FROM pg_constraint WHERE conname = 'allocation_no_overlap'
AND conrelid = to_regclass('reservations_allocation')
"""
_SQLITE_OVERLAP = """
CREATE TRIGGER allocation_no_overlap_{when} BEFORE {when} ON reservations_allocation
WHEN NEW.live AND EXISTS (
  SELECT 1 FROM reservations_allocation other
  WHERE other.gpu_id = NEW.gpu_id AND other.live
    AND other.start < NEW."end" AND other."end" > NEW.start
    AND other.id IS NOT NEW.id)
BEGIN SELECT RAISE(ABORT, 'allocation_no_overlap'); END
"""
_SQLITE_APPEND_ONLY = """
CREATE TRIGGER {table}_append_only_{when} BEFORE {when} ON {table}
{unless}BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END
"""
_POSTGRES_FUNCTION = f"""
CREATE OR REPLACE FUNCTION gpuportal_append_only() RETURNS trigger AS $$
DECLARE was jsonb; now_is jsonb; struck jsonb := '{_STRUCK_JSON}';
BEGIN
  IF TG_OP = 'UPDATE' THEN
    was := to_jsonb(OLD); now_is := to_jsonb(NEW);
    IF now_is - 'reason' - 'detail' = was - 'reason' - 'detail'
      AND now_is->>'reason' IN (was->>'reason', '{STRUCK_TEXT}')
      AND (now_is->'detail' IS NOT DISTINCT FROM was->'detail'
           OR now_is->'detail' = struck)
      AND (now_is->>'reason' = '{STRUCK_TEXT}' OR now_is->'detail' = struck)
    THEN RETURN NEW; END IF;
  END IF;
  RAISE EXCEPTION '% is append-only', TG_TABLE_NAME
  USING ERRCODE = 'integrity_constraint_violation';
END
$$ LANGUAGE plpgsql
"""


def install(using: str = "default", **_kwargs: object) -> None:
    """Create the constraint and the triggers. Safe to run any number of times."""
    connection = connections[using]
    tables = set(connection.introspection.table_names())
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            _install_sqlite(cursor, tables)
        elif connection.vendor == "postgresql":
            _install_postgresql(cursor, tables)


def _install_sqlite(cursor: CursorWrapper, tables: set[str]) -> None:
    for when in ("INSERT", "UPDATE"):
        cursor.execute(f"DROP TRIGGER IF EXISTS allocation_no_overlap_{when}")
        if "reservations_allocation" in tables:
            cursor.execute(_SQLITE_OVERLAP.format(when=when))
    for table in APPEND_ONLY:
        for when in SQLITE_EVENTS:
            cursor.execute(f"DROP TRIGGER IF EXISTS {table}_append_only_{when}")
            if table in tables:
                unless = _sqlite_unless(cursor, table, when)
                cursor.execute(
                    _SQLITE_APPEND_ONLY.format(table=table, when=when, unless=unless)
                )


def _sqlite_unless(cursor: CursorWrapper, table: str, when: str) -> str:
    """Return the condition under which a trigger refuses. "": always.

    An insert is refused with an existing key, an update unless it strikes a text out.
    """
    if when == "INSERT":
        return f"WHEN EXISTS (SELECT 1 FROM {table} old WHERE old.id = NEW.id)\n"
    if when == "DELETE":
        return ""
    cursor.execute(f"SELECT name FROM pragma_table_info('{table}')")
    columns = [name for (name,) in cursor.fetchall()]
    same = [f'NEW."{name}" IS OLD."{name}"' for name in columns if name not in TEXTS]
    same.append(f"NEW.reason IN (OLD.reason, '{STRUCK_TEXT}')")
    struck = [f"NEW.reason = '{STRUCK_TEXT}'"]
    if "detail" in columns:
        same.append(f"NEW.detail IN (OLD.detail, '{_STRUCK_JSON}')")
        struck.append(f"NEW.detail = '{_STRUCK_JSON}'")
    return f"WHEN NOT ({' AND '.join(same)} AND ({' OR '.join(struck)}))\n"


def _install_postgresql(cursor: CursorWrapper, tables: set[str]) -> None:
    if "reservations_allocation" in tables:
        # Creating it again would read the whole table.
        cursor.execute(_POSTGRES_OVERLAP_IS_THERE)
        if cursor.fetchone() is None:
            cursor.execute(_POSTGRES_OVERLAP)
    cursor.execute(_POSTGRES_FUNCTION)
    for table in APPEND_ONLY:
        if table not in tables:
            continue
        # Row level: TRUNCATE, which a test database uses between tests, is not used by
        # the application.
        cursor.execute(f"DROP TRIGGER IF EXISTS {table}_append_only ON {table}")
        cursor.execute(
            f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE ON {table} "
            "FOR EACH ROW EXECUTE FUNCTION gpuportal_append_only()"
        )


def missing(using: str = "default") -> list[str]:
    """Return the names of constraints that a migrated database lacks."""
    connection = connections[using]
    if "reservations_allocation" not in connection.introspection.table_names():
        return []
    if connection.vendor == "sqlite":
        wanted = {f"allocation_no_overlap_{when}" for when in ("INSERT", "UPDATE")} | {
            f"{table}_append_only_{when}"
            for table in APPEND_ONLY
            for when in SQLITE_EVENTS
        }
        query = "SELECT name FROM sqlite_master WHERE type = 'trigger'"
    else:
        wanted = {"allocation_no_overlap"} | {f"{t}_append_only" for t in APPEND_ONLY}
        query = (
            "SELECT tgname FROM pg_trigger WHERE NOT tgisinternal AND tgenabled <> 'D' "
            "UNION SELECT conname FROM pg_constraint WHERE contype = 'x'"
        )
    with connection.cursor() as cursor:
        cursor.execute(query)
        there = {row[0] for row in cursor.fetchall()}
    return sorted(wanted - there)
