"""Looking again at running Jobs: the site's rules, and what each look came to."""

from django.conf import settings
from django.db import models
from django.utils import timezone
from django.utils.translation import gettext, gettext_lazy
from simple_history.models import HistoricalRecords

from placement.models.jobs import Job
from placement.models.plans import StoredPlan
from placement.planner.search.move_benefit import HOLD_DOWN_FACTOR, MARGIN_RATIO
from placement.rules.rebalance_rules import RebalanceAction, RebalancePolicy


class PlacementPolicy(models.Model):
    """The site's rules for running Jobs. One row; times in seconds."""

    look_again_seconds = models.PositiveIntegerField(
        default=60,
        help_text=gettext_lazy(
            "Time between two checks of a running job for faster GPUs. In seconds; "
            "0: never."
        ),
    )
    when_faster = models.CharField(
        max_length=8,
        choices=[(a.value, a.label) for a in RebalanceAction],
        default=RebalanceAction.PROPOSE.value,
        help_text=gettext_lazy(
            "What to do when a job would save more time on other GPUs than a move "
            "costs."
        ),
    )
    when_in_trouble = models.CharField(
        max_length=8,
        choices=[(a.value, a.label) for a in RebalanceAction],
        default=RebalanceAction.PROPOSE.value,
        help_text=gettext_lazy(
            "What to do when someone else uses a job's GPU, or the GPU fails."
        ),
    )
    margin_ratio = models.FloatField(
        default=MARGIN_RATIO,
        help_text=gettext_lazy(
            "How much more than its cost a move must save. A ratio; 0.1 is 10 %."
        ),
    )
    hold_down_factor = models.FloatField(
        default=HOLD_DOWN_FACTOR,
        help_text=gettext_lazy(
            "Pause before the next move, as a multiple of the cost of the last one."
        ),
    )
    pause_seconds = models.PositiveIntegerField(
        default=30,
        help_text=gettext_lazy(
            "Time that it takes to stop and restart a job. In seconds."
        ),
    )

    network_bytes_per_second = models.PositiveBigIntegerField(
        default=0,
        help_text=gettext_lazy(
            "Network speed between nodes, in bytes per second and one direction (10 "
            "Gbit/s: 1250000000). 0: unknown, so no plan uses several nodes."
        ),
    )
    offload_memory_bytes = models.PositiveBigIntegerField(
        null=True,
        blank=True,
        help_text=gettext_lazy(
            "Memory of a node that a plan may use for offloading, in bytes. Empty: "
            "no limit."
        ),
    )
    learns = models.BooleanField(
        default=True,
        help_text=gettext_lazy(
            "Whether the results of jobs correct later predictions."
        ),
    )
    results_most_files = models.PositiveIntegerField(
        default=200,
        help_text=gettext_lazy("Most result files of one job that the portal keeps."),
    )
    results_most_bytes = models.PositiveBigIntegerField(
        default=2 * 2**30,
        help_text=gettext_lazy("Most bytes of all result files of one job together."),
    )
    results_keep_days = models.PositiveIntegerField(
        default=30,
        help_text=gettext_lazy(
            "Results are deleted this many days after the end of their job."
        ),
    )
    results_person_bytes = models.PositiveBigIntegerField(
        default=50 * 2**30,
        help_text=gettext_lazy(
            "Most bytes of results that the portal keeps for one person. 0: no limit."
        ),
    )
    logs_keep_days = models.PositiveIntegerField(
        default=90,
        help_text=gettext_lazy(
            "Logs are deleted this many days after the end of their job. 0: never."
        ),
    )
    logs_person_bytes = models.PositiveBigIntegerField(
        default=20 * 2**30,
        help_text=gettext_lazy(
            "Logs of one person's jobs that are kept at a time; the oldest are "
            "deleted first; 0: no limit."
        ),
    )

    checkpoint_bytes = models.PositiveBigIntegerField(
        default=8 * 2**30,
        help_text=gettext_lazy(
            "Largest checkpoint that may be copied between nodes through the "
            "portal, in bytes. 0: none."
        ),
    )

    history = HistoricalRecords()

    class Meta:
        verbose_name_plural = gettext_lazy("placement policy")
        constraints = [
            models.CheckConstraint(
                condition=models.Q(margin_ratio__gte=0, hold_down_factor__gte=0),
                name="moves_cost_no_less_than_nothing",
            )
        ]

    def __str__(self) -> str:
        return gettext("Placement policy")

    def rules(self) -> RebalancePolicy:
        """Return the rules as the frozen value that decisions take."""
        return RebalancePolicy(
            when_faster=RebalanceAction(self.when_faster),
            when_in_trouble=RebalanceAction(self.when_in_trouble),
            margin_ratio=self.margin_ratio,
            hold_down_factor=self.hold_down_factor,
        )

    @classmethod
    def current(cls) -> "PlacementPolicy":
        """Return the one row, made with the defaults where it is missing."""
        return cls.objects.filter(pk=1).first() or cls.objects.get_or_create(pk=1)[0]


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
