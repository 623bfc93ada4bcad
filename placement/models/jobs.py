"""Jobs, arrays of Jobs, and state changes."""

import secrets
from datetime import datetime, timedelta
from functools import partial
from typing import TypeAlias

from django.conf import settings
from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy

from placement.models.plans import StoredPlan
from placement.protocol.job_lifecycle import CANNOT_START, NEXT, JobState
from placement.protocol.launchers import MOST_FOLDER_CHARACTERS, Launcher
from placement.rules.rebalance_policy import RestartMode
from reservations.models import User
from reservations.rules.lifecycle import State

RESTART_SPAN = timedelta(hours=1)
KEY_BYTES = 8
"""Length of a Job's key: 64 random bits."""
USES_GPUS = ~models.Q(gpu_count=0)
"""The filter for Jobs with `Job.uses_gpus`."""


class LogDropped(models.TextChoices):
    """The rule that deleted a Job's logs."""

    AGE = "age", gettext_lazy("older than the site keeps them")
    ROOM = "room", gettext_lazy("their owner's logs exceeded the limit")


class JobQuerySet(models.QuerySet["Job"]):
    """Reads and state changes of Jobs."""

    def move(self, pk: int, *, old: JobState, new: JobState, **fields: object) -> bool:
        """Change the state by compare-and-set. False: another worker was first.

        Raises:
            ValueError: the table has no such change.
        """
        if new not in NEXT[old]:
            raise ValueError(f"a Job cannot move from {old} to {new}")
        return self.filter(pk=pk, state=old).update(state=new, **fields) == 1

    def visible_to(self, user: User) -> "JobQuerySet":
        """Jobs that a User may see: own, and of Accounts they head. All for
        operators.
        """
        if user.is_operator:
            return self.all()
        headed = user.memberships.filter(is_head=True, active=True).values("account")
        return self.filter(
            models.Q(owner=user) | models.Q(reservation__membership__account__in=headed)
        )

    def live(self) -> "JobQuerySet":
        """Jobs that hold or wait for Gpus."""
        return self.filter(state__in=JobState.live())

    def to_restart(self, now: datetime) -> "JobQuerySet":
        """Jobs that the portal starts again once their nodes are there.

        A Job that failed counts for an hour, if its program could be started.
        """
        bad_exit = (
            models.Q(exit_code__gt=0) & ~models.Q(exit_code=CANNOT_START)
        ) | models.Q(exit_signal__isnull=False)
        failed = bad_exit & models.Q(
            state=JobState.FAILED, retry_failed=True, ended_at__gt=now - RESTART_SPAN
        )
        return self.filter(
            models.Q(state=JobState.LOST) | failed,
            retries__gt=0,
            continued_by=None,
            reservation__state=State.ACTIVE,
            reservation__end__gt=now,
        ).exclude(kind__in=Job.Kind.endless())


class ScriptFolder(models.Model):
    """The text files that lie beside a script, shared by the Jobs that have them."""

    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT)
    sha256 = models.CharField(max_length=64, help_text="Of the files as JSON.")
    files = models.JSONField(help_text="Texts by relative path.")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-created_at"]
        constraints = [
            models.UniqueConstraint(
                fields=["owner", "sha256"], name="placement_scriptfolder_once"
            )
        ]

    def __str__(self) -> str:
        return f"{len(self.files)} files"


class JobArray(models.Model):
    """Jobs that differ only in some parameters, launched together (Slurm: array)."""

    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT)
    reservation = models.ForeignKey(
        "reservations.Reservation", on_delete=models.PROTECT, related_name="arrays"
    )
    name = models.CharField(max_length=120)
    sweep = models.JSONField(help_text="Values by parameter: every combination runs.")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return self.name


class Job(models.Model):
    """One run of one Plan, script or recipe inside one Reservation."""

    State: TypeAlias = JobState

    class Kind(models.TextChoices):
        RECIPE = "recipe", gettext_lazy("ready recipe")
        SCRIPT = "script", gettext_lazy("own script")
        SERVE = "serve", gettext_lazy("served model")
        WORKSPACE = "workspace", gettext_lazy("workspace")
        TEXT = "text", gettext_lazy("language model")

        @classmethod
        def endless(cls) -> "list[Job.Kind]":
            """Kinds that run until they are stopped, and never finish."""
            return [cls.SERVE, cls.WORKSPACE, cls.TEXT]

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
    script_folder = models.ForeignKey(
        ScriptFolder,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="jobs",
        help_text="The files beside the script.",
    )
    arguments = models.JSONField(
        default=list, blank=True, help_text="argv after the script"
    )
    started_with = models.CharField(
        max_length=12,
        blank=True,
        default=Launcher.OWN.value,
        choices=[(way.value, way.label) for way in Launcher],
        help_text="What starts the script; empty: its #! line, else the shell.",
    )
    environment_folder = models.CharField(
        max_length=MOST_FOLDER_CHARACTERS,
        blank=True,
        default="",
        help_text="Of programs, before the system's on its PATH: a venv's bin folder.",
    )
    recipe_settings = models.JSONField(default=dict, blank=True)
    node = models.ForeignKey("telemetry.Node", on_delete=models.PROTECT)
    gpu_count = models.PositiveSmallIntegerField(
        null=True,
        blank=True,
        help_text="GPUs it needs; empty: all that the reservation holds on its node.",
    )
    gpu_ids = models.JSONField(
        default=list, blank=True, help_text="Those it got, in the order it counts them."
    )
    array = models.ForeignKey(
        JobArray,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="tasks",
    )
    array_index = models.PositiveSmallIntegerField(null=True, blank=True)
    parameters = models.JSONField(
        default=dict, blank=True, help_text="Of the array's sweep, this one's values."
    )
    retries = models.PositiveSmallIntegerField(
        default=0, help_text="How often it may start again when its node is lost."
    )
    retry_failed = models.BooleanField(
        default=False, help_text="Whether it starts again when it failed, too."
    )
    resume_from = models.OneToOneField(
        "self",
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="continued_by",
        help_text="The job whose checkpoint it begins with.",
    )
    after = models.ForeignKey(
        "self",
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="followers",
        help_text="The job that must finish well before this one begins.",
    )
    after_done = models.BooleanField(
        default=False, editable=False, help_text="That job has finished well."
    )
    backfill = models.ForeignKey(
        "placement.Backfill",
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="stretches",
        help_text="What runs in gaps: this is one stretch of it.",
    )
    waits_with = models.ForeignKey(
        "reservations.WaitingRequest",
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="jobs",
        help_text="Its reservation was displaced: it follows to the next placement.",
    )
    state = models.CharField(
        max_length=10,
        choices=[(s.value, s.label) for s in JobState],
        default=JobState.QUEUED.value,
    )
    reason = models.CharField(max_length=400, blank=True)
    attempt = models.PositiveSmallIntegerField(default=0)
    exit_code = models.IntegerField(null=True, blank=True)
    exit_signal = models.PositiveSmallIntegerField(null=True, blank=True)
    last_lines = models.JSONField(
        default=list, blank=True, help_text="The log's end, as the node told it."
    )
    key = models.CharField(
        max_length=32,
        blank=True,
        default=partial(secrets.token_hex, KEY_BYTES),
        editable=False,
        help_text="Random: tells it from another job of its number after a restore.",
    )
    order_nonce = models.CharField(
        max_length=64, blank=True, help_text="Of the last order that was sent."
    )
    log_dropped_at = models.DateTimeField(
        null=True,
        blank=True,
        editable=False,
        help_text="When its logs were deleted by the site's policy.",
    )
    log_dropped_for = models.CharField(
        max_length=4,
        choices=[(s.value, s.label) for s in LogDropped],
        blank=True,
        editable=False,
        help_text="Which rule deleted them; empty: their age, before this was kept.",
    )
    log_cut_at = models.DateTimeField(
        null=True,
        blank=True,
        editable=False,
        help_text="Since when no more of its log is stored: its owner's logs are full.",
    )
    request_id = models.CharField(
        max_length=64,
        blank=True,
        default="",
        db_default="",
        editable=False,
        help_text="Of the request that launched it, as in the logs.",
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
    may_move = models.BooleanField(
        default=False, help_text="Look again whether it would run faster elsewhere."
    )
    restart = models.CharField(
        max_length=8,
        choices=[(r.value, r.label) for r in RestartMode],
        default=RestartMode.NOT.value,
        blank=True,
        help_text="Whether it may be stopped and started again on other GPUs.",
    )
    warned_end = models.DateTimeField(
        null=True, blank=True, editable=False, help_text="The end it was warned of."
    )
    warned_seconds = models.PositiveSmallIntegerField(
        null=True, blank=True, editable=False, help_text="Before it, the last time."
    )
    looked_at = models.DateTimeField(null=True, blank=True, editable=False)
    seen_step = models.BigIntegerField(
        null=True, blank=True, editable=False, help_text="The last its log told."
    )
    seen_step_at = models.DateTimeField(null=True, blank=True, editable=False)
    step_seconds = models.FloatField(
        null=True, blank=True, editable=False, help_text="Measured, the last look."
    )

    progress_done = models.FloatField(
        null=True, blank=True, editable=False, help_text="Of its total, as it says."
    )
    progress_total = models.FloatField(null=True, blank=True, editable=False)
    progress_at = models.DateTimeField(null=True, blank=True, editable=False)
    progress_from = models.FloatField(
        null=True, blank=True, editable=False, help_text="Where it was first seen."
    )
    progress_from_at = models.DateTimeField(null=True, blank=True, editable=False)

    objects = JobQuerySet.as_manager()

    class Meta:
        verbose_name = gettext_lazy("job")
        verbose_name_plural = gettext_lazy("jobs")
        ordering = ["-created_at"]
        indexes = [
            models.Index(fields=["state"]),
            models.Index(fields=["owner"]),
            models.Index(fields=["ended_at"]),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["backfill"],
                condition=models.Q(state__in=sorted(s.value for s in JobState.live())),
                name="one_live_stretch_in_gaps",
            )
        ]

    def __str__(self) -> str:
        return f"#{self.pk} {self.name}"

    @property
    def uses_gpus(self) -> bool:
        """Return whether it needs Gpus. Without any it waits for no other Job."""
        return self.gpu_count != 0

    def node_ids(self) -> list[int]:
        """Return the nodes that it runs on, the first one first."""
        return [part.node_id for part in self.parts.all()] or [self.node_id]


class JobEvent(models.Model):
    """One state change of a Job: time, states, actor and reason."""

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
