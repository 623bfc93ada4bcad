"""Insert a row with SQL that is written once for each model.

What ``save(force_insert=True)`` does for a plain row: Django spends most of an insert
on finding out anew which columns there are. Nobody may listen to the model's signals,
or the row is saved in the usual way.
"""

from functools import lru_cache
from typing import Any, TypeVar

from django.db import DEFAULT_DB_ALIAS, connection, models
from django.db.models.signals import post_save, pre_save

M = TypeVar("M", bound=models.Model)


def insert(row: M) -> M:
    """Insert a new row and give it its primary key.

    Raises:
        IntegrityError: a constraint or a trigger refuses it.
    """
    model = type(row)
    fields, columns, key = _columns(model)
    if pre_save.has_listeners(model) or post_save.has_listeners(model):
        row.save(force_insert=True)
        return row
    values = [
        field.get_db_prep_save(field.pre_save(row, True), connection)
        for field in fields
    ]
    marks = ", ".join(["%s"] * len(values))
    quote = connection.ops.quote_name
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {quote(model._meta.db_table)} ({columns}) VALUES ({marks})"
            f" RETURNING {quote(key)}",
            values,
        )
        row.pk = cursor.fetchone()[0]
    row._state.adding, row._state.db = False, DEFAULT_DB_ALIAS
    return row


@lru_cache
def _columns(model: type[models.Model]) -> tuple[list[Any], str, str]:
    """Return the fields that are written, their columns, and that of the key."""
    key = model._meta.pk
    fields = [field for field in model._meta.local_concrete_fields if field is not key]
    # Quoted alike by both databases.
    columns = ", ".join(f'"{field.column}"' for field in fields)
    return fields, columns, str(key.column)
