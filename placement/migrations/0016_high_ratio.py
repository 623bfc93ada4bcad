from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("placement", "0015_backfill")]

    operations = [
        migrations.RemoveField("planoutcome", "above_high"),
        migrations.AddField(
            "planoutcome",
            "high_ratio",
            models.FloatField(
                blank=True,
                help_text="Actual bytes over the prior high, worst GPU.",
                null=True,
            ),
        ),
    ]
