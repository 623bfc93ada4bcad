"""Summaries that are kept forever: one per Reservation and per Job."""

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy

from telemetry.models.nodes import Gpu


class UsageSummary(models.Model):
    """Usage of one Gpu for a Reservation or a Job, or of all its Gpus together.

    Reservations and Jobs belong to the apps above. They request a row when something
    ends, and telemetry fills it in from the minutes.
    """

    class Kind(models.TextChoices):
        RESERVATION = "reservation", "of a reservation"
        JOB = "job", "of a job"

    kind = models.CharField(max_length=12, choices=Kind)
    reservation_id = models.BigIntegerField()
    job_id = models.BigIntegerField(null=True, blank=True)
    gpu = models.ForeignKey(
        Gpu,
        null=True,
        blank=True,
        on_delete=models.CASCADE,
        related_name="summaries",
        help_text="Empty: all its Gpus together.",
    )
    from_at = models.DateTimeField()
    to_at = models.DateTimeField()
    n = models.PositiveBigIntegerField(default=0, help_text="Samples; 0: no reading.")
    util_n = models.PositiveBigIntegerField(default=0)
    util_sum_pct = models.FloatField(default=0)
    util_p95_pct = models.FloatField(
        null=True, blank=True, help_text="Of the minutes' means, by their samples."
    )
    idle_n = models.PositiveBigIntegerField(default=0)
    memory_max_bytes = models.BigIntegerField(null=True, blank=True)
    energy_joules = models.FloatField(null=True, blank=True)
    gpu_seconds = models.PositiveBigIntegerField(
        default=0, help_text="Gpus x seconds of the span, read or not."
    )
    next_at = models.DateTimeField(
        null=True, blank=True, help_text="When to count again; empty: it stands."
    )

    class Meta:
        verbose_name = gettext_lazy("usage summary")
        verbose_name_plural = gettext_lazy("usage summaries")
        ordering = ["-to_at", "pk"]
        indexes = [
            models.Index(fields=["next_at"]),
            models.Index(fields=["reservation_id"]),
            models.Index(fields=["job_id"]),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(kind="reservation", job_id=None)
                | Q(kind="job", job_id__isnull=False),
                name="summary_is_of_a_reservation_or_a_job",
            ),
            models.UniqueConstraint(
                fields=["reservation_id", "gpu"],
                condition=Q(kind="reservation", gpu__isnull=False),
                name="one_summary_per_reservation_and_gpu",
            ),
            models.UniqueConstraint(
                fields=["reservation_id"],
                condition=Q(kind="reservation", gpu=None),
                name="one_summary_per_reservation",
            ),
            models.UniqueConstraint(
                fields=["job_id", "gpu"],
                condition=Q(kind="job", gpu__isnull=False),
                name="one_summary_per_job_and_gpu",
            ),
            models.UniqueConstraint(
                fields=["job_id"],
                condition=Q(kind="job", gpu=None),
                name="one_summary_per_job",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.job_id or self.reservation_id}"
