"""Registered models, stored Plans, refined Estimates."""

from django.conf import settings
from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy

from reservations.models import Membership, User


class RegisteredModel(models.Model):
    """A stored ModelSpec, read from a model file or a config.json."""

    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE)
    name = models.CharField(max_length=120)
    source = models.CharField(max_length=40, help_text="config, safetensors, onnx")
    sha256 = models.CharField(max_length=64)
    spec = models.JSONField()
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        verbose_name = gettext_lazy("registered model")
        verbose_name_plural = gettext_lazy("registered models")
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return self.name


class StoredPlanQuerySet(models.QuerySet["StoredPlan"]):
    """Reads of saved Plans."""

    def visible_to(self, user: User) -> "StoredPlanQuerySet":
        """Plans that a User may see: own ones, and those of members of headed Accounts.

        Operators see all. A Plan's link admits its bearer to that Plan.
        """
        if user.is_operator:
            return self.all()
        headed = user.memberships.filter(is_head=True, active=True).values("account")
        members = Membership.objects.filter(account__in=headed, active=True)
        return self.filter(
            models.Q(owner=user) | models.Q(owner__in=members.values("user"))
        )


class StoredPlan(models.Model):
    """A Plan that a User saved: validated data that never changes."""

    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE)
    title = models.CharField(max_length=160)
    spec = models.JSONField()
    workload = models.JSONField()
    plan = models.JSONField()
    address = models.TextField(
        blank=True, help_text="Query that opens the planning page with its question."
    )
    link_key = models.CharField(
        max_length=64,
        blank=True,
        help_text="Anyone who is signed in and has the link can see the plan. "
        "Empty: no link.",
    )
    created_at = models.DateTimeField(default=timezone.now)

    objects = StoredPlanQuerySet.as_manager()

    class Meta:
        verbose_name = gettext_lazy("stored plan")
        verbose_name_plural = gettext_lazy("stored plans")
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return self.title


class Refinement(models.Model):
    """A symbolic Estimate: computed once per content, and shared by all Users."""

    class State(models.TextChoices):
        WAITING = "waiting", "waits for a worker"
        RUNNING = "running", "running"
        DONE = "done", "done"
        FAILED = "failed", "failed"
        CANCELLED = "cancelled", "cancelled"

    OPEN = (State.WAITING, State.RUNNING)

    key = models.CharField(
        max_length=64,
        unique=True,
        help_text="SHA-256 of model, workload and the versions that answer.",
    )
    asked_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL
    )
    case = models.JSONField(help_text="placement.planner.symbolic.case.Case")
    state = models.CharField(max_length=10, choices=State, default=State.WAITING)
    doing = models.CharField(max_length=80, blank=True, help_text="What runs now.")
    done_ratio = models.FloatField(default=0)
    answer = models.JSONField(null=True, blank=True)
    problem = models.CharField(max_length=500, blank=True)
    asked_at = models.DateTimeField(default=timezone.now)
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-asked_at", "-pk"]
        indexes = [models.Index(fields=["state"])]

    def __str__(self) -> str:
        return f"refinement {self.key[:12]}: {self.state}"
