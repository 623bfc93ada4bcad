"""Open findings, and those that are over."""

from datetime import datetime, timedelta

from django.db import models

from telemetry.models.nodes import Gpu


class AlertQuerySet(models.QuerySet["Alert"]):
    """Reads of Alerts."""

    def open(self) -> "AlertQuerySet":
        """Findings that still stand."""
        return self.filter(closed_at=None)

    def open_at(self, at: datetime) -> "AlertQuerySet":
        """Findings that stood at an instant."""
        return self.filter(opened_at__lte=at).exclude(closed_at__lte=at)


class Alert(models.Model):
    """One open finding of one rule on one Gpu (or on a reservation of it)."""

    rule = models.CharField(max_length=40)
    gpu = models.ForeignKey(Gpu, on_delete=models.CASCADE, related_name="alerts")
    reservation_id = models.BigIntegerField(null=True, blank=True)
    detail = models.JSONField(default=dict)
    opened_at = models.DateTimeField()
    last_seen_at = models.DateTimeField()
    closed_at = models.DateTimeField(null=True, blank=True)

    objects = AlertQuerySet.as_manager()

    class Meta:
        ordering = ["-opened_at"]
        constraints = [
            models.UniqueConstraint(
                fields=["rule", "gpu"],
                condition=models.Q(closed_at=None),
                name="one_open_alert_per_rule_and_gpu",
            )
        ]

    def __str__(self) -> str:
        return f"{self.words} on {self.gpu}"

    @property
    def words(self) -> str:
        """The rule as people read it: "missing after reboot"."""
        return self.rule.replace("_", " ")

    @property
    def lasted(self) -> timedelta:
        """How long the finding has stood."""
        return (self.closed_at or self.last_seen_at) - self.opened_at
