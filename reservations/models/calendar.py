"""Reservations and the Allocations that the database keeps apart."""

from datetime import datetime, timedelta

from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy

from reservations.models.accounts import Membership, User
from reservations.rules.lifecycle import NEXT, Kind, State
from reservations.rules.policy import LONGEST_POSSIBLE_SECONDS
from reservations.rules.prices import PEAK_LENGTH

LIVE = tuple(sorted(state.value for state in State.live()))


class IsLive(models.Func):
    """Whether a state holds Gpus, with the states as literals.

    SQLite uses a partial index only if the query has its condition literally, not as a
    bound value. Without the index a million past Reservations are scanned.
    """

    template = "%(expressions)s IN ('" + "', '".join(LIVE) + "')"
    output_field = models.BooleanField()


class ReservationQuerySet(models.QuerySet["Reservation"]):
    """Reads and moves of Reservations."""

    def live(self) -> "ReservationQuerySet":
        """Reservations that hold Gpus."""
        return self.filter(IsLive("state"))

    def active(self) -> "ReservationQuerySet":
        """Reservations whose Window is running."""
        return self.live().filter(state=State.ACTIVE)

    def overlapping(self, start: datetime, end: datetime) -> "ReservationQuerySet":
        """Reservations whose half-open Window meets [start, end)."""
        return self.filter(start__lt=end, end__gt=start)

    def near(self, start: datetime, end: datetime) -> "ReservationQuerySet":
        """Those that meet [start, end), bounded on both sides for an index."""
        longest = timedelta(seconds=LONGEST_POSSIBLE_SECONDS)
        return self.overlapping(start, end).filter(start__gt=start - longest)

    def due_to_start(self, now: datetime) -> "ReservationQuerySet":
        """Booked Reservations whose Window has begun and is not over."""
        booked = self.live().filter(state=State.CONFIRMED)
        return booked.filter(start__lte=now, end__gt=now)

    def due_to_end(self, now: datetime) -> "ReservationQuerySet":
        """Live Reservations whose Window is over."""
        return self.live().filter(end__lte=now)

    def move(self, pk: int, *, old: State, new: State, **fields: object) -> bool:
        """Change the state by compare-and-set. False: another worker was first."""
        if new not in NEXT[old]:
            raise ValueError(f"a Reservation cannot move from {old} to {new}")
        moved = self.filter(pk=pk, state=old).update(
            state=new, version=models.F("version") + 1, **fields
        )
        return moved == 1


class Reservation(models.Model):
    """A User's claim on n Gpus for a Window, charged to a Membership."""

    user = models.ForeignKey(
        User, on_delete=models.PROTECT, related_name="reservations"
    )
    membership = models.ForeignKey(
        Membership, on_delete=models.PROTECT, related_name="reservations"
    )
    start = models.DateTimeField()
    end = models.DateTimeField(help_text="Half-open; moves to now when given back.")
    booked_end = models.DateTimeField(help_text="The end that was booked.")
    kind = models.CharField(max_length=8, choices=[(k.value, k.label) for k in Kind])
    state = models.CharField(
        max_length=12,
        choices=[(s.value, s.label) for s in State],
        default=State.CONFIRMED.value,
    )
    cost_gpu_seconds = models.BigIntegerField(
        help_text="weight x factor x Gpus x seconds"
    )
    purpose = models.CharField(max_length=120, blank=True)
    created_at = models.DateTimeField(default=timezone.now)
    checked_in_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    cancelled_at = models.DateTimeField(null=True, blank=True)
    watched_from = models.DateTimeField(
        null=True,
        blank=True,
        help_text="Since when a holder is waited for, where that is not the start: "
        "it was taken over running, and nobody had come.",
    )
    blind_seconds = models.PositiveIntegerField(
        default=0, help_text="Time without fresh samples: it stops every clock."
    )
    keep_used = models.BooleanField(default=False)
    kept_at = models.DateTimeField(null=True, blank=True)
    idle_warned_at = models.DateTimeField(null=True, blank=True)
    worked_at = models.DateTimeField(
        null=True,
        blank=True,
        help_text="When a notebook's kernel worked last. Idle time counts from then.",
    )
    lost_since = models.DateTimeField(
        null=True, blank=True, help_text="Since when one of its Gpus is lost."
    )
    no_show = models.BooleanField(
        default=False, help_text="Freed because nobody came: a strike."
    )
    overstay = models.BooleanField(
        default=False,
        help_text="May stay on past its booked end while nobody claims the Gpus.",
    )
    displaced_by = models.ForeignKey(
        "self",
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="displaced",
        help_text="Whose hours these became.",
    )
    peaked = models.BooleanField(
        default=False,
        editable=False,
        help_text="Some of its Gpus cost more in peak hours: see its Allocations.",
    )
    decision = models.JSONField(
        default=dict, blank=True, help_text="The rule, its numbers, the policy version."
    )
    version = models.PositiveIntegerField(default=1)

    objects = ReservationQuerySet.as_manager()

    class Meta:
        verbose_name = gettext_lazy("reservation")
        verbose_name_plural = gettext_lazy("reservations")
        ordering = ["start", "pk"]
        indexes = [
            models.Index(fields=["state", "start"]),
            models.Index(fields=["state", "end"]),
            models.Index(fields=["membership", "start"]),
            models.Index(fields=["user", "state"]),
            models.Index(
                fields=["end"],
                condition=models.Q(state__in=LIVE),
                name="reservation_live_by_end",
            ),
            models.Index(
                fields=["user", "ended_at"],
                condition=models.Q(no_show=True),
                name="reservation_no_shows",
            ),
        ]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(end__gte=models.F("start")),
                name="reservation_ends_after_its_start",
            )
        ]

    def __str__(self) -> str:
        return f"#{self.pk} {self.user} {self.start:%F %R} to {self.end:%F %R}"


class Allocation(models.Model):
    """One Gpu for one Reservation, with its time.

    The database refuses live rows of one Gpu that overlap
    (``reservations.models.triggers``).
    """

    reservation = models.ForeignKey(
        Reservation, on_delete=models.PROTECT, related_name="allocations"
    )
    gpu = models.ForeignKey(
        "telemetry.Gpu", on_delete=models.PROTECT, related_name="allocations"
    )
    start = models.DateTimeField()
    end = models.DateTimeField()
    live = models.BooleanField(default=True)
    weight = models.PositiveIntegerField(
        null=True,
        blank=True,
        help_text="The Pool's weight when it was booked; empty: the weight now.",
    )
    peak = models.CharField(
        max_length=PEAK_LENGTH,
        blank=True,
        help_text="The Pool's peak hours when it was booked; empty: none.",
    )

    class Meta:
        ordering = ["gpu_id", "start"]
        # Without ``live``: Django would ask SQLite for a bare ``live``, which no index
        # serves. Few rows end after an instant anyway.
        indexes = [
            models.Index(fields=["gpu", "end"]),
            models.Index(fields=["start", "end"]),
            models.Index(fields=["end"]),
        ]

    def __str__(self) -> str:
        return f"{self.gpu} for #{self.reservation_id}"


class EarlyReturn(models.Model):
    """Time given back before it began. See ``rules.fairness.early_returns``."""

    user = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    reservation = models.ForeignKey(
        Reservation, on_delete=models.PROTECT, related_name="early_returns"
    )
    gpu_seconds = models.BigIntegerField(help_text="Weighted GPU-seconds.")
    returned_at = models.DateTimeField()

    class Meta:
        ordering = ["returned_at", "pk"]
        indexes = [models.Index(fields=["user", "returned_at"])]

    def __str__(self) -> str:
        return f"{self.gpu_seconds} of #{self.reservation_id}"


class LateReturn(models.Model):
    """Hours of one Gpu that were returned less than a day ahead.

    See docs/design/fair-booking.md#rule-6.

    Until they have passed they are a possible charge. Then the parts that no other User
    held are kept, with ``charged_at``, and a CHARGE is written. Quotas count them at
    ``weight * permille / 1000``. In peak hours ``weight`` is the booked one times the
    factor, so that a row has one price.
    """

    reservation = models.ForeignKey(
        Reservation, on_delete=models.PROTECT, related_name="late_returns"
    )
    membership = models.ForeignKey(
        Membership, on_delete=models.PROTECT, related_name="late_returns"
    )
    gpu = models.ForeignKey("telemetry.Gpu", on_delete=models.PROTECT, related_name="+")
    start = models.DateTimeField()
    end = models.DateTimeField()
    weight = models.PositiveIntegerField()
    permille = models.PositiveSmallIntegerField(help_text="lambda x 1000")
    firm = models.BooleanField(
        default=True, help_text="Counts in quotas: it was firm when it came back."
    )
    returned_at = models.DateTimeField()
    charged_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name = gettext_lazy("late return")
        verbose_name_plural = gettext_lazy("late returns")
        ordering = ["reservation_id", "gpu_id", "start"]
        indexes = [
            models.Index(fields=["charged_at", "end"]),
            models.Index(fields=["membership", "end"]),
        ]

    def __str__(self) -> str:
        return f"{self.gpu} of #{self.reservation_id} {self.start:%F %R}"
