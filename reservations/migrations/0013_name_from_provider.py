from django.db import migrations, models


def mark_people(apps, schema_editor):
    """Mark the people whose login at a provider gave them their user name."""
    user = apps.get_model('reservations', 'User')
    user.objects.filter(identities__name_from_provider=True).update(
        name_from_provider=True
    )


class Migration(migrations.Migration):

    dependencies = [
        ('reservations', '0012_engine_hold'),
    ]

    operations = [
        migrations.AddField(
            model_name='user',
            name='name_from_provider',
            field=models.BooleanField(db_default=False, default=False, editable=False, help_text='The user name is that of an identity provider where people may choose it. So it is no Unix login.'),
        ),
        migrations.RunPython(mark_people, migrations.RunPython.noop),
    ]
