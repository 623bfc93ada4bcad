"""Constraints on Jobs that only the database can enforce.

They are installed after every migrate. An ended Job stays as it ended, and no state is
written that the table of states (``protocol.job_lifecycle``) does not have. The changes
in between are checked by the one compare-and-set that writes them,
``JobQuerySet.move``: a trigger could not distinguish a late fact of a node from a
mistake, and neither may have an effect. They are created after migrate and not by a
migration, because a later AlterField rebuilds the SQLite table and silently drops its
triggers.
"""

from django.db import connections

from placement.protocol.job_lifecycle import NEXT, JobState

TABLE = "placement_job"
NAME = "job_state_not_legal"
_WORDS = ", ".join(f"'{state.value}'" for state in sorted(JobState))
_ENDS = ", ".join(f"'{state.value}'" for state in sorted(NEXT) if not NEXT[state])
_SQLITE = (
    f"CREATE TRIGGER {NAME}_insert BEFORE INSERT ON {TABLE} "
    f"WHEN NEW.state NOT IN ({_WORDS}) BEGIN SELECT RAISE(ABORT, '{NAME}'); END",
    f"CREATE TRIGGER {NAME}_update BEFORE UPDATE OF state ON {TABLE} "
    f"WHEN NEW.state NOT IN ({_WORDS}) OR (OLD.state IN ({_ENDS}) "
    f"AND NEW.state <> OLD.state) BEGIN SELECT RAISE(ABORT, '{NAME}'); END",
)
_POSTGRES_FUNCTION = f"""
CREATE OR REPLACE FUNCTION gpuportal_{NAME}() RETURNS trigger AS $$
BEGIN
  IF NEW.state NOT IN ({_WORDS}) OR (TG_OP = 'UPDATE' AND OLD.state IN ({_ENDS})
    AND NEW.state <> OLD.state)
  THEN RAISE EXCEPTION '{NAME}' USING ERRCODE = 'integrity_constraint_violation';
  END IF;
  RETURN NEW;
END
$$ LANGUAGE plpgsql
"""
_POSTGRES = (
    f"CREATE TRIGGER {NAME}_insert BEFORE INSERT ON {TABLE} "
    f"FOR EACH ROW EXECUTE FUNCTION gpuportal_{NAME}()",
    f"CREATE TRIGGER {NAME}_update BEFORE UPDATE OF state ON {TABLE} "
    f"FOR EACH ROW EXECUTE FUNCTION gpuportal_{NAME}()",
)


def install(using: str = "default", **_kwargs: object) -> None:
    """Drop and create the triggers. Safe to run any number of times."""
    connection = connections[using]
    if TABLE not in connection.introspection.table_names():
        return
    sqlite = connection.vendor == "sqlite"
    with connection.cursor() as cursor:
        if not sqlite:
            cursor.execute(_POSTGRES_FUNCTION)
        on = "" if sqlite else f" ON {TABLE}"
        for when, statement in zip(
            ("insert", "update"), _SQLITE if sqlite else _POSTGRES, strict=True
        ):
            cursor.execute(f"DROP TRIGGER IF EXISTS {NAME}_{when}{on}")
            cursor.execute(statement)
