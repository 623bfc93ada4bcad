"""Reviews of running Jobs: the site's policy, and the decisions."""

from django.conf import settings
from django.db import models
from django.utils import timezone
from django.utils.translation import gettext, gettext_lazy
from simple_history.models import HistoricalRecords

from placement.models.jobs import Job
from placement.models.plans import StoredPlan
from placement.rules.placement_policy import JobFilePolicy, PlanPolicy
from placement.rules.rebalance_policy import RebalancePolicy
from telemetry.models.policy_row import PolicyColumns, PolicyRow


class PlacementPolicy(PolicyRow):
    """The site's rules for plans and jobs. One row."""

    declared = PolicyColumns(RebalancePolicy, PlanPolicy, JobFilePolicy)

    history = HistoricalRecords()

    class Meta:
        verbose_name = gettext_lazy("placement policy")
        verbose_name_plural = gettext_lazy("placement policy")
        constraints = [
            models.CheckConstraint(
                condition=models.Q(margin_ratio__gte=0, hold_down_factor__gte=0),
                name="moves_cost_no_less_than_nothing",
            )
        ]

    def __str__(self) -> str:
        return gettext("Placement policy")


class MoveDecision(models.Model):
    """The result of a review of a Job: stay or move, the reason, and the outcome."""

    class State(models.TextChoices):
        STAYS = "stays", gettext_lazy("stays")
        PROPOSED = "proposed", gettext_lazy("proposed")
        ACCEPTED = "accepted", gettext_lazy("accepted, waits for its turn")
        MOVING = "moving", gettext_lazy("moving")
        MOVED = "moved", gettext_lazy("moved")
        DECLINED = "declined", gettext_lazy("declined")
        WITHDRAWN = "withdrawn", gettext_lazy("withdrawn")
        FAILED = "failed", gettext_lazy("failed")

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
        verbose_name = gettext_lazy("move decision")
        verbose_name_plural = gettext_lazy("move decisions")
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
