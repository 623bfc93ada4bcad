"""Language models that are served with an OpenAI-compatible API."""

from django.db import models
from django.utils import timezone

from placement.models.jobs import Job, JobQuerySet
from placement.models.serving import Admits
from reservations.models import Membership, User


class LanguageModelEndpointQuerySet(models.QuerySet["LanguageModelEndpoint"]):
    """Reads of LanguageModelEndpoints."""

    def callable_by(self, user: User) -> "LanguageModelEndpointQuerySet":
        """Endpoints whose model a User may call: own ones, and shared ones."""
        accounts = Membership.objects.filter(user=user, active=True).values("account")
        shared = models.Q(
            callers=Admits.ACCOUNT,
            job__reservation__membership__account__in=accounts,
        )
        return self.filter(
            models.Q(job__owner=user) | models.Q(callers=Admits.ANYBODY) | shared
        )

    def visible_to(self, user: User) -> "LanguageModelEndpointQuerySet":
        """Endpoints whose page a User may see: of Jobs they may see or call."""
        if user.is_operator:
            return self.all()
        jobs: JobQuerySet = Job.objects.visible_to(user)
        called = self.model.objects.callable_by(user).values("pk")
        return self.filter(
            models.Q(job__in=jobs.values("pk")) | models.Q(pk__in=called)
        )


class LanguageModelEndpoint(models.Model):
    """The model of a Job of kind ``text``, its Gpus, and its callers."""

    job = models.OneToOneField(
        Job, on_delete=models.CASCADE, related_name="language_model_endpoint"
    )
    name = models.CharField(max_length=63, help_text="Of the model, in requests.")
    gpu_uuids = models.JSONField(help_text="The GPUs of its plan, in rank order.")
    callers = models.CharField(max_length=8, choices=Admits, default=Admits.OWNER)
    weight_bytes = models.BigIntegerField(help_text="Estimated, of all GPUs together.")
    cache_bytes = models.BigIntegerField(
        help_text="Estimated KV cache, of all GPUs together."
    )
    total_bytes = models.BigIntegerField(
        help_text="Estimated memory, of all GPUs together."
    )
    created_at = models.DateTimeField(default=timezone.now)

    objects = LanguageModelEndpointQuerySet.as_manager()

    class Meta:
        ordering = ["-created_at", "-pk"]

    def __str__(self) -> str:
        return f"{self.name} at job #{self.job_id}"
