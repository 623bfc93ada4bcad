"""Served models: files, endpoints, and models at endpoints."""

from django.conf import settings
from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy

from placement.models.jobs import Job, JobQuerySet
from placement.models.plans import RegisteredModel
from reservations.models import Membership, User


class ModelFile(models.Model):
    """An ONNX file that was stored to be served, under MEDIA_ROOT."""

    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="model_files"
    )
    name = models.CharField(max_length=120)
    sha256 = models.CharField(
        max_length=64,
        help_text="Of the file; of the list of parts where there are several.",
    )
    size_bytes = models.BigIntegerField(help_text="Of all its parts.")
    parts = models.JSONField(
        default=list,
        blank=True,
        help_text="Where its weights lie in files beside it: name, sha256 and "
        "size_bytes of each, the model's own file first.",
    )
    signature = models.JSONField(
        help_text="Inputs and outputs: name, type, shape; operator sets."
    )
    spec = models.ForeignKey(
        RegisteredModel, null=True, blank=True, on_delete=models.SET_NULL
    )
    weight_bytes = models.BigIntegerField(help_text="Of its parameters, as stored.")
    created_at = models.DateTimeField(default=timezone.now)
    dropped_at = models.DateTimeField(
        null=True, blank=True, help_text="When its bytes were deleted."
    )

    class Meta:
        ordering = ["-created_at", "-pk"]
        constraints = [
            models.UniqueConstraint(
                fields=["owner", "sha256"],
                condition=models.Q(dropped_at=None),
                name="one_model_file_per_content",
            )
        ]

    def __str__(self) -> str:
        return self.name


class Admits(models.TextChoices):
    """Whose models an Endpoint accepts."""

    OWNER = "owner", gettext_lazy("its owner's models only")
    ACCOUNT = "account", gettext_lazy("models of the group that pays")
    ANYBODY = "anybody", gettext_lazy("models of everybody")


class EndpointQuerySet(models.QuerySet["Endpoint"]):
    """Reads of Endpoints."""

    def visible_to(self, user: User) -> "EndpointQuerySet":
        """Endpoints whose page a User may see: of Jobs they may see, or with their
        models.
        """
        if user.is_operator:
            return self.all()
        jobs: JobQuerySet = Job.objects.visible_to(user)
        brought = ServedModel.objects.filter(added_by=user, removed_at=None)
        return self.filter(
            models.Q(job__in=jobs.values("pk"))
            | models.Q(pk__in=brought.values("endpoint"))
        )

    def open_to(self, user: User) -> "EndpointQuerySet":
        """Running Endpoints to which a User may add a model. Not while they move."""
        accounts = Membership.objects.filter(user=user, active=True).values("account")
        shared = models.Q(
            admits=Admits.ACCOUNT,
            job__reservation__membership__account__in=accounts,
        )
        return self.filter(
            models.Q(job__owner=user) | models.Q(admits=Admits.ANYBODY) | shared,
            job__in=Job.objects.live().values("pk"),
        ).exclude(successors__job__in=Job.objects.live().values("pk"))


class Endpoint(models.Model):
    """The address of a Job of kind ``serve``, and the limits on its models."""

    job = models.OneToOneField(Job, on_delete=models.CASCADE, related_name="endpoint")
    gpu = models.ForeignKey("telemetry.Gpu", on_delete=models.PROTECT)
    admits = models.CharField(max_length=8, choices=Admits, default=Admits.OWNER)
    memory_bytes = models.BigIntegerField(
        help_text="GPU memory that the loaded models may use together."
    )
    follows = models.ForeignKey(
        "self",
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="successors",
        help_text="The endpoint whose models move here.",
    )
    took_over_at = models.DateTimeField(
        null=True, blank=True, help_text="Since when calls to that one come here."
    )
    heard_at = models.DateTimeField(
        null=True, blank=True, help_text="When its node last told of its models."
    )

    objects = EndpointQuerySet.as_manager()

    def __str__(self) -> str:
        return f"endpoint of job #{self.job_id}"


class ServedModel(models.Model):
    """One model at one Endpoint, with its name there."""

    endpoint = models.ForeignKey(
        Endpoint, on_delete=models.CASCADE, related_name="models"
    )
    file = models.ForeignKey(ModelFile, on_delete=models.PROTECT, related_name="served")
    name = models.CharField(max_length=63)
    added_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT)
    memory_bytes = models.BigIntegerField(help_text="Estimated, while it is loaded.")
    most_batch = models.PositiveSmallIntegerField(default=8)
    deadline_ms = models.PositiveIntegerField(
        default=10_000, help_text="Of requests that name none."
    )
    added_at = models.DateTimeField(default=timezone.now)
    removed_at = models.DateTimeField(null=True, blank=True)
    state = models.CharField(
        max_length=8, blank=True, help_text="As its node says: loading, ready, failed."
    )
    note = models.CharField(max_length=300, blank=True)
    ready_at = models.DateTimeField(
        null=True, blank=True, help_text="When it was ready for the first time."
    )

    class Meta:
        ordering = ["name"]
        constraints = [
            models.UniqueConstraint(
                fields=["endpoint", "name"],
                condition=models.Q(removed_at=None),
                name="one_model_per_name_and_endpoint",
            )
        ]

    def __str__(self) -> str:
        return f"{self.name} at {self.endpoint}"
