"""Registered models, stored Plans, Jobs and what happened to them."""

from django.conf import settings
from django.db import models
from django.utils import timezone

from placement.domain.lifecycle import JobState
from reservations.models import User


class RegisteredModel(models.Model):
    """A stored ModelSpec: what a file or a config.json said of a model."""

    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE)
    name = models.CharField(max_length=120)
    source = models.CharField(max_length=40, help_text="config, safetensors, onnx")
    sha256 = models.CharField(max_length=64)
    spec = models.JSONField()
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return self.name


class StoredPlan(models.Model):
    """A Plan somebody chose: data, checked, printable, never changed."""

    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE)
    title = models.CharField(max_length=160)
    spec = models.JSONField()
    workload = models.JSONField()
    plan = models.JSONField()
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return self.title


class JobQuerySet(models.QuerySet["Job"]):
    """Reads and moves of Jobs."""

    def move(self, pk: int, *, old: JobState, new: JobState, **fields: object) -> bool:
        """Move one Job by compare-and-set; False: another worker was first."""
        return self.filter(pk=pk, state=old).update(state=new, **fields) == 1

    def visible_to(self, user: User) -> "JobQuerySet":
        """Jobs a User may look at: own, of Accounts they head; all for operators."""
        if user.is_operator:
            return self.all()
        headed = user.memberships.filter(is_head=True, active=True).values("account")
        return self.filter(
            models.Q(owner=user) | models.Q(reservation__membership__account__in=headed)
        )

    def live(self) -> "JobQuerySet":
        """Jobs that hold or wait for Gpus."""
        return self.filter(state__in=JobState.live())


class Job(models.Model):
    """One run of one Plan, script or recipe inside one Reservation."""

    class Kind(models.TextChoices):
        RECIPE = "recipe", "ready recipe"
        SCRIPT = "script", "own script"

    reservation = models.ForeignKey(
        "reservations.Reservation", on_delete=models.PROTECT, related_name="jobs"
    )
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT)
    plan = models.ForeignKey(
        StoredPlan, null=True, blank=True, on_delete=models.PROTECT
    )
    name = models.CharField(max_length=120)
    kind = models.CharField(max_length=10, choices=Kind)
    recipe = models.CharField(max_length=40, blank=True)
    script = models.TextField(blank=True)
    arguments = models.JSONField(
        default=list, blank=True, help_text="argv after the script"
    )
    recipe_settings = models.JSONField(default=dict, blank=True)
    node = models.ForeignKey("telemetry.Node", on_delete=models.PROTECT)
    state = models.CharField(
        max_length=10,
        choices=[(s.value, s.label) for s in JobState],
        default=JobState.QUEUED,
    )
    reason = models.CharField(max_length=400, blank=True)
    attempt = models.PositiveSmallIntegerField(default=0)
    exit_code = models.IntegerField(null=True, blank=True)
    exit_signal = models.PositiveSmallIntegerField(null=True, blank=True)
    last_lines = models.JSONField(
        default=list, blank=True, help_text="The log's end, as the node told it."
    )
    order_nonce = models.CharField(
        max_length=64, blank=True, help_text="Of the last order that was sent."
    )
    told_end = models.DateTimeField(
        null=True, blank=True, help_text="Reservation end that its node knows."
    )
    seen_at = models.DateTimeField(
        null=True, blank=True, help_text="When its node last said that it runs."
    )
    created_at = models.DateTimeField(default=timezone.now)
    ordered_at = models.DateTimeField(null=True, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    stop_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    log_bytes = models.BigIntegerField(default=0)

    objects = JobQuerySet.as_manager()

    class Meta:
        ordering = ["-created_at"]
        indexes = [models.Index(fields=["state"]), models.Index(fields=["owner"])]

    def __str__(self) -> str:
        return f"#{self.pk} {self.name}"


class JobEvent(models.Model):
    """One move of a Job: when, from where to where, who, why."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="events")
    at = models.DateTimeField(default=timezone.now)
    old = models.CharField(max_length=10, blank=True)
    new = models.CharField(max_length=10)
    actor = models.CharField(max_length=150)
    reason = models.CharField(max_length=400, blank=True)

    class Meta:
        ordering = ["at", "pk"]

    def __str__(self) -> str:
        return f"job #{self.job_id}: {self.old} to {self.new}"
