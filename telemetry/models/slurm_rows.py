"""A Slurm cluster whose GPUs the board shows, and what Slurm does with each GPU."""

from django.db import models

from telemetry.models.nodes import Gpu

WORD_LENGTH = 80
"""Longest name of a user, an account or a reservation. Longer ones are cut."""
REASON_LENGTH = 200


class SlurmCluster(models.Model):
    """A cluster, and when it answered."""

    name = models.CharField(max_length=40, unique=True)
    version = models.CharField(max_length=20, blank=True)
    read_at = models.DateTimeField(
        null=True, blank=True, help_text="When Slurm answered last."
    )
    failing_since = models.DateTimeField(
        null=True,
        blank=True,
        help_text="Since when Slurm does not answer; empty: it answers.",
    )
    failure = models.CharField(max_length=300, blank=True)
    skipped = models.JSONField(
        default=list,
        blank=True,
        help_text="[node, reason] of each node of Slurm that the board does not show.",
    )
    held = models.JSONField(
        default=list,
        blank=True,
        db_default=[],
        help_text="[reservation, node, start, end, GPUs] of each reservation, in Unix "
        "seconds. GPUs is null: the whole node.",
    )
    imported_at = models.DateTimeField(
        null=True,
        blank=True,
        help_text="When what people used was last charged, all of it or a part.",
    )
    import_failure = models.CharField(
        max_length=300,
        blank=True,
        default="",
        db_default="",
        help_text="What the last import could not read; empty: it read everything.",
    )

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class SlurmGpu(models.Model):
    """What Slurm does with a GPU, from its last answer."""

    gpu = models.OneToOneField(
        Gpu, on_delete=models.CASCADE, primary_key=True, related_name="slurm"
    )
    cluster = models.ForeignKey(
        SlurmCluster, on_delete=models.PROTECT, related_name="gpus"
    )
    use = models.CharField(max_length=10, help_text="A SlurmUse.")
    unix_user = models.CharField(max_length=WORD_LENGTH, blank=True)
    account = models.CharField(max_length=WORD_LENGTH, blank=True)
    job_id = models.BigIntegerField(null=True, blank=True)
    reservation = models.CharField(max_length=WORD_LENGTH, blank=True)
    until = models.DateTimeField(null=True, blank=True)
    next_at = models.DateTimeField(null=True, blank=True)
    next_user = models.CharField(max_length=WORD_LENGTH, blank=True)
    reason = models.CharField(max_length=REASON_LENGTH, blank=True)
    cpus = models.PositiveIntegerField(
        null=True,
        blank=True,
        help_text="Processors that are reserved with it; empty: its node is reserved "
        "as a whole.",
    )
    whole_because = models.CharField(
        max_length=20,
        blank=True,
        default="",
        db_default="",
        help_text="Why its node is reserved as a whole: a WholeNodes; empty: it is "
        "not, or Slurm was not asked.",
    )
    job_name = models.CharField(
        max_length=WORD_LENGTH, blank=True, default="", db_default=""
    )

    def __str__(self) -> str:
        return f"{self.gpu_id}: {self.use}"
