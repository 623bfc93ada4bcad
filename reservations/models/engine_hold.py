"""What another engine holds for a Reservation."""

from django.db import models

from reservations.models.calendar import Reservation

FAILURE_LENGTH = 300


def stored_failure(why: str) -> str:
    """Return a text of the engine as the column holds it."""
    return why.replace("\0", "")[:FAILURE_LENGTH]


class EngineHold(models.Model):
    """The hold of an engine, such as Slurm, for one Reservation.

    The engine has the truth. This row has what it was asked last, and how it answered.
    """

    reservation = models.OneToOneField(
        Reservation,
        on_delete=models.PROTECT,
        primary_key=True,
        related_name="engine_hold",
    )
    nodes = models.JSONField(default=list, help_text="Names of the nodes, whole.")
    confirmed_at = models.DateTimeField(
        null=True, blank=True, help_text="When the engine confirmed it first."
    )
    asked_at = models.DateTimeField(
        null=True, blank=True, help_text="When the engine was last asked for it."
    )
    leaving_since = models.DateTimeField(
        null=True, blank=True, help_text="Since when it should be gone."
    )
    gone_at = models.DateTimeField(
        null=True, blank=True, help_text="When it was gone, as it should be."
    )
    failure = models.CharField(
        max_length=FAILURE_LENGTH,
        blank=True,
        default="",
        db_default="",
        help_text="Why the last request failed; empty: it did not.",
    )

    class Meta:
        ordering = ["reservation_id"]
        indexes = [
            models.Index(
                fields=["reservation"],
                condition=models.Q(gone_at=None),
                name="engine_hold_not_gone",
            )
        ]

    def __str__(self) -> str:
        return f"reservation {self.reservation_id} on {', '.join(self.nodes)}"
