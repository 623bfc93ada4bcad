"""What a User is told: kept until read, and afterwards as history."""

from django.db import models
from django.utils import timezone

from reservations.models.accounts import User
from reservations.models.calendar import Reservation


class NoticeQuerySet(models.QuerySet["Notice"]):
    """Reads of Notices."""

    def unread(self, user: User) -> "NoticeQuerySet":
        """Those that a User has not read, newest first."""
        return self.filter(user=user, read_at=None)


class Notice(models.Model):
    """One event about a Reservation, told to its User.

    ``detail`` holds the numbers; the words are made when they are shown, because
    who may read which name can change (``snapshots/notices.py``).
    """

    class Kind(models.TextChoices):
        DISPLACED = "displaced"

    user = models.ForeignKey(User, on_delete=models.PROTECT, related_name="notices")
    kind = models.CharField(max_length=16, choices=Kind)
    reservation = models.ForeignKey(
        Reservation, on_delete=models.PROTECT, related_name="notices"
    )
    told_at = models.DateTimeField(default=timezone.now)
    read_at = models.DateTimeField(null=True, blank=True)
    detail = models.JSONField(default=dict, blank=True)

    objects = NoticeQuerySet.as_manager()

    class Meta:
        ordering = ["-told_at", "-pk"]
        indexes = [models.Index(fields=["user", "read_at"])]

    def __str__(self) -> str:
        return f"{self.kind} of #{self.reservation_id}, to {self.user}"
