import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("reservations", "0006_reports"),
        ("telemetry", "0005_links"),
    ]

    operations = [
        migrations.CreateModel(
            name="CalendarFeed",
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
                    "address_hash",
                    models.CharField(editable=False, max_length=64, unique=True),
                ),
                ("made_at", models.DateTimeField(default=django.utils.timezone.now)),
                ("last_read_at", models.DateTimeField(blank=True, null=True)),
                (
                    "user",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="calendar_feed",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Series",
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
                    "repeat",
                    models.CharField(
                        choices=[
                            ("daily", "Daily"),
                            ("weekdays", "Weekdays"),
                            ("weekly", "Weekly"),
                        ],
                        max_length=10,
                    ),
                ),
                (
                    "first_day",
                    models.DateField(help_text="Local day of the first occurrence."),
                ),
                ("local_start", models.TimeField(help_text="Wall clock in the zone.")),
                (
                    "zone",
                    models.CharField(
                        help_text="The site's when it was made.", max_length=64
                    ),
                ),
                ("duration_seconds", models.PositiveIntegerField()),
                (
                    "until",
                    models.DateField(
                        blank=True, help_text="Last local day.", null=True
                    ),
                ),
                ("times", models.PositiveSmallIntegerField(blank=True, null=True)),
                ("skip_refused", models.BooleanField(default=False)),
                ("purpose", models.CharField(blank=True, max_length=120)),
                (
                    "state",
                    models.CharField(
                        choices=[("running", "Running"), ("ended", "Ended")],
                        default="running",
                        max_length=8,
                    ),
                ),
                ("created_at", models.DateTimeField(default=django.utils.timezone.now)),
                ("ended_at", models.DateTimeField(blank=True, null=True)),
                (
                    "look_at",
                    models.DateTimeField(help_text="When the tick looks at it next."),
                ),
                ("gpus", models.ManyToManyField(related_name="+", to="telemetry.gpu")),
                (
                    "membership",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="series",
                        to="reservations.membership",
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="series",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "series",
                "ordering": ["-created_at", "-pk"],
            },
        ),
        migrations.CreateModel(
            name="Occurrence",
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
                ("day", models.DateField()),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("booked", "Booked"),
                            ("later", "Later"),
                            ("refused", "Refused"),
                            ("skipped", "Skipped"),
                        ],
                        max_length=8,
                    ),
                ),
                ("code", models.CharField(blank=True, max_length=40)),
                ("why", models.CharField(blank=True, max_length=400)),
                ("looked_at", models.DateTimeField(default=django.utils.timezone.now)),
                (
                    "reservation",
                    models.OneToOneField(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="occurrence",
                        to="reservations.reservation",
                    ),
                ),
                (
                    "series",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="occurrences",
                        to="reservations.series",
                    ),
                ),
            ],
            options={
                "ordering": ["series_id", "day"],
            },
        ),
        migrations.CreateModel(
            name="CoUser",
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
                ("added_at", models.DateTimeField(default=django.utils.timezone.now)),
                ("removed_at", models.DateTimeField(blank=True, null=True)),
                (
                    "added_by",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "reservation",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="co_users",
                        to="reservations.reservation",
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="shared",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "ordering": ["reservation_id", "pk"],
                "indexes": [
                    models.Index(
                        fields=["user", "removed_at"],
                        name="reservation_user_id_cd3b00_idx",
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("removed_at", None)),
                        fields=("reservation", "user"),
                        name="one_couser_per_reservation_and_user",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Offer",
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
                ("message", models.CharField(blank=True, max_length=200)),
                ("terms", models.JSONField(default=dict)),
                (
                    "kind_back",
                    models.CharField(
                        blank=True,
                        help_text="What the maker was shown to get, in a swap.",
                        max_length=8,
                    ),
                ),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("open", "Open"),
                            ("accepted", "Accepted"),
                            ("declined", "Declined"),
                            ("withdrawn", "Withdrawn"),
                            ("expired", "Expired"),
                        ],
                        default="open",
                        max_length=10,
                    ),
                ),
                ("made_at", models.DateTimeField(default=django.utils.timezone.now)),
                (
                    "expires_at",
                    models.DateTimeField(
                        help_text="The start; the end of one that runs."
                    ),
                ),
                ("answered_at", models.DateTimeField(blank=True, null=True)),
                (
                    "given",
                    models.OneToOneField(
                        blank=True,
                        help_text="The taker's Reservation, once accepted.",
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="given_by",
                        to="reservations.reservation",
                    ),
                ),
                (
                    "given_back",
                    models.OneToOneField(
                        blank=True,
                        help_text="The maker's, once a swap is accepted.",
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="given_back_by",
                        to="reservations.reservation",
                    ),
                ),
                (
                    "made_by",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="offers_made",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "reservation",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="offers",
                        to="reservations.reservation",
                    ),
                ),
                (
                    "taker",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="offers",
                        to="reservations.membership",
                    ),
                ),
                (
                    "wanted",
                    models.ForeignKey(
                        blank=True,
                        help_text="The other's, in a swap; empty: given away.",
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="offers_for_it",
                        to="reservations.reservation",
                    ),
                ),
            ],
            options={
                "ordering": ["-made_at", "-pk"],
                "indexes": [
                    models.Index(
                        fields=["state", "expires_at"],
                        name="reservation_state_62b90e_idx",
                    ),
                    models.Index(
                        fields=["taker", "state"], name="reservation_taker_i_0a0644_idx"
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("state", "open")),
                        fields=("reservation",),
                        name="one_open_offer_per_reservation",
                    )
                ],
            },
        ),
        migrations.AddIndex(
            model_name="series",
            index=models.Index(
                fields=["state", "look_at"], name="reservation_state_b24420_idx"
            ),
        ),
        migrations.AddIndex(
            model_name="series",
            index=models.Index(
                fields=["user", "state"], name="reservation_user_id_3061bb_idx"
            ),
        ),
        migrations.AddConstraint(
            model_name="occurrence",
            constraint=models.UniqueConstraint(
                fields=("series", "day"), name="one_occurrence_per_series_and_day"
            ),
        ),
    ]
