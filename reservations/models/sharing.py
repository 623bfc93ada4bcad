"""Sharing a Reservation, offering it to others, and repeating it."""

from datetime import datetime

from django.db import models
from django.utils import timezone

from reservations.models.accounts import Membership, User
from reservations.models.calendar import Reservation


class CoUserQuerySet(models.QuerySet["CoUser"]):
    """Reads of CoUsers."""

    def sharing(self) -> "CoUserQuerySet":
        """Co-users who may still use the Reservation.

        Users who left the owner's Account, or who may not sign in, are excluded.
        """
        member = Membership.objects.filter(
            user=models.OuterRef("user"),
            account=models.OuterRef("reservation__membership__account"),
            active=True,
        )
        return self.filter(models.Exists(member), removed_at=None, user__is_active=True)


class CoUser(models.Model):
    """A User of the owner's Account who may also use a Reservation's Gpus.

    They may run processes and Jobs. Only the owner checks in, changes and pays. The row
    is kept after the removal, as a record of who could use a Gpu, and when.
    """

    reservation = models.ForeignKey(
        Reservation, on_delete=models.PROTECT, related_name="co_users"
    )
    user = models.ForeignKey(User, on_delete=models.PROTECT, related_name="shared")
    added_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    added_at = models.DateTimeField(default=timezone.now)
    removed_at = models.DateTimeField(null=True, blank=True)

    objects = CoUserQuerySet.as_manager()

    class Meta:
        ordering = ["reservation_id", "pk"]
        indexes = [models.Index(fields=["user", "removed_at"])]
        constraints = [
            models.UniqueConstraint(
                fields=["reservation", "user"],
                condition=models.Q(removed_at=None),
                name="one_couser_per_reservation_and_user",
            )
        ]

    def __str__(self) -> str:
        return f"{self.user} in #{self.reservation_id}"


class OfferQuerySet(models.QuerySet["Offer"]):
    """Offers, by what pages show of them."""

    def of(self, user: User) -> "OfferQuerySet":
        """Return the Offers to and from a User, with all that a row of them shows."""
        found = self.filter(models.Q(taker__user=user) | models.Q(made_by=user))
        rows = found.select_related(
            "made_by",
            "taker__user",
            "taker__account",
            "reservation__user",
            "reservation__membership__account",
            "wanted__user",
            "wanted__membership__account",
        )
        return rows.prefetch_related(
            "reservation__allocations__gpu__node", "wanted__allocations__gpu__node"
        )


class Offer(models.Model):
    """A Reservation offered to another Membership, as a gift or in a swap.

    ``terms`` has the Gpus and the Window of each side as they were shown. If a
    Reservation was changed since, the Offer is void.
    """

    class State(models.TextChoices):
        OPEN = "open"
        ACCEPTED = "accepted"
        DECLINED = "declined"
        WITHDRAWN = "withdrawn"
        EXPIRED = "expired"

    reservation = models.ForeignKey(
        Reservation, on_delete=models.PROTECT, related_name="offers"
    )
    wanted = models.ForeignKey(
        Reservation,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="offers_for_it",
        help_text="The other's, in a swap; empty: given away.",
    )
    taker = models.ForeignKey(
        Membership, on_delete=models.PROTECT, related_name="offers"
    )
    made_by = models.ForeignKey(
        User, on_delete=models.PROTECT, related_name="offers_made"
    )
    message = models.CharField(max_length=200, blank=True)
    terms = models.JSONField(default=dict)
    kind_back = models.CharField(
        max_length=8,
        blank=True,
        help_text="What the maker was shown to get, in a swap.",
    )
    state = models.CharField(max_length=10, choices=State, default=State.OPEN)
    made_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField(help_text="The start; the end of one that runs.")
    answered_at = models.DateTimeField(null=True, blank=True)
    given = models.OneToOneField(
        Reservation,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="given_by",
        help_text="The taker's Reservation, once accepted.",
    )
    given_back = models.OneToOneField(
        Reservation,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="given_back_by",
        help_text="The maker's, once a swap is accepted.",
    )

    objects = OfferQuerySet.as_manager()

    class Meta:
        ordering = ["-made_at", "-pk"]
        indexes = [
            models.Index(fields=["state", "expires_at"]),
            models.Index(fields=["taker", "state"]),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["reservation"],
                condition=models.Q(state="open"),
                name="one_open_offer_per_reservation",
            )
        ]

    def __str__(self) -> str:
        return f"offer of #{self.reservation_id} to {self.taker}"


class SeriesQuerySet(models.QuerySet["Series"]):
    """Changes of Series."""

    def end(self, pk: int, *, at: datetime) -> bool:
        """End a running Series. False: it has ended already."""
        running = self.filter(pk=pk, state=Series.State.RUNNING)
        return running.update(state=Series.State.ENDED, ended_at=at) == 1


class Series(models.Model):
    """A reservation of some Gpus that is repeated at its local time until an end."""

    class Repeat(models.TextChoices):
        DAILY = "daily"
        WEEKDAYS = "weekdays"
        WEEKLY = "weekly"

    class State(models.TextChoices):
        RUNNING = "running"
        ENDED = "ended"

    membership = models.ForeignKey(
        Membership, on_delete=models.PROTECT, related_name="series"
    )
    user = models.ForeignKey(User, on_delete=models.PROTECT, related_name="series")
    gpus = models.ManyToManyField("telemetry.Gpu", related_name="+")
    repeat = models.CharField(max_length=10, choices=Repeat)
    first_day = models.DateField(help_text="Local day of the first occurrence.")
    local_start = models.TimeField(help_text="Wall clock in the zone.")
    zone = models.CharField(max_length=64, help_text="The site's when it was made.")
    duration_seconds = models.PositiveIntegerField()
    until = models.DateField(null=True, blank=True, help_text="Last local day.")
    times = models.PositiveSmallIntegerField(null=True, blank=True)
    skip_refused = models.BooleanField(default=False)
    purpose = models.CharField(max_length=120, blank=True)
    state = models.CharField(max_length=8, choices=State, default=State.RUNNING)
    created_at = models.DateTimeField(default=timezone.now)
    ended_at = models.DateTimeField(null=True, blank=True)
    look_at = models.DateTimeField(help_text="When the tick looks at it next.")

    objects = SeriesQuerySet.as_manager()

    class Meta:
        ordering = ["-created_at", "-pk"]
        verbose_name_plural = "series"
        indexes = [
            models.Index(fields=["state", "look_at"]),
            models.Index(fields=["user", "state"]),
        ]

    def __str__(self) -> str:
        return f"{self.repeat} {self.local_start:%R} of {self.user}"


class Occurrence(models.Model):
    """One local day of a Series that has been processed."""

    class State(models.TextChoices):
        BOOKED = "booked"
        LATER = "later"
        REFUSED = "refused"
        SKIPPED = "skipped"

    series = models.ForeignKey(
        Series, on_delete=models.PROTECT, related_name="occurrences"
    )
    day = models.DateField()
    state = models.CharField(max_length=8, choices=State)
    reservation = models.OneToOneField(
        Reservation,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="occurrence",
    )
    code = models.CharField(max_length=40, blank=True)
    why = models.CharField(max_length=400, blank=True)
    looked_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["series_id", "day"]
        constraints = [
            models.UniqueConstraint(
                fields=["series", "day"], name="one_occurrence_per_series_and_day"
            )
        ]

    def __str__(self) -> str:
        return f"{self.day:%F} of series {self.series_id}: {self.state}"


class CalendarFeed(models.Model):
    """The secret address of a User's calendar. Only its hash is stored."""

    user = models.OneToOneField(
        User, on_delete=models.CASCADE, related_name="calendar_feed"
    )
    address_hash = models.CharField(max_length=64, unique=True, editable=False)
    made_at = models.DateTimeField(default=timezone.now)
    last_read_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"calendar of {self.user}, since {self.made_at:%F}"
