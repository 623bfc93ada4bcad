from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("placement", "0011_job_ended_index")]

    operations = [migrations.RenameField("job", "launcher", "started_with")]
