"""Changes of the tree of Accounts, stored for reading and undo.

Rows have only keys and figures, never names. Names are looked up when they are shown,
so that the erasure of a person applies to them too.
"""

from django.db import models
from django.utils import timezone

from reservations.models.accounts import User


class TreeChange(models.Model):
    """One act on Accounts and Memberships, with all of its rows."""

    class Kind(models.TextChoices):
        EDIT = "edit"
        IMPORT = "import"
        COURSE = "course"
        ARCHIVE = "archive"
        EXPIRY = "expiry"
        DESK = "desk"
        UNDO = "undo"

    at = models.DateTimeField(default=timezone.now)
    actor = models.ForeignKey(User, null=True, blank=True, on_delete=models.PROTECT)
    kind = models.CharField(max_length=8, choices=Kind)
    reason = models.CharField(max_length=400, blank=True)
    undone_by = models.OneToOneField(
        "self", null=True, blank=True, on_delete=models.PROTECT, related_name="undoes"
    )

    class Meta:
        ordering = ["-pk"]
        indexes = [models.Index(fields=["at"])]

    def __str__(self) -> str:
        return f"{self.kind} #{self.pk}"


class TreeChangeRow(models.Model):
    """One Account or Membership before and after. Null: it did not exist."""

    class Table(models.TextChoices):
        ACCOUNT = "account"
        MEMBERSHIP = "member"

    change = models.ForeignKey(
        TreeChange, on_delete=models.CASCADE, related_name="rows"
    )
    table = models.CharField(max_length=8, choices=Table)
    row_pk = models.BigIntegerField()
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)
    version_after = models.PositiveIntegerField(
        help_text="An undo is refused where the row has another version by now."
    )

    class Meta:
        ordering = ["pk"]
        indexes = [models.Index(fields=["table", "row_pk"])]

    def __str__(self) -> str:
        return f"{self.table}:{self.row_pk} in #{self.change_id}"


class Invitation(models.Model):
    """A link with which a new User sets a password once. Only its hash is stored."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="invitations")
    link_hash = models.CharField(max_length=64, unique=True, editable=False)
    made_by = models.ForeignKey(
        User, null=True, on_delete=models.PROTECT, related_name="+"
    )
    created_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at", "-pk"]

    def __str__(self) -> str:
        return f"invitation of {self.user}"
