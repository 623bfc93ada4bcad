"""Registered models, stored Plans, refined Estimates, Jobs and their moves."""

from django.conf import settings
from django.db import models
from django.utils import timezone
from simple_history.models import HistoricalRecords

from placement.domain.lifecycle import JobState
from placement.domain.look import Act, Restart, Rules
from placement.domain.move import HOLD_DOWN_FACTOR, MARGIN_RATIO
from reservations.models import Membership, User


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


class StoredPlanQuerySet(models.QuerySet["StoredPlan"]):
    """Reads of Plans that people kept."""

    def visible_to(self, user: User) -> "StoredPlanQuerySet":
        """Plans a User may look at: own, of members of Accounts they head; all for
        operators. Whoever has a Plan's link may look at that one too."""
        if user.is_operator:
            return self.all()
        headed = user.memberships.filter(is_head=True, active=True).values("account")
        members = Membership.objects.filter(account__in=headed, active=True)
        return self.filter(
            models.Q(owner=user) | models.Q(owner__in=members.values("user"))
        )


class StoredPlan(models.Model):
    """A Plan somebody chose: data, checked, printable, never changed."""

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
        help_text="Whoever is signed in and has it may look; empty: nobody by link.",
    )
    created_at = models.DateTimeField(default=timezone.now)

    objects = StoredPlanQuerySet.as_manager()

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
        SERVE = "serve", "served model"

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
    may_move = models.BooleanField(
        default=False, help_text="Look again whether it would run faster elsewhere."
    )
    restart = models.CharField(
        max_length=8,
        choices=[(r.value, r.label) for r in Restart],
        default=Restart.NOT,
        blank=True,
        help_text="Whether it may be stopped and started again on other GPUs.",
    )
    looked_at = models.DateTimeField(null=True, blank=True, editable=False)
    seen_step = models.BigIntegerField(
        null=True, blank=True, editable=False, help_text="The last its log told."
    )
    seen_step_at = models.DateTimeField(null=True, blank=True, editable=False)
    step_seconds = models.FloatField(
        null=True, blank=True, editable=False, help_text="Measured, the last look."
    )

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


class PlacementPolicy(models.Model):
    """The site's rules for running Jobs. One row; times in seconds."""

    look_again_seconds = models.PositiveIntegerField(
        default=60,
        help_text="Between two looks at a running job that asks for it; 0: never.",
    )
    when_faster = models.CharField(
        max_length=8,
        choices=[(a.value, a.label) for a in Act],
        default=Act.PROPOSE,
        help_text="When a job would pay for a move by running faster elsewhere.",
    )
    when_in_trouble = models.CharField(
        max_length=8,
        choices=[(a.value, a.label) for a in Act],
        default=Act.PROPOSE,
        help_text="When a stranger runs on a job's GPU, or the GPU breaks.",
    )
    margin_ratio = models.FloatField(
        default=MARGIN_RATIO,
        help_text="A move must save more than its cost by this part.",
    )
    hold_down_factor = models.FloatField(
        default=HOLD_DOWN_FACTOR,
        help_text="No second move before so many costs of the last one have passed.",
    )
    pause_seconds = models.PositiveIntegerField(
        default=30, help_text="What stopping and starting a job again takes."
    )

    network_bytes_per_second = models.PositiveBigIntegerField(
        default=0,
        help_text="Between nodes, one direction (10 Gbit/s: 1250000000); 0: not "
        "known, so no plan spans nodes.",
    )
    offload_memory_bytes = models.PositiveBigIntegerField(
        null=True,
        blank=True,
        help_text="What a plan may keep in a node's memory instead of its GPUs'; "
        "empty: not known, taken as enough.",
    )

    history = HistoricalRecords()

    class Meta:
        verbose_name_plural = "placement policy"
        constraints = [
            models.CheckConstraint(
                condition=models.Q(margin_ratio__gte=0, hold_down_factor__gte=0),
                name="moves_cost_no_less_than_nothing",
            )
        ]

    def __str__(self) -> str:
        return "Placement policy"

    def rules(self) -> Rules:
        """Return the rules as the frozen value that decisions take."""
        return Rules(
            when_faster=Act(self.when_faster),
            when_in_trouble=Act(self.when_in_trouble),
            margin_ratio=self.margin_ratio,
            hold_down_factor=self.hold_down_factor,
        )

    @classmethod
    def current(cls) -> "PlacementPolicy":
        """Return the one row, made with the defaults where it is missing."""
        return cls.objects.filter(pk=1).first() or cls.objects.get_or_create(pk=1)[0]


class MoveDecision(models.Model):
    """What looking again at a Job came to: stay or move, why, and what came of it."""

    class State(models.TextChoices):
        STAYS = "stays", "stays"
        PROPOSED = "proposed", "proposed"
        ACCEPTED = "accepted", "accepted, waits for its turn"
        MOVING = "moving", "moving"
        MOVED = "moved", "moved"
        DECLINED = "declined", "declined"
        WITHDRAWN = "withdrawn", "withdrawn"
        FAILED = "failed", "failed"

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="moves")
    at = models.DateTimeField(default=timezone.now)
    seen_at = models.DateTimeField(help_text="The last look that said the same.")
    looks = models.PositiveIntegerField(default=1, help_text="That said the same.")
    cause = models.CharField(
        max_length=40, help_text="look, or the rule of the alert behind it"
    )
    state = models.CharField(max_length=10, choices=State)
    reason = models.CharField(max_length=600)
    from_gpus = models.JSONField(default=list, help_text="node:index, by rank")
    to_gpus = models.JSONField(default=list, blank=True)
    gpu_ids = models.JSONField(
        default=list, blank=True, help_text="All that the reservation would hold then."
    )
    plan = models.ForeignKey(
        StoredPlan, null=True, blank=True, on_delete=models.PROTECT, related_name="+"
    )
    step_seconds_now = models.FloatField(null=True, blank=True)
    step_seconds_new = models.FloatField(null=True, blank=True)
    steps_left = models.BigIntegerField(
        null=True, blank=True, help_text="Empty: not known."
    )
    gain_seconds = models.FloatField(null=True, blank=True, help_text="Predicted.")
    cost_seconds = models.FloatField(null=True, blank=True, help_text="Predicted.")
    regret_seconds = models.FloatField(
        default=0, help_text="What staying has lost so far, of an unknown number left."
    )
    realised_step_seconds = models.FloatField(null=True, blank=True)
    realised_gain_seconds = models.FloatField(null=True, blank=True)
    realised_cost_seconds = models.FloatField(
        null=True, blank=True, help_text="From the order to the first process."
    )
    automatic = models.BooleanField(
        default=False, help_text="By the site's policy, nobody was asked."
    )
    decided_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="+",
    )
    decided_at = models.DateTimeField(null=True, blank=True)
    moved_at = models.DateTimeField(null=True, blank=True)
    next_job = models.OneToOneField(
        Job, null=True, blank=True, on_delete=models.SET_NULL, related_name="came_by"
    )

    class Meta:
        ordering = ["-at", "-pk"]
        indexes = [models.Index(fields=["state"])]
        constraints = [
            models.UniqueConstraint(
                fields=["job"],
                condition=models.Q(state__in=["proposed", "accepted", "moving"]),
                name="one_open_move_per_job",
            ),
            models.UniqueConstraint(
                fields=["state"],
                condition=models.Q(state="moving"),
                name="one_move_in_flight",
            ),
        ]

    def __str__(self) -> str:
        return f"job #{self.job_id}: {self.state}"


class Refinement(models.Model):
    """A symbolic Estimate: asked for once, kept by content, answered for everybody."""

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
    case = models.JSONField(help_text="placement.symbolic.case.Case")
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
