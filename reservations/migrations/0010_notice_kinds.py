from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("reservations", "0009_waitlist"),
    ]

    operations = [
        migrations.AlterField(
            model_name="notice",
            name="kind",
            field=models.CharField(max_length=24),
        ),
    ]
