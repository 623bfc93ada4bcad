"""Waiting requests, and the last run of the waitlist."""

from django.core.validators import MinValueValidator
from django.db import models
from django.db.models import Q
from django.utils import timezone

from reservations.models.accounts import Membership, User
from reservations.models.calendar import Reservation


class WaitingRequestQuerySet(models.QuerySet["WaitingRequest"]):
    """Reads and moves of waiting requests."""

    def waiting(self) -> "WaitingRequestQuerySet":
        """Requests that have no placement yet."""
        return self.filter(state=WaitingRequest.State.WAITING)

    def move(self, pk: int, *, old: str, new: str, **fields: object) -> bool:
        """Change the state by compare-and-set. False: another worker was first."""
        moved = self.filter(pk=pk, state=old).update(
            state=new, version=models.F("version") + 1, **fields
        )
        return moved == 1


class WaitingRequest(models.Model):
    """ "Any 8 h between Tue and Thu, 2 Gpus of at least 24 GiB".

    See docs/design/fair-booking.md#rule-5.

    ``created_at`` is the time of the request: it stays the original one when a
    placement is displaced (docs/design/fair-booking.md#rule-4). ``expected_*`` is the
    estimated placement. With ``planned``, later flex of others cannot delay it.
    """

    class State(models.TextChoices):
        WAITING = "waiting"
        PLACED = "placed"
        DECLINED = "declined"
        CANCELLED = "cancelled"
        EXPIRED = "expired"

    user = models.ForeignKey(User, on_delete=models.PROTECT, related_name="waiting")
    membership = models.ForeignKey(
        Membership, on_delete=models.PROTECT, related_name="waiting"
    )
    count = models.PositiveSmallIntegerField(validators=[MinValueValidator(1)])
    gpu_class = models.CharField(max_length=80, blank=True, help_text="Empty: any.")
    min_memory_bytes = models.BigIntegerField(default=0)
    duration_seconds = models.PositiveIntegerField()
    earliest = models.DateTimeField()
    latest = models.DateTimeField(help_text="Last instant at which it must be over.")
    purpose = models.CharField(max_length=120, blank=True)
    created_at = models.DateTimeField(default=timezone.now)
    state = models.CharField(max_length=12, choices=State, default=State.WAITING)
    any_notice = models.BooleanField(
        default=False, help_text="Accepted beforehand: place it on short notice too."
    )
    has_job = models.BooleanField(
        default=False, help_text="A Job waits with it and begins by itself."
    )
    may_take = models.BooleanField(
        default=True,
        help_text="Off once it lost flex by rank: it then takes free time only.",
    )
    displaced_from = models.ForeignKey(
        Reservation,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="waits_again",
    )
    reservation = models.OneToOneField(
        Reservation,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="waited",
        help_text="Where it was placed.",
    )
    placed_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    planned = models.BooleanField(
        default=False, help_text="Its start is held against later flex."
    )
    expected_start = models.DateTimeField(null=True, blank=True)
    expected_end = models.DateTimeField(null=True, blank=True)
    expected_gpu_ids = models.JSONField(default=list, blank=True)
    first_estimate = models.DateTimeField(
        null=True, blank=True, help_text="The first start that was told."
    )
    first_estimate_at = models.DateTimeField(null=True, blank=True)
    offer_start = models.DateTimeField(null=True, blank=True)
    offer_end = models.DateTimeField(null=True, blank=True)
    offer_until = models.DateTimeField(
        null=True, blank=True, help_text="Until then an offer can be accepted."
    )
    offer_gpu_ids = models.JSONField(default=list, blank=True)
    decision = models.JSONField(
        default=dict, blank=True, help_text="Why it was placed there: can be replayed."
    )
    version = models.PositiveIntegerField(default=1)

    objects = WaitingRequestQuerySet.as_manager()

    class Meta:
        ordering = ["created_at", "pk"]
        indexes = [
            models.Index(fields=["state", "created_at"]),
            models.Index(fields=["user", "state"]),
            # A flex booking reads planned starts by time, not all waiting requests.
            models.Index(fields=["expected_end"]),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(latest__gt=models.F("earliest")),
                name="waiting_ends_after_it_begins",
            )
        ]

    def __str__(self) -> str:
        return f"{self.user} waits for {self.count} GPUs"


class WaitlistLook(models.Model):
    """One row: the waitlist's lock, and the state that its last run had read."""

    turn = models.PositiveBigIntegerField(
        default=0, help_text="One more with every placement."
    )
    looked_at = models.DateTimeField(null=True, blank=True)
    seen_entry = models.BigIntegerField(
        default=0, help_text="Newest audit row that the last look had seen."
    )

    def __str__(self) -> str:
        return f"waitlist, turn {self.turn}"
