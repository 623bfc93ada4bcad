"""A replay may look at one class of GPUs."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("reservations", "0012_waiting_by_time"),
        ("telemetry", "0005_links"),
    ]

    operations = [
        migrations.AddField(
            model_name="policyreplay",
            name="pool",
            field=models.ForeignKey(
                blank=True,
                help_text="Empty: all Gpus as if they were of one class.",
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="telemetry.pool",
            ),
        ),
    ]
