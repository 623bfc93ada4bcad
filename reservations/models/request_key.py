"""The keys of requests that may be sent again, with their answers."""

from datetime import datetime, timedelta

from django.db import models

from reservations.models.accounts import User

KEPT = timedelta(hours=24)
"""How long an answer is kept."""


class RequestKeyQuerySet(models.QuerySet["RequestKey"]):
    """Reads of keys."""

    def old(self, now: datetime) -> "RequestKeyQuerySet":
        """Keys that were kept long enough."""
        return self.filter(sent_at__lt=now - KEPT)


class RequestKey(models.Model):
    """An ``Idempotency-Key`` that a User sent, and the answer to its request.

    A request that is refused deletes its row, because it made nothing.
    """

    user = models.ForeignKey(
        User, on_delete=models.CASCADE, related_name="request_keys"
    )
    key = models.CharField(max_length=255)
    fingerprint = models.CharField(max_length=64)
    """SHA-256 of the method, the address and the body, in hexadecimal."""
    sent_at = models.DateTimeField(db_index=True)
    status = models.PositiveSmallIntegerField(null=True, blank=True)
    """Of the answer. None: there is none yet."""
    answer = models.TextField(blank=True)
    """JSON."""

    objects = RequestKeyQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["user", "key"], name="one_request_per_key")
        ]

    def __str__(self) -> str:
        return f"{self.key} of {self.user}"
