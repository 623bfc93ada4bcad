"""Vouchers after a failure of the site.

See docs/design/fair-booking.md#rule-7.
"""

from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy

from reservations.models.accounts import Membership
from reservations.models.calendar import Reservation


class Voucher(models.Model):
    """The right of a Membership to one firm booking beyond the horizon.

    It is given with a refund. ``used_for`` is the Reservation on which it was spent. If
    that is refunded too, the Voucher is given back.
    """

    membership = models.ForeignKey(
        Membership, on_delete=models.PROTECT, related_name="vouchers"
    )
    given_for = models.OneToOneField(
        Reservation, on_delete=models.PROTECT, related_name="voucher_given"
    )
    used_for = models.OneToOneField(
        Reservation,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="voucher_used",
    )
    reason = models.CharField(max_length=200)
    given_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField(
        null=True,
        blank=True,
        help_text="The booking must begin before then. Empty: after a year.",
    )
    revoked_at = models.DateTimeField(
        null=True,
        blank=True,
        help_text="When it was withdrawn because the course or account ended.",
    )

    class Meta:
        verbose_name = gettext_lazy("voucher")
        verbose_name_plural = gettext_lazy("vouchers")
        # The table keeps the model's former name.
        db_table = "reservations_token"
        ordering = ["-given_at", "-pk"]

    def __str__(self) -> str:
        return f"voucher of {self.membership} for #{self.given_for_id}"
