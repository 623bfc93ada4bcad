"""The effects of a migration on processes of the release before it, which still run.

An upgrade migrates first and restarts afterwards. So a migration may add (*expand*).
What takes something away from the running release is a *contract* step: it comes in a
later release than the code that stopped using it, and names that code's release in the
attribute ``contract_since`` of its class.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from django.db.migrations import Migration, RunPython, RunSQL
from django.db.migrations.operations import (
    AddConstraint,
    AddField,
    AddIndex,
    AlterField,
    AlterIndexTogether,
    AlterModelTable,
    AlterUniqueTogether,
    CreateModel,
    DeleteModel,
    RemoveField,
    RenameField,
    RenameModel,
    SeparateDatabaseAndState,
)
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ModelState, ProjectState
from django.db.models import NOT_PROVIDED, Field

HARMLESS = frozenset(
    {
        *("AlterModelOptions", "AlterModelManagers", "AlterOrderWithRespectTo"),
        *("RemoveIndex", "RenameIndex", "RemoveConstraint", "AlterModelTableComment"),
        *("AlterConstraint", "AddIndexConcurrently", "RemoveIndexConcurrently"),
    }
)
"""Operations by the name of their class that neither take away nor take long."""


class EffectKind(StrEnum):
    """The kind of an effect on the release that runs."""

    CONTRACT = "contract"
    """The running release may fail from then on."""
    LOCK = "lock"
    """Writes to the table wait while it is read, for an index or a constraint."""
    SLOW = "slow"
    """Rows are rewritten. The time depends on their number."""


@dataclass(frozen=True, slots=True)
class MigrationEffect:
    """One effect of one operation."""

    kind: EffectKind
    table: str
    """Table whose rows count; "": not known."""
    text: str
    """The effect in words, which follow the name of the migration."""


def contract_since(migration: Migration) -> str:
    """Return the release that stopped using what a migration removes; "" if unset."""
    return str(getattr(migration, "contract_since", ""))


def effects_of(
    migration: Migration, before: ProjectState, *, remakes_tables: bool
) -> list[MigrationEffect]:
    """Return the effects of a migration.

    Args:
        before: the models before it. It is not changed.
        remakes_tables: SQLite, which copies a table to change a column.
    """
    state = before.clone()
    found = _effects(migration.operations, migration.app_label, state, remakes_tables)
    made = tables_made(migration)
    return [one for one in found if one.table not in made]


def tables_made(migration: Migration) -> set[str]:
    """Return the tables that a migration makes, which no older release uses."""
    return {
        str(
            one.options.get("db_table") or _default_table(one.name, migration.app_label)
        )
        for one in migration.operations
        if isinstance(one, CreateModel)
    }


def _effects(
    operations: Iterable[Operation], app: str, state: ProjectState, remakes: bool
) -> Iterator[MigrationEffect]:
    for operation in operations:
        if isinstance(operation, SeparateDatabaseAndState):
            inner = state.clone()
            yield from _effects(operation.database_operations, app, inner, remakes)
        else:
            yield from _effects_of_one(operation, app, state, remakes)
        operation.state_forwards(app, state)


def _effects_of_one(
    operation: Operation, app: str, state: ProjectState, remakes: bool
) -> Iterator[MigrationEffect]:
    if isinstance(operation, RunPython | RunSQL):
        yield MigrationEffect(EffectKind.SLOW, "", "changes rows by its own code")
        return
    if isinstance(operation, CreateModel) or type(operation).__name__ in HARMLESS:
        return
    model = _model_of(operation, app, state)
    table = _table(model) if model else ""
    if isinstance(operation, DeleteModel):
        yield _contract(table, f"drops the table {table}")
    elif isinstance(operation, RenameModel):
        if model and not model.options.get("db_table"):
            yield _contract(table, f"renames the table {table}")
    elif isinstance(operation, AlterModelTable):
        if table != (operation.table or _default_table(operation.name, app)):
            yield _contract(table, f"renames the table {table}")
    elif isinstance(operation, RemoveField):
        yield _contract(table, f"drops {table}.{operation.name}")
    elif isinstance(operation, RenameField):
        if model and not model.fields[operation.old_name].db_column:
            text = f"renames {table}.{operation.old_name} to {operation.new_name}"
            yield _contract(table, text)
    elif isinstance(operation, AddField):
        yield from _added(table, operation.name, operation.field, remakes)
    elif isinstance(operation, AlterField) and model:
        before = model.fields[operation.name]
        yield from _altered(table, operation.name, before, operation.field, remakes)
    elif isinstance(operation, AddIndex | AlterIndexTogether):
        yield MigrationEffect(EffectKind.LOCK, table, f"makes an index of {table}")
    elif isinstance(operation, AddConstraint | AlterUniqueTogether):
        yield MigrationEffect(EffectKind.LOCK, table, f"checks every row of {table}")
    else:
        what = type(operation).__name__
        yield _contract(table, f"does what this check does not know ({what})")


def _contract(table: str, text: str) -> MigrationEffect:
    return MigrationEffect(EffectKind.CONTRACT, table, text)


def _added(
    table: str, name: str, field: Field[Any, Any], remakes: bool
) -> Iterator[MigrationEffect]:
    if field.many_to_many:
        return
    if not field.null and not _has_db_default(field):
        # Django fills the rows that are there and then drops the default again. An
        # INSERT of the running release does not name the column.
        text = f"adds {table}.{name}, which is NOT NULL without a db_default"
        yield _contract(table, text)
    if field.unique or _indexed(field):
        yield MigrationEffect(EffectKind.LOCK, table, f"makes an index of {table}")
    elif remakes and not field.null:
        yield MigrationEffect(EffectKind.SLOW, table, f"copies {table}")


def _altered(
    table: str,
    name: str,
    before: Field[Any, Any],
    after: Field[Any, Any],
    remakes: bool,
) -> Iterator[MigrationEffect]:
    if before.many_to_many or after.many_to_many:
        return
    column = f"{table}.{name}"
    if (before.db_column or name) != (after.db_column or name):
        yield _contract(table, f"renames {column}")
    if before.null and not after.null:
        yield _contract(table, f"forbids NULL in {column}")
    if _has_db_default(before) and not _has_db_default(after) and not after.null:
        yield _contract(table, f"drops the default of {column}")
    if after.unique and not before.unique:
        yield _contract(table, f"forbids equal values in {column}")
    changed = _column_type(before) != _column_type(after)
    if changed and not _widens(before, after):
        yield _contract(table, f"changes the type of {column}")
    if changed and (remakes or not _widens(before, after)):
        yield MigrationEffect(EffectKind.SLOW, table, f"rewrites {table}")
    elif _indexed(after) and not _indexed(before):
        yield MigrationEffect(EffectKind.LOCK, table, f"makes an index of {table}")


def _indexed(field: Field[Any, Any]) -> bool:
    return bool(getattr(field, "db_index", False))


def _has_db_default(field: Field[Any, Any]) -> bool:
    return getattr(field, "db_default", NOT_PROVIDED) is not NOT_PROVIDED


def _column_type(field: Field[Any, Any]) -> tuple[object, ...]:
    target = field.remote_field.model if field.remote_field else None
    digits = getattr(field, "max_digits", None), getattr(field, "decimal_places", None)
    return field.get_internal_type(), field.max_length, *digits, str(target or "")


def _widens(before: Field[Any, Any], after: Field[Any, Any]) -> bool:
    """Return whether only the longest text of a column grows."""
    texts = ("CharField", "SlugField", "TextField", "EmailField", "URLField")
    kinds = before.get_internal_type(), after.get_internal_type()
    if kinds[0] not in texts or kinds[1] not in texts:
        return False
    if after.max_length is None:
        return True
    return before.max_length is not None and after.max_length >= before.max_length


def _model_of(operation: Operation, app: str, state: ProjectState) -> ModelState | None:
    name = getattr(
        operation,
        "model_name",
        getattr(operation, "old_name", getattr(operation, "name", "")),
    )
    return state.models.get((app, str(name).lower()))


def _table(model: ModelState) -> str:
    return str(model.options.get("db_table") or f"{model.app_label}_{model.name_lower}")


def _default_table(model: str, app: str) -> str:
    return f"{app}_{model.lower()}"
