import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('placement', '0003_policy_speeds'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='Refinement',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('key', models.CharField(help_text='SHA-256 of model, workload and the versions that answer.', max_length=64, unique=True)),
                ('case', models.JSONField(help_text='placement.planner.symbolic.case.Case')),
                ('state', models.CharField(choices=[('waiting', 'waits for a worker'), ('running', 'running'), ('done', 'done'), ('failed', 'failed'), ('cancelled', 'cancelled')], default='waiting', max_length=10)),
                ('doing', models.CharField(blank=True, help_text='What runs now.', max_length=80)),
                ('done_ratio', models.FloatField(default=0)),
                ('answer', models.JSONField(blank=True, null=True)),
                ('problem', models.CharField(blank=True, max_length=500)),
                ('asked_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('started_at', models.DateTimeField(blank=True, null=True)),
                ('ended_at', models.DateTimeField(blank=True, null=True)),
                ('asked_by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'ordering': ['-asked_at', '-pk'],
                'indexes': [models.Index(fields=['state'], name='placement_r_state_1a1bcc_idx')],
            },
        ),
    ]
