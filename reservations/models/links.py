"""Links that open one thing to their reader. Only their hashes are stored."""

from datetime import datetime

from django.db import models
from django.utils import timezone

from reservations.models.accounts import Account, User


class GroupLink(models.Model):
    """A link by which signed-in people join an Account, until it expires."""

    account = models.ForeignKey(Account, on_delete=models.CASCADE, related_name="links")
    link_hash = models.CharField(max_length=64, unique=True, editable=False)
    made_by = models.ForeignKey(
        User, null=True, on_delete=models.PROTECT, related_name="+"
    )
    created_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True, blank=True)
    most_joins = models.PositiveSmallIntegerField(
        default=30, help_text="How many people may join with it."
    )
    joins = models.PositiveSmallIntegerField(default=0)

    class Meta:
        ordering = ["-created_at", "-pk"]

    def __str__(self) -> str:
        return f"link to join {self.account}"

    def works(self, now: datetime) -> bool:
        """Return whether one more person may join with it."""
        return (
            self.revoked_at is None
            and self.expires_at > now
            and self.joins < self.most_joins
        )


class WallLink(models.Model):
    """A link that shows the wall without signing in, until it is revoked."""

    label = models.CharField(max_length=60, help_text="Where the screen hangs.")
    link_hash = models.CharField(max_length=64, unique=True, editable=False)
    names = models.BooleanField(default=False, help_text="Shows who holds a GPU.")
    made_by = models.ForeignKey(
        User, null=True, on_delete=models.PROTECT, related_name="+"
    )
    created_at = models.DateTimeField(default=timezone.now)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at", "-pk"]

    def __str__(self) -> str:
        return self.label
