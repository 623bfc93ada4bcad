"""The outcomes of Plans: predicted and measured, one row per Job with a Plan."""

from django.db import models
from django.utils import timezone

from placement.models.jobs import Job


class PlanOutcome(models.Model):
    """A Job's Plan and its measured values. It is settled when the Job has ended.

    The prior is the Plan's prediction before it was corrected by the site's measured
    error. Errors are computed against it, because a correction must not feed on itself.
    """

    job = models.OneToOneField(Job, on_delete=models.CASCADE, related_name="outcome")
    strategy = models.CharField(max_length=20)
    gpu_class = models.CharField(
        max_length=80, help_text="Of its GPUs; several are joined by +."
    )
    precision = models.CharField(max_length=20)
    simulated = models.BooleanField(
        default=False, help_text="On simulated GPUs: kept apart from real ones."
    )
    predicted_step_seconds = models.FloatField(help_text="As the plan said it.")
    prior_step_seconds = models.FloatField(help_text="Without the site's correction.")
    predicted_units_per_second = models.FloatField()
    step_seconds = models.FloatField(
        null=True, blank=True, help_text="Median after the warm-up."
    )
    units_per_second = models.FloatField(
        null=True, blank=True, help_text="Tokens, images or items; median."
    )
    steps_seen = models.PositiveBigIntegerField(
        default=0, help_text="After the warm-up, that the median is of."
    )
    step_source = models.CharField(
        max_length=10,
        blank=True,
        help_text="log: the job printed it; clock: timed here.",
    )
    marks = models.JSONField(
        default=list, blank=True, help_text="[Unix seconds, step] as the log told."
    )
    gpus = models.JSONField(
        default=list,
        help_text="By rank: label, uuid, predicted low, likely, high and actual bytes.",
    )
    step_ratio = models.FloatField(
        null=True, blank=True, help_text="Actual over prior step time."
    )
    memory_ratio = models.FloatField(
        null=True, blank=True, help_text="Actual over prior likely bytes, worst GPU."
    )
    high_ratio = models.FloatField(
        null=True, blank=True, help_text="Actual bytes over the prior high, worst GPU."
    )
    not_counted = models.CharField(
        max_length=200, blank=True, help_text="Why the site's error leaves it out."
    )
    begun_at = models.DateTimeField(default=timezone.now)
    settled_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-begun_at", "-pk"]
        indexes = [
            models.Index(fields=["settled_at"]),
            models.Index(fields=["simulated", "gpu_class", "strategy"]),
        ]

    def __str__(self) -> str:
        return f"outcome of job #{self.job_id}"
