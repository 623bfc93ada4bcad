"""Refused demand, months of use, replays of the site's own past."""

import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("reservations", "0005_notices"),
        ("telemetry", "0005_links"),
    ]

    operations = [
        migrations.CreateModel(
            name="RolledMonth",
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
                ("month", models.DateField(unique=True)),
                ("rolled_at", models.DateTimeField()),
                (
                    "final",
                    models.BooleanField(
                        default=False, help_text="Nothing comes late for it any more."
                    ),
                ),
            ],
            options={
                "ordering": ["month"],
            },
        ),
        migrations.CreateModel(
            name="MonthUse",
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
                (
                    "month",
                    models.DateField(help_text="Its first day, in the site's zone."),
                ),
                (
                    "bookings",
                    models.PositiveIntegerField(
                        default=0,
                        help_text="That began in the month; one of 4 Gpus counts once.",
                    ),
                ),
                (
                    "no_shows",
                    models.PositiveIntegerField(default=0, help_text="Counted alike."),
                ),
                (
                    "gpu_bookings",
                    models.PositiveIntegerField(
                        default=0, help_text="The same, counted on each of its Gpus."
                    ),
                ),
                ("gpu_no_shows", models.PositiveIntegerField(default=0)),
                ("booked_gpu_seconds", models.BigIntegerField(default=0)),
                ("held_gpu_seconds", models.BigIntegerField(default=0)),
                (
                    "returned_gpu_seconds",
                    models.BigIntegerField(
                        default=0,
                        help_text="Given back or freed, not taken by the site.",
                    ),
                ),
                (
                    "seen_gpu_seconds",
                    models.BigIntegerField(
                        default=0, help_text="Of the held time: with a reading."
                    ),
                ),
                (
                    "used_gpu_seconds",
                    models.BigIntegerField(
                        default=0, help_text="Seen time x utilization."
                    ),
                ),
                ("energy_joules", models.FloatField(default=0)),
                (
                    "cost_gpu_seconds",
                    models.BigIntegerField(
                        default=0,
                        help_text="Charged, weighted; exact over all Gpus together.",
                    ),
                ),
                (
                    "gpu",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="month_use",
                        to="telemetry.gpu",
                    ),
                ),
                (
                    "membership",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="month_use",
                        to="reservations.membership",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "months of use",
                "ordering": ["month", "membership", "gpu"],
                "indexes": [
                    models.Index(
                        fields=["membership", "month"],
                        name="reservation_members_be05ed_idx",
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("month", "membership", "gpu"), name="one_month_of_use"
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("membership", None)),
                        fields=("month", "gpu"),
                        name="one_month_of_use_of_the_site",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="PolicyReplay",
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
                ("asked_at", models.DateTimeField(default=django.utils.timezone.now)),
                ("from_at", models.DateTimeField()),
                ("to_at", models.DateTimeField()),
                (
                    "counted_from",
                    models.CharField(
                        choices=[("asked", "asked"), ("start", "start")],
                        default="asked",
                        help_text="A wait begins when it was asked, or to start.",
                        max_length=8,
                    ),
                ),
                ("gpus", models.PositiveIntegerField()),
                (
                    "present",
                    models.JSONField(default=dict, help_text="The rules as they were."),
                ),
                (
                    "edited",
                    models.JSONField(
                        default=dict, help_text="The rules to compare with."
                    ),
                ),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("waiting", "Waiting"),
                            ("running", "Running"),
                            ("done", "Done"),
                            ("failed", "Failed"),
                            ("cancelled", "Cancelled"),
                        ],
                        default="waiting",
                        max_length=10,
                    ),
                ),
                ("doing", models.CharField(blank=True, max_length=80)),
                ("done_ratio", models.FloatField(default=0)),
                ("started_at", models.DateTimeField(blank=True, null=True)),
                ("ended_at", models.DateTimeField(blank=True, null=True)),
                ("problem", models.CharField(blank=True, max_length=400)),
                ("jobs", models.PositiveIntegerField(default=0)),
                ("before", models.JSONField(blank=True, null=True)),
                ("after", models.JSONField(blank=True, null=True)),
                (
                    "asked_by",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "ordering": ["-asked_at", "-pk"],
                "indexes": [
                    models.Index(fields=["state"], name="reservation_state_b75e9b_idx")
                ],
            },
        ),
        migrations.CreateModel(
            name="RefusedDemand",
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
                ("day", models.DateField(help_text="In the site's zone.")),
                (
                    "rule",
                    models.CharField(help_text="The refusal's code.", max_length=40),
                ),
                ("requests", models.PositiveBigIntegerField(default=0)),
                (
                    "gpu_seconds",
                    models.PositiveBigIntegerField(
                        default=0, help_text="Gpus x seconds asked for, unweighted."
                    ),
                ),
                (
                    "membership",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="refused_demand",
                        to="reservations.membership",
                    ),
                ),
                (
                    "pool",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="telemetry.pool",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "refused demand",
                "ordering": ["day", "membership", "pool", "rule"],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("day", "membership", "pool", "rule"),
                        name="one_row_of_refused_demand",
                    )
                ],
            },
        ),
    ]
