"""The ledger. It is append-only: the database itself refuses UPDATE and DELETE."""

from django.db import models
from django.utils import timezone

from reservations.models.accounts import Membership
from reservations.models.calendar import Reservation


class LedgerEntry(models.Model):
    """One HOLD, RELEASE or CHARGE in integer weighted GPU-seconds.

    HOLD is positive when a Reservation takes cost, RELEASE negative when it frees
    cost, CHARGE the final payment. Over the life of one
    Reservation HOLD + RELEASE = 0. ``membership`` null: the site's own column.
    """

    class Kind(models.TextChoices):
        HOLD = "hold"
        RELEASE = "release"
        CHARGE = "charge"

    membership = models.ForeignKey(
        Membership,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="ledger",
    )
    reservation = models.ForeignKey(
        Reservation, on_delete=models.PROTECT, related_name="ledger"
    )
    kind = models.CharField(max_length=8, choices=Kind)
    gpu_seconds = models.BigIntegerField()
    at = models.DateTimeField(default=timezone.now)
    reason = models.CharField(max_length=200)

    class Meta:
        ordering = ["at", "pk"]
        verbose_name_plural = "ledger entries"
        indexes = [models.Index(fields=["membership", "at"])]

    def __str__(self) -> str:
        return f"{self.kind} {self.gpu_seconds} for #{self.reservation_id}"


class KeptUsage(models.Model):
    """The weighted sum of the oldest charges in the ledger.

    The ledger is append-only and the weight of a charge never changes, so the sum stays
    valid. A new process continues reading at ``settled_pk``, not a million rows before.
    """

    half_life_seconds = models.PositiveBigIntegerField(
        unique=True, help_text="What the charges are weighed by."
    )
    settled_pk = models.BigIntegerField(help_text="Rows up to here are in the sums.")
    sums = models.JSONField(
        help_text="By Membership, in units of fairshare.weight_at, as hexadecimal text."
    )

    def __str__(self) -> str:
        return f"usage up to ledger row {self.settled_pk}"
