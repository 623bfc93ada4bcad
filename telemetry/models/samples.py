"""What Gpus did: stored totals of their Samples."""

from django.db import models

from telemetry.models.nodes import Gpu


class SampleMinute(models.Model):
    """One Gpu's minute: counts and sums, so that roll-ups stay exact."""

    gpu = models.ForeignKey(Gpu, on_delete=models.CASCADE, related_name="minutes")
    minute_at = models.DateTimeField()
    n = models.PositiveSmallIntegerField()
    util_n = models.PositiveSmallIntegerField()
    util_sum_pct = models.FloatField()
    util_max_pct = models.FloatField(null=True)
    util_min_pct = models.FloatField(null=True)
    idle_n = models.PositiveSmallIntegerField(default=0)
    memory_n = models.PositiveSmallIntegerField()
    memory_sum_bytes = models.FloatField()
    memory_max_bytes = models.BigIntegerField(null=True)
    temperature_max_celsius = models.FloatField(null=True)
    power_n = models.PositiveSmallIntegerField()
    power_sum_watts = models.FloatField()
    process_n = models.PositiveSmallIntegerField(
        default=0, help_text="Samples with at least one process of the holder."
    )

    class Meta:
        ordering = ["minute_at"]
        constraints = [
            models.UniqueConstraint(
                fields=["gpu", "minute_at"], name="one_row_per_gpu_and_minute"
            )
        ]
        indexes = [models.Index(fields=["minute_at"])]

    def __str__(self) -> str:
        return f"{self.gpu_id} {self.minute_at:%F %R}"
