"""Plans are shared by link, and opened again with the question they answered."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("placement", "0004_refinement")]

    operations = [
        migrations.AddField(
            model_name="storedplan",
            name="address",
            field=models.TextField(
                blank=True,
                default="",
                help_text="Query that opens the planning page with its question.",
            ),
            preserve_default=False,
        ),
        migrations.AddField(
            model_name="storedplan",
            name="link_key",
            field=models.CharField(
                blank=True,
                default="",
                help_text=(
                    "Whoever is signed in and has it may look; empty: nobody by link."
                ),
                max_length=64,
            ),
            preserve_default=False,
        ),
    ]
