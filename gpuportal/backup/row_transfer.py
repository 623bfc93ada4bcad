"""Copy every row of an SQLite backup into an empty, migrated PostgreSQL database.

    GPUPORTAL_BACKUP_SQLITE=FILE python -m gpuportal.backup.row_transfer

The settings name the file as the database ``backup``. Both must have run the same
migrations. All rows are written in one transaction, so a failure leaves the target
empty.
"""

from typing import Any

import django
from django.core.management.color import no_style
from django.db import connection, connections, transaction
from django.db.models import Field, Model

SOURCE = "backup"


def transfer() -> int:
    """Copy all rows by COPY. Return their number."""
    from gpuportal.backup.facts import sorted_models

    models = sorted_models()
    tables = ", ".join(f'"{model._meta.db_table}"' for model in models)
    with transaction.atomic(), connection.cursor() as cursor:
        # The backup also has the rows that migrate makes, such as permissions.
        cursor.execute(f"TRUNCATE {tables}")
        count = sum(_copy_table(cursor, model) for model in models)
        # Foreign keys are checked at the end, so the order of the tables is free.
        for statement in connection.ops.sequence_reset_sql(no_style(), models):
            cursor.execute(statement)
    return count


def _copy_table(cursor: Any, model: type[Model]) -> int:
    fields: list[Field[Any, Any]] = list(model._meta.concrete_fields)
    columns = ", ".join(f'"{field.column}"' for field in fields)
    rows = (
        model._base_manager.using(SOURCE)
        .order_by("pk")
        .values_list(*(field.attname for field in fields))
    )
    count = 0
    with cursor.copy(f'COPY "{model._meta.db_table}" ({columns}) FROM STDIN') as copy:
        for row in rows.iterator(chunk_size=2000):
            copy.write_row(
                [
                    field.get_db_prep_save(value, connection)
                    for field, value in zip(fields, row, strict=True)
                ]
            )
            count += 1
    return count


if __name__ == "__main__":
    django.setup()
    assert connections[SOURCE].vendor == "sqlite"
    print(transfer())
