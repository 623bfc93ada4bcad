"""Give the refused requests of some early databases the column they lack.

For two hours ``0017_refused_requests`` made a column ``next_slot``, which was later
renamed in that file. A database that was migrated in between has the old name.
"""

from django.db import migrations

OLD, NEW = "next_slot", "works_instead"


def rename_where_needed(apps, editor):
    model = apps.get_model("reservations", "RefusedRequest")
    table = model._meta.db_table
    connection = editor.connection
    with connection.cursor() as cursor:
        found = {
            column.name
            for column in connection.introspection.get_table_description(cursor, table)
        }
    if OLD in found and NEW not in found:
        quote = connection.ops.quote_name
        editor.execute(
            f"ALTER TABLE {quote(table)} RENAME COLUMN {quote(OLD)} TO {quote(NEW)}"
        )


class Migration(migrations.Migration):
    dependencies = [
        ("reservations", "0019_live_by_end"),
    ]

    operations = [
        # The name that it finds is right for every other database: nothing to undo.
        migrations.RunPython(rename_where_needed, migrations.RunPython.noop),
    ]
