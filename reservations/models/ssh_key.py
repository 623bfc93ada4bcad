"""The ssh public keys of users."""

from django.db import models
from django.utils import timezone

from reservations.models.accounts import User


class SshKey(models.Model):
    """An ssh public key of one User. Removing it deletes the row.

    The database never gives a number twice, so the number stands for the key in the
    certificates that are made for it.
    """

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="ssh_keys")
    name = models.CharField(max_length=60)
    public_key = models.CharField(max_length=4096)
    """Type and base64, as in an authorized_keys file, without a comment."""
    fingerprint = models.CharField(max_length=64)
    """As ssh-keygen shows it: ``SHA256:`` and base64."""
    added_at = models.DateTimeField(default=timezone.now)
    last_used_at = models.DateTimeField(null=True, blank=True)
    """When the last certificate was made for it."""

    class Meta:
        ordering = ["-added_at", "-pk"]
        constraints = [
            models.UniqueConstraint(
                fields=["user", "fingerprint"], name="one_ssh_key_per_user"
            )
        ]

    def __str__(self) -> str:
        return f"{self.name} of {self.user}"

    @property
    def kind(self) -> str:
        """The type, such as ``ssh-ed25519``."""
        return self.public_key.partition(" ")[0]
