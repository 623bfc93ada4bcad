"""Files in a Job's results folder, uploaded by its node."""

from django.db import models
from django.utils import timezone

from placement.models.jobs import Job


class ResultFile(models.Model):
    """One file of a Job's results. Its bytes are under MEDIA_ROOT until deleted."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="results")
    attempt = models.PositiveSmallIntegerField()
    path = models.CharField(max_length=300, help_text="Inside the results folder.")
    size_bytes = models.BigIntegerField()
    sha256 = models.CharField(max_length=64)
    received_bytes = models.BigIntegerField(default=0)
    refused = models.CharField(
        max_length=120, blank=True, help_text="Why it was not brought up."
    )
    listed_at = models.DateTimeField(default=timezone.now)
    complete_at = models.DateTimeField(
        null=True, blank=True, help_text="When all of it was here and its sum right."
    )
    dropped_at = models.DateTimeField(
        null=True, blank=True, help_text="When its bytes were deleted."
    )

    class Meta:
        ordering = ["path"]
        indexes = [models.Index(fields=["complete_at"])]
        constraints = [
            models.UniqueConstraint(
                fields=["job", "attempt", "path"], name="one_result_per_path"
            )
        ]

    def __str__(self) -> str:
        return f"{self.path} of job #{self.job_id}"
