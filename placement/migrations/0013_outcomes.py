import django.db.models.deletion
import django.utils.timezone
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("placement", "0012_job_started_with"),
    ]

    operations = [
        migrations.AddField(
            model_name="endpoint",
            name="follows",
            field=models.ForeignKey(
                blank=True,
                help_text="The endpoint whose models move here.",
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="successors",
                to="placement.endpoint",
            ),
        ),
        migrations.AddField(
            model_name="endpoint",
            name="heard_at",
            field=models.DateTimeField(
                blank=True,
                help_text="When its node last told of its models.",
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="endpoint",
            name="took_over_at",
            field=models.DateTimeField(
                blank=True,
                help_text="Since when calls to that one come here.",
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="historicalplacementpolicy",
            name="learns",
            field=models.BooleanField(
                default=True,
                help_text="Whether predictions are corrected by what jobs here measured.",
            ),
        ),
        migrations.AddField(
            model_name="historicalplacementpolicy",
            name="results_keep_days",
            field=models.PositiveIntegerField(
                default=30,
                help_text="Results are deleted so long after their job's end.",
            ),
        ),
        migrations.AddField(
            model_name="historicalplacementpolicy",
            name="results_most_bytes",
            field=models.PositiveBigIntegerField(
                default=2147483648, help_text="The same, all its files together."
            ),
        ),
        migrations.AddField(
            model_name="historicalplacementpolicy",
            name="results_most_files",
            field=models.PositiveIntegerField(
                default=200, help_text="Of one job's results, brought up to the portal."
            ),
        ),
        migrations.AddField(
            model_name="job",
            name="progress_at",
            field=models.DateTimeField(blank=True, editable=False, null=True),
        ),
        migrations.AddField(
            model_name="job",
            name="progress_done",
            field=models.FloatField(
                blank=True,
                editable=False,
                help_text="Of its total, as it says.",
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="job",
            name="progress_from",
            field=models.FloatField(
                blank=True,
                editable=False,
                help_text="Where it was first seen.",
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="job",
            name="progress_from_at",
            field=models.DateTimeField(blank=True, editable=False, null=True),
        ),
        migrations.AddField(
            model_name="job",
            name="progress_total",
            field=models.FloatField(blank=True, editable=False, null=True),
        ),
        migrations.AddField(
            model_name="modelfile",
            name="parts",
            field=models.JSONField(
                blank=True,
                default=list,
                help_text="Where its weights lie in files beside it: name, sha256 and size_bytes of each, the model's own file first.",
            ),
        ),
        migrations.AddField(
            model_name="placementpolicy",
            name="learns",
            field=models.BooleanField(
                default=True,
                help_text="Whether predictions are corrected by what jobs here measured.",
            ),
        ),
        migrations.AddField(
            model_name="placementpolicy",
            name="results_keep_days",
            field=models.PositiveIntegerField(
                default=30,
                help_text="Results are deleted so long after their job's end.",
            ),
        ),
        migrations.AddField(
            model_name="placementpolicy",
            name="results_most_bytes",
            field=models.PositiveBigIntegerField(
                default=2147483648, help_text="The same, all its files together."
            ),
        ),
        migrations.AddField(
            model_name="placementpolicy",
            name="results_most_files",
            field=models.PositiveIntegerField(
                default=200, help_text="Of one job's results, brought up to the portal."
            ),
        ),
        migrations.AddField(
            model_name="servedmodel",
            name="note",
            field=models.CharField(blank=True, max_length=300),
        ),
        migrations.AddField(
            model_name="servedmodel",
            name="ready_at",
            field=models.DateTimeField(
                blank=True, help_text="When it was ready for the first time.", null=True
            ),
        ),
        migrations.AddField(
            model_name="servedmodel",
            name="state",
            field=models.CharField(
                blank=True,
                help_text="As its node says: loading, ready, failed.",
                max_length=8,
            ),
        ),
        migrations.AlterField(
            model_name="modelfile",
            name="sha256",
            field=models.CharField(
                help_text="Of the file; of the list of parts where there are several.",
                max_length=64,
            ),
        ),
        migrations.AlterField(
            model_name="modelfile",
            name="size_bytes",
            field=models.BigIntegerField(help_text="Of all its parts."),
        ),
        migrations.CreateModel(
            name="PlanOutcome",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True,
                        primary_key=True,
                        serialize=False,
                        verbose_name="ID",
                    ),
                ),
                ("strategy", models.CharField(max_length=20)),
                (
                    "gpu_class",
                    models.CharField(
                        help_text="Of its GPUs; several are joined by +.", max_length=80
                    ),
                ),
                ("precision", models.CharField(max_length=20)),
                (
                    "simulated",
                    models.BooleanField(
                        default=False,
                        help_text="On simulated GPUs: kept apart from real ones.",
                    ),
                ),
                (
                    "predicted_step_seconds",
                    models.FloatField(help_text="As the plan said it."),
                ),
                (
                    "prior_step_seconds",
                    models.FloatField(help_text="Without the site's correction."),
                ),
                ("predicted_units_per_second", models.FloatField()),
                (
                    "step_seconds",
                    models.FloatField(
                        blank=True, help_text="Median after the warm-up.", null=True
                    ),
                ),
                (
                    "units_per_second",
                    models.FloatField(
                        blank=True,
                        help_text="Tokens, images or items; median.",
                        null=True,
                    ),
                ),
                (
                    "steps_seen",
                    models.PositiveBigIntegerField(
                        default=0, help_text="After the warm-up, that the median is of."
                    ),
                ),
                (
                    "step_source",
                    models.CharField(
                        blank=True,
                        help_text="log: the job printed it; clock: timed here.",
                        max_length=10,
                    ),
                ),
                (
                    "marks",
                    models.JSONField(
                        blank=True,
                        default=list,
                        help_text="[Unix seconds, step] as the log told.",
                    ),
                ),
                (
                    "gpus",
                    models.JSONField(
                        default=list,
                        help_text="By rank: label, uuid, predicted low, likely, high and actual bytes.",
                    ),
                ),
                (
                    "step_ratio",
                    models.FloatField(
                        blank=True, help_text="Actual over prior step time.", null=True
                    ),
                ),
                (
                    "memory_ratio",
                    models.FloatField(
                        blank=True,
                        help_text="Actual over prior likely bytes, worst GPU.",
                        null=True,
                    ),
                ),
                (
                    "above_high",
                    models.BooleanField(
                        blank=True,
                        help_text="Some GPU held more than the prior's high.",
                        null=True,
                    ),
                ),
                (
                    "not_counted",
                    models.CharField(
                        blank=True,
                        help_text="Why the site's error leaves it out.",
                        max_length=200,
                    ),
                ),
                ("begun_at", models.DateTimeField(default=django.utils.timezone.now)),
                ("settled_at", models.DateTimeField(blank=True, null=True)),
                (
                    "job",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="outcome",
                        to="placement.job",
                    ),
                ),
            ],
            options={
                "ordering": ["-begun_at", "-pk"],
                "indexes": [
                    models.Index(
                        fields=["settled_at"], name="placement_p_settled_a4f287_idx"
                    ),
                    models.Index(
                        fields=["simulated", "gpu_class", "strategy"],
                        name="placement_p_simulat_38b381_idx",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ResultFile",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True,
                        primary_key=True,
                        serialize=False,
                        verbose_name="ID",
                    ),
                ),
                ("attempt", models.PositiveSmallIntegerField()),
                (
                    "path",
                    models.CharField(
                        help_text="Inside the results folder.", max_length=300
                    ),
                ),
                ("size_bytes", models.BigIntegerField()),
                ("sha256", models.CharField(max_length=64)),
                ("received_bytes", models.BigIntegerField(default=0)),
                (
                    "refused",
                    models.CharField(
                        blank=True,
                        help_text="Why it was not brought up.",
                        max_length=120,
                    ),
                ),
                ("listed_at", models.DateTimeField(default=django.utils.timezone.now)),
                (
                    "complete_at",
                    models.DateTimeField(
                        blank=True,
                        help_text="When all of it was here and its sum right.",
                        null=True,
                    ),
                ),
                (
                    "dropped_at",
                    models.DateTimeField(
                        blank=True, help_text="When its bytes were deleted.", null=True
                    ),
                ),
                (
                    "job",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="results",
                        to="placement.job",
                    ),
                ),
            ],
            options={
                "ordering": ["path"],
                "indexes": [
                    models.Index(
                        fields=["complete_at"], name="placement_r_complet_ae75de_idx"
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("job", "attempt", "path"), name="one_result_per_path"
                    )
                ],
            },
        ),
    ]
