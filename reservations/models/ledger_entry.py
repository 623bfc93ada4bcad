"""The ledger. It is append-only: the database itself refuses UPDATE and DELETE."""

from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy

from reservations.models.accounts import Membership
from reservations.models.calendar import Reservation


class LedgerEntry(models.Model):
    """One HOLD, RELEASE, CHARGE or IMPORT in integer weighted GPU-seconds.

    HOLD is positive when a Reservation takes cost, RELEASE negative when it frees
    cost, CHARGE the final payment. Over the life of one
    Reservation HOLD + RELEASE = 0. IMPORT is a payment for use outside the portal.
    ``membership`` null: the site's own column.
    """

    class Kind(models.TextChoices):
        HOLD = "hold"
        RELEASE = "release"
        CHARGE = "charge"
        IMPORT = "import", "Imported"

    membership = models.ForeignKey(
        Membership,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="ledger",
    )
    reservation = models.ForeignKey(
        Reservation,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="ledger",
        help_text="Null only for an import.",
    )
    kind = models.CharField(max_length=8, choices=Kind)
    gpu_seconds = models.BigIntegerField()
    at = models.DateTimeField(default=timezone.now)
    reason = models.CharField(max_length=200)
    source = models.CharField(
        max_length=120,
        blank=True,
        default="",
        # A process of the release before this field still adds rows after `migrate`.
        db_default="",
        help_text="What an import is for. Each has one row.",
    )

    class Meta:
        verbose_name = gettext_lazy("ledger entry")
        verbose_name_plural = gettext_lazy("ledger entries")
        ordering = ["at", "pk"]
        indexes = [models.Index(fields=["membership", "at"])]
        constraints = [
            models.UniqueConstraint(
                fields=["source"],
                condition=~models.Q(source=""),
                name="one_ledger_entry_per_source",
            ),
            models.CheckConstraint(
                condition=models.Q(kind="import", reservation=None)
                & ~models.Q(source="")
                | ~models.Q(kind="import")
                & models.Q(reservation__isnull=False, source=""),
                name="only_an_import_has_no_reservation",
            ),
        ]

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
