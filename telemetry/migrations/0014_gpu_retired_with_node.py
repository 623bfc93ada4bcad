"""A Gpu knows whether it was retired with its node."""

from django.apps.registry import Apps
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor


def mark_gpus_of_retired_nodes(apps: Apps, _editor: BaseDatabaseSchemaEditor) -> None:
    """Let the Gpus of nodes that are retired now come back as they did before."""
    rows = apps.get_model("telemetry", "Gpu").objects
    rows.filter(node__retired=True, retired=True, replaced_by=None).update(
        retired_with_node=True
    )


class Migration(migrations.Migration):
    dependencies = [
        ("telemetry", "0013_plain_help"),
    ]

    operations = [
        migrations.AddField(
            model_name="gpu",
            name="retired_with_node",
            field=models.BooleanField(
                default=False,
                editable=False,
                help_text="It was retired because its node was. It comes back with the node.",
            ),
        ),
        migrations.RunPython(
            mark_gpus_of_retired_nodes, migrations.RunPython.noop, elidable=True
        ),
    ]
