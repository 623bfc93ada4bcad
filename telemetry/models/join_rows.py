"""Join tokens, and what the portal knows about the machine behind each node."""

from datetime import datetime

from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as lazy

from telemetry.models.nodes import Node


class NodeJoin(models.Model):
    """A token with which one machine may join as one node, and what came of it."""

    class State(models.TextChoices):
        """What a token is good for now."""

        WAITING = "waiting", lazy("waits for the machine")
        USED = "used", lazy("joined")
        WITHDRAWN = "withdrawn", lazy("withdrawn")
        EXPIRED = "expired", lazy("expired")

    public_id = models.CharField(max_length=16, unique=True, editable=False)
    secret_hash = models.CharField(max_length=64, editable=False)
    name = models.SlugField(max_length=63)
    again = models.BooleanField(
        default=False, help_text="The name is enrolled already, and may join again."
    )
    created_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField()
    withdrawn_at = models.DateTimeField(null=True, blank=True)
    used_at = models.DateTimeField(null=True, blank=True)
    wrong_count = models.PositiveIntegerField(
        default=0, help_text="How often a wrong secret was tried."
    )
    public_key = models.CharField(
        max_length=44,
        blank=True,
        help_text="The first key that used the token. No other key may join.",
    )
    node = models.ForeignKey(
        Node, null=True, blank=True, on_delete=models.CASCADE, related_name="node_joins"
    )
    address = models.GenericIPAddressField(null=True, blank=True)
    request = models.JSONField(
        default=dict, blank=True, help_text="What the machine sent about itself."
    )
    broker_hash = models.CharField(
        max_length=64, blank=True, help_text="SHA-256 of the broker's password."
    )
    broker_problem = models.CharField(max_length=200, blank=True)
    broker_set = models.BooleanField(default=False)
    facts = models.JSONField(
        default=dict, blank=True, help_text="What the node's doctor found."
    )
    facts_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return self.name

    def state(self, now: datetime) -> "NodeJoin.State":
        """Return what the token is good for at an instant."""
        if self.used_at is not None:
            return self.State.USED
        if self.withdrawn_at is not None:
            return self.State.WITHDRAWN
        return self.State.WAITING if now < self.expires_at else self.State.EXPIRED


class NodeIdentity(models.Model):
    """The machine that signs in as a node."""

    node = models.OneToOneField(Node, on_delete=models.CASCADE, related_name="identity")
    public_key = models.CharField(max_length=44, blank=True)
    """The key that it made when it joined (Ed25519, base64)."""
    machine_hash = models.CharField(max_length=64, blank=True, db_index=True)
    join_count = models.PositiveIntegerField(default=0)
    joined_at = models.DateTimeField(null=True, blank=True)
    other_machine_at = models.DateTimeField(null=True, blank=True)
    """When another machine than before joined under this name."""
    boots = models.JSONField(default=list, blank=True)
    """Ids of its last boots, the newest first."""
    two_machines_at = models.DateTimeField(null=True, blank=True)
    """When two machines last used its token in turns."""
    enrolment_hash = models.CharField(
        max_length=64, blank=True, default="", db_default="", editable=False
    )
    """Hash of the enrolment token with which the key was bound; empty: none was."""
    token_number = models.PositiveIntegerField(default=0, db_default=0, editable=False)
    """How many short tokens the node got since then."""
    token_hash = models.CharField(
        max_length=64, blank=True, default="", db_default="", editable=False
    )
    token_issued_at = models.DateTimeField(null=True, editable=False)
    token_before_hash = models.CharField(
        max_length=64, blank=True, default="", db_default="", editable=False
    )
    """Hash of the token before, which is accepted for some minutes more."""
    proved_from = models.CharField(
        max_length=200, blank=True, default="", db_default="", editable=False
    )
    """Host name and address of the machine that got the last short token."""
    refused_from = models.CharField(
        max_length=200, blank=True, default="", db_default="", editable=False
    )
    """Those of the last machine that got none, because another one did."""
    refused_at = models.DateTimeField(null=True, editable=False)

    class Meta:
        verbose_name_plural = "node identities"

    def __str__(self) -> str:
        return self.node.name
