"""Jobs over several nodes: the part on each, and checkpoints in transfer.

A Job on one node has no JobPart. A Job over several nodes has one per node, the first
with number 0, and its own state is derived from theirs.
"""

from django.db import models

from placement.models.jobs import Job
from placement.protocol.job_lifecycle import JobState
from placement.protocol.job_parts import PartInfo


class JobPart(models.Model):
    """The part of a Job over several nodes on one of them."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="parts")
    number = models.PositiveSmallIntegerField(
        help_text="0: the first node, at which the others meet."
    )
    node = models.ForeignKey(
        "telemetry.Node", on_delete=models.PROTECT, related_name="+"
    )
    gpu_ids = models.JSONField(
        default=list, blank=True, help_text="Those it got there, by rank."
    )
    first_rank = models.PositiveSmallIntegerField(
        default=0, help_text="Of the ranks that run there."
    )
    state = models.CharField(
        max_length=10,
        choices=[(s.value, s.label) for s in JobState],
        default=JobState.QUEUED.value,
    )
    reason = models.CharField(max_length=400, blank=True)
    pid = models.PositiveIntegerField(null=True, blank=True)
    exit_code = models.IntegerField(null=True, blank=True)
    exit_signal = models.PositiveSmallIntegerField(null=True, blank=True)
    last_lines = models.JSONField(default=list, blank=True)
    order_nonce = models.CharField(max_length=64, blank=True)
    address = models.CharField(
        max_length=253, blank=True, help_text="Where the others meet; of the first."
    )
    port = models.PositiveIntegerField(null=True, blank=True)
    seen_at = models.DateTimeField(null=True, blank=True)
    ordered_at = models.DateTimeField(null=True, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    log_bytes = models.BigIntegerField(default=0)

    class Meta:
        ordering = ["job", "number"]
        constraints = [
            models.UniqueConstraint(
                fields=["job", "number"], name="one_part_per_number"
            ),
            models.UniqueConstraint(fields=["job", "node"], name="one_part_per_node"),
        ]

    def __str__(self) -> str:
        return f"part {self.number} of job #{self.job_id}"

    def info(self) -> PartInfo:
        """Return it as the frozen value for decisions."""
        return PartInfo(
            number=self.number,
            node=self.node.name,
            first_rank=self.first_rank,
            ranks=len(self.gpu_ids) or 1,
            state=JobState(self.state),
            reason=self.reason,
            last_lines=tuple(self.last_lines),
            ended_at=self.ended_at.timestamp() if self.ended_at else 0.0,
        )


class CarriedCheckpoint(models.Model):
    """One node's part of an ended Job's checkpoint, in transfer to other nodes."""

    class State(models.TextChoices):
        WANTED = "wanted", "asked of its node"
        COMING = "coming", "on its way"
        WHOLE = "whole", "here"
        NONE = "none", "its node has none"
        REFUSED = "refused", "cannot travel"
        DROPPED = "dropped", "deleted"

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="carried")
    number = models.PositiveSmallIntegerField(default=0, help_text="Of the part.")
    node = models.ForeignKey(
        "telemetry.Node", on_delete=models.PROTECT, related_name="+"
    )
    state = models.CharField(max_length=8, choices=State, default=State.WANTED)
    size_bytes = models.BigIntegerField(default=0)
    have_bytes = models.BigIntegerField(default=0)
    sha256 = models.CharField(max_length=64, blank=True)
    reason = models.CharField(max_length=400, blank=True)
    asked_at = models.DateTimeField()
    ordered_at = models.DateTimeField(null=True, blank=True)
    whole_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["job", "number"]
        indexes = [models.Index(fields=["state"])]
        constraints = [
            models.UniqueConstraint(
                fields=["job", "number"], name="one_carried_checkpoint_per_part"
            )
        ]

    def __str__(self) -> str:
        return f"checkpoint of job #{self.job_id}, part {self.number}"
