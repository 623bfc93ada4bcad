"""Jobs that run in gaps between Reservations: the request and its progress."""

from django.conf import settings
from django.db import models
from django.utils import timezone

from placement.rules.backfill_rules import NEXT, GapState
from reservations.models import User


class BackfillQuerySet(models.QuerySet["Backfill"]):
    """Reads and state changes of Jobs in gaps."""

    def move(self, pk: int, *, old: GapState, new: GapState, **fields: object) -> bool:
        """Change the state by compare-and-set. False: another worker was first.

        Raises:
            ValueError: the table has no such change.
        """
        if new not in NEXT[old]:
            raise ValueError(f"what runs in gaps cannot move from {old} to {new}")
        return self.filter(pk=pk, state=old).update(state=new, **fields) == 1

    def live(self) -> "BackfillQuerySet":
        """Those that wait for a gap or run in one."""
        return self.filter(state__in=GapState.live())

    def visible_to(self, user: User) -> "BackfillQuerySet":
        """Own ones, and those of Accounts that the User heads. All for operators."""
        if user.is_operator:
            return self.all()
        headed = user.memberships.filter(is_head=True, active=True).values("account")
        return self.filter(
            models.Q(owner=user) | models.Q(membership__account__in=headed)
        )


class Backfill(models.Model):
    """A Job that runs in gaps. Each of its stretches is a separate Job.

    A stretch resumes from the checkpoint of the one before (``Job.resume_from``), in a
    Reservation that holds the gap for it and yields to every booking.
    """

    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="backfills"
    )
    membership = models.ForeignKey(
        "reservations.Membership",
        on_delete=models.PROTECT,
        related_name="backfills",
        help_text="Who pays for the time that it holds.",
    )
    name = models.CharField(max_length=120)
    launch = models.JSONField(help_text="Arguments of services.launch, checked.")
    gpu_count = models.PositiveSmallIntegerField(default=1)
    gpu_class = models.CharField(max_length=120, blank=True, help_text="Empty: any.")
    min_memory_bytes = models.PositiveBigIntegerField(default=0)
    gpu_uuids = models.JSONField(
        default=list, blank=True, help_text="Of its plan: no others will do."
    )
    shortest_seconds = models.PositiveIntegerField(
        help_text="A gap that gives it less is of no use to it."
    )
    total_seconds = models.PositiveIntegerField(
        null=True, blank=True, help_text="Of held time in all; empty: until it ends."
    )
    used_seconds = models.PositiveIntegerField(default=0, help_text="Held so far.")
    retries = models.PositiveSmallIntegerField(
        default=0, help_text="How many more stretches may be lost with their node."
    )
    attempt = models.PositiveSmallIntegerField(
        default=0, help_text="Stretches begun so far."
    )
    state = models.CharField(
        max_length=10,
        choices=[(s.value, s.label) for s in GapState],
        default=GapState.QUEUED.value,
    )
    reason = models.CharField(max_length=400, blank=True)
    stop_asked_at = models.DateTimeField(null=True, blank=True)
    likely_at = models.DateTimeField(
        null=True, blank=True, help_text="The next gap by the calendar as it stands."
    )
    looked_at = models.DateTimeField(null=True, blank=True, editable=False)
    created_at = models.DateTimeField(default=timezone.now)
    ended_at = models.DateTimeField(null=True, blank=True)

    objects = BackfillQuerySet.as_manager()

    class Meta:
        ordering = ["-created_at", "-pk"]
        indexes = [
            models.Index(fields=["state"]),
            models.Index(fields=["owner", "state"]),
        ]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(gpu_count__gte=1, shortest_seconds__gte=1),
                name="backfill_asks_for_something",
            )
        ]

    def __str__(self) -> str:
        return self.name
