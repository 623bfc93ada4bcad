import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('placement', '0007_text_endpoint'),
    ]

    operations = [
        migrations.RenameModel('TextEndpoint', 'LanguageModelEndpoint'),
        migrations.AlterField(
            model_name='languagemodelendpoint',
            name='job',
            field=models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, related_name='language_model_endpoint', to='placement.job'),
        ),
    ]
