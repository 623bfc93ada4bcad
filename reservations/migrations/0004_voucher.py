"""Rename the model Token to Voucher. The table keeps its name, so no row changes."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("reservations", "0003_ssh_key")]

    operations = [
        migrations.AlterModelTable(name="token", table="reservations_token"),
        migrations.RenameModel(old_name="Token", new_name="Voucher"),
        migrations.AlterField(
            model_name="voucher",
            name="membership",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT,
                related_name="vouchers",
                to="reservations.membership",
            ),
        ),
        migrations.AlterField(
            model_name="voucher",
            name="given_for",
            field=models.OneToOneField(
                on_delete=django.db.models.deletion.PROTECT,
                related_name="voucher_given",
                to="reservations.reservation",
            ),
        ),
        migrations.AlterField(
            model_name="voucher",
            name="used_for",
            field=models.OneToOneField(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="voucher_used",
                to="reservations.reservation",
            ),
        ),
    ]
