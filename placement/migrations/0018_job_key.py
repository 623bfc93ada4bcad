from django.db import migrations, models

import placement.models.jobs

HELP = "Random: tells it from another job of its number after a restore."


class Migration(migrations.Migration):
    """Jobs of before have no key: their nodes know them without."""

    dependencies = [("placement", "0017_serve_owner_only")]

    operations = [
        migrations.AddField(
            "job",
            "key",
            models.CharField(
                blank=True, default="", editable=False, help_text=HELP, max_length=32
            ),
        ),
        migrations.AlterField(
            "job",
            "key",
            models.CharField(
                blank=True,
                default=placement.models.jobs.new_key,
                editable=False,
                help_text=HELP,
                max_length=32,
            ),
        ),
    ]
