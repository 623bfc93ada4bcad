"""Workspaces: Jobs that a browser talks to, and the entries into them."""

from django.conf import settings
from django.db import models
from django.utils import timezone

from placement.models.jobs import Job


class Workspace(models.Model):
    """An interactive program such as JupyterLab, run by a Job of kind workspace."""

    job = models.OneToOneField(Job, on_delete=models.CASCADE, related_name="workspace")
    app = models.CharField(max_length=40)
    label = models.CharField(
        max_length=40,
        unique=True,
        editable=False,
        help_text="Random part of its host name. Each workspace has its own origin.",
    )
    shared = models.BooleanField(
        default=False,
        help_text="Whether co-users of the reservation may use it. They act as its "
        "owner there.",
    )
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-created_at", "-pk"]

    def __str__(self) -> str:
        return f"{self.app} of job #{self.job_id}"


class WorkspaceEntry(models.Model):
    """One entry of a User into a Workspace: a code that is used once, then a cookie.

    Only hashes are stored. The entry ends with the portal session that made it.
    """

    workspace = models.ForeignKey(
        Workspace, on_delete=models.CASCADE, related_name="entries"
    )
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        on_delete=models.CASCADE,
        related_name="workspace_entries",
    )
    session_key = models.CharField(max_length=40)
    code_hash = models.CharField(max_length=64, unique=True, help_text="SHA-256.")
    code_until = models.DateTimeField()
    cookie_hash = models.CharField(
        max_length=64,
        unique=True,
        null=True,
        blank=True,
        help_text="SHA-256; empty: the code was not used yet.",
    )
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-created_at", "-pk"]

    def __str__(self) -> str:
        return f"{self.user} in {self.workspace}"
