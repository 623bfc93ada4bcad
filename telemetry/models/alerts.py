"""Open and closed findings, and the responses to them."""

from datetime import datetime, timedelta

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as lazy

from telemetry.models.nodes import Gpu, Node
from telemetry.rules.alert_rules import Severity


class AlertQuerySet(models.QuerySet["Alert"]):
    """Reads of Alerts."""

    def open(self) -> "AlertQuerySet":
        """Filter the open findings."""
        return self.filter(closed_at=None)

    def rules_by_gpu(self) -> dict[int, set[str]]:
        """Return the open rules by Gpu. A finding of a Node counts for each of its
        Gpus."""
        found: dict[int, set[str]] = {}
        by_node: dict[int, set[str]] = {}
        for gpu_id, node_id, rule in self.values_list("gpu_id", "node_id", "rule"):
            if gpu_id is not None:
                found.setdefault(gpu_id, set()).add(rule)
            elif node_id is not None:
                by_node.setdefault(node_id, set()).add(rule)
        gpus = Gpu.objects.filter(node__in=by_node, retired=False)
        for gpu_id, node_id in gpus.values_list("pk", "node_id") if by_node else ():
            found.setdefault(gpu_id, set()).update(by_node[node_id])
        return found

    def calling(self, now: datetime) -> "AlertQuerySet":
        """Filter the open findings that are neither acknowledged nor snoozed."""
        awake = Q(snoozed_until=None) | Q(snoozed_until__lte=now)
        return self.open().filter(awake, acknowledged_at=None)


class Alert(models.Model):
    """One open finding of one rule on one Gpu, or on a whole Node."""

    rule = models.CharField(max_length=40)
    severity = models.CharField(
        max_length=10,
        choices=[(word.value, word.value) for word in Severity],
        default=Severity.WARNING.value,
    )
    gpu = models.ForeignKey(
        Gpu, null=True, blank=True, on_delete=models.CASCADE, related_name="alerts"
    )
    node = models.ForeignKey(
        Node,
        null=True,
        blank=True,
        on_delete=models.CASCADE,
        related_name="alerts",
        help_text="Set where the cause is the whole node's; then there is no GPU.",
    )
    reservation_id = models.BigIntegerField(null=True, blank=True)
    detail = models.JSONField(default=dict)
    readings = models.JSONField(
        default=list, blank=True, help_text="What made it: at most ten, oldest first."
    )
    opened_at = models.DateTimeField()
    last_seen_at = models.DateTimeField()
    closed_at = models.DateTimeField(null=True, blank=True)
    openings = models.PositiveIntegerField(
        default=1, help_text="How often the cause came back before it was over."
    )
    acknowledged_at = models.DateTimeField(null=True, blank=True)
    acknowledged_by = models.CharField(
        max_length=150, blank=True, help_text="Login name of the operator."
    )
    snoozed_until = models.DateTimeField(null=True, blank=True)
    snoozed_by = models.CharField(max_length=150, blank=True)

    objects = AlertQuerySet.as_manager()

    class Meta:
        verbose_name = lazy("alert")
        verbose_name_plural = lazy("alerts")
        ordering = ["-opened_at"]
        constraints = [
            models.UniqueConstraint(
                fields=["rule", "gpu"],
                condition=Q(closed_at=None),
                name="one_open_alert_per_rule_and_gpu",
            ),
            models.UniqueConstraint(
                fields=["rule", "node"],
                condition=Q(closed_at=None),
                name="one_open_alert_per_rule_and_node",
            ),
            models.CheckConstraint(
                condition=Q(gpu=None, node__isnull=False)
                | Q(gpu__isnull=False, node=None),
                name="an_alert_is_about_a_gpu_or_a_node",
            ),
        ]
        indexes = [
            models.Index(fields=["closed_at", "-opened_at"]),
            models.Index(fields=["reservation_id"]),
        ]

    def __str__(self) -> str:
        return f"{self.words} on {self.place}"

    @property
    def place(self) -> str:
        """Return where it is: "node-a:1", or "node-a" for a whole node."""
        return str(self.gpu if self.gpu_id else self.node)

    @property
    def words(self) -> str:
        """Return the rule in words: "missing after reboot"."""
        return self.rule.replace("_", " ")

    @property
    def lasted(self) -> timedelta:
        """Return how long the finding has been open."""
        return (self.closed_at or self.last_seen_at) - self.opened_at

    def snoozed(self, now: datetime) -> bool:
        """Return whether it is snoozed at an instant."""
        return self.snoozed_until is not None and self.snoozed_until > now


class XidCount(models.Model):
    """How often one Gpu's driver reported one XID."""

    gpu = models.ForeignKey(Gpu, on_delete=models.CASCADE, related_name="xid_counts")
    code = models.PositiveIntegerField()
    count = models.PositiveBigIntegerField(default=0)
    first_at = models.DateTimeField()
    last_at = models.DateTimeField()
    cleared_at = models.DateTimeField(
        null=True, blank=True, help_text="What came up to then was dealt with."
    )

    class Meta:
        verbose_name = lazy("Xid count")
        verbose_name_plural = lazy("Xid counts")
        ordering = ["-last_at"]
        constraints = [
            models.UniqueConstraint(
                fields=["gpu", "code"], name="one_count_per_gpu_and_xid"
            )
        ]

    def __str__(self) -> str:
        return f"XID {self.code} on {self.gpu}"

    @property
    def is_uncleared(self) -> bool:
        """Whether an event came since it was cleared."""
        return self.cleared_at is None or self.cleared_at < self.last_at


class Response(models.Model):
    """One response to one process, taken or only recorded (dry run)."""

    class Step(models.TextChoices):
        NOTIFY = "notify", lazy("shown in the portal")
        WARN = "warn", lazy("warned on the terminal")
        STOP = "stop", lazy("process stopped")

    alert = models.ForeignKey(Alert, on_delete=models.CASCADE, related_name="responses")
    step = models.CharField(max_length=10, choices=Step)
    pid = models.PositiveIntegerField()
    process_started_at = models.FloatField(help_text="Unix seconds, the node's clock.")
    uid = models.PositiveBigIntegerField()
    login = models.CharField(max_length=64, help_text="Unix login of the process.")
    user_id = models.BigIntegerField(
        null=True, blank=True, help_text="The portal's user, where there is one."
    )
    dry_run = models.BooleanField()
    nonce = models.CharField(max_length=64, blank=True, db_index=True)
    at = models.DateTimeField()
    outcome = models.CharField(max_length=20, blank=True)
    outcome_reason = models.CharField(max_length=300, blank=True)
    outcome_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name = lazy("response")
        verbose_name_plural = lazy("responses")
        ordering = ["-at", "-pk"]
        constraints = [
            models.UniqueConstraint(
                fields=["alert", "step", "pid", "process_started_at", "dry_run"],
                name="each_step_once_per_process",
            )
        ]
        indexes = [models.Index(fields=["user_id"])]

    def __str__(self) -> str:
        return f"{self.step} {self.login}: {self.pid}"
