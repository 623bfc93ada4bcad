"""The audit log: author, act, time and reason. It is append-only like the ledger."""

from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy

from reservations.models.accounts import User


class AuditEntry(models.Model):
    """One act of a person, or of the portal itself (``actor`` null)."""

    at = models.DateTimeField(default=timezone.now)
    actor = models.ForeignKey(User, null=True, blank=True, on_delete=models.PROTECT)
    verb = models.CharField(max_length=60, help_text="e.g. reservation.booked")
    subject = models.CharField(max_length=80, help_text="e.g. reservation:17")
    reason = models.CharField(max_length=400, blank=True)
    detail = models.JSONField(default=dict, blank=True)

    class Meta:
        verbose_name = gettext_lazy("audit entry")
        verbose_name_plural = gettext_lazy("audit entries")
        ordering = ["-at", "-pk"]
        indexes = [models.Index(fields=["subject"]), models.Index(fields=["at"])]

    def __str__(self) -> str:
        return f"{self.verb} {self.subject}"
