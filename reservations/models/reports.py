"""The sources of reports: months of use, and refused demand."""

from django.db import models
from django.utils import timezone

from reservations.models.accounts import Membership, User


class RefusedDemand(models.Model):
    """Refused demand of a Membership on a day, by rule and Pool.

    It is a counter, not a log: a thousand requests add to one row. Only refused
    bookings count. Previews and changes of existing Reservations do not.
    """

    day = models.DateField(help_text="In the site's zone.")
    membership = models.ForeignKey(
        Membership, on_delete=models.PROTECT, related_name="refused_demand"
    )
    pool = models.ForeignKey(
        "telemetry.Pool", on_delete=models.PROTECT, related_name="+"
    )
    rule = models.CharField(max_length=40, help_text="The refusal's code.")
    requests = models.PositiveBigIntegerField(default=0)
    gpu_seconds = models.PositiveBigIntegerField(
        default=0, help_text="Gpus x seconds asked for, unweighted."
    )

    class Meta:
        verbose_name_plural = "refused demand"
        ordering = ["day", "membership", "pool", "rule"]
        constraints = [
            models.UniqueConstraint(
                fields=["day", "membership", "pool", "rule"],
                name="one_row_of_refused_demand",
            )
        ]

    def __str__(self) -> str:
        return f"{self.day} {self.rule}: {self.requests}"


class RefusedRequest(models.Model):
    """One refused booking with its reason and its inputs.

    See docs/design/fair-booking.md#rule-8, docs/design/fair-booking.md#i14.

    The newest ones of each Membership are stored, for a limited time: see
    ``booking/refusals``. ``RefusedDemand`` counts the demand behind them.
    """

    membership = models.ForeignKey(
        Membership, on_delete=models.PROTECT, related_name="refused_requests"
    )
    asked_at = models.DateTimeField()
    gpu_ids = models.JSONField(default=list)
    start = models.DateTimeField()
    end = models.DateTimeField()
    rule = models.CharField(max_length=40, help_text="The refusal's code.")
    text = models.CharField(max_length=600, help_text="As it was told.")
    fields = models.JSONField(default=dict, help_text="The numbers of the refusal.")
    works_instead = models.JSONField(
        null=True, blank=True, help_text="What was told to work instead."
    )
    inputs = models.JSONField(
        null=True,
        blank=True,
        help_text="What decides it again; empty: refused before it was judged.",
    )

    class Meta:
        ordering = ["-asked_at", "-pk"]
        indexes = [models.Index(fields=["membership", "asked_at"])]

    def __str__(self) -> str:
        return f"{self.asked_at:%F %R} {self.rule}"


class MonthUse(models.Model):
    """The use of one Gpu by one Membership in a month.

    Computed from Reservations, the ledger and the usage summaries. It can be computed
    again at any time. ``membership`` null: charged to the site.
    """

    month = models.DateField(help_text="Its first day, in the site's zone.")
    membership = models.ForeignKey(
        Membership,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="month_use",
    )
    gpu = models.ForeignKey(
        "telemetry.Gpu", on_delete=models.PROTECT, related_name="month_use"
    )
    bookings = models.PositiveIntegerField(
        default=0, help_text="That began in the month; one of 4 Gpus counts once."
    )
    no_shows = models.PositiveIntegerField(default=0, help_text="Counted alike.")
    gpu_bookings = models.PositiveIntegerField(
        default=0, help_text="The same, counted on each of its Gpus."
    )
    gpu_no_shows = models.PositiveIntegerField(default=0)
    booked_gpu_seconds = models.BigIntegerField(default=0)
    held_gpu_seconds = models.BigIntegerField(default=0)
    returned_gpu_seconds = models.BigIntegerField(
        default=0, help_text="Given back or freed, not taken by the site."
    )
    seen_gpu_seconds = models.BigIntegerField(
        default=0, help_text="Of the held time: with a reading."
    )
    used_gpu_seconds = models.BigIntegerField(
        default=0, help_text="Seen time x utilization."
    )
    energy_joules = models.FloatField(default=0)
    cost_gpu_seconds = models.BigIntegerField(
        default=0, help_text="Charged, weighted; exact over all Gpus together."
    )

    class Meta:
        verbose_name_plural = "months of use"
        ordering = ["month", "membership", "gpu"]
        constraints = [
            models.UniqueConstraint(
                fields=["month", "membership", "gpu"], name="one_month_of_use"
            ),
            models.UniqueConstraint(
                fields=["month", "gpu"],
                condition=models.Q(membership=None),
                name="one_month_of_use_of_the_site",
            ),
        ]
        indexes = [models.Index(fields=["membership", "month"])]

    def __str__(self) -> str:
        return f"{self.month:%Y-%m}"


class RolledMonth(models.Model):
    """The instant up to which a month's rows of ``MonthUse`` are computed."""

    month = models.DateField(unique=True)
    rolled_at = models.DateTimeField()
    final = models.BooleanField(
        default=False, help_text="Nothing comes late for it any more."
    )

    class Meta:
        ordering = ["month"]

    def __str__(self) -> str:
        return f"{self.month:%Y-%m}"


class PolicyReplay(models.Model):
    """The effect that other rules would have had on a part of the site's past.

    ``before`` and ``after`` are measures of the same trace under the present rules and
    under ``edited``. A row changes its state by compare-and-set.
    """

    class State(models.TextChoices):
        WAITING = "waiting"
        RUNNING = "running"
        DONE = "done"
        FAILED = "failed"
        CANCELLED = "cancelled"

    OPEN = (State.WAITING, State.RUNNING)

    asked_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    asked_at = models.DateTimeField(default=timezone.now)
    from_at = models.DateTimeField()
    to_at = models.DateTimeField()
    counted_from = models.CharField(
        max_length=8,
        choices=[("asked", "asked"), ("start", "start")],
        default="asked",
        help_text="A wait begins when it was asked, or to start.",
    )
    pool = models.ForeignKey(
        "telemetry.Pool",
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="+",
        help_text="Empty: all Gpus as if they were of one class.",
    )
    gpus = models.PositiveIntegerField()
    present = models.JSONField(default=dict, help_text="The rules as they were.")
    edited = models.JSONField(default=dict, help_text="The rules to compare with.")
    state = models.CharField(max_length=10, choices=State, default=State.WAITING)
    doing = models.CharField(max_length=80, blank=True)
    done_ratio = models.FloatField(default=0)
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    problem = models.CharField(max_length=400, blank=True)
    jobs = models.PositiveIntegerField(default=0)
    before = models.JSONField(null=True, blank=True)
    after = models.JSONField(null=True, blank=True)

    class Meta:
        ordering = ["-asked_at", "-pk"]
        indexes = [models.Index(fields=["state"])]

    def __str__(self) -> str:
        return f"replay {self.pk}: {self.state}"
